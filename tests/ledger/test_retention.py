"""What is old is hidden, then deleted, by its own role alone; what guards effects stays."""

from __future__ import annotations

import base64
import json
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
from surehand.activities.ledger.core.statements import delete_rows, update_rows
from surehand.activities.ledger.core.store import Ledger, Transaction, open_ledger
from surehand.activities.ledger.core.tables import (
    approvals,
    artifacts,
    bars,
    checkpoints,
    decisions,
    effects,
    events,
    notifications,
    plans,
    replays,
    retentions,
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
from surehand.activities.ledger.retention import deletion, hiding
from surehand.activities.ledger.retention.deletion import Content, Exported
from surehand.activities.ledger.retention.hiding import CannotKeep, Policy, RunHidden
from surehand.activities.ledger.runs import checkpoints as saved_checkpoints
from surehand.activities.ledger.runs import steering
from surehand.activities.ledger.runs.lifecycle import RunIdTaken
from surehand.activities.ledger.steps import artifacts as artifact_rows
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.entries import Barred, Claimed, Committed, Mismatch
from surehand.activities.retention import Files, Retention, RetentionPart, Round
from surehand.cli.audit import read_content, why_unproven
from surehand.cli.retention import Exports
from surehand.client.messages import new_key
from surehand.process.blobs import Collected, collect_unreferred
from surehand.process.settings import ClientSettings
from surehand.workflows.contracts.approvals import Assurance
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.runs import Linked, Parent
from surehand.workflows.contracts.steering import CancelRun
from surehand.workflows.identity import DEFAULT_TENANT
from surehand.workflows.payload_codec import payloads_of
from tests.ledger.people import person
from tests.ledger.scene import OTHER_RUN, RUN, STEP, Scene
from tests.ledger.standing import ask, granted
from tests.ledger.test_recovery import WEEK, save
from tests.ledger.test_steering import sent
from tests.ledger_databases import DATABASES

#: What a run is about, and nobody may find any more.
MARKER: Final = "marker-of-maria-4711"
CHILD: Final = f"{RUN}~pay"
AT_ONCE: Final = Policy(timedelta(0), grace=timedelta(0))
DAY: Final = timedelta(days=1)


@dataclass(frozen=True)
class Office:
    """A tenant's runs, and whoever hides and deletes them."""

    scene: Scene
    retention: Retention
    folder: Path

    async def round(self, policy: Policy = AT_ONCE) -> Round:
        return await replace(self.retention, policy=policy).round()

    @contextmanager
    def tx(self) -> Iterator[Transaction]:
        """Open a transaction of the role that deletes."""
        with self.retention.ledger.transaction(self.scene.tenant) as tx:
            yield tx

    def hold(self, run_id: str = RUN, reason: str = "") -> list[str]:
        with self.tx() as tx:
            return hiding.hold_run(tx, run_id, by="rita", reason=reason)

    def release(self, run_id: str = RUN) -> list[str]:
        with self.tx() as tx:
            return hiding.release_run(tx, run_id, by="rita")

    def exported(self, name: str) -> list[dict[str, Any]]:
        """Return what a signed export has, line by line, once it is proven."""
        file = self.folder / "exports" / f"{name}.jsonl"
        jwk = json.loads((self.folder / "rita.pem.pub").read_text())
        assert why_unproven(read_content(file), None, None, jwk) is None
        return [json.loads(line) for line in file.read_text().splitlines()[:-1]]

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

    key = folder / "rita.pem"
    if not key.exists():
        new_key(key)
    # As the ids of these runs say.
    settings = ClientSettings(
        tenant=DEFAULT_TENANT,
        user="rita",
        key=key,
        task_queue="surehand",
        ui_url="http://localhost",
    )
    export = Exports(settings, folder / "exports").write
    return Office(
        scene, Retention(keeper, store, scene.tenant, AT_ONCE, "rita", known, export), folder
    )


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


async def test_a_run_is_hidden_first_and_deleted_later(office: Office) -> None:
    await lived(office)
    scene = office.scene

    first = await office.round(replace(AT_ONCE, grace=DAY))

    assert [(one.run_id, one.kind) for one in first.hidden] == [(RUN, "runs")]
    assert first.deleted == [] and len(scene.rows(steps)) == 2
    with (
        pytest.raises(RunHidden, match=f"run {RUN} is hidden since .* --keep {RUN}"),
        scene.tx() as tx,
    ):
        effects_of(tx, RUN)
    assert (await office.round(replace(AT_ONCE, grace=DAY))).deleted == []
    assert office.hold(CHILD, "a lawsuit") == [RUN, CHILD]
    with office.tx() as tx:
        assert hiding.read_hidden(tx, RUN) is None
        assert hiding.why_kept(tx, RUN) == "held by rita: a lawsuit"
    assert office.release() == [RUN, CHILD]

    await office.round()
    second = await office.round()

    assert second.deleted == [] and second.hidden == []
    gone = (steps, plans, artifacts, checkpoints, notifications, decisions, steerings, events)
    for table in gone:
        assert scene.rows(table) == [], table.name
    assert {row["run_id"]: row["input"] for row in scene.rows(runs)} == {RUN: {}, CHILD: {}}
    assert MARKER not in str([scene.rows(table) for table in (effects, approvals, runs)])
    with pytest.raises(RunHidden, match=f"run {RUN} was deleted by rita on "), scene.tx() as tx:
        effects_of(tx, RUN)
    assert not (office.folder / "store" / payloads_of(RUN)).exists()
    events_and_signature = (office.folder / "exports" / f"{RUN}.jsonl").read_text().count("\n")
    assert events_and_signature == scene.row(runs, run_id=RUN)["seq"] + 1


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

    assert (done.hidden, done.deleted) == ([], [])
    [kept] = done.kept
    assert kept.run_id == RUN and kept.why.startswith(says), kept
    assert scene.rows(retentions) == []


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
    assert done.hidden == done.deleted == []


async def test_statistics_pass_over_a_deleted_run(office: Office) -> None:
    await lived(office)
    await office.round()

    found = read_stats(
        office.scene.ledger, StatsScope(office.scene.tenant, datetime.fromtimestamp(0, UTC))
    )

    assert found.invariants.broken == []


async def test_nothing_is_deleted_where_no_setting_says_so(office: Office) -> None:
    await lived(office)

    assert await office.round(Policy()) == Round()

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


@pytest.mark.parametrize(
    "policy", [Policy(), Policy(timedelta(days=9999))], ids=["none", "nothing is old"]
)
async def test_an_unreferred_file_goes_a_day_later(office: Office, policy: Policy) -> None:
    scene, store = office.scene, office.retention.artifacts
    kept = await store.keep(scene.tenant, RUN, "x" * 9000)
    assert kept.artifact is not None

    assert (await office.round(policy)).files.aside == 1
    assert await store.read(scene.tenant, RUN, kept.artifact) == "x" * 9000
    assert (await office.round(policy)).files == Collected()
    with scene.tx() as tx:
        artifact_rows.record_artifact(tx, RUN, STEP, kept)
    assert (await office.round(policy)).files.back == 1
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
    """Also by the role that deletes: an open run's, a hidden one's in its grace, the tombstone."""
    await lived(office)
    scene, keeper = office.scene, office.retention.ledger
    for _ in range(2):
        for table in (steps, events, artifacts, notifications, decisions):
            query = sql_delete(table).where(table.c.tenant_id == scene.tenant)
            with refused(keeper, scene.tenant, "until their run is being deleted") as tx:
                tx.connection.execute(query)
        await office.round(replace(AT_ONCE, grace=DAY))
    early = update(retentions).where(retentions.c.tenant_id == scene.tenant)
    for change in (
        {"going_ms": 1},
        {"delete_after_ms": retentions.c.hidden_ms},
        {"hidden_ms": 1},
        {"going_ms": 1, "deleted_ms": 1, "deleted_by": "rita"},
    ):
        with refused(keeper, scene.tenant, "goes once its grace is over") as tx:
            tx.connection.execute(early.values(change))
    with pytest.raises(DBAPIError), keeper.transaction(scene.tenant) as tx:
        tx.connection.execute(sql_delete(effects).where(effects.c.tenant_id == scene.tenant))
    with pytest.raises(DBAPIError), keeper.transaction(scene.tenant) as tx:
        tx.connection.execute(
            update(effects).where(effects.c.tenant_id == scene.tenant).values(content_deleted_ms=1)
        )
    assert len(scene.rows(steps)) == 2


async def test_a_row_that_says_it_was_hidden_long_ago_is_refused(office: Office) -> None:
    scene = office.scene
    scene.end()
    row = {
        "tenant_id": scene.tenant, "run_id": RUN, "hidden_ms": 1,
        "hidden_by": "mallory", "delete_after_ms": 1,
    }  # fmt: skip
    for one in (row, {**row, "hidden_ms": 1 << 50, "delete_after_ms": 1 << 50, "going_ms": 1}):
        with refused(office.retention.ledger, scene.tenant, "only what has ended is hidden") as tx:
            tx.connection.execute(retentions.insert().values(one))


@pytest.mark.parametrize("database", DATABASES[1:], indirect=True)
async def test_the_workers_role_deletes_nothing(office: Office) -> None:
    await lived(office)
    await office.round(replace(AT_ONCE, grace=DAY))
    before = office.scene.rows(retentions), office.scene.rows(events)

    denied = "permission denied|until its run is being deleted"
    for sql in (
        "INSERT INTO retentions (tenant_id, run_id, hidden_ms, hidden_by, delete_after_ms)"
        " SELECT tenant_id, run_id, 99999999999999, 'm', 99999999999999 FROM runs",
        "UPDATE retentions SET delete_after_ms = hidden_ms",
        "UPDATE retentions SET going_ms = 1",
        "DELETE FROM holds",
        "DELETE FROM events",
        "UPDATE effects SET content_deleted_ms = 1",
        "UPDATE checkpoints SET document = '{}'",
    ):
        with refused(office.scene.ledger, office.scene.tenant, denied) as tx:
            tx.connection.execute(text(sql))

    assert (office.scene.rows(retentions), office.scene.rows(events)) == before


async def test_what_is_going_is_not_taken_back_and_bars_its_run(office: Office) -> None:
    await lived(office)
    await office.round(replace(AT_ONCE, grace=DAY))
    with office.tx() as tx:
        assert deletion.find_over(tx) == []
    office.hold()
    office.release()
    with office.tx() as tx:
        assert hiding.hide_run(tx, RUN, by="r", grace=timedelta(0)) is None
    with office.tx() as tx:
        deletion.let_go(tx, RUN, by="rita")
    with pytest.raises(CannotKeep, match="run run-1 is being deleted since"):
        office.hold()
    assert {row["run_id"] for row in office.scene.rows(bars)} == {RUN, CHILD}


async def test_nobody_rests_on_content_that_is_going(office: Office) -> None:
    scene = office.scene
    scene.committed(scene.call())
    scene.end(RUN)
    scene.open_run(OTHER_RUN)
    with office.tx() as tx:
        assert hiding.hide_run(tx, RUN, by="r", grace=timedelta(0)) is None
        assert isinstance(deletion.let_go(tx, RUN, by="rita"), deletion.Going)

    refused = scene.claim(scene.call(run_id=OTHER_RUN))

    assert isinstance(refused, Mismatch)
    assert "is being deleted" in refused.reason
    assert scene.rows(replays) == []


async def test_what_another_run_has_come_to_rest_on_does_not_go(office: Office) -> None:
    scene = office.scene
    scene.committed(scene.call())
    scene.end(RUN)
    scene.open_run(OTHER_RUN)
    with office.tx() as tx:
        assert hiding.hide_run(tx, RUN, by="r", grace=timedelta(0)) is None
    assert isinstance(scene.claim(scene.call(run_id=OTHER_RUN)), Committed)

    with office.tx() as tx:
        kept = deletion.let_go(tx, RUN, by="rita")

    assert isinstance(kept, str)
    assert f"run {OTHER_RUN} rests on entry" in kept


async def test_the_digest_of_what_an_approval_rested_on_goes_with_its_run(office: Office) -> None:
    scene = office.scene
    request = replace(scene.call(), precondition="sha256:of a guessable price")
    scene.committed(scene.approved(request))
    scene.end(RUN)
    assert scene.rows(approvals)[0]["precondition"] is not None

    await office.round()
    await office.round()

    assert scene.rows(approvals)[0]["precondition"] is None


def names(office: Office) -> list[str]:
    with office.scene.tx() as tx:
        return [one.name for one in saved_checkpoints.list_checkpoints(tx, RUN)]


async def checkpoints_of(office: Office) -> Kept:
    """One whose time is over, of a run that is open, and one that is still there."""
    scene = office.scene
    kept = await office.retention.artifacts.keep(scene.tenant, RUN, {"document": MARKER * 900})
    save(scene, "still-there", kept)
    save(scene, "over", kept, after=-2 * WEEK)
    return kept


async def test_an_old_checkpoint_is_hidden_exported_and_deleted(office: Office) -> None:
    scene, kept = office.scene, await checkpoints_of(office)
    assert kept.artifact is not None
    gone = [RetentionPart(RUN, "checkpoints")]

    first = await office.round(Policy(grace=DAY))
    assert (first.hidden, first.deleted, names(office)) == (gone, [], ["still-there"])
    assert (await office.round(Policy(grace=DAY))).hidden == []
    with refused(office.retention.ledger, scene.tenant, "until their run is being deleted") as tx:
        tx.execute(delete_rows(checkpoints, name="over"))
    with refused(office.retention.ledger, scene.tenant, "its grace is not shortened") as tx:
        hidden = update_rows(checkpoints, name="over")
        tx.execute(hidden.values(delete_after_ms=checkpoints.c.hidden_ms))
    office.hold()
    assert names(office) == ["over", "still-there"]
    assert (await office.round(Policy(grace=timedelta(0)))).hidden == []
    office.release()

    second = await office.round(Policy(grace=timedelta(0)))

    [part] = second.deleted
    assert part.exports == (str(office.folder / "exports" / f"{RUN}+checkpoints.jsonl"),)
    exported = office.exported(f"{RUN}+checkpoints")
    assert [one["row"]["name"] for one in exported if one.get("table") == "checkpoints"] == ["over"]
    assert [MARKER.encode() in base64.b64decode(o["base64"]) for o in exported if "file" in o] == [
        True
    ]
    assert [one["name"] for one in scene.rows(checkpoints)] == ["still-there"]
    assert [one["step_id"] for one in scene.rows(artifacts)] == ["checkpoint:still-there"]
    assert office.files() == [kept.artifact.uri]


async def test_exports_of_checkpoints_are_not_overwritten(office: Office) -> None:
    at_once = Policy(grace=timedelta(0))
    for name in ("first", "second"):
        save(office.scene, name, after=-2 * WEEK)
        await office.round(at_once)

    [first] = office.exported(f"{RUN}+checkpoints")
    [second] = office.exported(f"{RUN}+checkpoints+2")
    assert (first["row"]["name"], second["row"]["name"]) == ("first", "second")


async def test_held_and_unexported_checkpoints_stay(office: Office) -> None:
    at_once, scene = Policy(grace=timedelta(0)), office.scene
    save(scene, "over", after=-2 * WEEK)
    office.hold()
    with office.tx() as tx:
        hiding.hide_checkpoints(tx, RUN, grace=DAY)
    assert (await office.round(at_once)) == Round()
    office.release()

    silent = replace(office, retention=replace(office.retention, export=None))
    done = await silent.round(at_once)

    assert (done.deleted, len(scene.rows(checkpoints))) == ([], 1)
    assert [(one.run_id, one.why) for one in done.kept] == [(RUN, "checkpoints are not exported")]


#: By table: columns in which a run says what it is about.
SAY: Final = {
    steps: ("output",),
    approvals: ("params",),
    effects: ("receipt", "params"),
    notifications: ("facts",),
}


async def test_exports_precede_deletion(office: Office) -> None:
    """Of rows, and of what the store has."""
    await lived(office)
    before = {table: office.scene.rows(table, run_id=RUN) for table in SAY}

    done = await office.round()

    [part] = done.deleted
    assert str(office.folder / "exports" / f"{RUN}+runs.jsonl") in part.exports
    exported = office.exported(f"{RUN}+runs")
    for table, columns in SAY.items():
        found = [one["row"] for one in exported if one.get("table") == table.name]
        for said in columns:
            assert [row[said] for row in found] == [row[said] for row in before[table]]
            assert MARKER in json.dumps([row[said] for row in found])
            left = office.scene.rows(table, run_id=RUN)
            assert MARKER not in str([row[said] for row in left])
    files = [one for one in exported if "file" in one]
    assert all(MARKER.encode() in base64.b64decode(one["base64"]) for one in files)
    payloads = [one for one in files if one["file"].startswith(payloads_of(RUN))]
    assert (len(payloads), len(files) - len(payloads)) == (1, 1)


async def test_a_lost_file_is_named_in_the_export(office: Office) -> None:
    await lived(office)
    for path in (office.folder / "store").rglob("*"):
        if path.is_file():
            path.unlink()

    done = await office.round()

    assert [one.run_id for one in done.deleted] == [RUN]
    [lost] = [one for one in office.exported(f"{RUN}+runs") if "file" in one]
    assert lost["lost"] is True


async def test_changes_are_exported_again(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    await lived(office)
    write, files = office.retention.export, office.files()
    assert write is not None

    async def late(content: Content, of_store: Files) -> Exported:
        made = await write(content, of_store)
        with office.scene.tx() as tx:
            tx.execute(update_rows(notifications, run_id=content.run_id).values(attempts=7))
        return made

    slow = replace(office, retention=replace(office.retention, export=late))
    done = await slow.round()

    assert [one.why for one in done.kept] == [
        f"rows of run {RUN} have changed since they were exported: the next round goes on"
    ]
    assert len(office.scene.rows(notifications)) == 2
    assert office.files() == files
    assert (await office.round()).deleted
    exported = office.exported(f"{RUN}+runs+2")
    rows = [one["row"] for one in exported if one.get("table") == "notifications"]
    assert [row["attempts"] for row in rows] == [7, 7]


_KILLED: Final = """
import asyncio, os, signal, sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from surehand.activities.ledger.core.store import open_ledger
from surehand.activities.ledger.retention import deletion
from surehand.activities.ledger.retention.hiding import Policy
from tests.ledger.scene import Scene
from tests.ledger.test_retention import AT_ONCE, office_of

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

async def main(url, tenant, folder, where):
    async with open_ledger(url) as keeper:
        office = office_of(Scene(keeper, tenant), keeper, Path(folder))
        if where == "rows":
            deletion.delete_going = die
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

    [part] = done.deleted
    assert (part.run_id, str(office.folder / "exports" / f"{RUN}+runs.jsonl") in part.exports) == (
        RUN,
        True,
    )
    assert [one["file"] for one in office.exported(f"{RUN}+runs") if "file" in one]
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
