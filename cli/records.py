"""What the ledger has of a run: effects, events, notifications, artifacts, checkpoints, ..."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import TypeAdapter

from surehand.activities.ledger.history import reads
from surehand.activities.ledger.history.recordings import rebuild_checkpoint
from surehand.activities.ledger.runs import checkpoints
from surehand.activities.ledger.runs.checkpoints import SavedCheckpoint
from surehand.cli import options
from surehand.cli.options import (
    Caller,
    argument,
    flag,
    ledger_of,
    open_artifacts,
    option,
    read_settings,
    rows_reply,
)
from surehand.cli.printer import Reply, Shape, Table, compact, shown_time, table_or
from surehand.client.outcome import call_progress
from surehand.process import VERSION, exits
from surehand.verify import SHAPES
from surehand.workflows.canonical_json import canonical_json
from surehand.workflows.contracts.base import Artifact, as_artifact
from surehand.workflows.plan.plan import NAME_FORM


class CheckpointSaved(Shape):
    """``checkpoint RUN --save NAME``."""

    run_id: str
    saved: SavedCheckpoint


class CheckpointList(Shape):
    """``checkpoint RUN --list``: those that are kept, the newest first."""

    run_id: str
    checkpoints: list[SavedCheckpoint]


_EFFECT_COLUMNS: Final = ("step_id", "tool", "key", "generation", "state", "calls", "error")
_EVENT_COLUMNS: Final = ("seq", "at", "type", "step_id", "body")
_INTERVENTION_COLUMNS: Final = (
    "intervention_id",
    "run_id",
    "step_id",
    "state",
    "question",
    "outcome",
    "actor",
)


async def effects(caller: options.Onlooker, run: options.Run) -> Reply:
    """Show the ledger entries of a run: each effect with key, state and receipt.

    Example: surehand effects refund-1
    """
    run_id = caller.run_id(run)
    rows = await caller.do_transaction(reads.effects_of, run_id)
    return rows_reply(run_id, _EFFECT_COLUMNS, rows, "No effects")


async def events(
    caller: options.Onlooker,
    run: Annotated[str | None, argument("RUN", "With --format, default all runs.")] = None,
    format_: Annotated[
        Literal["ocsf"] | None,
        option("Print the events of the tenant as lines for a SIEM.", "--format"),
    ] = None,
    follow: Annotated[bool, flag("Go on with new ones until you press Ctrl-C.")] = False,
    after: Annotated[
        str | None, option("Only those behind this one, by its metadata.uid.", metavar="UID")
    ] = None,
) -> Reply | exits.ExitCode:
    """Show the events of a run, as they were chained, or of all runs, for a SIEM.

    Example: surehand events refund-1 --json
    """
    run_id = None if run is None else caller.run_id(run)
    if format_ is not None:
        return await _print_lines(caller, run_id, after, follow=follow)
    if follow or after is not None:
        raise exits.WrongUse("--follow and --after are for --format ocsf")
    if run_id is None:
        raise exits.WrongUse("name a RUN, or say --format ocsf for all of them")
    rows = await caller.do_transaction(reads.events_of, run_id)
    return rows_reply(run_id, _EVENT_COLUMNS, rows, "No events")


#: Events that are read at once, and seconds until it is looked for new ones.
_AT_ONCE: Final = 500
_PAUSE: Final = 1.0


async def _print_lines(
    caller: Caller, run_id: str | None, after: str | None, *, follow: bool
) -> exits.ExitCode:
    """Print events in their order, each once: whoever has a line goes on behind it."""
    try:
        position = None if after is None else reads.Position.parse(after)
    except ValueError as error:
        raise exits.WrongUse(f"--after: {error}") from error
    cut, until = None, None
    async with ledger_of(read_settings()) as ledger:
        while True:
            given = (position, cut, run_id)
            try:
                rows, next_ = await ledger.transact(
                    caller.tenant, reads.list_after, *given, most=_AT_ONCE
                )
            except reads.ClockSetBack as error:
                where = f"; go on with an earlier --after than {position}" if position else ""
                raise exits.SurehandError(f"{error}{where}", code=exits.ExitCode.BROKEN) from error
            for row in rows:
                position = reads.Position(row["at_ms"], row["run_id"], row["seq"])
                line = as_ocsf(caller.tenant, str(position), row)
                sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")
            sys.stdout.flush()
            until = until or next_.at_ms + reads.CLOCK_SET_BACK_MS
            if len(rows) < _AT_ONCE:
                if not follow and cut is not None and cut.at_ms >= until and next_ is not cut:
                    return exits.ExitCode.DONE
                await asyncio.sleep(_PAUSE)
            cut = next_


#: The version of OCSF's schema, and two of its classes: Entity Management is for what people are
#: asked and say, API Activity for everything else.
_OCSF: Final = "1.8.0"
_ENTITY_MANAGEMENT, _API_ACTIVITY = 3004, 6003
_BY_PEOPLE: Final = re.compile(r"(approval|decision|interrupt|intervention|resolution|steering)\.")
_CREATE, _READ, _UPDATE, _DELETE = 1, 2, 3, 4
_ACTIVITIES: Final = {
    **dict.fromkeys(("run.opened", "approval.requested", "effect.claimed"), _CREATE),
    **dict.fromkeys(("interrupt.opened", "intervention.opened"), _CREATE),
    **dict.fromkeys(("approval.read", "interrupt.read"), _READ),
    **dict.fromkeys(("effect.compensated", "run.erased"), _DELETE),
}
_SUCCESS, _FAILURE, _INFORMATIONAL, _MEDIUM = 1, 2, 1, 3
_FAILS: Final = re.compile(r".*\.(failed|refused|in_doubt|uncompensated|stopped|halted|set_back)")


def as_ocsf(tenant: str, uid: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event as one of OCSF (https://schema.ocsf.io)."""
    type_, body = row["type"], row["body"]
    by_people = _BY_PEOPLE.match(type_) is not None
    class_, activity = _API_ACTIVITY, _ACTIVITIES.get(type_, _UPDATE)
    what: dict[str, Any] = {"api": {"operation": type_}, "src_endpoint": {"name": "surehand"}}
    if by_people:
        class_, names = _ENTITY_MANAGEMENT, ("approval_id", "intervention_id", "steering_id")
        name = next((body[one] for one in names if one in body), row["step_id"] or row["run_id"])
        what = {"entity": {"name": name, "type": type_.partition(".")[0], "type_id": 99}}
    who = next((body[one] for one in ("approver", "actor", "user") if one in body), "surehand")
    fails = _FAILS.fullmatch(type_) is not None
    return {
        "class_uid": class_,
        "category_uid": class_ // 1000,
        "activity_id": activity,
        "type_uid": class_ * 100 + activity,
        "severity_id": _MEDIUM if fails or type_ == "intervention.opened" else _INFORMATIONAL,
        "status_id": _FAILURE if fails else _SUCCESS,
        "time": row["at_ms"],
        "metadata": {
            "version": _OCSF,
            "uid": uid,
            "correlation_uid": row["run_id"],
            "sequence": row["seq"],
            "event_code": type_,
            "tenant_uid": tenant,
            "product": {"name": "Surehand", "vendor_name": "Surehand", "version": VERSION},
        },
        "actor": {"user": {"name": who}},
        **what,
        "unmapped": {name: row[name] for name in SHAPES["events"]},
    }


