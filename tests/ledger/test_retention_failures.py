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

from surehand.activities.ledger.core.statements import delete_rows, update_rows
from surehand.activities.ledger.core.store import Ledger, LedgerUnavailable
from surehand.activities.ledger.core.tables import (
    artifacts,
    checkpoints,
    events,
    holds,
    notifications,
    retentions,
)
from surehand.activities.ledger.history.reads import chain_of
from surehand.activities.ledger.retention import deletion, hiding
from surehand.activities.ledger.retention.deletion import Content, Exported
from surehand.activities.ledger.retention.hiding import LastRound, Policy
from surehand.activities.ledger.steps import artifacts as artifact_rows
from surehand.activities.retention import Files, Kept, Round
from surehand.cli.retention import Exports, RetentionReport, _reply, _serve
from surehand.process.exits import ExitCode, NotReachable, OutputLost, SurehandError, WrongUse
from surehand.process.settings import ClientSettings
from surehand.workflows.payload_codec import NotKept, StoreUnavailable
from tests.ledger.scene import OTHER_RUN, RUN, STEP, Scene
from tests.ledger.test_recovery import save
from tests.ledger.test_retention import AT_ONCE, DAY, Office, lived, office_of

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


def gone(done: Round) -> list[str]:
    return [part.run_id for part in done.deleted]


@pytest.mark.parametrize(
    "error",
    [
        SurehandError("the chain is broken at event 3", code=ExitCode.BROKEN),
        OutputLost("exports/run-1.jsonl: cannot be written: No space left on device"),
    ],
)
async def test_an_unexportable_run_is_named(office: Office, error: SurehandError) -> None:
    export = office.retention.export
    assert export is not None

    async def fails(content: Content, files: Files) -> Exported:
        if content.run_id == RUN:
            raise error
        return await export(content, files)

    failing = replace(office, retention=replace(office.retention, export=fails))

    first, second = await failing.round(), await failing.round()

    assert gone(first) == [OTHER_RUN] and first.files.aside == 1
    ended = await office.retention.ledger.transact(office.scene.tenant, hiding.read_last_round)
    assert ended == LastRound(age=None, failed=True)
    assert first.kept == second.kept == [Kept(RUN, str(error), error.code)]
    assert gone(await office.round()) == [RUN]
    ended = await office.retention.ledger.transact(office.scene.tenant, hiding.read_last_round)
    assert ended is not None and ended.age is not None and not ended.failed


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
    assert gone(done) == [OTHER_RUN] and done.files.aside == 1


