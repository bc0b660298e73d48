"""G3: which decisions count, and that what runs is what was approved, in time and once."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from surehand.activities.ledger.approvals import decisions as decision_rows
from surehand.activities.ledger.approvals import requests as approval_rows
from surehand.activities.ledger.approvals.decisions import Edited
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import approvals, decisions, effects, notifications
from surehand.activities.ledger.effects import claims, outcomes
from surehand.activities.ledger.quotas import QuotaUsedUp
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.entries import (
    ApprovalRefused,
    Claimed,
    ClaimRequest,
    Committed,
    Forbidden,
    Mismatch,
)
from surehand.client.messages import claims_for, sign
from surehand.workflows.contracts.approvals import (
    Assurance,
    Decision,
    DecisionOutcome,
    VerifyDecision,
)
from surehand.workflows.identity import approval_id
from surehand.workflows.plan.policy import Requirement
from tests.ledger.people import key_of, person, revoked
from tests.ledger.quotas import limited
from tests.ledger.scene import NOW, OTHER_RUN, RUN, STEP, Scene

TWO = Requirement(quorum=2, roles=("manager", "auditor"))
#: The scene's acting user.
REQUESTER = "ada"


@pytest.mark.guarantee("G3")
def test_the_quorum_counts_different_people_and_the_last_one_approves(scene: Scene) -> None:
    person(scene, "ann", "manager")
    person(scene, "bob", "auditor")
    gated = scene.ask_approval(scene.call(), requirement=TWO)

    first = scene.decide(gated, approver="ann")
    assert (first.code, first.state) == ("accepted", "pending")
    assert "1 of 2" in first.message
    assert isinstance(scene.claim(gated), ApprovalRefused)
    again = scene.decide(gated, approver="ann", reason="once more")
    assert (again.code, again.state) == ("already_voted", "pending")

    second = scene.decide(gated, approver="bob")
    assert (second.code, second.state) == ("accepted", "approved")
    assert isinstance(scene.claim(gated), Claimed)


@pytest.mark.guarantee("G3")
def test_one_who_may_decide_can_reject_what_others_have_approved(scene: Scene) -> None:
    person(scene, "ann", "manager")
    person(scene, "bob", "manager")
    gated = scene.ask_approval(scene.call(), requirement=TWO)
    scene.decide(gated, approver="ann")

    verdict = scene.decide(gated, "reject", approver="bob")

    assert (verdict.code, verdict.state) == ("accepted", "rejected")
    assert isinstance(scene.claim(gated), ApprovalRefused)


@pytest.mark.guarantee("G3")
def test_whoever_has_voted_may_think_again_and_reject(scene: Scene) -> None:
    person(scene, "ann", "manager")
    gated = scene.ask_approval(scene.call(), requirement=TWO)
    scene.decide(gated, approver="ann")

    verdict = scene.decide(gated, "reject", approver="ann")

    assert (verdict.code, verdict.state) == ("accepted", "rejected")


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("stricter", ["the row", "the worker"])
def test_unsigned_decisions_do_not_count_where_signed(scene: Scene, stricter: str) -> None:
    row = Assurance.SIGNED if stricter == "the row" else Assurance.OPEN
    worker = Assurance.SIGNED if stricter == "the worker" else Assurance.OPEN
    gated = scene.ask_approval(scene.call(), assurance=row)

    verdict = scene.decide(gated, assurance=worker)

    assert (verdict.code, verdict.state) == ("unsigned", "pending")


@pytest.mark.guarantee("G3")
def test_a_lax_workers_approval_does_not_pass_a_strict_workers_claim(scene: Scene) -> None:
    gated = scene.approved(scene.call())

    refused = scene.claim(replace(gated, assurance=Assurance.SIGNED))

    assert isinstance(refused, ApprovalRefused)
    assert (scene.row(approvals))["consumed_entry"] is None


@pytest.mark.guarantee("G3")
def test_an_edit_voids_the_request_and_the_votes_it_had(scene: Scene) -> None:
    gated = scene.ask_approval(scene.call(), requirement=Requirement(quorum=2))
    scene.decide(gated, approver="ann")
    less = Edited({"order": "1001", "amount": "50.00"}, "sha256:less", "refund:order-1001")

    edit = scene.decide(gated, "edit", approver="bob", params=less.params, edited=less)

    assert (edit.code, edit.state) == ("accepted", "superseded")
    late = scene.decide(gated, approver="carl")
    assert (late.code, late.state) == ("not_waiting", "superseded")
    assert isinstance(scene.claim(gated), ApprovalRefused)
    [kept] = scene.rows(decisions, outcome="edit")
    assert (kept["edited"], kept["verdict"]) == (less.params, "accepted")
    assert (scene.row(approvals))["params"] == {"order": "1001", "amount": "120.00"}


@pytest.mark.guarantee("G3")
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


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("to", ["the key it had", "the key of another call"])
def test_a_call_whose_key_has_a_live_entry_is_not_edited(scene: Scene, to: str) -> None:
    mine, other = scene.call(), scene.call(key="refund:order-7", params={"order": "7"})
    taken = mine if to == "the key it had" else other
    scene.claimed(replace(taken, step_id="another", holder="another"))
    gated = scene.ask_approval(mine)
    edited = Edited({"order": "7"}, "sha256:other", other.key)

    verdict = scene.decide(gated, "edit", params=edited.params, edited=edited)

    assert (verdict.code, verdict.state) == ("not_editable", "pending")


@pytest.mark.guarantee("G3")
def test_a_user_without_the_permission_calls_nothing_and_may_when_it_is_back(scene: Scene) -> None:
    call = replace(scene.approved(scene.call()), permissions=frozenset({"refunds"}))
    assert isinstance(scene.claim(call), Forbidden)

    person(scene, REQUESTER, permissions=("refunds",))

    entry = (scene.claimed(call)).entry_id
    revoked(scene, REQUESTER, "permission", "refunds")
    after_crash = replace(call, holder="again", attempt=2, activity_key="another")
    late = timedelta(minutes=1)
    assert not isinstance(scene.claim(after_crash, late), Claimed)
    assert (scene.entry(entry)).fencing_token >= 1


MINUTE = timedelta(minutes=1)
ANY_TWO = Requirement(quorum=2)
#: Of the scene's approval.
ASKED = "run-1/refund/1"


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
    assert isinstance(scene.claim(gated), ApprovalRefused)


@pytest.mark.parametrize("spelling", ["Ada", " ada", "ada\u200d", "\uff41da"])
def test_spellings_do_not_hide_the_requester(scene: Scene, spelling: str) -> None:
    gated = scene.ask_approval(scene.call(), requirement=Requirement(four_eyes=True))

    assert (scene.decide(gated, approver=spelling)).code == "four_eyes"


def test_another_spelling_of_a_name_has_none_of_its_roles(scene: Scene) -> None:
    person(scene, "ann", "manager")
    gated = scene.ask_approval(scene.call(), requirement=Requirement(roles=("manager",)))

    for spelling in ("Ann", "ann ", "\uff41nn"):
        assert (scene.decide(gated, approver=spelling)).code == "not_permitted"


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
    claimed = isinstance(scene.claim(gated), Claimed)
    assert claimed == (state == "approved")


async def test_of_an_approval_and_its_expiry_at_once_one_holds(scene: Scene) -> None:
    gated = scene.ask_approval(scene.call(), expires_in=MINUTE)

    verdict, _ = await asyncio.gather(
        asyncio.to_thread(scene.decide, gated, after=MINUTE),
        asyncio.to_thread(scene.close, gated, "expired", after=MINUTE),
    )

    assert verdict.code == "expired"
    assert isinstance(scene.claim(gated, after=MINUTE), ApprovalRefused)


async def test_a_role_revoked_at_the_claim_is_before_or_after_it(scene: Scene) -> None:
    person(scene, "ann", "manager")
    gated = scene.ask_approval(scene.call(), requirement=Requirement(roles=("manager",)))
    scene.decide(gated, approver="ann")

    result, _ = await asyncio.gather(
        asyncio.to_thread(scene.claim, gated),
        asyncio.to_thread(revoked, scene, "ann", "role", "manager"),
    )

    assert isinstance(result, (Claimed, ApprovalRefused))
    used = (scene.row(approvals))["consumed_entry"] is not None
    assert used == isinstance(result, Claimed) == (len(scene.rows(effects)) == 1)


async def signed(
    scene: Scene, key: Ed25519PrivateKey, approver: str, params_hash: str, **changes: Any
) -> dict[str, Any]:
    """Return a decision of the scene's approval with its signature."""
    values: dict[str, Any] = {"outcome": DecisionOutcome.APPROVE, "approval_id": ASKED, **changes}
    edited = values.pop("claimed_edit", None)
    decision = Decision(approver=approver, params_hash=params_hash, **values)
    claims = claims_for(decision, scene.tenant, RUN, int(time.time()), edited=edited)
    return {**values, "approver": approver, "signature": sign(key, claims)}


