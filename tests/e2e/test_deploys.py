"""G1 to G3: a deploy changes no call that was made, and no undo that was approved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from surehand.workflows.contracts.states import RunState
from surehand.workflows.plan.plan import Plan
from tests.e2e.executions import inside as child_of
from tests.e2e.plans import plan
from tests.e2e.runs import decision_on, step
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


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("inside", ["run", "child run"])
@pytest.mark.parametrize(
    ("outcome", "made"),
    [("undo", ["open ada", "seize everybody"]), ("compensated", ["open ada"])],
)
async def test_a_deploy_that_replaces_an_approved_undo_has_a_human_asked_before_it_runs(
    stage: Stage, tmp_path: Path, inside: str, outcome: str, made: list[str]
) -> None:
    file = tmp_path / "made"
    params = {"name": "ada", "file": str(file)}
    opens: dict[str, Any] = {"id": "opens", "tool": "accounts.open", "params": params}
    if inside == "child run":
        opens = {"id": "opens", "plan": {"steps": [opens]}}
    asks = {"id": "asks", "ask": "Go on?", "after": ["opens"]}
    with stage.worker(tool_modules="tests.variants.accounts"):
        run = await stage.start(plan(opens, asks))
        await run.in_state(RunState.WAITING_APPROVAL)
        asking = run if inside == "run" else child_of(stage, run, "opens")
        request = await asking.asks()
        assert request.undo == "undone by accounts.close (version 1)"
        await run.decide(decision_on(request))
        await run.in_state(RunState.WAITING_INPUT)

    with stage.worker(tool_modules="tests.variants.accounts_seized"):
        await run.cancel()
        [question] = (await run.in_state(RunState.NEEDS_INTERVENTION)).result.waiting_for
        assert "accounts.close (version 1)" in question.question
        assert "accounts.seize (version 1)" in question.question
        assert file.read_text().splitlines() == ["open ada"]
        await run.resolve(intervention_id=question.id, outcome=outcome, evidence="looked")
        result = await run.result()

    assert (result.state, result.uncompensated) == (RunState.CANCELLED, [])
    assert file.read_text().splitlines() == made
