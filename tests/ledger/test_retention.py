"""What is old is deleted, by its own role alone; what guards effects stays."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import delete as sql_delete
from sqlalchemy import text, update
from sqlalchemy.exc import DBAPIError

from surehand.activities.artifacts import ArtifactStore
from surehand.activities.ledger.core.store import Ledger, Transaction, open_ledger
from surehand.activities.ledger.core.tables import (
    approvals,
    artifacts,
    bars,
    checkpoints,
    decisions,
    deletions,
    effects,
    events,
    notifications,
    plans,
    replays,
    runs,
    standing_uses,
    steerings,
    steps,
)
from surehand.activities.ledger.history.reads import effects_of
from surehand.activities.ledger.history.stats import StatsScope, read_stats
from surehand.activities.ledger.outbox import notification_rows as outbox
from surehand.activities.ledger.outbox.notification import Facts, Kind
from surehand.activities.ledger.people.starts import StartRefused
from surehand.activities.ledger.runs import deletion, steering
from surehand.activities.ledger.runs.deletion import CannotKeep, RunDeleted
from surehand.activities.ledger.runs.keys import NotErasable, erase_run
from surehand.activities.ledger.runs.lifecycle import RunIdTaken
from surehand.activities.ledger.steps import artifacts as artifact_rows
from surehand.activities.ledger.steps.entries import Barred, Claimed, Committed, Mismatch
from surehand.activities.retention import Retention, Round
from surehand.process.blobs import Collected, collect_unreferred
from surehand.workflows.contracts.approvals import Assurance
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.runs import Linked, Parent
from surehand.workflows.contracts.steering import CancelRun
from surehand.workflows.payload_codec import payloads_of
from tests.ledger.people import person
from tests.ledger.scene import OTHER_RUN, RUN, STEP, Scene
from tests.ledger.standing import ask, granted
from tests.ledger.test_recovery import save
from tests.ledger.test_steering import sent
from tests.ledger_databases import DATABASES

#: What a run is about, and nobody may find any more.
MARKER: Final = "marker-of-maria-4711"
CHILD: Final = f"{RUN}~pay"
AT_ONCE: Final = timedelta(0)


@dataclass(frozen=True)
class Office:
    """A tenant's runs, and whoever deletes them."""

    scene: Scene
    retention: Retention
    folder: Path

    async def round(self, kept: timedelta | None = AT_ONCE) -> Round:
        return await replace(self.retention, kept=kept).round()

    @contextmanager
    def tx(self) -> Iterator[Transaction]:
        """Open a transaction of the role that deletes."""
        with self.retention.ledger.transaction(self.scene.tenant) as tx:
            yield tx

    def hold(self, run_id: str = RUN, reason: str = "") -> list[str]:
        with self.tx() as tx:
            return deletion.hold_run(tx, run_id, by="rita", reason=reason)

    def release(self, run_id: str = RUN) -> list[str]:
        with self.tx() as tx:
            return deletion.release_run(tx, run_id, by="rita")

    def files(self) -> list[str]:
        return sorted(
            str(path.relative_to(self.folder / "store"))
            for path in (self.folder / "store").rglob("*")
            if path.is_file()
        )


def office_of(scene: Scene, keeper: Ledger, folder: Path) -> Office:
    store = ArtifactStore(str(folder / "store"), keeper, largest_inline=8 * 1024)

    async def known(run_id: str) -> bool:
        return False

    return Office(scene, Retention(keeper, store, scene.tenant, AT_ONCE, "rita", known), folder)


@pytest.fixture
def office(scene: Scene, keeper: Ledger, tmp_path: Path) -> Office:
    return office_of(scene, keeper, tmp_path)