async def test_a_decision_with_another_reason_than_was_signed_does_not_count(scene: Scene) -> None:
    person(scene, "ann")
    gated = scene.ask_approval(scene.call(), assurance=Assurance.SIGNED)
    no = {"outcome": DecisionOutcome.REJECT, "reason": "the amount is wrong"}
    said = await signed(scene, key_of(scene, "ann"), "ann", gated.params_hash, **no)

    for reason in ("pay account 7", ""):
        verdict = scene.decide(gated, **{**said, "reason": reason})
        assert (verdict.code, verdict.message) == ("bad_signature", "it is for another reason")
    assert scene.decide(gated, **said).state == "rejected"
    [counted] = scene.rows(decisions, verdict="accepted")
    assert (counted["reason"], counted["verified"]) == ("the amount is wrong", True)


@pytest.mark.parametrize("change", ["approver", "outcome", "params", "tenant"])
async def test_a_signature_fits_what_was_signed_alone(scene: Scene, change: str) -> None:
    person(scene, "ann")
    person(scene, "bob")
    key = key_of(scene, "ann")
    gated = scene.ask_approval(scene.call(), assurance=Assurance.SIGNED)
    signer = Scene(scene.ledger, "elsewhere") if change == "tenant" else scene
    yes = await signed(signer, key, "ann", gated.params_hash)
    swaps: dict[str, dict[str, Any]] = {
        "approver": {"approver": "bob"},
        "outcome": {"outcome": DecisionOutcome.REJECT},
        "params": {"outcome": DecisionOutcome.EDIT, "params": {"amount": "1.00"}},
        "tenant": {},
    }

    verdict = scene.decide(gated, **{**yes, **swaps[change]})

    assert (verdict.code, verdict.state, verdict.verified) == ("bad_signature", "pending", False)


