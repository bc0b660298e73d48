"""``retention`` and ``erase``: deleting old runs, holding a run, destroying its key.

On PostgreSQL by roles of their own: the workers' role deletes nothing.
"""

from __future__ import annotations

import asyncio
import signal
from datetime import timedelta
from typing import Annotated, Final

from temporalio.service import RPCError, RPCStatusCode

from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.runs import deletion, keys
from surehand.activities.retention import Retention, Round
from surehand.activities.worker.settings import Settings
from surehand.cli import options
from surehand.cli.options import (
    Caller,
    administration,
    duration_option,
    flag,
    ledger_of,
    open_artifacts,
    option,
    read_settings,
    translated,
)
from surehand.cli.printer import Lines, Reply, Shape
from surehand.process.exits import ExitCode, NotReachable, WrongUse
from surehand.process.settings import ClientSettings
from surehand.workflows.plain_text import counted


class RetentionReport(Shape):
    """``retention``: what a round has done, or would do."""

    applied: bool
    round: Round


class RetentionSwitched(Shape):
    """``retention --keep`` and ``--release``."""

    run_id: str
    runs: list[str]
    """The run, and its child runs."""
    held: bool


#: Runs of each sort that people are named; all are in the document.
_MOST_NAMED: Final = 20


async def retention(
    caller: options.Sender,
    apply: Annotated[bool, flag("Delete; without it, only say what would be deleted.")] = False,
    every: Annotated[
        timedelta | None,
        duration_option("Repeat it at this interval until the process ends."),
    ] = None,
    keep: Annotated[str | None, option("Hold a run: it is not deleted.", metavar="RUN")] = None,
    release: Annotated[str | None, option("Hold a run no more.", metavar="RUN")] = None,
    reason: options.Reason = "",
) -> Reply | ExitCode:
    """Delete runs that ended longer ago than SUREHAND_RETENTION says.

    Business keys of effects are kept, so nothing is made twice. Artifacts that nothing refers to
    are deleted. A run that cannot be deleted is kept and listed. If you want a copy of a run, write
    its receipt before (`receipt RUN`).

    Example: surehand retention --apply
    """
    acts = apply or every is not None
    if (keep is not None) + (release is not None) + acts > 1:
        raise WrongUse("--keep, --release, and --apply or --every are different things: name one")
    settings = read_settings()
    async with ledger_of(settings) as ledger:
        with deletion.explain_refusal(ledger):
            if keep is not None or release is not None:
                return await _switch_hold(caller, ledger, keep, release, reason)
            made = await _make_retention(caller, settings, ledger)
            if every is not None:
                return await _serve(caller, made, every)
            if not apply:
                return _reply(caller.settings, made.kept, await made.look(), applied=False)
            return _reply(caller.settings, made.kept, await made.round(), applied=True)


async def _make_retention(caller: Caller, settings: Settings, ledger: Ledger) -> Retention:
    connection = await caller.connection()

    async def known(run_id: str) -> bool:
        try:
            await connection.client.get_workflow_handle(run_id).describe()
        except RPCError as error:
            # A namespace that is not there knows no run, and every run would go.
            if error.status is RPCStatusCode.NOT_FOUND and not error.message.startswith(
                "Namespace "
            ):
                return False
            raise NotReachable(f"the Temporal server: {error}") from error
        return True

    return Retention(
        ledger=ledger,
        artifacts=open_artifacts(settings, ledger),
        tenant=caller.tenant,
        kept=settings.retention,
        by=caller.settings.user,
        known=known,
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
                    _reply(caller.settings, made.kept, await made.round(), applied=True)
                )
        except NotReachable as error:
            caller.printer.warn(f"{error}; the next round is in {every}")
        try:
            async with asyncio.timeout(every.total_seconds()):
                await ended.wait()
        except TimeoutError:
            continue
    return ExitCode.DONE


async def _switch_hold(
    caller: Caller, ledger: Ledger, keep: str | None, release: str | None, reason: str
) -> Reply:
    run_id, by = caller.run_id(keep or release or ""), caller.settings.user
    if keep is not None:
        found = await ledger.transact(
            caller.tenant, deletion.hold_run, run_id, by=by, reason=reason
        )
    else:
        found = await ledger.transact(caller.tenant, deletion.release_run, run_id, by=by)
    told = "held: it stays until it is released" if keep else "held no more"
    more = f" and {counted(len(found) - 1, 'child run')}" if len(found) > 1 else ""
    switched = RetentionSwitched(run_id=found[0], runs=list(found), held=keep is not None)
    return Reply(switched, f"Run {found[0]}{more} {told}")


def _reply(
    settings: ClientSettings, kept: timedelta | None, done: Round, *, applied: bool
) -> Reply:
    report = RetentionReport(applied=applied, round=done)
    # The gravest has the least number.
    code = min((one.failed for one in done.kept if one.failed), default=ExitCode.DONE)
    return Reply(report, _round_lines(settings, report, anything=kept is not None), code)


def _round_lines(settings: ClientSettings, report: RetentionReport, *, anything: bool) -> Lines:
    done, files = report.round, report.round.files
    if anything or done.deleted or done.kept:
        yield from _lines_of_runs(report)
    else:
        yield "SUREHAND_RETENTION is not set: no run is deleted"
    if files.aside or files.removed or files.back:
        yield (
            f"Files that nothing refers to: {files.aside} set aside,"
            f" {files.removed} removed after a day, {files.back} put back"
        )
    if not report.applied and done.deleted:
        yield f"Delete them: {settings.command('retention', '--apply')}"


def _lines_of_runs(report: RetentionReport) -> Lines:
    done = report.round
    failed = [f"{one.run_id}: {one.why}" for one in done.kept if one.failed is not None]
    kept = [f"{one.run_id}: {one.why}" for one in done.kept if one.failed is None]
    yield from _named("Deleted" if report.applied else "Would be deleted", done.deleted)
    for what, lines in (("Failed, and kept", failed), ("Old enough, and kept", kept)):
        if lines:
            yield from _named(what, lines)


def _named(what: str, lines: list[str]) -> Lines:
    yield f"{what}: {counted(len(lines), 'run')}"
    yield from (f"  {line}" for line in lines[:_MOST_NAMED])
    if len(lines) > _MOST_NAMED:
        yield f"  and {len(lines) - _MOST_NAMED} more"


#: Characters of why a run is erased: they stand in its chain forever.
LONGEST: Final = 500


async def erase(caller: options.Actor, run: options.Run, reason: options.Reason = "") -> Reply:
    """Destroy the key of a run that has ended, so that nobody can read its data again.

    That is its history, its part of the ledger, its artifacts, and those of its child runs. Its
    events stay, and prove what has happened. Its business keys stay, and protect its effects.

    Example: surehand erase refund-1 --reason "request 4711"
    """
    if len(reason) > LONGEST:
        raise WrongUse(f"--reason: at most {LONGEST} characters")
    run_id = caller.run_id(run)
    async with administration(caller.tenant, forgets=True) as tx:
        done = keys.erase_run(tx, run_id, by=caller.settings.user, because=reason)
    more = f" and {counted(len(done.runs) - 1, 'child run')}" if len(done.runs) > 1 else ""
    lines = [
        f"Run {run_id}{more} erased: nobody can read what it has sent and kept.",
        f"Kept: its events, and the business keys of {counted(done.effects, 'effect')}.",
        "Workers that have read it just now remember its key for a minute. Backups of the ledger"
        " have it wrapped until they are gone.",
    ]
    return Reply(done, lines)
