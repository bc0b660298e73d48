"""G3: which decisions count, and that what runs is what was approved, in time and once."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from surehand.activities.ledger.approvals import decisions as decision_rows
from surehand.activities.ledger.approvals import requests as approval_rows
from surehand.activities.ledger.approvals.decisions import Edited
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import approvals, decisions, effects, notifications
from surehand.activities.ledger.effects import outcomes
from surehand.activities.ledger.quotas import QuotaUsedUp
from surehand.activities.ledger.steps import entries
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.client.messages import claims_for, sign
from surehand.workflows.contracts.approvals import (
    Assurance,
    Decision,
    DecisionOutcome,
    Verdict,
    VerifyDecision,
)
from surehand.workflows.identity import approval_id
from surehand.workflows.plan.policy import Requirement
from tests.ledger.people import key_of, person, revoked
from tests.ledger.quotas import limited
from tests.ledger.scene import NOW, OTHER_RUN, RUN, STEP, Scene

pytestmark = pytest.mark.guarantee("G3")
#: The scene's acting user.
REQUESTER = "ada"


def test_only_who_may_edit_can_and_only_to_what_the_tool_takes(scene: Scene) -> None:
    person(scene, "ann", "manager")
    person(scene, "eve", "editor", "manager")
    requirement = Requirement(roles=("manager",), may_edit=("editor",))
    gated = scene.ask_approval(scene.call(), requirement=requirement)
    less = Edited({"amount": "50.00"}, "sha256:less", "refund:order-1001")

    for approver, edited, code in [
        ("ann", less, "not_permitted"),
        ("eve", "amount: must be a number", "not_editable"),
        ("eve", Edited({}, gated.params_hash, gated.key), "not_editable"),
    ]:
        verdict = scene.decide(gated, "edit", approver=approver, params={}, edited=edited)
        assert (verdict.code, verdict.state) == (code, "pending")


def test_no_call_is_edited_into_one_whose_key_has_a_live_entry(scene: Scene) -> None:
    other = scene.call(key="refund:order-7", params={"order": "7"})
    scene.claimed(replace(other, step_id="another", holder="another"))
    gated = scene.ask_approval(scene.call())
    edited = Edited({"order": "7"}, "sha256:other", other.key)

    verdict = scene.decide(gated, "edit", params=edited.params, edited=edited)

    assert (verdict.code, verdict.state) == ("not_editable", "pending")


def test_a_user_without_the_permission_calls_nothing_and_may_when_it_is_back(scene: Scene) -> None:
    call = replace(scene.approved(scene.call()), permissions=frozenset({"refunds"}))
    assert isinstance(scene.claim(call), entries.Forbidden)

    person(scene, REQUESTER, permissions=("refunds",))

    entry = (scene.claimed(call)).entry_id
    revoked(scene, REQUESTER, "permission", "refunds")
    after_crash = replace(call, holder="again", attempt=2, activity_key="another")
    late = timedelta(minutes=1)
    assert not isinstance(scene.claim(after_crash, late), entries.Claimed)
    assert (scene.entry(entry)).fencing_token >= 1


MINUTE = timedelta(minutes=1)
ANY_TWO = Requirement(quorum=2)


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("ann", "Ann"),
        ("ann", "ann "),
        ("ann", "\u00a0ann"),
        ("ann", "a\u200bnn"),
        ("jos\u00e9", "jose\u0301"),
        ("ann", "\uff41nn"),
        ("ann lee", "ann  lee"),
        ("strasse", "stra\u00dfe"),
    ],
)
def test_spellings_do_not_multiply_one_person(scene: Scene, first: str, second: str) -> None:
    gated = scene.ask_approval(scene.call(), requirement=ANY_TWO)
    scene.decide(gated, approver=first)

    verdict = scene.decide(gated, approver=second)

    assert (verdict.code, verdict.state) == ("already_voted", "pending")
    assert isinstance(scene.claim(gated), entries.ApprovalRefused)


@pytest.mark.in_turns
@pytest.mark.parametrize("spelling", ["Ada", " ada", "ada\u200d", "\uff41da"])
def test_spellings_do_not_hide_the_requester(scene: Scene, spelling: str) -> None:
    gated = scene.ask_approval(scene.call(), requirement=Requirement(four_eyes=True))

    assert (scene.decide(gated, approver=spelling)).code == "four_eyes"


async def test_of_one_persons_votes_at_once_one_counts(scene: Scene) -> None:
    gated = scene.ask_approval(scene.call(), requirement=ANY_TWO)

    verdicts = await asyncio.gather(
        *(
            asyncio.to_thread(scene.decide, gated, approver="ann", reason=str(number))
            for number in range(6)
        )
    )

    assert sorted(verdict.code for verdict in verdicts) == ["accepted", *["already_voted"] * 5]
    assert (scene.row(approvals))["state"] == "pending"


async def test_of_two_peoples_votes_at_once_both_count_and_approve_once(scene: Scene) -> None:
    gated = scene.ask_approval(scene.call(), requirement=ANY_TWO)

    verdicts = await asyncio.gather(
        *(asyncio.to_thread(scene.decide, gated, approver=who) for who in ("ann", "bob"))
    )

    assert {verdict.code for verdict in verdicts} == {"accepted"}
    assert sorted(str(verdict.state) for verdict in verdicts) == ["approved", "pending"]
    assert len(scene.events(type_="approval.approved")) == 1


async def test_of_an_edit_and_an_approval_at_once_one_decides(scene: Scene) -> None:
    gated = scene.ask_approval(scene.call())
    less = Edited({"amount": "1.00"}, "sha256:less", gated.key)

    edit, approve = await asyncio.gather(
        asyncio.to_thread(
            scene.decide, gated, "edit", approver="bob", params=less.params, edited=less
        ),
        asyncio.to_thread(scene.decide, gated, approver="ann"),
    )

    assert sorted([edit.code == "accepted", approve.code == "accepted"]) == [False, True]
    state = (scene.row(approvals))["state"]
    assert state == ("superseded" if edit.code == "accepted" else "approved")
    claimed = isinstance(scene.claim(gated), entries.Claimed)
    assert claimed == (state == "approved")


async def test_a_role_revoked_at_the_claim_is_before_or_after_it(scene: Scene) -> None:
    person(scene, "ann", "manager")
    gated = scene.ask_approval(scene.call(), requirement=Requirement(roles=("manager",)))
    scene.decide(gated, approver="ann")

    result, _ = await asyncio.gather(
        asyncio.to_thread(scene.claim, gated),
        asyncio.to_thread(revoked, scene, "ann", "role", "manager"),
    )

    assert isinstance(result, (entries.Claimed, entries.ApprovalRefused))
    used = (scene.row(approvals))["consumed_entry"] is not None
    assert used == isinstance(result, entries.Claimed) == (len(scene.rows(effects)) == 1)


def test_a_signature_for_another_tenant_or_of_what_cannot_be_signed_is_refused(
    scene: Scene,
) -> None:
    person(scene, "ann")
    key = key_of(scene, "ann")
    gated = scene.ask_approval(scene.call(), assurance=Assurance.SIGNED)
    told = {"approval_id": gated.approval_id, "params_hash": gated.params_hash, "approver": "ann"}

    def judged(tenant: str = scene.tenant, edited: str | None = None, **more: Any) -> Verdict:
        decision = Decision(**{**told, "outcome": DecisionOutcome.APPROVE, **more})
        claims = claims_for(decision, tenant, RUN, int(time.time()), edited=edited)
        return scene.decide(gated, **{**told, **more, "signature": sign(key, claims)})

    for amount in (float("nan"), float("inf")):
        odd = {"outcome": DecisionOutcome.EDIT, "params": {"amount": amount}}
        assert judged(edited="sha256:0", **odd).code == "bad_signature"
    refused = judged("elsewhere")
    assert (refused.code, refused.state, refused.verified) == ("bad_signature", "pending", False)
    assert judged().state == "approved"


def test_an_effect_that_is_recorded_already_consumes_nothing(scene: Scene) -> None:
    committed = scene.committed(scene.call())
    scene.open_run(OTHER_RUN)
    gated = scene.approved(scene.call(run_id=OTHER_RUN))

    assert scene.claim(gated) == entries.Committed(committed)

    assert (scene.row(approvals))["consumed_entry"] is None


@pytest.mark.parametrize("state", ["pending", "rejected", "expired", "void", "over"])
def test_only_a_valid_approval_lets_a_call_through(scene: Scene, state: str) -> None:
    gated = scene.ask_approval(scene.call(), expires_in=MINUTE)
    if state == "rejected":
        assert (scene.decide(gated, "reject")).code == "accepted"
    elif state == "expired":
        assert scene.close(gated, "expired", after=MINUTE) == "expired"
    elif state == "void":
        assert scene.decide(gated).code == "accepted"  # nothing else refuses it then
        assert scene.close(gated, "void") == "void"
    elif state == "over":
        assert (scene.decide(gated)).code == "accepted"
    before = scene.rows(approvals)

    result = scene.claim(gated, after=MINUTE if state == "over" else NOW)

    assert isinstance(result, entries.ApprovalRefused)
    assert scene.rows(approvals) == before
    assert scene.rows(effects) == []
    (refused,) = scene.events(type_="effect.refused")
    assert refused["body"]["rule"] == "ApprovalRefused"


ELSEWHERE: list[dict[str, Any]] = [
    {"run_id": OTHER_RUN},
    {"step_id": "another"},
    {"tool": "payments.charge"},
    {"tool_version": "2"},
    {"key": "refund:order-2002"},
    {"user": "mallory"},
]


@pytest.mark.in_turns
@pytest.mark.parametrize("change", ELSEWHERE, ids=lambda change: next(iter(change)))
def test_an_approval_counts_for_its_own_call_only(scene: Scene, change: dict[str, Any]) -> None:
    gated = scene.approved(scene.call())
    scene.open_run(OTHER_RUN)

    # The same params hash: what differs is what the approval is bound to beside it.
    result = scene.claim(replace(gated, **change))

    assert isinstance(result, entries.Mismatch)
    assert (scene.row(approvals))["consumed_entry"] is None
    assert scene.rows(effects) == []


def test_recording_an_outcome_needs_no_approval_any_more(scene: Scene) -> None:
    gated = scene.approved(scene.call(), expires_in=MINUTE)
    entry = scene.claimed(gated)

    with scene.tx(after=2 * MINUTE) as tx:
        assert outcomes.commit_effect(tx, gated, entry, Kept("r-1")) is not None

    assert isinstance(scene.claim(gated, after=2 * MINUTE), entries.Committed)


def test_a_request_is_written_once_and_keeps_its_first_time_limit(scene: Scene) -> None:
    first = scene.ask_approval(scene.call(), expires_in=MINUTE)
    row = scene.row(approvals)

    again = scene.ask_approval(scene.call(), expires_in=MINUTE, after=MINUTE / 2)

    assert again.approval_id == first.approval_id
    assert scene.row(approvals) == row
    assert (row["params"], row["params_hash"]) == (first.params, first.params_hash)
    assert len(scene.events(type_="approval.requested")) == 1


def test_a_call_whose_effect_is_recorded_needs_nobody_to_be_asked(scene: Scene) -> None:
    def settled(**changes: Any) -> bool:
        with scene.tx() as tx:
            return approval_rows.is_effect_settled(tx, scene.call(**changes))

    assert not settled()
    scene.claimed(scene.call())
    assert not settled()
    scene.committed(scene.call(key="done"))
    assert settled(key="done")
    assert not settled(key="done", params={"order": "1001", "amount": "1.00"})


def test_a_request_with_another_precondition_voids_the_first(scene: Scene) -> None:
    first = scene.ask_approval(scene.call(precondition="sha256:before"))
    second = scene.ask_approval(scene.call(precondition="sha256:after"))

    assert scene.row(approvals, approval_id=first.approval_id)["state"] == "void"
    assert scene.decide(first).code == "not_waiting"
    assert scene.decide(second).code == "accepted"
    assert isinstance(scene.claim(second), entries.Claimed)


@pytest.mark.parametrize("at", [RUN, OTHER_RUN])
def test_a_decision_on_a_request_that_its_run_has_not_made_is_unknown(
    scene: Scene, at: str
) -> None:
    asked = scene.ask_approval(scene.call())
    scene.open_run(OTHER_RUN)
    named = "run-1/refund/2" if at == RUN else asked.approval_id

    verdict = scene.decide(scene.call(run_id=at), approval_id=named, params_hash=asked.params_hash)

    assert (verdict.code, verdict.state) == ("unknown_approval", None)
    assert scene.row(approvals)["state"] == "pending"


def test_what_was_no_decision_at_all_is_recorded_with_its_reason(scene: Scene) -> None:
    asked = VerifyDecision(
        tenant=scene.tenant,
        run_id=RUN,
        decision_id="run-1#1",
        decision=None,
        refused="approver: is missing",
    )
    with scene.tx() as tx:
        judged = decision_rows.verify_decision(
            tx, asked, assurance=Assurance.OPEN, check_edit=lambda *_: "no", covers=lambda *_: None
        )
    verdict = judged.verdict

    assert (verdict.code, verdict.message) == ("malformed", "approver: is missing")
    assert (scene.row(decisions))["verdict"] == "malformed"


@pytest.mark.parametrize(
    "other",
    [{"approver": "mallory"}, {"outcome": "reject"}, {"params_hash": "sha256:other"}],
    ids=lambda other: next(iter(other)),
)
def test_each_decision_has_its_own_number(scene: Scene, other: dict[str, Any]) -> None:
    gated = scene.ask_approval(scene.call())
    assert scene.decide(gated, decision_id=f"{RUN}#1").code == "accepted"

    verdict = scene.decide(gated, decision_id=f"{RUN}#1", **other)

    assert (verdict.code, verdict.state) == ("malformed", "approved")
    assert "send it again" in verdict.message
    assert scene.decide(gated, decision_id=f"{RUN}#1").code == "accepted"
    assert len(scene.rows(decisions)) == 1


@pytest.mark.parametrize(
    "odd",
    [
        {"reason": "r" * 100_000},
        {"params_hash": "h" * 100_000},
        {"approval_id": "i" * 100_000},
        {"signature": "s" * 1_000_000},
    ],
    ids=lambda odd: next(iter(odd)),
)
def test_long_texts_of_a_decision_get_a_verdict(scene: Scene, odd: dict[str, Any]) -> None:
    gated = scene.ask_approval(scene.call())

    verdict = scene.decide(gated, decision_id="run-1#odd", **odd)
    again = scene.decide(gated, decision_id="run-1#odd", **odd)

    assert again.code == verdict.code
    assert len(verdict.model_dump_json()) < 5_000
    assert (scene.row(decisions))["verdict"] == verdict.code


FIRST = approval_id(RUN, STEP, 1)


def ask(
    scene: Scene,
    call: entries.ClaimRequest,
    *said: tuple[str, str],
    requirement: Requirement = Requirement(),  # noqa: B008
) -> entries.ClaimRequest:
    """Ask about a call on which people, each with an outcome, have decided before."""
    asked = [
        VerifyDecision(
            tenant=scene.tenant,
            run_id=RUN,
            decision_id=f"{RUN}#first.{number}",
            decision=Decision(
                approval_id=FIRST,
                params_hash=call.params_hash,
                outcome=DecisionOutcome(outcome),
                approver=approver,
                params={"amount": "1"} if outcome == "edit" else None,
            ),
        )
        for number, (approver, outcome) in enumerate(said)
    ]
    how: dict[str, Any] = {
        "assurance": Assurance.OPEN,
        "check_edit": lambda _row, params: Edited(dict(params), "sha256:less", call.key),
        "covers": lambda _row, scope: call.covers(scope),
    }

    def judge(tx: Transaction) -> bool:
        for one in asked:
            decision_rows.verify_decision(tx, one, **how)
        return bool(asked)

    return scene.ask_approval(call, requirement=requirement, judge_early=judge)


@pytest.mark.parametrize(
    ("outcome", "state"), [("approve", "approved"), ("reject", "rejected"), ("edit", "superseded")]
)
def test_nobody_is_told_of_early_decisions(scene: Scene, outcome: str, state: str) -> None:
    gated = ask(scene, scene.call(), ("ann", outcome))

    assert scene.row(approvals)["state"] == state
    assert scene.rows(notifications) == []
    told = [event["type"] for event in scene.events()]
    assert told[1:] == ["approval.requested", "decision.accepted", f"approval.{state}"]
    assert isinstance(scene.claim(gated), entries.Claimed) == (outcome == "approve")


def test_of_a_request_that_still_waits_after_that_people_are_told(scene: Scene) -> None:
    person(scene, "ann", "finance")
    two = Requirement(quorum=2, roles=("finance",))

    ask(scene, scene.call(), ("ann", "approve"), ("eve", "approve"), requirement=two)

    assert [row["verdict"] for row in scene.rows(decisions)] == ["accepted", "not_permitted"]
    assert scene.row(approvals)["state"] == "pending"
    assert scene.row(notifications)["subject"] == FIRST


def test_a_request_that_is_decided_already_needs_no_place(scene: Scene) -> None:
    limited(scene, pending_approvals=0)

    ask(scene, scene.call(), ("ann", "approve"))
    with pytest.raises(QuotaUsedUp):
        ask(scene, scene.call(step_id="other", key="other"), ("ann", "approve"))

    assert scene.row(approvals)["state"] == "approved"


def test_a_retried_request_counts_its_early_decision_once(scene: Scene) -> None:
    for _ in range(2):
        ask(scene, scene.call(), ("ann", "approve"), ("ann", "approve"))

    assert [row["verdict"] for row in scene.rows(decisions)] == ["accepted", "already_decided"]
    assert len(scene.events(type_="approval.approved")) == 1
    # A run that was reset asks anew, and may hear for the first time what others have said since.
    ask(scene, scene.call(), ("ann", "approve"), ("ann", "approve"), ("bob", "reject"))
    assert [row["verdict"] for row in scene.rows(decisions)][2:] == ["already_decided"]
