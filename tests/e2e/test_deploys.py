"""G1 to G3: a deploy changes no call that was made, and no undo that was approved."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.workflowservice.v1 import SetWorkerDeploymentCurrentVersionRequest
from temporalio.client import Client
from temporalio.worker import ExecuteActivityInput

from surehand.workflows.contracts.base import RunState
from surehand.workflows.plan.plan import Plan
from tests.e2e.executions import inside as child_of
from tests.e2e.interceptors import Between, Execute
from tests.e2e.plans import mail_step, plan, read, refund_step
from tests.e2e.runs import decision_on, step, until
from tests.e2e.stage import Stage

PATIENT = "tests.variants.refund_slow_bank"
IMPATIENT = "tests.variants.refund_impatient"


async def test_a_shorter_timeout_repeats_no_call(stage: Stage, order_id: str) -> None:
    """The shop has taken the request, and pays long after the new worker has looked."""
    stage.shop.fault("refunds", ignore_keys=True, delay_before_s=12)
    before = stage.shop.requests("refunds")["received"]
    with stage.ready_worker(tool_modules=PATIENT) as old:
        run = await stage.start(plan(refund_step(order_id)))
        stage.shop.wait_requests("refunds", before + 1)
        with stage.ready_worker(tool_modules=IMPATIENT):
            old.kill()
            result = await run.completed(timeout_s=120)

    assert stage.shop.requests("refunds")["received"] == before + 1
    assert stage.shop.counts(order_id)["refunds"] == 1
    [row] = await stage.effects(run)
    assert (row["state"], row["calls"]) == ("committed", 1)
    assert step(result, "refund").output == row["receipt"]


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("inside", ["run", "child run"])
@pytest.mark.parametrize(
    ("outcome", "made"), [("undo", ["open ada", "seize everybody"]), ("compensated", ["open ada"])]
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
        question = await run.asks_a_human()
        assert "accounts.close (version 1)" in question.question
        assert "accounts.seize (version 1)" in question.question
        assert file.read_text().splitlines() == ["open ada"]
        await run.resolve(intervention_id=question.id, outcome=outcome, evidence="looked")
        result = await run.result()

    assert (result.state, result.uncompensated) == (RunState.CANCELLED, [])
    assert file.read_text().splitlines() == made


# Parked runs survive a deploy: they end on the version of the workers that they began on.


class ActivityClient(Between):
    """Notes for which runs a worker's activities are called."""

    def __init__(self) -> None:
        self.of: set[str] = set()

    async def around(self, input: ExecuteActivityInput, execute: Execute) -> Any:
        message = input.args[0]
        if hasattr(message, "run_id"):
            self.of.add(message.run_id)
        return await execute(input)


@asynccontextmanager
async def version(stage: Stage, build_id: str) -> AsyncIterator[ActivityClient]:
    """Work as a version of the test's deployment."""
    calls = ActivityClient()
    versioned = {"deployment_name": stage.task_queue, "build_id": build_id}
    async with stage.worker_here(client=calls.client(stage.client), **versioned):
        yield calls


async def make_current(client: Client, stage: Stage, build_id: str) -> None:
    """Have new runs begin on a version, once the server knows it."""

    async def ask() -> bool:
        asked = SetWorkerDeploymentCurrentVersionRequest(
            namespace=client.namespace, deployment_name=stage.task_queue, build_id=build_id
        )
        await client.workflow_service.set_worker_deployment_current_version(asked)
        return True

    await until(ask, lambda done: done)


def plan_for(order_id: str) -> Plan:
    """Return a plan that restocks an order once that is approved, and has a child send a mail."""
    order = {"order_id": "${input.order_id}"}
    restock = {"id": "restock", "tool": "inventory.restock", "approval": "required"}
    tells = {"id": "tell", "params": order, "plan": {"steps": [mail_step(order["order_id"], "m")]}}
    return plan(
        read(order["order_id"]),
        {**restock, "params": {**order, "lines": "${order.lines}"}},
        tells,
        input={"order_id": order_id},
    )


async def test_parked_runs_keep_their_version(client: Client, stage: Stage, order_id: str) -> None:
    old_order, new_order = order_id, stage.shop.new_order()
    async with version(stage, "1") as first:
        await make_current(client, stage, "1")
        parked = await stage.start(plan_for(old_order))
        await parked.asks()
        async with version(stage, "2") as second:
            await make_current(client, stage, "2")
            new = await stage.start(plan_for(new_order))
            for run in (new, parked):
                await run.approve()
                await run.completed()

    assert first.of == {parked.run_id, f"{parked.run_id}~tell"}
    assert second.of == {new.run_id, f"{new.run_id}~tell"}
    for order in (old_order, new_order):
        counted = stage.shop.counts(order)
        assert (counted["restocks"], counted["mails"]) == (1, 1)
    for run in (parked, new):
        assert await stage.effect_states(run) == {"inventory.restock": "committed"}


async def test_runs_of_a_version_without_workers_go_on_when_they_are_moved(
    client: Client, stage: Stage, order_id: str, temporal_cli: Path
) -> None:
    # Given a parked run whose version's workers are gone
    async with version(stage, "1"):
        await make_current(client, stage, "1")
        parked = await stage.start(plan_for(order_id))
        await parked.asks()
    async with version(stage, "2") as second:
        await make_current(client, stage, "2")

        # When it is moved as docs/howto/versions.md says
        move = ["workflow", "update-options", "--versioning-override-behavior", "auto_upgrade"]
        which = ["--workflow-id", parked.run_id]
        where = ["--address", client.service_client.config.target_host]
        moved = await asyncio.create_subprocess_exec(
            temporal_cli, *move, *which, *where, stdout=subprocess.DEVNULL
        )
        assert await moved.wait() == 0

        # Then the next version brings it to its end
        await parked.approve()
        await parked.completed()
    assert f"{parked.run_id}~tell" in second.of
    counted = stage.shop.counts(order_id)
    assert (counted["restocks"], counted["mails"]) == (1, 1)
