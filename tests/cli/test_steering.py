"""Approving, cancelling and looking, against a real server and a real worker."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from surehand.cli.approvals import PendingList, ShownApproval, approval_lines
from surehand.cli.audit import AuditReport
from surehand.cli.doctor import DoctorReport
from surehand.cli.options import LedgerRows
from surehand.cli.runs import RunList, ShownRun
from surehand.cli.tools import ToolList
from surehand.process.dev_server import DevServer
from surehand.process.settings import ClientSettings
from surehand.workflows.contracts.approvals import Verdict
from surehand.workflows.contracts.runs import Checkpoint
from surehand.workflows.plan.policy import Escalate, Requirement
from tests.cli.starter import Run, Verbs

NewRun = Callable[..., Run]
NO_PARAMS = f"sha256:{'0' * 64}"


def test_every_reading_verb_prints_one_document_of_its_shape(verbs: Verbs, new_run: NewRun) -> None:
    run = new_run().name

    RunList.model_validate(verbs("list", "--json").document())
    shown = ShownRun.model_validate(verbs("show", run, "--json").document())
    Checkpoint.model_validate(verbs("checkpoint", run, "--json").document())
    PendingList.model_validate(verbs("pending", "--json").document())
    ToolList.model_validate(verbs("tools", "--json").document())
    for verb in ("effects", "events", "interventions"):
        LedgerRows.model_validate(verbs(verb, run, "--json").document())
    assert shown.web_ui.endswith(f"/namespaces/default/workflows/{run}")


def test_people_see_steps_effects_decisions_and_what_to_do(verbs: Verbs, new_run: NewRun) -> None:
    run = new_run()
    decision = verbs.asked(run.name)

    for text in (verbs("show", run.name).out, verbs("pending").out):
        assert f"python starter.py approve {' '.join(decision)}" in text
        assert '"amount": "120.00"' in text
    assert "approved by bob (unverified)" in verbs("approve", *decision, "--as", "bob").out
    assert verbs(*run.start, "--wait").code == 0

    shown = verbs("show", run.name).out
    [told] = [line for line in shown.splitlines() if "approved by bob" in line]
    assert told.endswith("(unverified)")
    assert "Unverified approvals (unsigned): 1, by bob." in verbs("audit", run.name).out
    audited = AuditReport.model_validate(verbs("audit", run.name, "--json").document())
    assert audited.unverified_approvals == ["bob"]
    assert f"refund:{run.order}" in shown
    assert "committed" in shown


def test_an_audit_says_what_the_chain_was_compared_with(verbs: Verbs, new_run: NewRun) -> None:
    said = verbs("audit", new_run().name)

    assert said.code == 0
    assert "the newest event's hash in the ledger's row of the run, and " in said.out
    assert " hashes that Temporal's history recorded as the run went on." in said.out
    assert said.out.endswith("Nothing is left open.\n")


def test_a_run_without_a_goal_is_shown_without_one(verbs: Verbs, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text("- {tool: orders.read, params: {order_id: order-1001}}")
    verbs("start", str(plan), "--run-id", "no-goal", "--wait")

    assert "  plan     plan, version 1\n" in verbs("show", "no-goal").out


def test_a_decision_for_other_params_is_refused_and_says_why(verbs: Verbs, new_run: NewRun) -> None:
    run = new_run()
    decision = verbs.asked(run.name)

    wrong = ("approve", decision[0], "--params-hash", NO_PARAMS)
    refused, told = verbs(*wrong), verbs(*wrong, "--json")

    assert (refused.code, told.code) == (2, 2)
    assert "wrong_hash" in refused.line() and f" show {run.name}`" in refused.line()
    assert decision[-1] not in refused.line(), "nobody approves by a hash that a refusal told"
    assert Verdict.model_validate(told.document()).code == "wrong_hash"
    assert verbs.asked(run.name) == decision


def test_an_early_decision_is_shown_with_what_it_waits_for(verbs: Verbs, new_run: NewRun) -> None:
    run = new_run()
    early = f"{run.name}/refund/2"
    sent = verbs("approve", early, "--params-hash", NO_PARAMS, "--as", "bob")
    assert (sent.code, "before its request" in sent.out) == (0, True)
    waits = "step refund to ask, which is waiting_approval"

    [held] = [one for one in verbs("pending", "--json").document()["held"]
              if one["run_id"] == run.name]  # fmt: skip
    assert (held["approval_id"], held["outcome"], held["approver"]) == (early, "approve", "bob")
    assert held["waits_for"] == waits
    one = verbs("show", early, "--json").document()
    assert (one["state"], one["run_state"], one["waits_for"]) == ("held", "waiting_approval", waits)
    for words in (["show", run.name], ["show", early], ["pending"]):
        text = verbs(*words).out
        assert f"{early}  was decided early, and is held\n" in text
        assert f"  waits for  {waits}\n" in text


def test_a_decision_on_an_impossible_number_is_refused(verbs: Verbs, new_run: NewRun) -> None:
    run = new_run()

    for number in ("3", "7"):
        typo = verbs("approve", f"{run.name}/refund/{number}", "--params-hash", NO_PARAMS)
        assert typo.code == 2
        assert "unknown_approval" in typo.line()


def test_another_tenants_run_is_not_found_by_any_verb(verbs: Verbs, new_run: NewRun) -> None:
    acme = ("--tenant", "acme")
    run = new_run(*acme).name
    [request] = verbs("show", run, "--json", *acme).document()["pending"]
    decision = (request["approval_id"], "--params-hash", request["params_hash"])

    for arguments in (
        ["show", f"acme/{run}"],
        ["show", run],
        ["checkpoint", f"acme/{run}"],
        ["cancel", f"acme/{run}"],
        ["approve", *decision],
        ["reject", *decision],
        ["approve", *decision, "--tenant", "beta"],
        ["effects", f"acme/{run}"],
        ["effects", run],
        ["events", run],
        ["interventions", run],
        ["resolve", "iv-1", "happened", "--run", f"acme/{run}"],
    ):
        ended = verbs(*arguments)
        assert ended.code == 2, arguments
        assert "not found" in ended.line()
    assert run not in verbs("list").out
    assert run not in verbs("pending").out
    assert f"acme/{run}" in verbs("list", *acme).out
    assert verbs("approve", *decision, *acme).code == 0


def test_a_workflow_that_is_no_run_is_not_found(
    verbs: Verbs, temporal_cli: Path, temporal_server: DevServer
) -> None:
    start = ["workflow", "start", "--workflow-id", "other", "--type", "Other"]
    start += ["--task-queue", "other", "--address", temporal_server.address]
    subprocess.run([temporal_cli, *start], check=True, capture_output=True)

    assert "run not found: other; " in verbs("show", "other").line()


def test_without_a_ledger_verbs_say_so_and_make_none(lonely: Verbs, tmp_path: Path) -> None:
    url = "sqlite:///ledger.sqlite"

    reconciled = lonely("reconcile", SUREHAND_DATABASE_URL=url)
    examined = lonely("doctor", SUREHAND_DATABASE_URL=url)

    assert reconciled.code == examined.code == 4
    assert f"no ledger at {tmp_path / 'ledger.sqlite'} " in reconciled.line()
    assert f"no ledger at {tmp_path / 'ledger.sqlite'} " in examined.out
    assert list(tmp_path.iterdir()) == []


def test_doctor_finds_everything_or_says_what_to_do(verbs: Verbs, lonely: Verbs) -> None:
    well = verbs("doctor", "--json")
    ill = lonely("doctor", SUREHAND_DATABASE_URL="sqlite:///empty.db")
    nowhere = verbs("doctor", TEMPORAL_NAMESPACE="nowhere")

    assert (well.code, ill.code, nowhere.code) == (0, 4, 4)
    report = DoctorReport.model_validate(well.document())
    assert {check.name for check in report.checks} >= {
        "server",
        "namespace",
        "search attributes",
        "worker",
        "database",
        "database clock",
        "tools",
    }
    assert "python starter.py worker" in ill.out
    assert "python starter.py migrate" in ill.out
    assert "namespace create --namespace nowhere" in nowhere.out


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
    assert " and bob (edited)\n" in text
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
        foreign=[{"tool": "mail.read", "step_id": "inbox"}],
    )

    for part in (
        "needs      2 approvals of finance, not by who asked for it",
        "not by     bob, uma",
        "so far     ann",
        "resources  account:7, account:8",
        "decisions  have to be signed",
        "asked by   uma and bob (edited)",
        "foreign    its run has read content from outside: mail.read (step inbox)",
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