async def test_a_refused_deletion_is_named(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    delete = deletion.delete_going

    def refused(tx: Any, going: deletion.Going, **how: Any) -> Any:
        if going.root == RUN:
            # It is not its turn yet.
            tx.execute(delete_rows(events, run_id=OTHER_RUN))
        return delete(tx, going, **how)

    monkeypatch.setattr(deletion, "delete_going", refused)

    done = await office.round()

    [kept] = done.kept
    assert (kept.run_id, kept.failed) == (RUN, ExitCode.UNEXPECTED)
    assert kept.why.startswith("the database refuses it: ")
    assert gone(done) == [OTHER_RUN]


@pytest.mark.parametrize(
    "error", [WrongUse("rita.pem: no such file"), NotReachable("the Temporal server")]
)
async def test_what_concerns_all_runs_ends_the_round(office: Office, error: SurehandError) -> None:
    async def fails(content: Content, files: Files) -> Exported:
        raise error

    with pytest.raises(type(error)):
        await replace(office, retention=replace(office.retention, export=fails)).round()

    ended = await office.retention.ledger.transact(office.scene.tenant, hiding.read_last_round)
    assert ended == LastRound(age=None, failed=True)


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
            Kept("full", "no space left", ExitCode.OUTPUT_LOST),
            Kept("broken", "the chain is broken", ExitCode.BROKEN),
        ]
    )

    reply = _reply(SETTINGS, AT_ONCE, done, applied=True)

    assert reply.code is ExitCode.BROKEN
    assert isinstance(reply.document, RetentionReport)
    failed = [one.failed for one in reply.document.round.kept]
    assert failed == [None, ExitCode.OUTPUT_LOST, ExitCode.BROKEN]
    assert list(reply.text)[2:] == [
        "Failed, and kept: 2 runs",
        "  full: no space left",
        "  broken: the chain is broken",
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
    made: Any = SimpleNamespace(policy=Policy(), round=one)

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
        with pytest.raises(hiding.CannotKeep, match=f"run {RUN} was deleted by rita on "):
            switch()

    with scene.tx() as tx:
        assert chain_of(tx, RUN)[2] == before
    assert scene.rows(holds) == []


async def test_a_run_that_is_held_after_a_round_has_listed_it_loses_no_file(
    scene: Scene, keeper: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    office = office_of(scene, keeper, tmp_path)
    await lived(office)
    files = office.files()

    async def listed(made: Any) -> Any:
        found = await keeper.transact(scene.tenant, deletion.find_over)
        office.hold()
        return found

    monkeypatch.setattr(type(office.retention), "_find_over", listed)

    done = await office.round()

    assert done.kept == [Kept(RUN, f"run {RUN} is shown again")]
    assert office.files() == files


async def test_two_rounds_keep_a_whole_export(scene: Scene, keeper: Ledger, tmp_path: Path) -> None:
    office = office_of(scene, keeper, tmp_path)
    await lived(office)
    export = office.retention.export
    assert export is not None
    overtaken = False

    async def slow(content: Content, files: Files) -> Exported:
        async def looked_up() -> Files:
            nonlocal overtaken
            if not overtaken:
                overtaken = True
                await office.round()
            async for one in files:
                yield one

        return await export(content, looked_up())

    await replace(office, retention=replace(office.retention, export=slow)).round()

    assert overtaken
    assert [one["file"] for one in office.exported(f"{RUN}+runs") if "file" in one]
    modes = {file.stat().st_mode & 0o777 for file in (tmp_path / "exports").iterdir()}
    assert modes == {0o600}


async def test_an_export_that_cannot_be_read_keeps_its_run_alone(office: Office) -> None:
    bad = office.folder / "exports" / f"{RUN}+runs.jsonl"
    bad.mkdir(parents=True)

    done = await office.round()

    why = f"{bad}: cannot be exported: Is a directory"
    assert done.kept == [Kept(RUN, why, ExitCode.OUTPUT_LOST)]
    assert gone(done) == [OTHER_RUN]


async def test_lost_or_foreign_files_are_told(scene: Scene, keeper: Ledger, tmp_path: Path) -> None:
    office = office_of(scene, keeper, tmp_path)
    signs = SETTINGS.model_copy(update={"tenant": scene.tenant, "key": tmp_path / "rita.pem"})
    export = Exports(signs, tmp_path / "exports").write
    office = replace(office, retention=replace(office.retention, export=export))
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
    assert kept.artifact is not None
    (tmp_path / "store" / str(kept.artifact.uri)).unlink()
    lost = await office.round()
    assert (gone(lost), lost.lost) == ([run_id], 1)
    assert "The artifact store has lost 1 file of what was exported" in list(
        _reply(SETTINGS, AT_ONCE, lost, applied=True).text
    )


async def test_a_row_that_changes_as_its_files_go_leaves_both_exports_named(
    scene: Scene, keeper: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    office = office_of(scene, keeper, tmp_path)
    await lived(office)
    blobs = office.retention.artifacts.blobs
    remove = blobs.remove

    def change() -> None:
        with scene.tx() as tx:
            tx.execute(update_rows(notifications, run_id=RUN).values(attempts=7))

    async def late(folder: str) -> None:
        await remove(folder)
        change()

    with monkeypatch.context() as patched:
        patched.setattr(blobs, "remove", late)
        assert gone(await office.round()) == []
    await office.round()

    folder = tmp_path / "exports"
    named = scene.row(retentions, run_id=RUN)["export"]
    files = (f"{RUN}.jsonl", f"{RUN}+runs.jsonl", f"{RUN}+runs+2.jsonl")
    assert named == ", ".join(f"{folder}/{file}" for file in files)


async def test_graces_are_not_shortened(scene: Scene, keeper: Ledger, tmp_path: Path) -> None:
    office = office_of(scene, keeper, tmp_path)
    save(scene, "before")
    with scene.ledger.transaction(scene.tenant) as tx:
        hide = update_rows(checkpoints, run_id=RUN)
        tx.execute(hide.values(hidden_ms=tx.now_ms, delete_after_ms=tx.now_ms))

    assert gone(await office.round(Policy(grace=DAY))) == []
    assert gone(await office.round(Policy(grace=timedelta(0)))) == [RUN]