async def lived(office: Office) -> None:
    """A run with all that a run can have, and a child run; both have ended."""
    scene = office.scene
    params = {"order": "1001", "name": MARKER}
    scene.open_run(CHILD, parent=Parent(run_id=RUN, step_id="pay"))
    gated = scene.approved(scene.call(params=params))
    scene.committed(gated, receipt={"said": MARKER})
    scene.committed(
        scene.call(params=params, run_id=CHILD, step_id="inner", key="inner"), receipt=MARKER
    )
    kept = await office.retention.artifacts.keep(scene.tenant, RUN, MARKER * 900)
    with scene.tx() as tx:
        artifact_rows.record_artifact(tx, RUN, STEP, kept)
        outbox.write_notification(tx, Kind.STOPPED, Facts(what=MARKER), run_id=RUN, subject=RUN)
        steering.judge_steering(tx, sent(scene, CancelRun(actor="ann")), Assurance.OPEN)
    folder = payloads_of(RUN)
    await office.retention.artifacts.blobs.put(f"{folder}/{'a' * 64}", MARKER.encode())
    save(scene, "before")
    scene.end(CHILD, RUN)


async def test_an_old_run_is_deleted_unless_it_is_held(office: Office) -> None:
    await lived(office)
    scene = office.scene
    before = {row["run_id"]: (row["seq"], row["head"]) for row in scene.rows(runs)}
    look = await office.retention.look()
    assert (look.deleted, len(scene.rows(steps))) == ([RUN], 2)
    assert office.hold(CHILD, "a lawsuit") == [RUN, CHILD]
    held = await office.round()
    assert [one.why for one in held.kept] == ["held by rita: a lawsuit"] and not held.deleted
    assert office.release() == [RUN, CHILD]

    assert (await office.round(timedelta(days=1))).deleted == []
    first, second = await office.round(), await office.round()

    assert (first.deleted, second.deleted) == ([RUN], [])
    gone = (steps, plans, artifacts, checkpoints, notifications, decisions, steerings, events)
    for table in gone:
        assert scene.rows(table) == [], table.name
    assert {row["run_id"]: row["input"] for row in scene.rows(runs)} == {RUN: {}, CHILD: {}}
    assert MARKER not in str([scene.rows(table) for table in (effects, approvals, runs)])
    with pytest.raises(RunDeleted, match=f"run {RUN} was deleted by rita on "), scene.tx() as tx:
        effects_of(tx, RUN)
    assert not (office.folder / "store" / payloads_of(RUN)).exists()
    # But for what the hold and its end have told.
    assert {row["run_id"]: row["seq"] for row in scene.rows(runs)} == {
        run_id: seq + 2 for run_id, (seq, _) in before.items()
    }


async def test_a_deleted_runs_key_makes_no_second_effect(office: Office) -> None:
    await lived(office)
    await office.round()
    scene = office.scene
    scene.open_run(OTHER_RUN)
    params = {"order": "1001", "name": MARKER}

    again = scene.claim(scene.call(run_id=OTHER_RUN, params=params))
    otherwise = scene.claim(scene.call(run_id=OTHER_RUN, params={"order": "other"}))
    late = scene.claim(scene.call(step_id="late", key="never made"))

    assert isinstance(again, Mismatch) and "whose content was deleted" in again.reason
    assert isinstance(otherwise, Mismatch)
    assert isinstance(late, Barred)
    assert {row["calls"] for row in scene.rows(effects)} == {1}
    with pytest.raises(RunIdTaken):
        scene.open_run(RUN, "another execution")
    with pytest.raises(StartRefused, match="nothing can be taken over: run run-1 was deleted"):
        scene.open_run("fork", linked=Linked(run_id=RUN, outputs={}))


async def test_uses_of_a_standing_approval_survive_deletion(office: Office) -> None:
    scene = office.scene
    person(scene, "ann", "manager")
    granted(scene, "ann")
    ask(scene)
    scene.end(RUN)
    used = scene.rows(standing_uses)
    assert used

    await office.round()

    assert scene.rows(standing_uses) == used
    assert [row["state"] for row in scene.rows(approvals)] == ["approved"]