async def test_a_lax_workers_vote_is_no_half_of_a_strict_workers_quorum(scene: Scene) -> None:
    person(scene, "bob")
    key = key_of(scene, "bob")
    gated = scene.ask_approval(scene.call(), requirement=ANY_TWO)
    scene.decide(gated, approver="ann")
    strict = replace(gated, assurance=Assurance.SIGNED)

    yes = await signed(scene, key, "bob", gated.params_hash)
    verdict = scene.decide(gated, assurance=Assurance.SIGNED, **yes)

    assert (verdict.code, verdict.state) == ("accepted", "pending")
    assert isinstance(scene.claim(strict), ApprovalRefused)


@pytest.mark.parametrize("amount", [float("nan"), float("inf")])
async def test_unsignable_params_are_refused_at_once(scene: Scene, amount: float) -> None:
    person(scene, "ann")
    key = key_of(scene, "ann")
    gated = scene.ask_approval(scene.call(), assurance=Assurance.SIGNED)
    edit = await signed(
        scene,
        key,
        "ann",
        gated.params_hash,
        outcome=DecisionOutcome.EDIT,
        params={"amount": amount},
        claimed_edit="sha256:0",
    )

    assert (scene.decide(gated, **edit)).code == "bad_signature"


@pytest.mark.guarantee("G3")
def test_an_approval_is_consumed_by_its_own_entry_and_generation(scene: Scene) -> None:
    gated = scene.approved(scene.call())

    entry = scene.claimed(gated)

    row = scene.row(approvals)
    assert (row["consumed_entry"], row["consumed_generation"]) == (entry.entry_id, 1)
    assert (scene.row(effects))["approval_id"] == gated.approval_id
    (consumed,) = scene.events(type_="approval.consumed")
    assert consumed["body"]["entry_id"] == entry.entry_id
    assert consumed["body"]["params_hash"] == gated.params_hash


