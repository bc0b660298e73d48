"""The gate, and what a run shows: what arrives gets a verdict; what comes early is held."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surehand.workflows.contracts.approvals import (
    ApprovalRequest,
    ApprovalState,
    Verdict,
    VerdictCode,
)
from surehand.workflows.contracts.base import RunState, StepState
from surehand.workflows.contracts.effects import OpenIntervention
from surehand.workflows.contracts.runs import StartRun, StepView
from surehand.workflows.contracts.steering import Interrupt, InterruptKind, Verb
from surehand.workflows.plan.plan import Plan
from surehand.workflows.run.deliveries import MOST_ANSWERS, Delivery, Inbox, answer_of
from surehand.workflows.run.run_data import RunData, StepViews
from surehand.workflows.run.run_records import MOST_HELD, MOST_SETTLED, Gate
from tests.unit.values import json_values

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
        step_id=approval_id.split("/")[-2],
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
        decision_id=delivery.id,
        approval_id=delivery.decision.approval_id if delivery.decision else "",
        code=code,
        message="",
        state=state,
    )


@pytest.fixture
def gate() -> Gate:
    return Gate(run_id=RUN)


class Decided(Inbox):
    """An inbox that decisions are sent to."""

    prefix: str = f"{RUN}#first."

    def take(self, payload: Any) -> str:
        return self.receive(Verb.DECIDE, payload)

    def settle(self, gate: Gate, delivery: Delivery, verdict: Verdict) -> None:
        gate.follow_verdict(delivery, verdict)
        self.answer(delivery, answer_of(verdict))

    def hold(self, gate: Gate, delivery: Delivery) -> None:
        self.answer(delivery, answer_of(gate.hold(delivery)))


@pytest.fixture
def inbox() -> Decided:
    return Decided()


def test_what_arrives_waits_in_the_inbox_in_order_under_ids_of_its_own(inbox: Decided) -> None:
    ids = [inbox.take(decision(reason=str(number))) for number in range(3)]

    assert len(set(ids)) == 3
    assert [one.id for one in inbox.queue] == ids
    reasons = [delivery.decision.reason for delivery in inbox.queue if delivery.decision]
    assert reasons == ["0", "1", "2"]


@given(json_values)
def test_a_signal_handler_never_raises(payload: Any) -> None:
    inbox = Decided()

    inbox.take(payload)

    assert len(inbox.queue) == 1


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
    gate: Gate, inbox: Decided, approval_id: str, early: bool
) -> None:
    inbox.take(decision(approval_id))

    assert gate.is_early(inbox.queue[0], {"refund"}) is early


def test_while_a_request_waits_only_the_next_is_early(gate: Gate, inbox: Decided) -> None:
    gate.note_request(request(), ApprovalState.PENDING)
    for number, early in ((1, False), (2, True), (3, False)):
        inbox.take(decision(f"{RUN}/refund/{number}"))
        assert gate.is_early(inbox.queue.pop(), {"refund"}) is early
    for state in ApprovalState:
        gate.follow_state(ASKED, state)
        inbox.take(decision(reason=state))
        assert not gate.is_early(inbox.queue.pop(), {"refund"})


def test_what_is_no_decision_is_not_held(gate: Gate, inbox: Decided) -> None:
    inbox.take("approve")

    assert not gate.is_early(inbox.queue[0], {"refund"})


def test_a_held_decision_is_verified_with_its_request(gate: Gate, inbox: Decided) -> None:
    for approval_id in (ASKED, f"{RUN}/mail/1"):
        inbox.take(decision(approval_id))
    first, second = inbox.queue
    inbox.queue.clear()
    inbox.hold(gate, first)
    inbox.hold(gate, second)
    assert inbox.verdicts[first.id].code is VerdictCode.HELD

    inbox.put_back(gate.note_request(request(), ApprovalState.PENDING))

    assert inbox.queue == [first]
    assert gate.held == [second]
    assert list(gate.pending) == [ASKED]


def test_a_held_decision_counts_under_a_later_number(gate: Gate, inbox: Decided) -> None:
    for number in (1, 3):
        inbox.take(decision(f"{RUN}/refund/{number}"))
    first, later = inbox.queue
    inbox.queue.clear()
    inbox.hold(gate, first)
    inbox.hold(gate, later)

    inbox.put_back(gate.note_request(request(f"{RUN}/refund/2"), ApprovalState.PENDING))

    assert (inbox.queue, gate.held) == ([first], [later])


def test_what_is_still_held_at_the_end_is_sent_to_be_verified(gate: Gate, inbox: Decided) -> None:
    inbox.take(decision())
    inbox.hold(gate, inbox.take_next())

    inbox.put_back(gate.release_held())

    assert len(inbox.queue) == 1
    assert gate.held == []


def test_a_run_holds_a_limited_number_of_early_decisions(gate: Gate, inbox: Decided) -> None:
    for number in range(MOST_HELD):
        inbox.take(decision(reason=str(number)))
        assert gate.is_early(inbox.queue[0], {"refund"})
        inbox.hold(gate, inbox.take_next())

    inbox.take(decision())

    assert not gate.is_early(inbox.queue[0], {"refund"})


@pytest.mark.parametrize("state", list(ApprovalState))
def test_a_request_is_pending_while_its_row_is(gate: Gate, state: ApprovalState) -> None:
    gate.note_request(request(), state)

    assert (ASKED in gate.pending) is (state is ApprovalState.PENDING)
    assert gate.states[ASKED] is state


PENDING, APPROVED, REJECTED = (
    ApprovalState.PENDING, ApprovalState.APPROVED, ApprovalState.REJECTED,
)  # fmt: skip


@pytest.mark.parametrize(
    ("code", "state", "known", "accepted"),
    [
        (VerdictCode.ACCEPTED, REJECTED, True, ["too much"]),
        (VerdictCode.WRONG_HASH, PENDING, True, []),
        (VerdictCode.MALFORMED, PENDING, True, []),
        (VerdictCode.ALREADY_DECIDED, APPROVED, True, []),
        # As a run that was reset hears of requests that it has yet to make.
        (VerdictCode.ALREADY_DECIDED, APPROVED, False, []),
        (VerdictCode.UNKNOWN_APPROVAL, None, False, []),
    ],
)
def test_a_run_follows_the_row_that_a_verdict_tells_of(
    gate: Gate,
    inbox: Decided,
    code: VerdictCode,
    state: ApprovalState | None,
    known: bool,
    accepted: list[str],
) -> None:
    if known:
        gate.note_request(request(), PENDING)
    inbox.take(decision(outcome="reject", reason="too much"))
    delivery = inbox.take_next()

    inbox.settle(gate, delivery, verdict(delivery, code, state))

    assert gate.states == ({ASKED: state} if known else {})
    assert list(gate.pending) == ([ASKED] if state is PENDING else [])
    assert [one.reason for one in gate.accepted.values()] == accepted
    assert inbox.verdicts[delivery.id].code is code


def test_a_decision_that_is_sent_again_is_no_second_one(gate: Gate, inbox: Decided) -> None:
    first = inbox.take(decision())
    assert inbox.take(decision()) == first  # waits to be judged
    early = inbox.take_next()
    inbox.hold(gate, early)
    assert inbox.take(decision()) == first  # held
    inbox.put_back(gate.note_request(request(), ApprovalState.PENDING))
    inbox.settle(
        gate, inbox.take_next(), verdict(early, VerdictCode.ACCEPTED, ApprovalState.APPROVED)
    )
    assert inbox.take(decision()) == first  # accepted

    assert not inbox.queue
    assert inbox.verdicts[first].code is VerdictCode.ACCEPTED


@pytest.mark.parametrize(
    "changes",
    [{"outcome": "reject"}, {"approver": "bob"}, {"params_hash": "sha256:2"}, {"reason": "r"}],
)
def test_a_different_decision_is_a_second_one(inbox: Decided, changes: dict[str, Any]) -> None:
    assert inbox.take(decision()) != inbox.take(decision(**changes))
    assert len(inbox.queue) == 2


def test_a_refused_decision_may_be_sent_again(gate: Gate, inbox: Decided) -> None:
    first = inbox.take(decision())
    delivery = inbox.take_next()
    inbox.settle(gate, delivery, verdict(delivery, VerdictCode.UNKNOWN_APPROVAL, None))

    assert inbox.take(decision()) != first
    assert len(inbox.queue) == 1


def test_what_is_no_decision_is_a_delivery_of_its_own_each_time(inbox: Decided) -> None:
    assert inbox.take("approve") != inbox.take("approve")


def test_a_decision_whose_verdict_is_forgotten_is_judged_anew(gate: Gate, inbox: Decided) -> None:
    first = inbox.take(decision())
    accepted = inbox.take_next()
    inbox.settle(gate, accepted, verdict(accepted, VerdictCode.ACCEPTED, ApprovalState.APPROVED))
    for number in range(MOST_ANSWERS):
        inbox.take(decision(reason=str(number)))
        delivery = inbox.take_next()
        inbox.settle(gate, delivery, verdict(delivery, VerdictCode.ALREADY_DECIDED, None))
    assert first not in inbox.verdicts
    assert len(inbox.verdicts) == MOST_ANSWERS

    assert inbox.take(decision()) != first


def test_requests_of_a_step_are_numbered_from_one(gate: Gate) -> None:
    assert gate.next_number("refund") == 1
    gate.note_request(request(), ApprovalState.EXPIRED)
    gate.note_request(request(f"{RUN}/refund-2/1"), ApprovalState.PENDING)

    assert gate.next_number("refund") == 2
    assert gate.next_number("refund-2") == 2
    assert gate.next_number("mail") == 1
    for number, state in ((3, ApprovalState.EXPIRED), (2, ApprovalState.VOID)):
        gate.note_request(request(f"{RUN}/refund/{number}"), state)
        assert gate.next_number("refund") == 4


def test_a_settled_request_keeps_who_decided_it(gate: Gate, inbox: Decided) -> None:
    asked = [f"{RUN}/refund/{number}" for number in (1, 2, 3)]
    for name in asked:
        gate.note_request(request(name), ApprovalState.PENDING)
    said = {ApprovalState.APPROVED: "approve", ApprovalState.REJECTED: "reject"}
    for name, (state, outcome) in zip(asked, said.items(), strict=False):
        inbox.take(decision(name, outcome=outcome, approver="bob", reason="looked"))
        delivery = inbox.queue.pop()
        inbox.settle(gate, delivery, verdict(delivery, VerdictCode.ACCEPTED, state))
    gate.follow_state(asked[2], ApprovalState.EXPIRED)

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
        gate.note_request(request(name), ApprovalState.PENDING)
        gate.follow_state(name, ApprovalState.EXPIRED)

    remembered = [one.request.approval_id for one in gate.settled_views()]
    assert remembered[0] == f"{RUN}/refund/3"
    assert len(remembered) == MOST_SETTLED


IDS = st.sampled_from("abcde")
CHANGES = st.lists(st.tuples(IDS, st.one_of(st.none(), st.sampled_from(StepState))), max_size=30)


@given(CHANGES, st.sets(st.sampled_from(StepState)))
def test_the_steps_in_a_state_are_those_that_a_look_at_all_finds_in_their_order(
    changes: list[tuple[str, StepState | None]], asked: set[StepState]
) -> None:
    views = StepViews()
    for step_id, state in changes:
        if state is not None:
            views[step_id] = StepView(id=step_id, tool="t", state=state)
        else:
            views.pop(step_id, None)

    assert views.in_state(asked) == [view for view in views.values() if view.state in asked]
    assert views.states == {view.state for view in views.values()}


def running(*others: StepState) -> RunData:
    """Return a run with a call under way, and other steps in these states."""
    steps = [{"id": f"s{number}", "tool": "a.b"} for number in range(len(others) + 1)]
    plan = Plan.model_validate(steps)
    request = StartRun(run_id="r", tenant="default", user="ada", plan=plan)
    data = RunData.new(request, "life", datetime.now(UTC))
    for number, state in enumerate((StepState.RUNNING, *others)):
        data.set_step(f"s{number}", state)
    return data


def test_what_waits_for_people_beside_a_call_that_is_under_way_is_an_open_item() -> None:
    data = running(StepState.WAITING_INPUT)
    assert data.open_items == 0

    asked = Interrupt(interrupt_id="s1.1", step_id="s1", kind=InterruptKind.ASK, question="?")
    data.interrupts["s1.1"] = asked
    assert (data.state, data.open_items) == (RunState.RUNNING, 1)

    data = running(StepState.NEEDS_INTERVENTION)
    doubt = OpenIntervention(intervention_id="iv-1", step_id="s1", question="Did it?")
    data.interventions["iv-1"] = doubt
    assert (data.state, data.open_items) == (RunState.RUNNING, 1)


def test_a_failure_shows_the_next_attempts_params() -> None:
    data = running(StepState.PAUSED_FAILURE)
    step = data.request.plan.step("s1").model_copy(update={"params": {"to": "${order.to}"}})
    data.set_progress("s1", step=step)
    assert [one.value for one in data.waiting()] == [{"to": "${order.to}"}]

    data.of_step("s1").edited = {"to": "ann"}

    assert [one.value for one in data.waiting()] == [{"to": "ann"}]


def test_paused_steps_wait_for_people_and_those_that_go_on_by_themselves_do_not() -> None:
    paused = running(StepState.PAUSED_FAILURE, StepState.PAUSED_PERMISSION, StepState.PAUSED_BUDGET)
    going_on = running(
        StepState.WAITING_EVENT, StepState.WAITING_QUOTA, StepState.WAITING_RATE_LIMIT
    )

    assert (paused.open_items, going_on.open_items) == (3, 0)