@pytest.mark.parametrize(
    "what", ["in_doubt", "asked", "not_undone", "child", "forked", "held", "temporal"]
)
async def test_what_is_open_about_a_run_keeps_it_and_is_named(office: Office, what: str) -> None:
    scene, state = office.scene, RunState.COMPLETED
    ended, says = [RUN], ""
    match what:
        case "in_doubt":
            says = f"entry {scene.in_doubt(scene.call()).entry_id} is in_doubt"
        case "asked":
            says = f"entry {scene.asked(scene.call())[0].entry_id} is in_doubt"
        case "not_undone":
            entry = scene.committed(scene.call())
            state, says = RunState.FAILED, f"entry {entry.entry_id} is not undone"
        case "child":
            scene.open_run(CHILD, parent=Parent(run_id=RUN, step_id="pay"))
            says = f"run {CHILD} is open"
        case "forked":
            scene.open_run(OTHER_RUN, linked=Linked(run_id=RUN, outputs={}))
            says = f"run {OTHER_RUN} has taken over its outputs"
    scene.end(*ended, state=state)
    if what == "held":
        office.hold()
        says = "held by rita"
    if what == "temporal":

        async def known(run_id: str) -> bool:
            return True

        office = replace(office, retention=replace(office.retention, known=known))
        says = f"Temporal has the history of {RUN}"

    done = await office.round()

    assert done.deleted == []
    [kept] = done.kept
    assert kept.run_id == RUN and kept.why.startswith(says), kept
    assert scene.rows(deletions) == []


async def test_a_run_that_another_one_rests_on_is_kept_and_named(office: Office) -> None:
    scene = office.scene
    entry = scene.committed(scene.call())
    scene.open_run(OTHER_RUN)
    assert isinstance(scene.claim(scene.call(run_id=OTHER_RUN)), Committed)
    scene.end(RUN)

    done = await office.round()

    assert [(one.run_id, one.why) for one in done.kept] == [
        (RUN, f"run {OTHER_RUN} rests on entry {entry.entry_id}, and is kept")
    ]
    assert done.deleted == []


async def test_statistics_pass_over_a_deleted_run(office: Office) -> None:
    await lived(office)
    await office.round()

    found = read_stats(
        office.scene.ledger, StatsScope(office.scene.tenant, datetime.fromtimestamp(0, UTC))
    )

    assert found.invariants.broken == []


async def test_nothing_is_deleted_where_no_setting_says_so(office: Office) -> None:
    await lived(office)

    assert await office.round(None) == Round()

    assert len(office.scene.rows(effects)) == 2


async def test_a_deleted_runs_failed_effect_is_called_again(office: Office) -> None:
    scene = office.scene
    scene.failed(scene.call(), "permanent")
    scene.end(RUN)
    await office.round()
    scene.open_run(OTHER_RUN)

    call = scene.call(run_id=OTHER_RUN)
    claimed = scene.claim(call)

    # With which params it was called nobody knows any more: so it is another generation.
    assert isinstance(claimed, Claimed) and claimed.entry.generation == 2
    scene.commit(call, claimed.entry)
    assert isinstance(scene.claim(replace(call, holder="again")), Committed)


async def test_an_artifact_that_another_run_has_stays_readable(office: Office) -> None:
    scene, store = office.scene, office.retention.artifacts
    kept = await store.keep(scene.tenant, RUN, "x" * 9000)
    scene.open_run(OTHER_RUN)
    with scene.tx() as tx:
        artifact_rows.record_artifact(tx, RUN, STEP, kept)
        artifact_rows.record_artifact(tx, OTHER_RUN, STEP, kept)
    scene.end(RUN)

    done = await office.round()

    assert done.deleted and done.files.aside == 0 and kept.artifact is not None
    assert await store.read(scene.tenant, OTHER_RUN, kept.artifact) == "x" * 9000