async def interventions(
    caller: options.Onlooker,
    run: options.OnlyRun = None,
    only_open: Annotated[bool, flag("Only those not settled.", "--open")] = False,
) -> Reply:
    """Show the questions that only a human can settle.

    Example: surehand interventions --open
    """
    run_id = caller.run_id(run) if run else None
    rows = await caller.do_transaction(reads.interventions_of, run_id, only_open=only_open)
    reply = rows_reply(run_id, _INTERVENTION_COLUMNS, rows, "No interventions")
    asked = [
        caller.settings.command(
            "resolve", row["intervention_id"], "OUTCOME", "--run", row["run_id"]
        )
        for row in rows
        if row["state"] == "open"
    ]
    return replace(reply, text=[*reply.text, *asked])


_NOTIFICATION_COLUMNS: Final = (
    "written_at",
    "kind",
    "subject",
    "channel",
    "state",
    "attempts",
    "due_at",
    "sent_at",
    "error",
)


async def notifications(
    caller: options.Onlooker,
    run: options.OnlyRun = None,
    failed: Annotated[bool, flag("Only what could not be sent, finally or so far.")] = False,
    limit: Annotated[int, option("At most so many, the newest.", min=1, max=10_000)] = 50,
) -> Reply:
    """Show notifications: due, sent, or not sent and why.

    Example: surehand notifications --failed
    """
    run_id = caller.run_id(run) if run else None
    rows = await caller.do_transaction(
        reads.notifications_of, run_id, only_failed=failed, limit=limit
    )
    for row in rows:
        if row["state"] != "pending":
            row["due_at"] = None  # nothing follows
    return rows_reply(run_id, _NOTIFICATION_COLUMNS, rows, "No notifications")


