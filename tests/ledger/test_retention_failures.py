"""What fails of one run keeps that run alone; what is away for all ends the round."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from surehand.activities.ledger.core.statements import delete_rows
from surehand.activities.ledger.core.store import Ledger, LedgerUnavailable
from surehand.activities.ledger.core.tables import artifacts, events, holds, retention_rounds, steps
from surehand.activities.ledger.history.reads import chain_of
from surehand.activities.ledger.runs import deletion
from surehand.activities.ledger.steps import artifacts as artifact_rows
from surehand.activities.retention import Kept, Round
from surehand.cli.retention import RetentionReport, _reply, _serve
from surehand.process.exits import ExitCode, NotReachable
from surehand.process.settings import ClientSettings
from surehand.workflows.payload_codec import NotKept, StoreUnavailable
from tests.ledger.scene import OTHER_RUN, RUN, STEP, Scene
from tests.ledger.test_retention import AT_ONCE, Office, lived, office_of

SETTINGS: Final = ClientSettings(
    tenant="acme", user="rita", task_queue="surehand", ui_url="http://localhost:8233"
)


@pytest.fixture
async def office(scene: Scene, keeper: Ledger, tmp_path: Path) -> Office:
    """Two runs that have ended, the first of which is the first to go; and a file of nobody."""
    made = office_of(scene, keeper, tmp_path)
    scene.open_run(OTHER_RUN)
    scene.end(RUN, OTHER_RUN)
    await made.retention.artifacts.keep(scene.tenant, RUN, "x" * 9000)
    return made


async def test_stuck_drafts_keep_one_run(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    with office.scene.tx() as tx:
        artifact_rows.begin_draft(tx, RUN, STEP, "sha256:0")
    blobs = office.retention.artifacts.blobs
    remove = blobs.remove

    async def fails(folder: str) -> None:
        if "drafts" in folder:
            raise StoreUnavailable("Permission denied")
        await remove(folder)

    monkeypatch.setattr(blobs, "remove", fails)

    done = await office.round()

    why = f"drafts of run {RUN} cannot be removed now"
    assert done.kept == [Kept(RUN, why, ExitCode.NOT_REACHABLE)]
    assert done.deleted == [OTHER_RUN] and done.files.aside == 1
    first = office.scene.row(retention_rounds)["whole_ms"]
    await office.round()
    assert office.scene.row(retention_rounds)["whole_ms"] == first
    monkeypatch.undo()
    assert (await office.round()).deleted == [RUN]
    assert office.scene.row(retention_rounds)["whole_ms"] > first


async def test_a_refused_deletion_is_named(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    finish = deletion.finish_deletion

    def refused(tx: Any, found: list[str]) -> None:
        if found == [RUN]:
            # It is not its turn yet.
            tx.execute(delete_rows(events, run_id=OTHER_RUN))
        finish(tx, found)

    monkeypatch.setattr(deletion, "finish_deletion", refused)

    done = await office.round()

    [kept] = done.kept
    assert (kept.run_id, kept.failed) == (RUN, ExitCode.UNEXPECTED)
    assert kept.why.startswith("the database refuses it: ")
    assert done.deleted == [OTHER_RUN]


async def test_what_concerns_all_runs_ends_the_round(office: Office) -> None:
    async def known(run_id: str) -> bool:
        raise NotReachable("the Temporal server")

    with pytest.raises(NotReachable):
        await replace(office, retention=replace(office.retention, known=known)).round()

    assert office.scene.rows(retention_rounds) != []


async def test_a_lost_store_ends_a_round(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object, **__: object) -> Any:
        raise StoreUnavailable("connection refused")

    blobs = office.retention.artifacts.blobs
    monkeypatch.setattr(blobs, "remove", away)
    monkeypatch.setattr(blobs, "store_id", away)

    with pytest.raises(StoreUnavailable, match="connection refused"):
        await office.round()


async def test_what_was_kept_as_it_was_to_go_is_told_by_the_exit_code() -> None:
    done = Round(
        kept=[
            Kept("held", "held by rita: a complaint"),
            Kept("full", "the store is away", ExitCode.NOT_REACHABLE),
            Kept("odd", "the database refuses it", ExitCode.UNEXPECTED),
        ]
    )

    reply = _reply(SETTINGS, AT_ONCE, done, applied=True)

    assert reply.code is ExitCode.UNEXPECTED
    assert isinstance(reply.document, RetentionReport)
    failed = [one.failed for one in reply.document.round.kept]
    assert failed == [None, ExitCode.NOT_REACHABLE, ExitCode.UNEXPECTED]
    assert list(reply.text)[1:] == [
        "Failed, and kept: 2 runs",
        "  full: the store is away",
        "  odd: the database refuses it",
        "Old enough, and kept: 1 run",
        "  held: held by rita: a complaint",
    ]


@pytest.mark.parametrize(
    "error",
    [
        StoreUnavailable("connection refused"),
        NotKept("no such object"),
        LedgerUnavailable("ledger database: connection refused"),
    ],
)
async def test_serving_waits_while_something_is_away(error: Exception) -> None:
    told, rounds = list[str](), 0

    async def one() -> Round:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            raise error
        os.kill(os.getpid(), signal.SIGTERM)
        return Round()

    printer = SimpleNamespace(one_a_line=False, reply=lambda reply: None, warn=told.append)
    caller: Any = SimpleNamespace(printer=printer, settings=SETTINGS)
    made: Any = SimpleNamespace(kept=None, round=one)

    ended = await _serve(caller, made, timedelta(milliseconds=1))

    assert (ended, rounds) == (ExitCode.DONE, 2)
    assert len(told) == 1 and str(error) in told[0] and "the next round is in" in told[0]


async def test_a_deleted_run_is_neither_held_nor_released_and_its_chain_stays_as_exported(
    scene: Scene, keeper: Ledger, tmp_path: Path
) -> None:
    office = office_of(scene, keeper, tmp_path)
    await lived(office)
    await office.round()
    with scene.tx() as tx:
        _, _, before = chain_of(tx, RUN)

    for switch in (office.hold, office.release):
        with pytest.raises(deletion.CannotKeep, match=f"run {RUN} was deleted by rita on "):
            switch()

    with scene.tx() as tx:
        assert chain_of(tx, RUN)[2] == before
    assert scene.rows(holds) == []


async def test_a_run_that_is_held_after_a_round_has_listed_it_loses_no_file(
    scene: Scene, keeper: Ledger, tmp_path: Path
) -> None:
    office = office_of(scene, keeper, tmp_path)
    await lived(office)
    files = office.files()

    async def known(run_id: str) -> bool:
        office.hold()
        return False

    done = await replace(office, retention=replace(office.retention, known=known)).round()

    assert done.kept == [Kept(RUN, "held by rita: no reason given")]
    assert office.files() == files


async def test_two_rounds_at_once_delete_a_run_once(
    scene: Scene, keeper: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    office = office_of(scene, keeper, tmp_path)
    await lived(office)
    blobs = office.retention.artifacts.blobs
    remove = blobs.remove

    async def slow(folder: str) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(blobs, "remove", remove)
            assert (await office.round()).deleted == [RUN]
        await remove(folder)

    monkeypatch.setattr(blobs, "remove", slow)

    assert (await office.round()).kept == []
    assert scene.rows(steps) == []


async def test_another_store_keeps_a_run(scene: Scene, keeper: Ledger, tmp_path: Path) -> None:
    office = office_of(scene, keeper, tmp_path)
    store, run_id = office.retention.artifacts, f"{scene.tenant}/there"
    scene.open_run(run_id, store=await store.store_id())
    kept = await store.keep(scene.tenant, run_id, "x" * 9000)
    with scene.tx() as tx:
        artifact_rows.record_artifact(tx, run_id, STEP, kept)
    scene.end(run_id)
    empty = type(store)(str(tmp_path / "empty"), keeper, largest_inline=8 * 1024)

    unmounted = replace(office, retention=replace(office.retention, artifacts=empty))
    done = await unmounted.round()

    why = f"{empty.blobs.url} is not the artifact store of run {run_id}, or is not mounted"
    assert done.kept == [Kept(run_id, why, ExitCode.NOT_REACHABLE)]
    assert done.deleted == [] and len(scene.rows(artifacts)) == 1
    assert (await office.round()).deleted == [run_id]
