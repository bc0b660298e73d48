"""G1, G2: a deploy between a kill and what follows changes nothing about the call that was made."""

from __future__ import annotations

from surehand.workflows.contracts.states import RunState
from surehand.workflows.plan.plan import Plan
from tests.e2e.runs import step
from tests.e2e.stage import Stage

PATIENT = "tests.variants.refund_slow_bank"
IMPATIENT = "tests.variants.refund_impatient"


async def test_a_deploy_that_shortens_a_timeout_repeats_no_call_that_is_on_its_way(
    stage: Stage, order_id: str
) -> None:
    """The shop has taken the request, and pays long after the new worker has looked."""
    stage.shop.fault("refunds", ignore_keys=True, delay_before_s=25)
    before = stage.shop.requests("refunds")["received"]
    params = {"order_id": order_id, "amount": "120.00", "currency": "EUR"}
    plan = Plan.model_validate([{"id": "refund", "tool": "payments.refund", "params": params}])
    with stage.worker(tool_modules=PATIENT) as old:
        old.wait_ready()
        run = await stage.start(plan)
        stage.shop.wait_requests("refunds", before + 1)
        with stage.worker(tool_modules=IMPATIENT) as new:
            new.wait_ready()
            old.kill()
            result = await run.result(timeout_s=120)

    assert result.state is RunState.COMPLETED
    assert stage.shop.requests("refunds")["received"] == before + 1
    assert stage.shop.counts(order_id)["refunds"] == 1
    [row] = await stage.effects(run)
    assert (row["state"], row["calls"]) == ("committed", 1)
    assert step(result, "refund").output == row["receipt"]