_ARTIFACT_COLUMNS: Final = ("artifact_id", "step_id", "bytes", "type", "uri")


async def artifacts(
    caller: options.Onlooker,
    run: options.Run,
    artifact: Annotated[
        str | None, argument("ARTIFACT", "Only this one, by its id or sha256.")
    ] = None,
) -> Reply | exits.ExitCode:
    """List a run's stored values, or write one of them to stdout.

    These are values over 8 KiB, and files that tools have written part by part.

    Example: surehand artifacts refund-1
    """
    run_id = caller.run_id(run)
    settings = read_settings()
    async with ledger_of(settings) as ledger:
        rows = await ledger.transact(caller.tenant, reads.artifacts_of, run_id)
        if artifact is None:
            nothing = "No artifacts: no value of this run is over 8 KiB"
            return rows_reply(run_id, _ARTIFACT_COLUMNS, rows, nothing)
        wanted = artifact.removeprefix("sha256:")
        found = next((r for r in rows if wanted in (r["artifact_id"], r["sha256"])), None)
        if found is None:
            raise exits.NotFound(f"run {run_id} has no artifact {artifact!r}")
        store, reference = open_artifacts(settings, ledger), Artifact.model_validate(found)
        content = await store.read_bytes(caller.tenant, run_id, reference)
    sys.stdout.buffer.write(content)
    return exits.ExitCode.DONE


#: A checkpoint holds references, not values: one that is larger than this is a mistake.
LARGEST_CHECKPOINT: Final = 10 * 1024 * 1024  # bytes
#: How long a statement may take that saves one, and the artifact store before the ledger keeps it.
_SAVED_WITHIN: Final = timedelta(seconds=2)


async def checkpoint(
    caller: options.Actor,
    run: options.Run,
    at: Annotated[
        int | None,
        option("As it was right after this event, from the ledger alone.", metavar="SEQ", min=1),
    ] = None,
    save: Annotated[
        str | None, option("Keep it in the ledger under a new name.", metavar="NAME")
    ] = None,
    named: Annotated[str | None, option("As it was when it was saved.", metavar="NAME")] = None,
    list_: Annotated[bool, flag("List those that are kept.", "--list")] = False,
) -> Reply:
    """Show a run's state as one document: now, at one of its events, or as it was saved.

    Example: surehand checkpoint refund-1 --save before-amend
    """
    _refuse_both(at, save, named, list_)
    run_id = caller.run_id(run)
    if list_:
        return await _list_saved(caller, run_id)
    if named is not None:
        return _document_reply(await _read_saved(caller, run_id, named))
    try:
        document = await (
            _read_live(caller, run_id) if at is None else _read_past(caller, run_id, at)
        )
    except exits.NoWorker as error:
        if save is not None or not caller.has_ledger:
            raise
        try:
            known = await _read_past(caller, run_id, None)
        except exits.NoSuchRun:
            raise error from None
        caller.printer.warn(f"{error}; this is what the ledger knows")
        return replace(_document_reply(known), code=error.code)
    if save is None:
        return _document_reply(document)
    return await _save_document(caller, run_id, save, document)


