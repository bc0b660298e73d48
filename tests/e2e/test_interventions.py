"""Guarantee G2: what a crash leaves unknown is settled once, by a look or a human."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from temporalio.client import WorkflowUpdateFailedError

from surehand.activities.ledger.effects.reconcile import settle_intervention
from surehand.activities.worker.crash_points import CrashPoint
from surehand.workflows.contracts.base import RunState, Waiting
from surehand.workflows.contracts.effects import Resolution
from surehand.workflows.contracts.tools import CALL_MARGIN
from surehand.workflows.plan.plan import Plan
from tests.e2e.plans import HUMAN
from tests.e2e.runs import Run, decision_on, refund_plan, states, step
from tests.e2e.stage import Stage
from tests.ledger_databases import DATABASES
from tests.variants.flights import now

RECEIPT = {"refund_id": "refund-by-hand", "amount": "120.00", "currency": "EUR"}


async def in_doubt(stage: Stage, order_id: str, *, applied: bool) -> tuple[Run, Waiting]:
    """Return a run whose refund's answer was lost, and its question."""
    fail = "drop_after" if applied else "drop_before"
    stage.shop.fault("refunds", ignore_keys=True, ignore_lookup=True, fail=fail, times=1)
    run = await stage.start(refund_plan(order_id))
    await run.approve()
    question = await run.asks_a_human()
    if not applied:
        await stage.no_call_may_arrive(run)
    return run, question


@pytest.mark.guarantee("G2")
@pytest.mark.parametrize("database", DATABASES)
async def test_happened_needs_evidence_and_serves_later_steps(stage: Stage, order_id: str) -> None:
    async with stage.worker_here(tool_modules=HUMAN):
        run, question = await in_doubt(stage, order_id, applied=True)
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await run.resolve(intervention_id=question.id, outcome="happened")
        assert "evidence" in str(refused.value.cause)
        await run.resolve(
            intervention_id=question.id,
            outcome="happened",
            evidence="bank statement",
            receipt=RECEIPT,
        )
        result = await run.completed()
    assert step(result, "refund").output == RECEIPT
    [mail] = stage.shop.world(order_id)["mails"]
    assert "120.00 EUR" in mail["body"]
    assert stage.shop.counts(order_id)["refunds"] == 1


@pytest.mark.guarantee("G2")
@pytest.mark.parametrize("on_failure", ["compensate", "continue"])
async def test_a_call_off_repeats_nothing(stage: Stage, order_id: str, on_failure: str) -> None:
    plan = refund_plan(order_id)
    steps = [
        one.model_copy(update={"on_failure": on_failure}) if one.id == "refund" else one
        for one in plan.steps
        if one.id in ("order", "amount", "refund")
    ]
    stage.shop.fault("refunds", ignore_keys=True, ignore_lookup=True, fail="drop_before", times=1)
    async with stage.worker_here(tool_modules=HUMAN):
        run = await stage.start(plan.model_copy(update={"steps": steps}))
        await run.approve()
        question = await run.asks_a_human()
        await stage.no_call_may_arrive(run)
        await run.resolve(intervention_id=question.id, outcome="call_off")
        result = await run.result()
    completes = on_failure == "continue"
    assert result.state is (RunState.COMPLETED if completes else RunState.FAILED)
    assert "oscar has called it off" in (step(result, "refund").error or "")
    assert not result.uncompensated
    assert stage.shop.counts(order_id)["refunds"] == 0
    assert [row["state"] for row in await stage.effects(run)] == ["failed"]
    assert len(stage.intervention_rows(run)) == 1


@pytest.mark.guarantee("G2")
async def test_a_second_run_joins_the_open_question(stage: Stage, order_id: str) -> None:
    async with stage.worker_here(tool_modules=HUMAN):
        first, question = await in_doubt(stage, order_id, applied=True)
        second = await stage.start(refund_plan(order_id))
        await second.send(decision_on(await second.asks()))
        [joined] = (await second.in_state(RunState.NEEDS_INTERVENTION)).result.waiting_for
        assert joined.id == question.id
        await first.resolve(
            intervention_id=question.id,
            outcome="happened",
            evidence="bank statement",
            receipt=RECEIPT,
        )
        await first.completed()
        result = await second.result()
    assert states(result)["refund"] == "succeeded"
    assert step(result, "refund").made_by == first.run_id
    assert stage.shop.counts(order_id)["refunds"] == 1


