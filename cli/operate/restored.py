"""``ledger restored``: says that the ledger was restored, and which runs are behind since."""

from __future__ import annotations

import re
import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surehand.cli.operate.audit import history_heads
from surehand.cli.verb import options
from surehand.cli.verb.caller import Caller
from surehand.cli.verb.ledger_door import administration, ledger_of, read_settings
from surehand.cli.verb.printer import Lines, Reply, Table
from surehand.cli.verb.shapes import EpochShown, RunBehind
from surehand.cli.verb.text import counted, shown_time
from surehand.process.exits import NotReachable, WrongUse
from surehand.process.settings import ClientSettings
from surehand.workflows.identity import tenant_of_run, tenant_problem

if TYPE_CHECKING:
    from surehand.activities.ledger.core.store import Transaction
    from surehand.activities.ledger.effects.epochs import Epoch


async def restored(
    caller: options.Actor,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="T", help="The instant it was restored to; opens an epoch."),
    ] = None,
    done: Annotated[
        bool, typer.Option("--done", help="What was forgotten is settled: close the epoch.")
    ] = False,
) -> Reply:
    """Say that the ledger was restored to an earlier instant; or show what is to be done since.

    While an epoch is open, what the ledger may have forgotten is looked up, or asked about, before
    it is called. Run it before the workers start. It lists the runs of all tenants of the ledger.

    Example: python starter.py ledger restored --to 2026-11-23T14:00:00Z
    """
    if to is not None and done:
        raise WrongUse("--to opens an epoch and --done closes it: name one of them")
    from surehand.activities.ledger.effects import epochs

    moment = None if to is None else parse_moment(to)
    newest: int | None = None
    if moment is None and not done:
        async with ledger_of(read_settings()) as ledger:
            known = await ledger.transact(caller.tenant, epochs.epochs_of)
        epoch = known[-1] if known else None
    else:
        async with administration(caller.tenant) as tx:
            epoch = _changed(tx, moment, to, caller.settings.user)
            newest = epochs.newest_event_ms(tx) if to else None
    shown = _shape(epoch, newest)
    if epoch is not None and (done or epoch.closed_ms is None):
        shown = shown.model_copy(update={"behind": await _behind(caller, epoch)})
    return Reply(shown, _lines(caller.settings, shown))


def parse_moment(text: str) -> datetime:
    """Return an instant; it has to say of which time zone it is.

    Raises:
        WrongUse: It is none.
    """
    how = "write a time with its zone, such as 2026-11-23T14:00:00Z or 2026-11-23T15:00:00+01:00"
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise WrongUse(f"--to {text[:40]!r} is no time: {how}") from error
    if moment.tzinfo is None or re.fullmatch(r"[0-9-]+", text):
        raise WrongUse(f"--to {text[:40]!r} does not say its time zone: {how}")
    return moment


def _changed(tx: Transaction, moment: datetime | None, to: str | None, actor: str) -> Epoch:
    from surehand.activities.ledger.effects.epochs import EpochError, close, open_at

    try:
        if moment is None:
            return close(tx, actor)
        return open_at(tx, int(moment.timestamp() * 1000), actor)
    except EpochError as error:
        option = "--done" if moment is None else f"--to {to}"
        raise WrongUse(f"{option}: {error}") from error


def _shape(epoch: Epoch | None, newest_ms: int | None) -> EpochShown:
    if epoch is None:
        return EpochShown()
    return EpochShown(
        number=epoch.number,
        restored_to=_time(epoch.restored_to_ms),
        opened_at=_time(epoch.opened_ms),
        opened_by=epoch.opened_by,
        closed_at=_time(epoch.closed_ms),
        closed_by=epoch.closed_by,
        newest_event_at=_time(newest_ms),
    )


def _time(ms: int | None) -> Any:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


async def _behind(caller: Caller, epoch: Epoch) -> list[RunBehind]:
    """Return the runs, of every tenant, that Temporal knows more of than the ledger does."""
    from surehand.activities.ledger.core.store import RunNotFound
    from surehand.activities.ledger.history.audit import without_forgotten
    from surehand.activities.ledger.history.reads import chain_of, knows_run

    try:
        connection = await caller.connection()
    except NotReachable as error:
        caller.printer.warn(f"which runs are behind cannot be said: {error}")
        return []
    since = _time(epoch.restored_to_ms).isoformat()
    queue = caller.settings.task_queue
    # Another ledger's runs are another queue's. The ledger cannot say which tenants it has.
    condition = f"TaskQueue = '{queue}' AND (ExecutionStatus = 'Running' OR CloseTime >= '{since}')"
    listed = connection.listed(condition, every_tenant=True)
    runs = {run.id: run.parent_id async for run in listed}
    found = []
    async with ledger_of(read_settings()) as ledger:
        for run_id, parent_id in runs.items():
            tenant = tenant_of_run(run_id)
            if tenant_problem(tenant) is not None:
                continue  # Anybody can start a workflow under any name; no ledger has such a run.
            # A child run is opened under its parent's row, so that one comes first.
            if parent_id and not await ledger.transact(tenant, knows_run, parent_id):
                continue
            try:
                events, _, _ = await ledger.transact(tenant, chain_of, run_id)
            except RunNotFound:
                known = False
            else:
                heads = await history_heads(connection, run_id)
                if not without_forgotten(events, heads, [epoch])[1]:
                    continue
                known = True
            words = [*connection.temporal_options(), "--workflow-id", run_id]
            how = ["--type", "FirstWorkflowTask", "--reason", "restored"]
            line = shlex.join(["temporal", "workflow", "reset", *words, *how])
            found.append(RunBehind(run_id=run_id, known=known, command=line))
    return found


def _lines(settings: ClientSettings, shown: EpochShown) -> Lines:
    if shown.number is None or shown.restored_to is None or shown.opened_at is None:
        yield "The ledger was never restored, as far as it knows: no epoch was opened."
        return
    to, opened = shown_time(shown.restored_to), shown_time(shown.opened_at)
    yield f"Epoch {shown.number}: restored to {to}; opened {opened} by {shown.opened_by}"
    if shown.closed_at is not None:
        yield f"Closed {shown_time(shown.closed_at)} by {shown.closed_by}"
        if shown.behind:
            again = settings.command("ledger", "restored", "--to", shown.restored_to.isoformat())
            yield (
                f"{counted(len(shown.behind), 'run')} went on since the restore, and would make"
                f" effects again once they begin anew. Open another epoch before: {again}"
            )
            yield _table(shown)
        return
    if shown.newest_event_at is not None:
        newest = shown_time(shown.newest_event_at)
        yield f"The newest event in the ledger is of {newest}."
    yield "Open: what may be forgotten is looked up, or asked about, before it is called."
    if shown.behind:
        yield f"{counted(len(shown.behind), 'run')} went on since. Have each begin anew:"
        yield _table(shown)
    yield f"When all is settled: {settings.command('ledger', 'restored', '--done')}"


def _table(shown: EpochShown) -> Table:
    rows = [[one.run_id, "behind" if one.known else "unknown", one.command] for one in shown.behind]
    return Table(("run", "in the ledger", "command"), rows)
