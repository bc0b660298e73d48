"""``retention`` and ``erase``: hiding and deleting what is old, holding a run, destroying its key.

On PostgreSQL by roles of their own: the workers' role deletes nothing.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import typer
from temporalio.service import RPCError, RPCStatusCode

from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.retention import hiding
from surehand.activities.ledger.retention.hiding import NotPermitted, Policy, explain_refusal
from surehand.activities.ledger.runs import erasure
from surehand.activities.retention import Kept, Retention, RetentionPart, Round
from surehand.activities.worker.settings import Settings
from surehand.cli import options
from surehand.cli.exports import Exports
from surehand.cli.ledger_door import (
    administration,
    ledger_of,
    open_artifacts,
    read_settings,
    translated,
)
from surehand.cli.options import Caller
from surehand.cli.printer import Lines, Reply, counted
from surehand.cli.shapes import Shape
from surehand.process.exits import ExitCode, NotReachable, WrongUse
from surehand.process.settings import ClientSettings


class RetentionReport(Shape):
    """``retention``: what a round has done, or would do."""

    applied: bool
    hidden: list[RetentionPart]
    deleted: list[RetentionPart]
    kept: list[Kept]
    files_set_aside: int
    """Artifacts to which nothing refers: a day later they are removed."""
    files_back: int
    files_removed: int
    files_lost: int = 0
    """Files of what was exported that the artifact store has lost."""


class RetentionSwitched(Shape):
    """``retention --keep`` and ``--release``."""

    run_id: str
    runs: list[str]
    """The run, and its child runs."""
    held: bool


class RunErased(Shape):
    """``erase``."""

    run_id: str
    runs: list[str]
    """The run, and its child runs."""
    erased_by: str
    reason: str
    artifacts: int
    effects: int
    """Those whose business keys are kept."""


#: Runs of each sort that people are named; all are in the document.
_MOST_NAMED: Final = 20


async def retention(
    caller: options.Actor,
    apply: Annotated[
        bool, typer.Option("--apply", help="Do it; without, it is only said what would be done.")
    ] = False,
    every: Annotated[
        timedelta | None,
        options.lasting("--every", "Do it so often, until this process is ended."),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="DIR", help="Export what goes before it goes, signed."),
    ] = None,
    signing_key: Annotated[
        Path | None,
        typer.Option("--key", help="Sign the exports with it; default SUREHAND_KEY."),
    ] = None,
    no_export: Annotated[
        bool, typer.Option("--no-export", help="Delete without an export.")
    ] = False,
    keep: Annotated[
        str | None, typer.Option("--keep", metavar="RUN", help="Hold a run: show and keep it.")
    ] = None,
    release: Annotated[
        str | None, typer.Option("--release", metavar="RUN", help="Hold a run no more.")
    ] = None,
    reason: options.Reason = "",
) -> Reply | ExitCode:
    """Hide what is kept for longer than SUREHAND_RETENTION says, and delete it after a grace.

    Business keys of effects are kept, so nothing is made twice. Artifacts go to which nothing
    refers. A run of which something fails is kept and named, and the others go.

    Example: python starter.py retention --apply --export exports/ --key retention.key
    """
    acts = apply or every is not None
    if (keep is not None) + (release is not None) + acts > 1:
        raise WrongUse("--keep, --release, and --apply or --every are different things: name one")
    if not acts and (export is not None or no_export):
        raise WrongUse("--export and --no-export are for --apply and --every")
    settings = read_settings()
    async with ledger_of(settings) as ledger:
        with _allowed(ledger):
            if keep is not None or release is not None:
                return await _switch(caller, ledger, keep, release, reason)
            exports = _export_to(caller, export, signing_key)
            made = await _retention(caller, settings, ledger, exports)
            made = replace(made, unexported=no_export)
            if not acts:
                return _reply(caller.settings, made.policy, await made.look(), applied=False)
            if made.policy.kept and export is None and not no_export:
                raise WrongUse(
                    "data would be deleted for good: export it first (--export DIR --key KEY), or"
                    " say --no-export"
                )
            if every is None:
                with translated():
                    return _reply(caller.settings, made.policy, await made.round(), applied=True)
            return await _serve(caller, made, every)


async def _retention(
    caller: Caller, settings: Settings, ledger: Ledger, export: Exports | None
) -> Retention:

    connection = await caller.connection()

    async def known(run_id: str) -> bool:
        try:
            await connection.client.get_workflow_handle(run_id).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise NotReachable(f"the Temporal server: {error}") from error
        return True

    return Retention(
        ledger=ledger,
        artifacts=open_artifacts(settings, ledger),
        tenant=caller.tenant,
        policy=hiding.parse_policy(settings.retention),
        by=caller.settings.user,
        known=known,
        export=None if export is None else export.write,
    )


async def _serve(caller: Caller, made: Retention, every: timedelta) -> ExitCode:
    """Do a round now and then; a signal ends it between two."""
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    caller.printer.one_a_line = True
    while not ended.is_set():
        try:
            with translated():
                caller.printer.reply(
                    _reply(caller.settings, made.policy, await made.round(), applied=True)
                )
        except NotReachable as error:
            caller.printer.warn(f"{error}; the next round is in {every}")
        try:
            async with asyncio.timeout(every.total_seconds()):
                await ended.wait()
        except TimeoutError:
            continue
    return ExitCode.DONE


async def _switch(
    caller: Caller, ledger: Ledger, keep: str | None, release: str | None, reason: str
) -> Reply:

    run_id, by = caller.run_id(keep or release or ""), caller.settings.user
    try:
        if keep is not None:
            found = await ledger.transact(
                caller.tenant, hiding.hold_run, run_id, by=by, reason=reason
            )
        else:
            found = await ledger.transact(caller.tenant, hiding.release_run, run_id, by=by)
    except hiding.CannotKeep as error:
        raise WrongUse(str(error)) from error
    told = "held: it is shown, and stays until it is released" if keep else "held no more"
    more = f" and {counted(len(found) - 1, 'child run')}" if len(found) > 1 else ""
    switched = RetentionSwitched(run_id=found[0], runs=list(found), held=keep is not None)
    return Reply(switched, f"Run {found[0]}{more} {told}")


def _export_to(caller: Caller, folder: Path | None, key: Path | None) -> Exports | None:
    if folder is None:
        return None
    signing = key or caller.settings.key
    if signing is None:
        raise WrongUse("exports are signed: name your key (--key, or SUREHAND_KEY)")
    settings = caller.settings.model_copy(update={"key": signing})
    return Exports(settings, folder.absolute())


@contextmanager
def _allowed(ledger: Ledger) -> Iterator[None]:

    try:
        with explain_refusal(ledger):
            yield
    except NotPermitted as error:
        raise WrongUse(str(error)) from error


def _reply(settings: ClientSettings, policy: Policy, done: Round, *, applied: bool) -> Reply:
    report = RetentionReport(
        applied=applied,
        hidden=done.hidden,
        deleted=done.deleted,
        kept=done.kept,
        files_set_aside=done.files.aside,
        files_back=done.files.back,
        files_removed=done.files.removed,
        files_lost=done.lost,
    )
    # The gravest has the least number.
    code = min((one.failed for one in done.kept if one.failed), default=ExitCode.DONE)
    return Reply(report, _lines(settings, report, anything=bool(policy.kept)), code)


def _lines(settings: ClientSettings, report: RetentionReport, *, anything: bool) -> Lines:
    if anything or report.hidden or report.deleted or report.kept:
        yield from _lines_of_runs(report)
    else:
        yield "SUREHAND_RETENTION is not set: nothing is hidden, and nothing deleted"
    if report.files_set_aside or report.files_removed or report.files_back:
        yield (
            f"Files that nothing refers to: {report.files_set_aside} set aside,"
            f" {report.files_removed} removed after a day, {report.files_back} put back"
        )
    if report.files_lost:
        lost = counted(report.files_lost, "file")
        yield f"The artifact store has lost {lost} of what was exported"
    if not report.applied and (report.hidden or report.deleted):
        do = settings.command("retention", "--apply", "--export", "DIR", "--key", "KEY")
        yield f"Do it: {do}, or with --no-export"


def _lines_of_runs(report: RetentionReport) -> Lines:
    done = ("Hidden", "Deleted") if report.applied else ("Would be hidden", "Would be deleted")
    for what, parts in zip(done, (report.hidden, report.deleted), strict=True):
        yield f"{what}: {counted(len(parts), 'run')}"
        for part in parts[:_MOST_NAMED]:
            yield f"  {part.run_id}: {', '.join(part.kinds)}"
            yield from (f"    exported to {file}" for file in part.exports)
        if len(parts) > _MOST_NAMED:
            yield f"  and {len(parts) - _MOST_NAMED} more"
    for what, failed in (("Failed, and kept", True), ("Old enough, and kept", False)):
        kept = [one for one in report.kept if (one.failed is not None) is failed]
        if kept:
            yield f"{what}: {counted(len(kept), 'run')}"
            yield from (f"  {one.run_id}: {one.why}" for one in kept[:_MOST_NAMED])
        if len(kept) > _MOST_NAMED:
            yield f"  and {len(kept) - _MOST_NAMED} more"


#: Characters of why a run is erased: they stand in its chain for good.
LONGEST: Final = 500


async def erase(
    caller: options.Actor,
    run: options.Run,
    reason: options.Reason = "",
) -> Reply:
    """Destroy the key of a run that has ended: nobody reads again what it has sent and kept.

    That is its history, its part of the ledger, its artifacts, and those of its child runs. Its
    events stay, and prove what has happened. Its business keys stay, and protect its effects.

    Example: python starter.py erase refund-1 --reason "request 4711"
    """
    if len(reason) > LONGEST:
        raise WrongUse(f"--reason: at most {LONGEST} characters")
    run_id, by = caller.run_id(run), caller.settings.user
    async with administration(caller.tenant, forgets=True) as tx:
        try:
            done = erasure.erase(tx, run_id, by=by, because=reason)
        except erasure.NotErasable as error:
            raise WrongUse(str(error)) from error
    shown = RunErased(run_id=run_id, erased_by=by, reason=reason, **asdict(done))
    more = f" and {counted(len(done.runs) - 1, 'child run')}" if len(done.runs) > 1 else ""
    lines = [
        f"Run {run_id}{more} erased: nobody can read what it has sent and kept.",
        f"Kept: its events, and the business keys of {counted(done.effects, 'effect')}.",
        "Workers that have read it just now remember its key for a minute. Backups of the ledger"
        " have it wrapped until they are gone.",
    ]
    return Reply(shown, lines)
