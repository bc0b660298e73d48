"""``show APPROVAL_ID``: all that a human needs to decide, and what has become of a request."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from surehand.cli.approvals import ShownApproval, approval_lines
from surehand.process.settings import ClientSettings
from surehand.workflows.plan.policy import Escalate, Requirement
from tests.cli.starter import Run, Verbs

NewRun = Callable[..., Run]

ACME = ClientSettings(tenant="acme", user="uma", task_queue="q", ui_url="http://ui")
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def shown(verbs: Verbs, approval: str) -> ShownApproval:
    return ShownApproval.model_validate(verbs("show", approval, "--json").document())


def test_a_waiting_request_shows_the_call_and_its_voters(verbs: Verbs, new_run: NewRun) -> None:
    run = new_run()

    text = verbs("show", f"{run.name}/refund/1").out

    for part in (
        f"{run.name}/refund/1  Refund 120.00 EUR for {run.order}\n",
        "  state      waits for a decision\n",
        "  tool       payments.refund (version 1)\n",
        f"  effect     key refund:{run.order}\n",
        '               "amount": "120.00",\n',
        "  hash       sha256:",
        "  undo       undone by payments.cancel_refund (version 1)\n",
        "  asked by   ana\n",
        "  needs      1 approval\n",
        "  so far     nobody\n",
        "  expires    in 23 h 59 min (",
    ):
        assert part in text


@pytest.mark.parametrize(("verb", "state"), [("approve", "approved"), ("reject", "rejected")])
def test_its_commands_can_be_pasted(verbs: Verbs, new_run: NewRun, verb: str, state: str) -> None:
    run = new_run()
    approval = f"{run.name}/refund/1"
    line = shown(verbs, approval).commands[verb]

    assert verbs(*shlex.split(line)[2:], "--as", "bob", "--reason", "looked").code == 0
    verbs(*run.start, "--wait")

    settled = shown(verbs, approval)
    assert (settled.state, settled.decided_by, settled.reason) == (
        state,
        "bob (unverified)",
        "looked",
    )
    assert (settled.open, settled.commands) == (False, {})
    assert f"  state      {state} by bob (unverified): looked\n" in verbs("show", approval).out


def test_an_edited_request_shows_who_changed_what(verbs: Verbs, new_run: NewRun) -> None:
    run = new_run()
    first, second = f"{run.name}/refund/1", f"{run.name}/refund/2"
    line = shown(verbs, first).commands["edit"].replace("PATH=VALUE", "amount=15.00")
    assert verbs(*shlex.split(line)[2:], "--as", "bob").code == 0
    verbs(*run.start, "--wait")

    text = verbs("show", second).out
    assert f"  changed    from {first}\n" in text
    assert '             -   "amount": "120.00",\n             +   "amount": "15.00",\n' in text
    assert "  edited by  bob\n" in text
    assert shown(verbs, second).replaces == first
    assert "edited by bob (unverified); another request asks" in verbs("show", first).out


def test_an_unknown_request_lists_the_known_ones(verbs: Verbs, new_run: NewRun) -> None:
    run = new_run()

    ended = verbs("show", f"{run.name}/refund/7")

    assert ended.code == 2
    assert f"approval not found: {run.name}/refund/7; it has {run.name}/refund/1" in ended.line()


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("run-1/refund/one", "it looks like RUN/STEP/NUMBER"),
        ("no-such-run/refund/1", "run not found: no-such-run"),
        ("acme/refund-1/refund/1", "run not found: acme/refund-1"),
        ("a/b/c/d/1", "a run's name has 1 to 120 letters"),
    ],
)
def test_an_id_that_leads_nowhere_is_one_clear_line(verbs: Verbs, typed: str, said: str) -> None:
    ended = verbs("show", typed)

    assert ended.code == 2
    assert said in ended.line()


def lines_of(**changes: object) -> str:
    one = {
        "approval_id": "r/pay/1",
        "step_id": "pay",
        "tool": "pay",
        "version": "1",
        "params": {"to": "ada"},
        "params_hash": "sha256:0",
        "description": "Pay",
        "requested_by": "uma",
        "expires_at": NOW + timedelta(hours=3, minutes=12, seconds=30),
        "undo": "cannot be undone",
        "run_id": "r",
        "run_state": "waiting_approval",
        "state": "pending",
        "open": True,
        "web_ui": "http://127.0.0.1",
    }
    return "\n".join(approval_lines(ACME, ShownApproval.model_validate(one | changes), NOW))


def test_the_time_left_and_what_follows_it_are_said() -> None:
    assert "expires    in 3 h 12 min (" in lines_of()
    assert "then the run ends as if it was rejected" in lines_of()
    assert "then it is asked again" in lines_of(on_expiry="ask_again")
    assert "then cfo is asked" in lines_of(on_expiry=Escalate(escalate="cfo"))
    assert "expires    in 2 d 1 h (" in lines_of(expires_at=NOW + timedelta(days=2, hours=1))
    over = lines_of(expires_at=NOW - timedelta(seconds=90), open=False, state="expired")
    assert "expired: nobody has decided in time" in over and "1 min 30 s ago (" in over


def test_policies_votes_resources_and_the_wish_for_signatures_are_said() -> None:
    text = lines_of(
        requirements=[Requirement(quorum=2, roles=("finance",), four_eyes=True)],
        votes=["ann"],
        excluded=["bob", "uma"],
        resources=["account:7", "account:8"],
        assurance="signed",
        editors=["bob"],
    )

    for part in (
        "needs      2 approvals of finance, not by who asked for it",
        "not by     bob, uma",
        "so far     ann",
        "resources  account:7, account:8",
        "decisions  have to be signed",
        "edited by  bob",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("assurance", "said"),
    [
        ("open", "need no signature"),
        ("passkey", "have to be signed by a passkey"),
        ("device_passkey", "have to be signed by a passkey that is bound to its device"),
    ],
)
def test_what_has_to_prove_a_decision_is_said(assurance: str, said: str) -> None:
    assert f"  decisions  {said}\n" in lines_of(assurance=assurance)


def test_a_request_of_a_run_that_the_server_has_ended_says_so() -> None:
    text = lines_of(run_state="terminated", open=False)

    assert "waits for a decision; its run is terminated, and no decision reaches it" in text
