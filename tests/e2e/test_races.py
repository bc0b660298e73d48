"""Controls that meet: the table of docs/guarantees/controls.md, line by line.

Both messages are in one workflow task (they come while no worker is there), or the worker is killed
when both have been sent. Which came first is the order in the history, as Temporal's server has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import pytest

from surehand.workflows.contracts.base import Message, RunState
from surehand.workflows.contracts.runs import Amend, Checkpoint, OutsideEvent, TopUp
from surehand.workflows.contracts.steering import (
    AnswerInterrupts,
    CancelMode,
    CancelRun,
    PauseRun,
    ResumeRun,
    Verb,
)
from surehand.workflows.plan.plan import Durability
from tests.e2e.messages import answered, event, told
from tests.e2e.plans import plan, refund_step
from tests.e2e.runs import Run, decision_on, step, until
from tests.e2e.stage import Stage

#: Where a run stands when the messages meet.
GATED: Final = "its call waits for an approval"
ASKING: Final = "its refund is paid, and a question waits"
PAUSED: Final = "it is paused before its call, which is approved"
SPENT: Final = "its budget is used up before the second call"

Messages = dict[str, tuple[str, Any]]
Check = Callable[[Stage, Run, str, str], Awaitable[None]]


@dataclass(frozen=True)
class Race:
    """Two messages that meet, and what has to hold whichever is first."""

    stands: str
    messages: tuple[str, str]
    holds: Check


def _messages(run: Run, order_id: str, request: Any) -> Messages:
    """Return what can be sent, by a name."""
    longer = plan(refund_step(order_id), {"id": "end", "ask": "Done?"})
    other = plan(refund_step(order_id), {"id": "other", "ask": "Or so?"})
    said: Messages = {
        "pause": (Verb.PAUSE, PauseRun(actor="olga")),
        "resume": (Verb.RESUME, ResumeRun(actor="olga")),
        "resume again": (Verb.RESUME, ResumeRun(actor="uma")),
        "cancel": (Verb.CANCEL, CancelRun(actor="uma")),
        "cancel, keep": (Verb.CANCEL, CancelRun(actor="olga", mode=CancelMode.KEEP)),
        "amend": (Verb.AMEND, Amend(actor="olga", plan=longer, based_on=1)),
        "amend otherwise": (Verb.AMEND, Amend(actor="uma", plan=other, based_on=1)),
        "answer": (Verb.ANSWER, AnswerInterrupts(actor="ann", answers={"end.1": "yes"})),
        "answer no": (Verb.ANSWER, AnswerInterrupts(actor="bob", answers={"end.1": "no"})),
        "top up": (Verb.TOP_UP, TopUp(actor="olga", steps=1)),
        "top up more": (Verb.TOP_UP, TopUp(actor="olga", steps=2)),
    }
    if request is not None:
        said["approve"] = ("decide", decision_on(request))
        said["reject"] = ("decide", decision_on(request, outcome="reject", approver="bob"))
    return said


async def waits_paused(stage: Stage, run: Run, order_id: str, first: str) -> None:
    # Where a call holds its workflow task, all that has come is judged before it.
    if first == "approve" and (await run.view()).durability == Durability.SYNC:
        await resumed_once(stage, run, order_id, first)  # nothing comes behind the call
        return
    view = await run.until(lambda v: v.result.state is RunState.PAUSED_USER and not v.pending)
    assert stage.paid(order_id) == (0, 0), view
    await told(run, Verb.RESUME, ResumeRun(actor="olga"))
    await run.completed()
    assert stage.paid(order_id) == (1, 0)


async def cancelled(stage: Stage, run: Run, order_id: str, first: str) -> None:
    assert (await run.result()).state is RunState.CANCELLED
    refunds, cancellations = stage.paid(order_id)
    assert refunds == cancellations <= int(first in ("approve", "resume"))


async def first_decision_counts(stage: Stage, run: Run, order_id: str, first: str) -> None:
    result = await run.result()
    approved = first == "approve"
    assert result.state is (RunState.COMPLETED if approved else RunState.FAILED)
    assert stage.paid(order_id) == (int(approved), 0)
    assert len(await stage.events(run, "approval.approved", "approval.rejected")) == 1


async def first_mode_counts(stage: Stage, run: Run, order_id: str, first: str) -> None:
    result, view = await run.result(), await run.view()
    assert result.state is RunState.CANCELLED
    assert stage.paid(order_id) == (1, int(first == "cancel"))
    [refused] = [line.text for line in view.timeline if " refused: " in line.text]
    assert refused.startswith("cancel by ") and "has cancelled the run already" in refused


async def amended_and_paid_once(stage: Stage, run: Run, order_id: str, first: str) -> None:
    # Approved first, its call is a fact of the new plan; else the new plan asks anew.
    wanted = (RunState.WAITING_INPUT, RunState.WAITING_APPROVAL)
    view = await run.until(lambda v: v.plan_version == 2 and v.result.state in wanted)
    if view.pending:
        assert stage.paid(order_id) == (0, 0)
        await run.decide(decision_on(view.pending[0]))
        await run.in_state(RunState.WAITING_INPUT)
    assert stage.paid(order_id) == (1, 0)
    await answered(run, answer="yes")
    await run.completed()
    assert len(await stage.events(run, "effect.claimed")) == 1


async def amended_while_paused(stage: Stage, run: Run, order_id: str, first: str) -> None:
    await run.until(lambda v: v.plan_version == 2 and v.result.state is RunState.PAUSED_USER)
    assert stage.paid(order_id) == (0, 0)
    await told(run, Verb.RESUME, ResumeRun(actor="olga"))
    view = await run.until(lambda v: bool(v.pending))
    await run.decide(decision_on(view.pending[0]))
    await run.in_state(RunState.WAITING_INPUT)
    await answered(run, answer="yes")
    await run.completed()
    assert stage.paid(order_id) == (1, 0)


async def first_plan_counts(stage: Stage, run: Run, order_id: str, first: str) -> None:
    view = await run.until(lambda v: v.plan_version == 2 and bool(v.pending))
    await run.decide(decision_on(view.pending[0]))
    view = await run.in_state(RunState.WAITING_INPUT)
    [asked] = view.interrupts
    assert (view.plan_version, asked.step_id) == (2, "end" if first == "amend" else "other")
    assert len(view.refused_signals) == 1
    await run.cancel()
    await run.result()
    assert stage.paid(order_id) == (1, 1)


async def first_answer_counts(stage: Stage, run: Run, order_id: str, first: str) -> None:
    result = await run.result()
    assert step(result, "end").output == ("yes" if first == "answer" else "no")
    assert len(await stage.events(run, "interrupt.answered")) == 1


async def cancelled_and_answered_before(stage: Stage, run: Run, order_id: str, first: str) -> None:
    """An answer that comes behind a stop changes nothing (Agenta #6530)."""
    result, answers = await run.result(), await stage.events(run, "interrupt.answered")
    refused = [one.name for one in (await run.view()).refused_signals]
    assert (result.state, stage.paid(order_id)) == (RunState.CANCELLED, (1, 1))
    if first == "answer":
        assert (step(result, "end").output, len(answers), refused) == ("yes", 1, [])
    else:
        assert (step(result, "end").output, len(answers), refused) == (None, 0, ["answer"])


async def resumed_once(stage: Stage, run: Run, order_id: str, first: str) -> None:
    await run.completed()
    assert stage.paid(order_id) == (1, 0)
    assert len(await stage.events(run, "effect.claimed")) == 1


async def paused_or_through(stage: Stage, run: Run, order_id: str, first: str) -> None:
    # Paused last it is paused again; resumed last it goes on, and a pause of a paused run is none.
    if first == "resume":
        await waits_paused(stage, run, order_id, first)
    else:
        await resumed_once(stage, run, order_id, first)


async def both_are_added(stage: Stage, run: Run, order_id: str, first: str) -> None:
    await run.completed()
    found = await run.handle.query("checkpoint", result_type=Checkpoint)
    assert (found.budget or {})["steps_limit"] == 4
    assert stage.paid(order_id) == (1, 0)


RACES: Final = [
    Race(GATED, ("pause", "approve"), waits_paused),
    Race(GATED, ("approve", "cancel"), cancelled),
    Race(GATED, ("pause", "cancel"), cancelled),
    Race(GATED, ("approve", "reject"), first_decision_counts),
    Race(GATED, ("amend", "approve"), amended_and_paid_once),
    Race(GATED, ("amend", "pause"), amended_while_paused),
    Race(GATED, ("amend", "amend otherwise"), first_plan_counts),
    Race(GATED, ("amend", "cancel"), cancelled),
    Race(ASKING, ("cancel", "cancel, keep"), first_mode_counts),
    Race(ASKING, ("answer", "answer no"), first_answer_counts),
    Race(PAUSED, ("resume", "resume again"), resumed_once),
    Race(PAUSED, ("resume", "pause"), paused_or_through),
    Race(PAUSED, ("resume", "cancel"), cancelled),
    Race(SPENT, ("top up", "top up more"), both_are_added),
    Race(ASKING, ("cancel", "answer"), cancelled_and_answered_before),
]
EACH: Final = [
    pytest.param(race, order, id=f"{race.messages[order]} before {race.messages[1 - order]}")
    for race in RACES
    for order in (0, 1)
]


async def judged(stage: Stage, run: Run) -> int:
    kinds = [
        f"{what}.{how}" for what in ("steering", "decision") for how in ("accepted", "refused")
    ]
    return len(await stage.events(run, *kinds))


async def stood(stage: Stage, order_id: str, stands: str, mode: str) -> tuple[Run, Any]:
    """Return a run that stands there, and what it asks approval of."""
    more = [{"id": "end", "ask": "Done?"}] if stands == ASKING else []
    budget: dict[str, Any] = {}
    if stands == SPENT:
        budget = {"budget": {"steps": 1}}
        first = {"id": "order", "tool": "orders.read", "params": {"order_id": order_id}}
        run = await stage.start(plan(first, refund_step(order_id), **budget), durability=mode)
        await run.decide(decision_on(await run.asks()))
        await run.in_state(RunState.PAUSED_BUDGET)
        return run, None
    run = await stage.start(plan(refund_step(order_id), *more), durability=mode)
    request = await run.asks()
    if stands == PAUSED:
        await told(run, Verb.PAUSE, PauseRun(actor="olga"))
    if stands in (PAUSED, ASKING):
        await run.decide(decision_on(request))
        ends_in = RunState.PAUSED_USER if stands == PAUSED else RunState.WAITING_INPUT
        await run.until(lambda view: view.result.state is ends_in and not view.pending)
    return run, request


# Each race in both modes and both orders, of which the next race has the other pairs. A call that
# is no batch is in `exit` what it is in `async`; batches: test_unacknowledged.py.
@pytest.mark.parametrize(
    ("race", "first", "mode"),
    [
        pytest.param(*one.values, ("sync", "async")[(n + n // 2) % 2], id=one.id)
        for n, one in enumerate(EACH)
    ],
)
async def test_messages_that_come_at_once_have_the_outcome_of_the_table(
    stage: Stage, order_id: str, race: Race, first: int, mode: str
) -> None:
    stage.shop.fault("refunds", delay_after_s=0.5)  # long enough to be amended meanwhile
    async with stage.worker_here():
        run, request = await stood(stage, order_id, race.stands, mode)
    order = [race.messages[first], race.messages[1 - first]]
    before = await judged(stage, run)
    for name in order:
        await run.handle.signal(*_messages(run, order_id, request)[name])
    async with stage.worker_here():
        await until(lambda: judged(stage, run), lambda found: found == before + len(order))
        await race.holds(stage, run, order_id, order[0])


@pytest.mark.crash
@pytest.mark.parametrize(("race", "first"), EACH[::7])
async def test_messages_whose_worker_is_killed_have_the_outcome_of_the_table(
    stage: Stage, order_id: str, race: Race, first: int
) -> None:
    stage.shop.fault("refunds", delay_after_s=0.5)
    with stage.ready_worker() as doomed:
        run, request = await stood(stage, order_id, race.stands, "sync")
        order = [race.messages[first], race.messages[1 - first]]
        before = await judged(stage, run)
        for name in order:
            await run.handle.signal(*_messages(run, order_id, request)[name])
        doomed.kill()
    async with stage.worker_here():
        await until(lambda: judged(stage, run), lambda found: found >= before + len(order))
        await race.holds(stage, run, order_id, order[0])


def _storm(size: int, kinds: int) -> list[Message]:
    return [event(f"e{n % kinds}", n % kinds, about=f"k{n % kinds}") for n in range(size)]


async def test_of_a_thousand_events_at_once_each_counts_once(stage: Stage) -> None:
    waits = [
        {"id": f"w{n}", "wait": {"event": "returned", "about": f"k{n}"}, "after": []}
        for n in range(50)
    ]
    # Not evicted: each replay would read a thousand signals anew.
    async with stage.worker_here():
        run = await stage.start(plan(*waits))
        await run.in_state(RunState.WAITING_EVENT)
        storm = _storm(1000, 50)
        assert all(isinstance(one, OutsideEvent) for one in storm)
        await asyncio.gather(*(run.handle.signal(Verb.EVENT, one) for one in storm))
        result = await run.result(timeout_s=240)

    assert [view.output for view in result.steps] == list(range(50))
    assert len(await stage.events(run, "interrupt.delivered")) == 50
