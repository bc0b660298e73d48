"""A full disk is a database that is away for a while: nothing is lost, nothing is repeated."""

from __future__ import annotations

import asyncio
import resource
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from surehand.activities.artifacts import ArtifactStore
from surehand.activities.effects.recorder import Done
from surehand.activities.ledger.core.store import (
    Ledger,
    LedgerUnavailable,
    open_ledger,
)
from surehand.activities.ledger.core.tables import artifacts, effects
from surehand.activities.tools.tool import Tool, ToolContext
from surehand.activities.tools.toolbox import WRITE, tool
from tests.ledger.attempts import Payment, Provider, effect_call, request_for
from tests.ledger.databases import Database
from tests.ledger.scene import LARGEST_INLINE, Scene

#: As large as a receipt gets in the ledger itself: it needs pages that are not there yet.
RECEIPT = {"id": "r-1", "note": "x" * 8000}
#: Beyond all that the ledger of a test holds.
PLENTY = 1_000_000  # pages
#: Larger than what this process writes besides, smaller than the artifact.
FILE_LIMIT = 300_000  # bytes
LARGE = {"lines": ["x" * 1000 for _ in range(1000)]}


@pytest.fixture
async def small(sqlite_template: Path, tmp_path: Path) -> AsyncIterator[Ledger]:
    """A ledger of this test's own, whose disk can be full."""
    file = tmp_path / "ledger.db"
    shutil.copy(sqlite_template, file)
    async with open_ledger(f"sqlite:///{file}") as ledger:
        yield ledger


def pages(ledger: Ledger, most: int) -> None:
    """Let the file have so many pages, or those that it has already: real SQLITE_FULL errors."""
    with ledger.transaction("nobody") as tx:
        tx.execute(text(f"PRAGMA max_page_count={most}"))


def fill(scene: Scene) -> None:
    """Fill the disk, to the last free page."""
    pages(scene.ledger, 1)
    with pytest.raises(LedgerUnavailable, match="database or disk is full"):
        for _ in range(100):
            with scene.tx() as tx:
                tx.event("run-1", "test.filler", text="x" * 8000)


def refund(calls: list[str], before_the_answer: Any = None) -> Tool:
    async def pay(params: Payment, ctx: ToolContext) -> Any:
        calls.append(ctx.idempotency_key)
        if before_the_answer is not None:
            before_the_answer()
        return RECEIPT

    return tool("payments.refund", effect=WRITE, irreversible=True, recovery="human")(pay)


async def test_nothing_is_called_while_the_disk_of_the_ledger_is_full(small: Ledger) -> None:
    scene = Scene.begin(small, "full-before")
    calls: list[str] = []
    loaded = refund(calls)
    large = request_for(scene, loaded, params={"order": "x" * 8000, "amount": "1.00"})
    fill(scene)
    with pytest.raises(LedgerUnavailable, match="database or disk is full"):
        await effect_call(scene, loaded, large).run()
    assert calls == []

    pages(small, PLENTY)
    assert isinstance(await effect_call(scene, loaded, large).run(), Done)
    assert len(calls) == 1


async def test_an_outcome_waits_until_there_is_space_and_says_so(small: Ledger) -> None:
    scene = Scene.begin(small, "full-after")
    calls: list[str] = []
    loaded = refund(calls, lambda: fill(scene))
    with capture_logs() as said:
        running = asyncio.create_task(effect_call(scene, loaded, request_for(scene, loaded)).run())
        while not any(line["event"] == "ledger.unavailable" for line in said):
            await asyncio.wait({running}, timeout=0.01)
            assert not running.done(), running
        pages(small, PLENTY)
        result = await running

    assert isinstance(result, Done) and result.receipt == RECEIPT
    assert len(calls) == 1
    [warned, *_] = [line for line in said if line["event"] == "ledger.unavailable"]
    assert "database or disk is full" in warned["error"]
    assert warned["holding"] == "an outcome"
    [entry] = scene.rows(effects)
    assert (entry["state"], entry["receipt"]) == ("committed", RECEIPT)
    assert len(scene.events(type_="effect.committed")) == 1


@pytest.mark.postgres
async def test_a_postgresql_without_space_is_unavailable(postgres_database: Database) -> None:
    disk_full = "DO $$ BEGIN RAISE EXCEPTION 'No space left' USING ERRCODE = '53100'; END $$"
    async with open_ledger(postgres_database.url) as ledger:
        full = pytest.raises(LedgerUnavailable, match="No space left")
        with full, ledger.transaction("tenant") as tx:
            tx.execute(text(disk_full))


@contextmanager
def no_large_files() -> Iterator[None]:
    """Let this process write no large file: real write errors, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_LIMIT, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.postgres
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
async def test_a_full_disk_of_the_artifact_folder_holds_up_no_outcome(
    scene: Scene, tmp_path: Path
) -> None:
    place = str(tmp_path / "artifacts")
    folder = ArtifactStore(place, scene.ledger, largest_inline=LARGEST_INLINE)
    provider = Provider([LARGE])
    loaded = provider.tool(recovery="human")
    call = effect_call(scene, loaded, request_for(scene, loaded), artifacts=folder)
    with no_large_files(), capture_logs() as said:
        result = await call.run()

    assert isinstance(result, Done)
    assert len(provider.keys) == 1
    assert [line["log_level"] for line in said if line["event"] == "artifact.kept_in_ledger"] == [
        "warning"
    ]
    [row] = scene.rows(artifacts)
    assert row["content"] is not None
    assert (scene.row(effects))["state"] == "committed"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