@pytest.mark.guarantee("G3")
def test_an_approval_is_not_consumed_when_the_transaction_of_the_claim_fails(scene: Scene) -> None:
    gated = scene.approved(scene.call())
    before = scene.events()

    with pytest.raises(ZeroDivisionError), scene.tx() as tx:
        assert isinstance(claims.claim_effect(tx, gated), Claimed)
        raise ZeroDivisionError

    assert (scene.row(approvals))["consumed_entry"] is None
    assert scene.rows(effects) == []
    assert scene.events() == before
    scene.claimed(gated)


@pytest.mark.guarantee("G3")
def test_an_effect_that_is_recorded_already_consumes_nothing(scene: Scene) -> None:
    committed = scene.committed(scene.call())
    scene.open_run(OTHER_RUN)
    gated = scene.approved(scene.call(run_id=OTHER_RUN))

    assert scene.claim(gated) == Committed(committed)

    assert (scene.row(approvals))["consumed_entry"] is None


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("state", ["pending", "rejected", "expired", "void", "over"])
def test_only_a_valid_approval_lets_a_call_through(scene: Scene, state: str) -> None:
    gated = scene.ask_approval(scene.call(), expires_in=MINUTE)
    if state == "rejected":
        assert (scene.decide(gated, "reject")).code == "accepted"
    elif state == "expired":
        assert scene.close(gated, "expired", after=MINUTE) == "expired"
    elif state == "void":
        assert scene.close(gated, "void") == "void"
    elif state == "over":
        assert (scene.decide(gated)).code == "accepted"
    before = scene.rows(approvals)

    result = scene.claim(gated, after=MINUTE if state == "over" else NOW)

    assert isinstance(result, ApprovalRefused)
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


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("change", ELSEWHERE, ids=lambda change: next(iter(change)))
def test_an_approval_counts_for_its_own_call_only(scene: Scene, change: dict[str, Any]) -> None:
    gated = scene.approved(scene.call())
    scene.open_run(OTHER_RUN)

    # The same params hash: what differs is what the approval is bound to beside it.
    result = scene.claim(replace(gated, **change))

    assert isinstance(result, Mismatch)
    assert (scene.row(approvals))["consumed_entry"] is None
    assert scene.rows(effects) == []


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize(
    "change",
    [{"params": {"order": "1001", "amount": "999.00"}}, {"tool_version": "2"}],
    ids=["params", "version"],
)
def test_params_not_approved_are_a_mismatch(scene: Scene, change: dict[str, Any]) -> None:
    gated = scene.approved(scene.call())

    changed = scene.call(gated=True, approval_id=gated.approval_id, **change)
    result = scene.claim(changed)

    assert isinstance(result, Mismatch)
    assert gated.params_hash in result.reason
    assert changed.params_hash in result.reason
    assert (scene.row(approvals))["consumed_entry"] is None
    assert scene.rows(effects) == []


