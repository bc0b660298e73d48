"""The examples in the docstrings of the Python client, each played against a worker."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

import surehand
from surehand import Client, Pending, Run, SeenRequest
from surehand.workflows.contracts.base import RunState
from tests.docstrings import OF_A_RUN, play, public_names
from tests.e2e.plans import HUMAN
from tests.e2e.runs import EXAMPLES, until
from tests.e2e.stage import Stage

pytestmark = pytest.mark.usefixtures("no_settings")

CLASSES: Final = (Client, Run, Pending, SeenRequest)
#: What is seen where no worker is any more.
WITHOUT_A_WORKER: Final = ("Left", "NoWorker")


def documented() -> dict[str, str]:
    """Return the docstrings of the client's classes, and of what is public in them."""
    found = {name: inspect.getdoc(getattr(surehand, name)) or "" for name in sorted(OF_A_RUN)}
    for one in CLASSES:
        found[one.__name__] = inspect.getdoc(one) or ""
        for name in vars(one):
            member = getattr(one, name, None)
            if not name.startswith("_") and inspect.isroutine(member):
                found[f"{one.__name__}.{name}"] = inspect.getdoc(member) or ""
    return found


@pytest.fixture
async def connected(
    stage: Stage, order_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Client:
    """A client by the settings of the environment, in a folder with the plan of the examples."""
    environment = stage.environment()
    for name in ("TEMPORAL_ADDRESS", "SUREHAND_TASK_QUEUE", "SUREHAND_ARTIFACTS"):
        monkeypatch.setenv(name, environment[name])
    # Nothing else waits there.
    monkeypatch.setenv("SUREHAND_TENANT", f"tenant-{uuid.uuid4().hex[:8]}")
    monkeypatch.chdir(tmp_path)
    written = (EXAMPLES / "refund.yaml").read_text()
    (tmp_path / "refund.yaml").write_text(written.replace("order-1001", order_id))
    return await Client.connect(user="uma")


@contextlib.asynccontextmanager
async def approving() -> AsyncIterator[None]:
    """Approve whatever is asked for in the meantime, as somebody else."""

    async def approve() -> None:
        ann = await Client.connect(user="ann")
        while True:
            for request in (await ann.pending()).approvals:
                await ann.approve(request)
            await asyncio.sleep(0.1)

    approver = asyncio.create_task(approve())
    yield
    approver.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await approver


async def waiting_run(client: Client) -> Run:
    """Start the refund, and wait until it asks for its approval."""
    run = await client.start("refund.yaml")
    await until(run.view, lambda view: bool(view.pending))
    return run


async def run_for(name: str, client: Client, stage: Stage) -> Run | None:
    """Return the run that an example is about."""
    if name.startswith("Run.answer"):
        run = await client.start({"steps": [{"id": "reason", "ask": "Why?"}]})
        await until(run.view, lambda view: bool(view.interrupts))
        return run
    if name in ("Run.resolve", "ResolutionOutcome"):
        fault = {"ignore_keys": True, "ignore_lookup": True, "fail": "drop_before", "times": 1}
        stage.shop.fault("refunds", **fault)
        run = await waiting_run(client)
        await run.approve((await run.view()).pending[0])
        await until(run.view, lambda view: view.result.state is RunState.NEEDS_INTERVENTION)
        await stage.no_call_may_arrive(run)
        return run
    if name in ("Client", "Client.start", "Run", "SeenRequest", "StartNotTaken"):
        return None
    return await waiting_run(client)


@pytest.mark.parametrize("name", documented())
async def test_an_example_of_the_client_does_what_it_says(
    name: str, connected: Client, stage: Stage, order_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = documented()[name].replace("order-7", order_id)
    text = text.replace("acme", f"acme-{uuid.uuid4().hex[:8]}")
    assert ">>>" in text, "it has no example"
    names: dict[str, Any] = {
        **public_names(),
        "timedelta": timedelta,
        "client": connected,
        "temporal": stage.client,
    }
    if name == "NotReachable":
        monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    async with contextlib.AsyncExitStack() as stack:
        signed = {"decisions": "signed"} if name == "StartNotTaken" else {}
        await stack.enter_async_context(stage.worker_here(tool_modules=HUMAN, **signed))
        run = await run_for(name, connected, stage)
        if run is not None:
            names["run"] = run
            if run_asks := (await run.view()).pending:
                seen = run_asks[0]
                names["form"] = {"approval_id": seen.approval_id, "params_hash": seen.params_hash}
        if name == "Client.run":
            named = await connected.start("refund.yaml", run_id="refund-7")
            await until(named.state, lambda state: state == "waiting_approval")
        if name in WITHOUT_A_WORKER:
            await stack.aclose()
        if name in ("Client", "Run"):
            await stack.enter_async_context(approving())
        await play(text, names)