@pytest.mark.parametrize("kept_for", [None, timedelta(days=9999)], ids=["none", "nothing is old"])
async def test_an_unreferred_file_goes_a_day_later(
    office: Office, kept_for: timedelta | None
) -> None:
    scene, store = office.scene, office.retention.artifacts
    kept = await store.keep(scene.tenant, RUN, "x" * 9000)
    assert kept.artifact is not None

    assert (await office.round(kept_for)).files.aside == 1
    assert await store.read(scene.tenant, RUN, kept.artifact) == "x" * 9000
    assert (await office.round(kept_for)).files == Collected()
    with scene.tx() as tx:
        artifact_rows.record_artifact(tx, RUN, STEP, kept)
    assert (await office.round(kept_for)).files.back == 1
    assert office.files() == [kept.artifact.uri]
    tomorrow = 1 + (1 << 45)
    await collect_unreferred(store.blobs, scene.tenant, set(), tomorrow)
    done = await collect_unreferred(store.blobs, scene.tenant, set(), tomorrow + 86_400_000)

    assert done.removed == 1 and office.files() == []


@contextmanager
def refused(ledger: Ledger, tenant: str, why: str) -> Iterator[Any]:
    with pytest.raises(DBAPIError, match=why), ledger.transaction(tenant) as tx:
        yield tx


async def test_neither_database_deletes_what_is_not_going(office: Office) -> None:
    """Also by the role that deletes; and what stays of a run stays."""
    await lived(office)
    scene, keeper = office.scene, office.retention.ledger
    for table in (steps, events, artifacts, notifications, decisions, checkpoints):
        query = sql_delete(table).where(table.c.tenant_id == scene.tenant)
        with refused(keeper, scene.tenant, "until their run is being deleted") as tx:
            tx.connection.execute(query)
    with pytest.raises(DBAPIError), keeper.transaction(scene.tenant) as tx:
        tx.connection.execute(
            update(effects).where(effects.c.tenant_id == scene.tenant).values(content_deleted_ms=1)
        )
    assert len(scene.rows(steps)) == 2
    await office.round()
    for change in ({"deleted_ms": None}, {"begun_ms": 1}, {"begun_by": "mallory"}):
        with refused(keeper, scene.tenant, "nothing goes back|permission denied") as tx:
            again = update(deletions).where(deletions.c.tenant_id == scene.tenant)
            tx.connection.execute(again.values(change))
    for table in (effects, deletions):
        with pytest.raises(DBAPIError), keeper.transaction(scene.tenant) as tx:
            tx.connection.execute(sql_delete(table).where(table.c.tenant_id == scene.tenant))


async def test_a_row_that_lets_an_open_or_a_held_run_go_is_refused(office: Office) -> None:
    scene = office.scene
    with office.tx() as tx:
        row = {"tenant_id": scene.tenant, "run_id": RUN, "begun_ms": tx.now_ms, "begun_by": "m"}
    for change in ({}, {"begun_ms": 1}, {"deleted_ms": 1}):
        with refused(office.retention.ledger, scene.tenant, "only what has ended is deleted") as tx:
            tx.connection.execute(deletions.insert().values({**row, **change}))
        scene.end()
        office.hold()


@pytest.mark.parametrize("database", DATABASES[1:], indirect=True)
async def test_the_workers_role_deletes_nothing(office: Office) -> None:
    await lived(office)
    before = office.scene.rows(events)

    denied = "permission denied|until its run is being deleted"
    for sql in (
        "INSERT INTO deletions (tenant_id, run_id, begun_ms, begun_by)"
        " SELECT tenant_id, run_id, 99999999999999, 'm' FROM runs",
        "UPDATE deletions SET deleted_ms = 1",
        "DELETE FROM holds",
        "DELETE FROM events",
        "UPDATE effects SET content_deleted_ms = 1",
        "UPDATE checkpoints SET document = '{}'",
    ):
        with refused(office.scene.ledger, office.scene.tenant, denied) as tx:
            tx.connection.execute(text(sql))

    assert (office.scene.rows(deletions), office.scene.rows(events)) == ([], before)