@pytest.mark.guarantee("G3")
def test_the_retries_of_an_entry_find_their_approval_consumed_by_themselves(scene: Scene) -> None:
    gated = scene.approved(scene.call())
    first = scene.failed(gated)

    second = scene.claimed(replace(gated, holder="the next attempt", attempt=2))

    assert second.entry_id == first.entry_id
    assert len(scene.events(type_="approval.consumed")) == 1


@pytest.mark.guarantee("G3")
def test_a_used_approval_authorises_no_other_entry_or_generation(scene: Scene) -> None:
    gated = scene.approved(scene.call())
    entry = scene.claimed(gated)

    for entry_id, generation in [("ef-other", 1), (entry.entry_id, 2)]:
        with scene.tx() as tx:
            refused = approval_rows.consume_approval(tx, gated, entry_id, generation)
        assert isinstance(refused, ApprovalRefused)
        assert entry.entry_id in refused.reason

    assert (scene.row(approvals))["consumed_entry"] == entry.entry_id


@pytest.mark.guarantee("G3")
def test_recording_an_outcome_needs_no_approval_any_more(scene: Scene) -> None:
    gated = scene.approved(scene.call(), expires_in=MINUTE)
    entry = scene.claimed(gated)

    with scene.tx(after=2 * MINUTE) as tx:
        assert outcomes.commit_effect(tx, gated, entry, Kept("r-1")) is not None

    assert isinstance(scene.claim(gated, after=2 * MINUTE), Committed)


@pytest.mark.guarantee("G3")
def test_a_request_is_written_once_and_keeps_its_first_time_limit(scene: Scene) -> None:
    first = scene.ask_approval(scene.call(), expires_in=MINUTE)
    row = scene.row(approvals)

    again = scene.ask_approval(scene.call(), expires_in=MINUTE, after=MINUTE / 2)

    assert again.approval_id == first.approval_id
    assert scene.row(approvals) == row
    assert (row["params"], row["params_hash"]) == (first.params, first.params_hash)
    assert len(scene.events(type_="approval.requested")) == 1


@pytest.mark.guarantee("G3")
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


@pytest.mark.guarantee("G3")
def test_an_approval_that_nothing_has_used_is_void_once_its_run_stops_asking(scene: Scene) -> None:
    gated = scene.approved(scene.call())

    assert scene.close(gated, "void") == "void"
    assert scene.close(replace(gated, run_id="another"), "void") == "void"

    assert len(scene.events(type_="approval.void")) == 1
    assert isinstance(scene.claim(gated), ApprovalRefused)


@pytest.mark.guarantee("G3")
def test_a_request_with_another_precondition_voids_the_first(scene: Scene) -> None:
    first = scene.ask_approval(scene.call(precondition="sha256:before"))
    second = scene.ask_approval(scene.call(precondition="sha256:after"))

    assert scene.row(approvals, approval_id=first.approval_id)["state"] == "void"
    assert scene.decide(first).code == "not_waiting"
    assert scene.decide(second).code == "accepted"
    assert isinstance(scene.claim(second), Claimed)


def test_a_decision_on_an_approval_nobody_asked_for_is_unknown(scene: Scene) -> None:
    gated = scene.ask_approval(scene.call())

    verdict = scene.decide(gated, approval_id="run-1/refund/2")

    assert (verdict.code, verdict.state) == ("unknown_approval", None)


def test_a_decision_that_arrives_at_another_run_is_unknown_there(scene: Scene) -> None:
    gated = scene.ask_approval(scene.call())
    scene.open_run(OTHER_RUN)
    elsewhere = scene.call(run_id=OTHER_RUN)

    verdict = scene.decide(elsewhere, approval_id=gated.approval_id, params_hash=gated.params_hash)

    assert (verdict.code, verdict.state) == ("unknown_approval", None)
    assert (scene.row(approvals))["state"] == "pending"


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


