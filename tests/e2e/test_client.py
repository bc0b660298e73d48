"""The Python client: runs are started, awaited, decided on and steered from coroutines."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
import temporalio.client

from surehand import Client, Run
from surehand.process.exits import DecisionRefused, NotFound, WrongUse
from surehand.workflows.contracts.approvals import (
    ApprovalRequest,
    ApprovalState,
    Verdict,
    VerdictCode,
)
from surehand.workflows.contracts.base import RunState
from surehand.workflows.plan.plan import Plan
from tests.e2e import plugins, runs
from tests.e2e.plans import UNGATED, plan, refund_step
from tests.e2e.runs import EXAMPLES, refund_plan, until
from tests.e2e.stage import Stage
from tests.ledger_databases import DATABASES

pytestmark = pytest.mark.usefixtures("no_settings")

Connect = Callable[..., Awaitable[Client]]
REFUND = EXAMPLES / "refund.yaml"
#: What a client loads must not have among it: effects, and what effects are made with.
HEAVY = {"surehand.activities", "surehand.cli", "sqlalchemy", "alembic", "httpx", "structlog"}


@pytest.fixture
def connect(stage: Stage) -> Connect:
    """Connects as somebody to the test's own servers and task queue."""

    async def connected(user: str, **settings: Any) -> Client:
        return await Client.connect(
            temporal=stage.client,
            user=user,
            task_queue=stage.task_queue,
            artifacts=str(stage.folder / "artifacts"),
            **settings,
        )

    return connected


def audited(stage: Stage, run: Run) -> runs.Run:
    """Have the ledger of a run audited after the test; return it as the stage knows it."""
    known = runs.Run(run.run_id, stage.client.get_workflow_handle(run.run_id))
    stage.started.append(known)
    return known


async def asked(client: Client, run: Run) -> ApprovalRequest:
    """Wait until a run asks for an approval, and return the request as ``pending`` has it."""

    async def look() -> list[ApprovalRequest]:
        waiting = await client.pending()
        return [r for r in waiting.approvals if r.approval_id.startswith(f"{run.run_id}/")]

    return (await until(look, bool))[0]


async def test_a_plan_has_three_forms(stage: Stage, connect: Connect, order_id: str) -> None:
    uma = await connect("uma")
    steps = [{"id": "order", "tool": "orders.read", "params": {"order_id": "${input.order_id}"}}]
    document = {"name": "look", "input": {"order_id": "nobody's"}, "steps": steps}

    async with stage.worker_here():
        for plan in (document, Plan.model_validate(document)):
            run = await uma.start(plan, input={"order_id": order_id})
            result = await run.wait()
            audited(stage, run)
            assert result.state is RunState.COMPLETED
            output = result.steps[0].output
            assert isinstance(output, dict) and output["order_id"] == order_id
    assert document["input"] == {"order_id": "nobody's"}


@pytest.mark.parametrize("database", DATABASES)
async def test_approving_twice_is_one_effect(stage: Stage, connect: Connect, order_id: str) -> None:
    ann, olga = await connect("ann"), await connect("olga")
    async with stage.worker_here():
        run = await ann.start(REFUND, input={"order_id": order_id}, for_user="uma")
        request = await asked(ann, run)
        said = await asyncio.gather(
            *(one.approve(request, reason="it was returned") for one in (ann, olga)),
            return_exceptions=True,
        )
        result = await run.wait()

    counted = [one for one in said if isinstance(one, Verdict)]
    refused = [one for one in said if isinstance(one, DecisionRefused)]
    assert [one.state for one in counted] == [ApprovalState.APPROVED]
    assert [one.verdict.code for one in refused] == [VerdictCode.ALREADY_DECIDED]
    assert result.state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["refunds"] == 1
    known = audited(stage, run)
    assert len(await stage.events(known, "approval.consumed")) == 1
    assert {row["reason"] for row in stage.decision_rows(known)} == {"it was returned"}


async def test_a_wait_may_time_out(stage: Stage, connect: Connect, order_id: str) -> None:
    ann = await connect("ann")
    async with stage.worker_here():
        run = await ann.start(REFUND, input={"order_id": order_id}, for_user="uma")
        request = await asked(ann, run)
        with pytest.raises(TimeoutError):
            await run.wait(timeout=timedelta(milliseconds=1))
        waiting = await run.wait(or_human=True)
        assert [item.id for item in waiting.waiting_for] == [request.approval_id]
        await run.approve(request)
        assert (await run.wait()).state is RunState.COMPLETED


async def test_other_tenants_are_hidden(stage: Stage, connect: Connect, order_id: str) -> None:
    tenant = f"acme-{uuid.uuid4().hex[:8]}"  # Other tests leave runs of theirs that wait.
    ann, stranger = await connect("ann"), await connect("ann", tenant=tenant)
    async with stage.worker_here():
        run = await stage.start(refund_plan(order_id))
        request = await run.asks()
        other = stranger.run(run.run_id)
        assert other.run_id == f"{tenant}/{run.run_id}"
        with pytest.raises(NotFound):
            await other.view()
        with pytest.raises(NotFound):
            ann.run(other.run_id)
        assert (await stranger.pending()).approvals == []
        with pytest.raises(WrongUse, match="not one of run"):
            await ann.run("another").approve(request)
        assert (await run.view()).pending == [request]


def test_a_client_loads_no_effects_no_sql_and_no_http_client() -> None:
    program = "import sys; from surehand import Client, Run, SeenRequest; print(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(ended.stdout.split())
    assert "surehand.client.client" in loaded
    assert loaded & HEAVY == set()


async def test_a_client_with_plugins_speaks_as_workers_do(stage: Stage, order_id: str) -> None:
    config = {**stage.client.config(), "plugins": [plugins.framework]}
    client = await Client.connect(
        temporal=temporalio.client.Client(**config),
        user="uma",
        task_queue=stage.task_queue,
        artifacts=str(stage.folder / "artifacts"),
    )
    async with stage.worker_here(tool_modules=UNGATED):
        run = await client.start(plan(refund_step(order_id)))
        audited(stage, run)
        result = await run.wait()
        view = await run.view()

    assert (result.state, view.result.state) == (RunState.COMPLETED, RunState.COMPLETED)
    assert stage.shop.counts(order_id)["refunds"] == 1
