"""Guarantee G1 across Temporal's own reset: what the ledger has recorded is not made again."""

from __future__ import annotations

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetActivityRequest

from surehand.activities.ledger.steps.acting import Holding
from surehand.workflows.contracts.states import RunState
from surehand.workflows.plan.plan import Plan
from tests.e2e.executions import reset_before
from tests.e2e.plans import mail_step
from tests.e2e.runs import Run, example_plan, step, until
from tests.e2e.stage import Stage
from tests.ledger_databases import DATABASES

pytestmark = pytest.mark.guarantee("G1")


@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize(
    ("activity", "nth"),
    # Reads are calls, too: the third one is the refund, the fifth one the mail.
    [("request_approval", 1), ("execute_tools", 3), ("execute_tools", 5)],
    ids=["before asking", "before the refund", "before the mail"],
)
async def test_a_run_that_is_reset_repeats_no_effect_and_asks_nobody_again(
    stage: Stage, order_id: str, activity: str, nth: int
) -> None:
    async with stage.worker_here():
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await run.approve()
        first = await run.result()
        again = await reset_before(stage, run, activity, nth)
        result = await again.result()

    assert result.state is RunState.COMPLETED
    counts = stage.shop.counts(order_id)
    assert (counts["refunds"], counts["restocks"], counts["mails"]) == (1, 1, 1)
    assert step(result, "refund").output == step(first, "refund").output
    assert step(result, "mail").replayed
    assert len(stage.approval_rows(run)) == 1
    assert result.uncompensated == []


async def test_a_run_that_has_undone_its_effects_does_not_make_them_when_it_is_reset(
    stage: Stage, order_id: str
) -> None:
    async with stage.worker_here():
        run = await stage.start(example_plan("refund_fails.yaml", order_id=order_id))
        await run.approve()
        await run.result()
        again = await reset_before(stage, run, "execute_tools", 3)
        result = await again.result()

    assert result.state is RunState.FAILED
    assert "undone" in (step(result, "refund").error or "")
    counts = stage.shop.counts(order_id)
    assert (counts["refunds"], counts["refund_cancellations"]) == (1, 1)
    assert (counts["restocks"], counts["restock_undos"]) == (1, 1)


async def attempts(run: Run) -> int:
    """Return at which attempt the call is that is under way."""
    pending = (await run.handle.describe()).raw_description.pending_activities
    return max((one.attempt for one in pending), default=0)


def scheduled(stage: Stage, run: Run) -> int:
    """Return when the attempt was scheduled that holds the run's batch."""
    [row] = stage.run_rows(run)
    return Holding.of(row["batch"]).scheduled_ms


@pytest.mark.parametrize("how", ["the run", "the activity"])
async def test_a_batch_that_is_reset_while_it_is_tried_again_goes_on(
    stage: Stage, order_id: str, how: str
) -> None:
    stage.shop.fault("mails", fail="before", status=503)
    steps = [mail_step(order_id, kind) for kind in ("first", "second")]
    async with stage.worker_here():
        run = await stage.start(Plan.model_validate(steps), durability="exit")
        await until(lambda: attempts(run), lambda number: number >= 3)
        began = scheduled(stage, run)
        # Of a later attempt: by that, one that is late is known.
        await until(lambda: scheduled(stage, run), lambda at: at > began)
        stage.shop.clear_faults()
        if how == "the run":
            # To where the batch was under way already: what it was given has the old run's id.
            await run.handle.signal("decide", "nonsense")
            await run.until(lambda view: bool(view.refused_signals or view.verdicts))
            run = await reset_before(stage, run, "verify_decision", 1)
        else:
            pending = (await run.handle.describe()).raw_description.pending_activities
            await stage.client.workflow_service.reset_activity(
                ResetActivityRequest(
                    namespace=stage.client.namespace,
                    execution=WorkflowExecution(workflow_id=run.run_id),
                    id=pending[0].activity_id,
                )
            )
        result = await run.result()

    assert result.state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["mails"] == 2