def _refuse_both(at: int | None, save: str | None, named: str | None, list_: bool) -> None:
    chosen = [("--save", save is not None), ("--named", named is not None), ("--list", list_)]
    given = [option for option, there in chosen if there]
    if len(given) > 1:
        raise exits.WrongUse(f"{' and '.join(given)} do not go together: one at a time")
    if at is not None and given not in ([], ["--save"]):
        raise exits.WrongUse(f"--at does not go with {given[0]}")
    if save is not None and not re.fullmatch(NAME_FORM, save):
        raise exits.WrongUse(f"--save {save!r}: a name is 1 to 64 letters, digits, '_', '.' or '-'")


def _document_reply(document: dict[str, Any]) -> Reply:
    rows = [[name, compact(value)] for name, value in document.items()]
    return Reply(document, [Table(("field", "value"), rows)])


async def _read_live(caller: Caller, run_id: str) -> dict[str, Any]:
    connection = await caller.connection()
    found = await connection.describe(run_id)
    await connection.require_answer(run_id)
    document = await connection.checkpoint(run_id)
    calls = await call_progress(found)
    for current in document["current_steps"]:
        current["progress"] = calls.by_step.get(current["step_id"])
        current["bytes_written"] = calls.bytes_written.get(current["step_id"])
    return document


async def _read_past(caller: Caller, run_id: str, seq: int | None) -> dict[str, Any]:
    found = await caller.do_transaction(rebuild_checkpoint, run_id, seq)
    return found.model_dump(mode="json")


async def _save_document(caller: Caller, run_id: str, name: str, document: dict[str, Any]) -> Reply:
    settings = read_settings()
    seq = int(document["checkpoint_id"].rpartition("@")[2])
    lasts = TypeAdapter(timedelta | None).dump_python(settings.retention, mode="json")
    document = {**document, "ttl": lasts}
    size = len(canonical_json(document))
    if size > LARGEST_CHECKPOINT:
        raise exits.WrongUse(
            f"the checkpoint of run {run_id}: {size} bytes, {LARGEST_CHECKPOINT} at most"
        )
    # It must not hold up the run's own work for longer.
    async with ledger_of(settings, _SAVED_WITHIN) as ledger:
        store = open_artifacts(settings, ledger)
        kept = await store.keep(caller.tenant, run_id, document, _SAVED_WITHIN)
        saved = await ledger.transact(
            caller.tenant,
            checkpoints.save_checkpoint,
            run_id,
            name,
            kept,
            seq=seq,
            size=size,
            saved_by=caller.settings.user,
        )
    line = f"Saved {name}: run {run_id} at event {seq}"
    return Reply(CheckpointSaved(run_id=run_id, saved=saved), line)


async def _list_saved(caller: Caller, run_id: str) -> Reply:
    async with ledger_of(read_settings()) as ledger:
        await ledger.transact(caller.tenant, reads.require_run, run_id)
        found = await ledger.transact(caller.tenant, checkpoints.list_checkpoints, run_id)
    columns = ("name", "event", "saved", "by", "bytes")
    rows = [
        [one.name, str(one.seq), shown_time(one.saved_at), one.saved_by, str(one.bytes)]
        for one in found
    ]
    shown = CheckpointList(run_id=run_id, checkpoints=found)
    return Reply(shown, table_or(columns, rows, f"No checkpoint of run {run_id} is kept"))


async def _read_saved(caller: Caller, run_id: str, name: str) -> dict[str, Any]:
    async with ledger_of(read_settings()) as ledger:
        await ledger.transact(caller.tenant, reads.require_run, run_id)
        one = await ledger.transact(caller.tenant, checkpoints.find_checkpoint, run_id, name)
        artifact = as_artifact(one.document)
        document: dict[str, Any] = one.document
        if artifact is not None:
            store = open_artifacts(read_settings(), ledger)
            document = await store.read(caller.tenant, run_id, artifact)
    return document