async def test_what_is_going_is_not_taken_back_and_bars_its_run(office: Office) -> None:
    await lived(office)
    with office.tx() as tx:
        assert deletion.begin_deletion(tx, RUN, by="rita") == [RUN, CHILD]
    with pytest.raises(CannotKeep, match="run run-1 is being deleted since"):
        office.hold()
    with pytest.raises(RunDeleted, match="is being deleted since"), office.scene.tx() as tx:
        effects_of(tx, RUN)
    # Its chain and its rows do not grow any more, whoever has looked at it before.
    with pytest.raises(RunDeleted), office.scene.tx() as tx:
        deletion.keep_run(tx, RUN)
    with pytest.raises(RunDeleted):
        save(office.scene, "late")
    with pytest.raises(NotErasable, match="is being deleted since"), office.tx() as tx:
        erase_run(tx, RUN, by="rita", because="")
    assert {row["run_id"] for row in office.scene.rows(bars)} == {RUN, CHILD}
    # Also if no run is deleted any more: its files may be gone.
    assert (await office.round(None)).deleted == [RUN]


async def test_nobody_rests_on_content_that_is_going(office: Office) -> None:
    scene = office.scene
    scene.committed(scene.call())
    scene.end(RUN)
    scene.open_run(OTHER_RUN)
    with office.tx() as tx:
        assert deletion.begin_deletion(tx, RUN, by="rita") == [RUN]

    refused = scene.claim(scene.call(run_id=OTHER_RUN))

    assert isinstance(refused, Mismatch)
    assert "is being deleted" in refused.reason
    assert scene.rows(replays) == []


async def test_the_digest_of_what_an_approval_rested_on_goes_with_its_run(office: Office) -> None:
    scene = office.scene
    request = replace(scene.call(), precondition="sha256:of a guessable price")
    scene.committed(scene.approved(request))
    scene.end(RUN)
    assert scene.rows(approvals)[0]["precondition"] is not None

    await office.round()

    assert scene.rows(approvals)[0]["precondition"] is None


_KILLED: Final = """
import asyncio, os, signal, sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from surehand.activities.ledger.core.store import open_ledger
from surehand.activities.ledger.runs import deletion
from tests.ledger.scene import Scene
from tests.ledger.test_retention import AT_ONCE, office_of

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

async def main(url, tenant, folder, where):
    async with open_ledger(url) as keeper:
        office = office_of(Scene(keeper, tenant), keeper, Path(folder))
        if where == "rows":
            deletion.finish_deletion = die
        else:
            type(office.retention.artifacts.blobs).remove = die
        await office.round(AT_ONCE)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("database", "where"),
    [("sqlite", "files"), pytest.param("postgresql", "rows", marks=pytest.mark.postgres)],
    indirect=["database"],
)
async def test_a_killed_round_ends_the_same_when_repeated(office: Office, where: str) -> None:
    await lived(office)
    scene, url = office.scene, office.retention.ledger.engine.url
    arguments = [url.render_as_string(hide_password=False), scene.tenant, str(office.folder), where]
    root = Path(__file__).parents[2]
    died = subprocess.run([sys.executable, "-c", _KILLED, *arguments], cwd=root, check=False)
    assert died.returncode == -signal.SIGKILL
    assert len(scene.rows(steps)) == 2
    assert (office.folder / "store" / payloads_of(RUN)).exists() == (where == "files")

    done = await office.round()

    assert done.deleted == [RUN]
    assert scene.rows(steps) == [] and scene.rows(events) == []
    assert len(scene.rows(effects)) == 2
    assert (await office.round()).deleted == []


@pytest.mark.full
async def test_no_byte_of_a_deleted_run_is_left(sqlite_template: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.db"
    shutil.copy(sqlite_template, file)
    async with open_ledger(f"sqlite:///{file}") as ledger:
        scene = Scene.begin(ledger, "acme")
        office = office_of(scene, ledger, tmp_path)
        await lived(office)
        found = MARKER.encode()
        assert any(found in path.read_bytes() for path in tmp_path.glob("own.db*"))

        await office.round()
        for path in (tmp_path / "store" / "acme" / "aside").iterdir():
            os.rename(path, path.with_name(f"{path.name.partition('-')[0]}-1"))
        await office.round()

        assert scene.rows(replays) == []
        for path in [*tmp_path.glob("own.db*"), *(tmp_path / "store").rglob("*")]:
            assert path.is_dir() or found not in path.read_bytes(), path