@pytest.mark.parametrize("changes", [{}, {"params_hash": "sha256:stale"}])
def test_a_repeated_delivery_gets_its_verdict(scene: Scene, changes: dict[str, Any]) -> None:
    gated = scene.ask_approval(scene.call())
    first = scene.decide(gated, decision_id="run-1#1", **changes)
    events = scene.events()

    again = scene.decide(gated, decision_id="run-1#1", **changes)

    assert again == first
    assert len(scene.rows(decisions)) == 1
    assert scene.events() == events


def test_a_second_decision_is_refused_and_kept(scene: Scene) -> None:
    gated = scene.ask_approval(scene.call())
    scene.decide(gated, "approve", decision_id="run-1#1")

    second = scene.decide(gated, "reject", decision_id="run-1#2", approver="bob", reason="too much")

    assert second.code == "already_decided"
    assert "alice" in second.message
    assert (scene.row(approvals))["state"] == "approved"
    kept = scene.row(decisions, decision_id="run-1#2")
    assert (kept["verdict"], kept["reason"]) == ("already_decided", "too much")


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
    call: ClaimRequest,
    *said: tuple[str, str],
    requirement: Requirement = Requirement(),  # noqa: B008
) -> ClaimRequest:
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


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize(
    ("outcome", "state"), [("approve", "approved"), ("reject", "rejected"), ("edit", "superseded")]
)
def test_nobody_is_told_of_early_decisions(scene: Scene, outcome: str, state: str) -> None:
    gated = ask(scene, scene.call(), ("ann", outcome))

    assert scene.row(approvals)["state"] == state
    assert scene.rows(notifications) == []
    told = [event["type"] for event in scene.events()]
    assert told[1:] == ["approval.requested", "decision.accepted", f"approval.{state}"]
    assert isinstance(scene.claim(gated), Claimed) == (outcome == "approve")


@pytest.mark.guarantee("G3")
def test_of_a_request_that_still_waits_after_that_people_are_told(scene: Scene) -> None:
    person(scene, "ann", "finance")
    two = Requirement(quorum=2, roles=("finance",))

    ask(scene, scene.call(), ("ann", "approve"), ("eve", "approve"), requirement=two)

    assert [row["verdict"] for row in scene.rows(decisions)] == ["accepted", "not_permitted"]
    assert scene.row(approvals)["state"] == "pending"
    assert scene.row(notifications)["subject"] == FIRST


@pytest.mark.guarantee("G3")
def test_whoever_was_enough_decides_and_who_came_later_is_told_so(scene: Scene) -> None:
    ask(scene, scene.call(), ("ann", "approve"), ("bob", "reject"))

    assert [row["verdict"] for row in scene.rows(decisions)] == ["accepted", "already_decided"]
    assert scene.row(approvals)["state"] == "approved"


@pytest.mark.guarantee("G3")
def test_a_request_that_is_decided_already_needs_no_place(scene: Scene) -> None:
    limited(scene, pending_approvals=0)

    ask(scene, scene.call(), ("ann", "approve"))
    with pytest.raises(QuotaUsedUp):
        ask(scene, scene.call(step_id="other", key="other"), ("ann", "approve"))

    assert scene.row(approvals)["state"] == "approved"


@pytest.mark.guarantee("G3")
def test_a_retried_request_counts_its_early_decision_once(scene: Scene) -> None:
    for _ in range(2):
        ask(scene, scene.call(), ("ann", "approve"), ("ann", "approve"))

    assert [row["verdict"] for row in scene.rows(decisions)] == ["accepted", "already_decided"]
    assert len(scene.events(type_="approval.approved")) == 1
    # A run that was reset asks anew, and may hear for the first time what others have said since.
    ask(scene, scene.call(), ("ann", "approve"), ("ann", "approve"), ("bob", "reject"))
    assert [row["verdict"] for row in scene.rows(decisions)][2:] == ["already_decided"]