@pytest.mark.guarantee("G2")
async def test_a_run_follows_a_question_settled_elsewhere(stage: Stage, order_id: str) -> None:
    async with stage.worker_here(tool_modules=HUMAN):
        run, question = await in_doubt(stage, order_id, applied=False)
        answer = {"intervention_id": question.id, "outcome": "not_happened"}
        elsewhere = Resolution.model_validate({**answer, "actor": "olga"})
        with stage.ledger.transaction("default") as tx:
            assert (settle_intervention(tx, run.run_id, "ledger#1", elsewhere))[0]
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await run.resolve(**answer)
        assert "already settled by olga" in str(refused.value.cause)
        await run.completed()
    assert stage.shop.counts(order_id)["refunds"] == 1


TOOLS: Final = {"tool_modules": "tests.variants.flights"}
#: A worker that dies here leaves the call's outcome unknown.
UNKNOWN: Final = (CrashPoint.AFTER_CLAIM, CrashPoint.DURING_CALL, CrashPoint.AFTER_CALL)


@pytest.fixture
def booking(tmp_path: Path) -> str:
    """A booking for another flight than the one that is wanted."""
    path = tmp_path / "booking.json"
    path.write_text(json.dumps(["LH1"]))
    return str(path)


async def killed(stage: Stage, booking: str, point: CrashPoint, durability: str = "sync") -> Run:
    params: Any = {"booking": booking, "flight": "LH2"}
    plan = Plan.model_validate([{"id": "change", "tool": "flights.change", "params": params}])
    run = await stage.die_at(f"flights.change:{point}", plan, durability=durability, **TOOLS)
    return run


@pytest.mark.crash
@pytest.mark.parametrize(
    ("point", "durability"),
    [*zip(UNKNOWN, ("async", "sync", "exit"), strict=True)],
)
async def test_what_was_so_before_the_call_is_for_a_human_after_a_crash(
    stage: Stage, booking: str, point: CrashPoint, durability: str
) -> None:
    Path(booking).write_text(json.dumps(["LH2"]))
    run = await killed(stage, booking, point, durability)
    calls = len(now(booking))
    async with stage.worker_here(**TOOLS):
        await run.in_state(RunState.NEEDS_INTERVENTION)

        [asked] = stage.intervention_rows(run)
        assert "its lookup was true before the call" in asked["question"]
        assert len(now(booking)) == calls == (1 if point is CrashPoint.AFTER_CLAIM else 2)
        assert await stage.effect_states(run) == {"flights.change": "in_doubt"}
        [seen] = await stage.events(run, "effect.observed")
        assert seen["body"]["answer"] == "found"
        await run.cancel(mode="keep")


@pytest.mark.crash
@pytest.mark.parametrize("point", UNKNOWN)
async def test_an_unmet_state_is_made_once(stage: Stage, booking: str, point: CrashPoint) -> None:
    run = await killed(stage, booking, point)
    result = await stage.finish(run, **TOOLS)

    assert result.state is RunState.COMPLETED
    assert now(booking) == ["LH1", "LH2"]
    assert stage.intervention_rows(run) == []


@pytest.mark.crash
@pytest.mark.parametrize("durability", ["sync", "exit"])
async def test_an_attempt_has_time_for_looks(stage: Stage, booking: str, durability: str) -> None:
    params: Any = {"booking": booking, "flight": "LH2"}
    change: Any = {"id": "change", "tool": "flights.change", "params": params}
    back: Any = {**change, "id": "back", "params": {**params, "flight": "LH1"}}
    async with stage.worker_here(**TOOLS):
        run = await stage.start(Plan.model_validate([change, back]), durability=durability)
        await run.result()

    calls = ["execute_tools", "execute_tools"] if durability == "sync" else ["execute_tools"]
    given = timedelta(seconds=4 * 2) / len(calls) + CALL_MARGIN
    limits = list[tuple[str, timedelta]]()
    async for event in run.handle.fetch_history_events():
        scheduled = event.activity_task_scheduled_event_attributes
        if scheduled.activity_type.name in calls:
            limit = scheduled.start_to_close_timeout.ToTimedelta()
            limits.append((scheduled.activity_type.name, limit))
    assert limits == [(name, given) for name in calls]
