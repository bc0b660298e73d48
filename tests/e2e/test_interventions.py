"""Guarantee G2: what only a human can settle waits for one, and one answer settles it."""

from __future__ import annotations

import pytest
from temporalio.client import WorkflowUpdateFailedError

from surehand.activities.ledger.effects.resolve import settle
from surehand.workflows.contracts.effects import Resolution
from surehand.workflows.contracts.states import RunState, Waiting
from tests.e2e.plans import NEITHER
from tests.e2e.runs import Run, decision_on, example_plan, states, step
from tests.e2e.stage import Stage
from tests.ledger_databases import DATABASES

pytestmark = pytest.mark.guarantee("G2")

RECEIPT = {"refund_id": "refund-by-hand", "amount": "120.00", "currency": "EUR"}


async def in_doubt(stage: Stage, order_id: str, *, applied: bool) -> tuple[Run, Waiting]:
    """Return a run whose refund's answer was lost, and its question."""
    fail = "drop_after" if applied else "drop_before"
    stage.shop.fault("refunds", ignore_keys=True, ignore_lookup=True, fail=fail, times=1)
    run = await stage.start(example_plan("refund.yaml", order_id=order_id))
    await run.approve()
    [question] = (await run.in_state(RunState.NEEDS_INTERVENTION)).result.waiting_for
    if not applied:
        await stage.no_call_may_arrive(run)
    return run, question


@pytest.mark.parametrize("database", DATABASES)
async def test_happened_needs_evidence_and_serves_later_steps(stage: Stage, order_id: str) -> None:
    async with stage.worker_here(tool_modules=NEITHER):
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
        result = await run.result()
    assert result.state is RunState.COMPLETED
    assert step(result, "refund").output == RECEIPT
    [mail] = stage.shop.world(order_id)["mails"]
    assert "120.00 EUR" in mail["body"]
    assert stage.shop.counts(order_id)["refunds"] == 1


@pytest.mark.parametrize("on_failure", ["compensate", "continue"])
async def test_a_call_off_repeats_nothing(stage: Stage, order_id: str, on_failure: str) -> None:
    plan = example_plan("refund.yaml", order_id=order_id)
    steps = [
        one.model_copy(update={"on_failure": on_failure}) if one.id == "refund" else one
        for one in plan.steps
        if one.id in ("order", "amount", "refund")
    ]
    stage.shop.fault("refunds", ignore_keys=True, ignore_lookup=True, fail="drop_before", times=1)
    async with stage.worker_here(tool_modules=NEITHER):
        run = await stage.start(plan.model_copy(update={"steps": steps}))
        await run.approve()
        [question] = (await run.in_state(RunState.NEEDS_INTERVENTION)).result.waiting_for
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


async def test_giving_up_fails_the_run_and_lists_the_effect(stage: Stage, order_id: str) -> None:
    async with stage.worker_here(tool_modules=NEITHER):
        run, question = await in_doubt(stage, order_id, applied=True)
        await run.resolve(intervention_id=question.id, outcome="give_up", evidence="bank is shut")
        result = await run.result()
    assert result.state is RunState.FAILED
    [left] = result.uncompensated
    assert (left.tool, left.state) == ("payments.refund", "in_doubt")
    assert "bank is shut" in (left.reason or "")
    assert stage.shop.counts(order_id)["refunds"] == 1


async def test_a_second_run_joins_the_open_question(stage: Stage, order_id: str) -> None:
    async with stage.worker_here(tool_modules=NEITHER):
        first, question = await in_doubt(stage, order_id, applied=True)
        second = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await second.send(decision_on(await second.asks()))
        [joined] = (await second.in_state(RunState.NEEDS_INTERVENTION)).result.waiting_for
        assert joined.id == question.id
        await first.resolve(
            intervention_id=question.id,
            outcome="happened",
            evidence="bank statement",
            receipt=RECEIPT,
        )
        assert (await first.result()).state is RunState.COMPLETED
        result = await second.result()
    assert states(result)["refund"] == "succeeded"
    assert step(result, "refund").made_by == first.run_id
    assert stage.shop.counts(order_id)["refunds"] == 1


async def test_a_run_follows_a_question_settled_elsewhere(stage: Stage, order_id: str) -> None:
    async with stage.worker_here(tool_modules=NEITHER):
        run, question = await in_doubt(stage, order_id, applied=False)
        answer = {"intervention_id": question.id, "outcome": "not_happened"}
        elsewhere = Resolution.model_validate({**answer, "actor": "olga"})
        with stage.ledger.transaction("default") as tx:
            assert (settle(tx, run.run_id, "ledger#1", elsewhere))[0]
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await run.resolve(**answer)
        assert "already settled by olga" in str(refused.value.cause)
        assert (await run.result()).state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["refunds"] == 1
