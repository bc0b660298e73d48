"""``ledger restored`` looks at the runs of every tenant of the ledger, whoever asks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.effects.epochs import Epoch
from surehand.activities.ledger.history.audit import RecordedHead
from surehand.cli import maintenance
from surehand.process.settings import ClientSettings
from surehand.workflows.contracts.base import ChainHead
from tests.ledger.scene import Scene

FORGOTTEN = RecordedHead(ChainHead(seq=9, hash="sha256:forgotten"), 50)


async def test_the_runs_of_every_tenant_that_went_on_are_listed(
    ledger: Ledger, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, unknown = f"{scene.tenant}/known", f"{scene.tenant}-too/unknown"
    scene.open_run(known)
    # No tenant can be called so: somebody else's workflow on the same task queue.
    listed = [known, unknown, "No Tenant/run"]

    async def runs(condition: str, *, every_tenant: bool) -> AsyncIterator[Any]:
        assert every_tenant and "TaskQueue = 'q'" in condition
        for run_id in listed:
            yield SimpleNamespace(id=run_id, parent_id=None)

    async def heads(_: object, run_id: str) -> list[RecordedHead]:
        return [FORGOTTEN]

    @asynccontextmanager
    async def opened(_: object) -> AsyncIterator[Ledger]:
        yield ledger

    async def connection() -> Any:
        return SimpleNamespace(listed=runs, temporal_options=lambda: [])

    monkeypatch.setattr(maintenance, "history_heads", heads)
    monkeypatch.setattr(maintenance, "ledger_of", opened)
    monkeypatch.setattr(maintenance, "read_settings", lambda: None)
    settings = ClientSettings(tenant="asks", user="oscar", task_queue="q", ui_url="")
    caller: Any = SimpleNamespace(connection=connection, settings=settings, tenant="asks")

    behind = await maintenance._behind(caller, Epoch(1, 0, 100, "oscar"))

    assert [(one.run_id, one.known) for one in behind] == [(known, True), (unknown, False)]
