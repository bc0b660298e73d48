"""The gate: what arrives gets a verdict; what comes early is held; the row decides."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given

from tests.unit.values import json_values
from workflows.approvals import MOST_HELD, MOST_SETTLED, Delivery, Gate
from workflows.contracts import (
    ApprovalRequest,
    ApprovalState,
    Decision,
    DecisionOutcome,
    Verdict,
    VerdictCode,
)
from workflows.deliveries import MOST_ANSWERS

RUN = "acme/run-1"
ASKED = f"{RUN}/refund/1"
HASH = "sha256:1"


def decision(approval_id: str = ASKED, **changes: Any) -> dict[str, Any]:
    return {
        "approval_id": approval_id,
        "params_hash": HASH,
        "outcome": "approve",
        "approver": "alice",
        **changes,
    }


def request(approval_id: str = ASKED) -> ApprovalRequest:
    return ApprovalRequest(
        approval_id=approval_id,
        step_id="refund",
        tool="payments.refund",
        version="1",
        params={},
        params_hash=HASH,
        description="refund",
        requested_by="ada",
        expires_at=datetime(2030, 1, 1, tzinfo=UTC),
        undo="",
    )


def verdict(delivery: Delivery, code: VerdictCode, state: ApprovalState | None) -> Verdict:
    return Verdict(
        decision_id=delivery.decision_id,
        approval_id=delivery.decision.approval_id if delivery.decision else "",
        code=code,
        message="",
        state=state,
    )


@pytest.fixture
def gate() -> Gate:
    return Gate(RUN, "first")


def test_what_arrives_waits_in_the_inbox_in_order_under_ids_of_its_own(gate: Gate) -> None:
    ids = [gate.receive(decision(reason=str(number))) for number in range(3)]

    assert len(set(ids)) == 3
    assert [delivery.decision_id for delivery in gate.inbox] == ids
    reasons = [delivery.decision.reason for delivery in gate.inbox if delivery.decision]
    assert reasons == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ({}, "approval_id: is missing"),
        (decision(approver=""), "approver: "),
        (decision(approver="a" * 201), "approver: "),
        (decision(reason="nul \x00"), "reason: "),
        (decision(params_hash="nul \x00"), "params_hash: "),
        (decision(approval_id="nul \x00"), "approval_id: "),
        (decision(outcome="maybe"), "outcome: "),
        (decision(params_hash=7), "params_hash: "),
        ("approve", "decision: "),
        (None, "decision: "),
        ([decision()], "decision: "),
    ],
)
def test_what_is_no_decision_is_kept_with_the_reason_why(
    gate: Gate, payload: Any, says: str
) -> None:
    gate.receive(payload)

    (delivery,) = gate.inbox
    assert delivery.decision is None
    assert delivery.refused is not None
    assert delivery.refused.startswith(says)


@given(json_values)
def test_a_signal_handler_never_raises(payload: Any) -> None:
    gate = Gate(RUN, "first")

    gate.receive(payload)

    assert len(gate.inbox) == 1


def test_unknown_fields_of_a_newer_sender_are_no_reason_to_refuse(gate: Gate) -> None:
    gate.receive(decision(nonce="n"))

    assert gate.inbox[0].decision is not None


@pytest.mark.parametrize(
    ("approval_id", "early"),
    [
        (ASKED, True),
        (f"{RUN}/refund/0", False),
        (f"{RUN}/refund/01", False),
        (f"{RUN}/refund/2", False),
        (f"{RUN}/refund/7", False),
        (f"{RUN}/done/1", False),
        (f"{RUN}/unknown/1", False),
        ("acme/run-2/refund/1", False),
        ("run-1/refund/1", False),
        (f"{RUN}/refund/x", False),
        ("refund", False),
    ],
)
def test_a_decision_is_early_if_it_names_the_next_request_of_an_unfinished_step_of_this_run(
    gate: Gate, approval_id: str, early: bool
) -> None:
    gate.receive(decision(approval_id))

    assert gate.is_early(gate.inbox[0], {"refund"}) is early


def test_a_decision_on_a_request_that_exists_or_existed_is_not_early(gate: Gate) -> None:
    gate.receive(decision())
    for state in ApprovalState:
        gate.close(ASKED, state)
        assert not gate.is_early(gate.inbox[0], {"refund"})


def test_while_a_request_waits_only_the_one_after_it_is_still_to_come(gate: Gate) -> None:
    gate.ask(request(), ApprovalState.PENDING)
    for number, early in ((1, False), (2, True), (3, False)):
        gate.receive(decision(f"{RUN}/refund/{number}"))
        assert gate.is_early(gate.inbox.pop(), {"refund"}) is early


def test_what_is_no_decision_is_not_held(gate: Gate) -> None:
    gate.receive("approve")

    assert not gate.is_early(gate.inbox[0], {"refund"})


def test_a_held_decision_is_answered_at_once_and_verified_when_its_request_exists(
    gate: Gate,
) -> None:
    for approval_id in (ASKED, f"{RUN}/mail/1"):
        gate.receive(decision(approval_id))
    first, second = gate.inbox
    gate.inbox.clear()
    gate.hold(first)
    gate.hold(second)
    assert gate.verdicts[first.decision_id].code is VerdictCode.HELD

    gate.ask(request(), ApprovalState.PENDING)

    assert list(gate.inbox) == [first]
    assert gate.held == [second]
    assert list(gate.pending) == [ASKED]


def test_what_is_still_held_at_the_end_is_sent_to_be_verified(gate: Gate) -> None:
    gate.receive(decision())
    gate.hold(gate.inbox.popleft())

    gate.release_held()

    assert len(gate.inbox) == 1
    assert gate.held == []


def test_a_run_holds_a_limited_number_of_early_decisions(gate: Gate) -> None:
    for number in range(MOST_HELD):
        gate.receive(decision(reason=str(number)))
        assert gate.is_early(gate.inbox[0], {"refund"})
        gate.hold(gate.inbox.popleft())

    gate.receive(decision())

    assert not gate.is_early(gate.inbox[0], {"refund"})


@pytest.mark.parametrize("state", list(ApprovalState))
def test_a_request_is_pending_for_as_long_as_its_row_says_so(
    gate: Gate, state: ApprovalState
) -> None:
    gate.ask(request(), state)

    assert (ASKED in gate.pending) is (state is ApprovalState.PENDING)
    assert gate.states[ASKED] is state


def test_an_accepted_decision_settles_its_request(gate: Gate) -> None:
    gate.ask(request(), ApprovalState.PENDING)
    gate.receive(decision(outcome="reject", reason="too much"))
    delivery = gate.inbox.popleft()

    gate.settle(delivery, verdict(delivery, VerdictCode.ACCEPTED, ApprovalState.REJECTED))

    assert gate.pending == {}
    assert gate.states[ASKED] is ApprovalState.REJECTED
    assert gate.accepted[ASKED].reason == "too much"


@pytest.mark.parametrize("code", [VerdictCode.WRONG_HASH, VerdictCode.MALFORMED])
def test_a_refused_decision_changes_nothing_but_is_remembered(
    gate: Gate, code: VerdictCode
) -> None:
    gate.ask(request(), ApprovalState.PENDING)
    gate.receive(decision(params_hash="sha256:stale"))
    delivery = gate.inbox.popleft()

    gate.settle(delivery, verdict(delivery, code, ApprovalState.PENDING))

    assert list(gate.pending) == [ASKED]
    assert gate.states[ASKED] is ApprovalState.PENDING
    assert gate.accepted == {}
    assert gate.verdicts[delivery.decision_id].code is code


def test_the_run_follows_the_row_where_a_later_decision_finds_it_decided(gate: Gate) -> None:
    gate.ask(request(), ApprovalState.PENDING)
    gate.receive(decision())
    delivery = gate.inbox.popleft()

    gate.settle(delivery, verdict(delivery, VerdictCode.ALREADY_DECIDED, ApprovalState.APPROVED))

    assert gate.pending == {}
    assert gate.states[ASKED] is ApprovalState.APPROVED
    assert gate.accepted == {}


def test_a_decision_on_an_unknown_approval_makes_no_request_of_it(gate: Gate) -> None:
    gate.receive(decision("nobody/refund/1"))
    delivery = gate.inbox.popleft()

    gate.settle(delivery, verdict(delivery, VerdictCode.UNKNOWN_APPROVAL, None))

    assert gate.states == {}


def test_a_decision_that_is_sent_again_is_no_second_one(gate: Gate) -> None:
    first = gate.receive(decision())
    assert gate.receive(decision()) == first  # waits to be judged
    early = gate.inbox.popleft()
    gate.hold(early)
    assert gate.receive(decision()) == first  # held
    gate.ask(request(), ApprovalState.PENDING)
    gate.settle(gate.inbox.popleft(), verdict(early, VerdictCode.ACCEPTED, ApprovalState.APPROVED))
    assert gate.receive(decision()) == first  # accepted

    assert not gate.inbox
    assert gate.verdicts[first].code is VerdictCode.ACCEPTED


@pytest.mark.parametrize(
    "changes",
    [{"outcome": "reject"}, {"approver": "bob"}, {"params_hash": "sha256:2"}, {"reason": "r"}],
)
def test_a_decision_that_differs_in_anything_is_a_second_one(
    gate: Gate, changes: dict[str, Any]
) -> None:
    assert gate.receive(decision()) != gate.receive(decision(**changes))
    assert len(gate.inbox) == 2


def test_a_refused_decision_may_be_sent_again_and_is_judged_anew(gate: Gate) -> None:
    first = gate.receive(decision())
    delivery = gate.inbox.popleft()
    gate.settle(delivery, verdict(delivery, VerdictCode.UNKNOWN_APPROVAL, None))

    assert gate.receive(decision()) != first
    assert len(gate.inbox) == 1


def test_what_is_no_decision_is_a_delivery_of_its_own_each_time(gate: Gate) -> None:
    assert gate.receive("approve") != gate.receive("approve")


def test_a_decision_whose_verdict_is_forgotten_is_judged_anew(gate: Gate) -> None:
    first = gate.receive(decision())
    accepted = gate.inbox.popleft()
    gate.settle(accepted, verdict(accepted, VerdictCode.ACCEPTED, ApprovalState.APPROVED))
    for number in range(MOST_ANSWERS):
        gate.receive(decision(reason=str(number)))
        delivery = gate.inbox.popleft()
        gate.settle(delivery, verdict(delivery, VerdictCode.ALREADY_DECIDED, None))
    assert first not in gate.verdicts

    assert gate.receive(decision()) != first


def test_requests_of_a_step_are_numbered_from_one(gate: Gate) -> None:
    assert gate.next_number("refund") == 1
    gate.ask(request(), ApprovalState.EXPIRED)
    gate.ask(request(f"{RUN}/refund-2/1"), ApprovalState.PENDING)

    assert gate.next_number("refund") == 2
    assert gate.next_number("refund-2") == 2
    assert gate.next_number("mail") == 1


def test_only_the_newest_verdicts_are_remembered(gate: Gate) -> None:
    for number in range(MOST_ANSWERS + 5):
        gate.receive(decision(reason=str(number)))
        delivery = gate.inbox.popleft()
        gate.settle(delivery, verdict(delivery, VerdictCode.UNKNOWN_APPROVAL, None))

    assert len(gate.verdicts) == MOST_ANSWERS
    assert f"{RUN}#first.{MOST_ANSWERS + 5}" in gate.verdicts
    assert f"{RUN}#first.5" not in gate.verdicts


def test_a_decision_says_who_and_what_in_full() -> None:
    gate = Gate(RUN, "first")
    gate.receive(decision(reason="as agreed"))

    assert gate.inbox[0].decision == Decision(
        approval_id=ASKED,
        params_hash=HASH,
        outcome=DecisionOutcome.APPROVE,
        approver="alice",
        reason="as agreed",
    )


def test_a_settled_request_is_remembered_with_who_has_decided_it(gate: Gate) -> None:
    asked = [f"{RUN}/refund/{number}" for number in (1, 2, 3)]
    for name in asked:
        gate.ask(request(name), ApprovalState.PENDING)
    said = {ApprovalState.APPROVED: "approve", ApprovalState.REJECTED: "reject"}
    for name, (state, outcome) in zip(asked, said.items(), strict=False):
        gate.receive(decision(name, outcome=outcome, approver="bob", reason="looked"))
        delivery = gate.inbox.pop()
        gate.settle(delivery, verdict(delivery, VerdictCode.ACCEPTED, state))
    gate.close(asked[2], ApprovalState.EXPIRED)

    seen = [(one.state, one.decided_by, one.reason) for one in gate.settled_views()]
    assert seen == [
        ("approved", "bob (unverified)", "looked"),
        ("rejected", "bob (unverified)", "looked"),
        ("expired", "", ""),
    ]
    assert gate.settled_views()[1].request.votes == ()


def test_only_the_newest_settled_requests_are_remembered(gate: Gate) -> None:
    for number in range(MOST_SETTLED + 2):
        name = f"{RUN}/refund/{number + 1}"
        gate.ask(request(name), ApprovalState.PENDING)
        gate.close(name, ApprovalState.EXPIRED)

    remembered = [one.request.approval_id for one in gate.settled_views()]
    assert remembered[0] == f"{RUN}/refund/3"
    assert len(remembered) == MOST_SETTLED
