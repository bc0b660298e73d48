"""``reconcile``, ``unwind``, ``ledger restored`` and ``stats``: the upkeep of a ledger."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from temporalio import client
from temporalio.service import RPCError

from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.core.transaction import RunNotFound, Transaction
from surehand.activities.ledger.effects import epochs
from surehand.activities.ledger.effects.epochs import Epoch, EpochError, begin_epoch, close_epoch
from surehand.activities.ledger.history.audit import without_forgotten
from surehand.activities.ledger.history.reads import chain_of, knows_run, open_interventions
from surehand.activities.ledger.history.stats import Retried, Stats, StatsScope
from surehand.activities.ledger.history.stats import read_stats as figures
from surehand.activities.maintenance import reconcile_round
from surehand.activities.worker.context import WorkerContext
from surehand.activities.worker.crash_points import Crash
from surehand.activities.worker.settings import Settings
from surehand.cli import options
from surehand.cli.audit import history_heads
from surehand.cli.options import (
    Caller,
    administration,
    duration_option,
    flag,
    ledger_of,
    open_artifacts,
    option,
    read_settings,
    read_toolbox,
)
from surehand.cli.printer import Lines, Reply, Shape, Styled, Table, shown_time, time_of
from surehand.client.connection import Connection
from surehand.process.exits import ExitCode, NotReachable, WrongUse
from surehand.process.program import command
from surehand.process.settings import ClientSettings
from surehand.workflows.contracts.effects import Reconciled, ReconcileLedger, UnwindRun
from surehand.workflows.identity import tenant_of_run, tenant_problem, upkeep_id
from surehand.workflows.names import RECONCILE
from surehand.workflows.plain_text import counted
from surehand.workflows.ports import LONGEST_RECONCILE


class RunBehind(Shape):
    """A run that has gone on in Temporal beyond what a restored ledger has of it."""

    run_id: str
    known: bool
    """Whether the ledger has the run at all."""
    command: str
    """Starts it again, under the same keys."""


class EpochShown(Shape):
    """``ledger restored``: the newest epoch; null where the ledger was never restored."""

    epoch: Epoch | None
    newest_event_ms: int | None = None
    """Of the tenant, when the epoch was opened just now."""
    behind: list[RunBehind] = []
    """The runs that are to start again, of all tenants; with ``--done``, those that are left."""


class ReconcileReport(Reconciled):
    """``reconcile``: what one round has done."""

    for_a_human: int
    """Open interventions: nobody but a human can settle them."""


class Scheduled(Shape):
    """``reconcile --every``."""

    schedule_id: str
    every_seconds: float


#: The server takes no shorter interval.
SHORTEST: Final = timedelta(seconds=1)


async def reconcile(
    caller: options.Onlooker,
    every: Annotated[
        timedelta | None,
        duration_option("Have the workers do it so often from now on (a Temporal Schedule)."),
    ] = None,
) -> Reply:
    """Settle effects that nobody is settling, and find runs that were stopped; never call.

    Example: surehand reconcile --every 60s
    """
    if every is not None and every < SHORTEST:
        raise WrongUse(f"--every: at least {SHORTEST.seconds} s")
    connection = await caller.connection()
    asked = ReconcileLedger(tenant=caller.tenant)
    if every is not None:
        return await _schedule_rounds(caller, connection, asked, every)
    settings = read_settings()
    async with ledger_of(settings) as ledger:
        done = await _do_reconcile_round(connection, settings, ledger, asked)
        for_a_human = await ledger.transact(caller.tenant, open_interventions)
    report = ReconcileReport(**done.model_dump(), for_a_human=for_a_human)
    return Reply(report, _reconciled_lines(caller.settings, report))


async def _do_reconcile_round(
    connection: Connection, settings: Settings, ledger: Ledger, asked: ReconcileLedger
) -> Reconciled:
    context = WorkerContext.of(
        settings,
        ledger=ledger,
        toolbox=read_toolbox(settings.tool_modules, settings.mcp),
        artifacts=open_artifacts(settings, ledger),
        crash=Crash(),
    )
    try:
        return await reconcile_round(context, connection.client, asked)
    except RPCError as error:
        raise NotReachable(f"the Temporal server: {error}") from error


def _reconciled_lines(settings: ClientSettings, report: ReconcileReport) -> Lines:
    yield (
        f"Looked at {report.looked_at}: {report.committed} committed,"
        f" {report.not_applied} proven not applied, {report.asked} put in front of a"
        f" human, {report.waiting} to be settled later."
    )
    if report.freed:
        yield f"Freed {counted(report.freed, 'resource')} that dead calls have left behind."
    for stopped in report.stopped:
        all_ = len(stopped.remaining) + stopped.more_remaining
        remaining = counted(all_, "remaining effect")
        yield f"Run {stopped.run_id} was stopped from outside, with {remaining}"
        for view in stopped.remaining:
            where = f" of {view.run_id}" if view.run_id is not None else ""
            yield f"  {view.tool} {view.key}{where}: {view.state}"
        if stopped.more_remaining:
            yield f"  and {stopped.more_remaining} more"
        if stopped.remaining:
            yield f"  undo them: {settings.command('unwind', stopped.run_id)}"
    if report.stopped_unnamed:
        yield f"and {counted(report.stopped_unnamed, 'run')} more, which people have been told of"
    if report.for_a_human:
        line = settings.command("interventions", "--open")
        yield f"Waiting for a human: {report.for_a_human}, listed by `{line}`."


async def _schedule_rounds(
    caller: Caller, connection: Connection, asked: ReconcileLedger, every: timedelta
) -> Reply:
    name = f"surehand-reconcile-{asked.tenant}"
    action = client.ScheduleActionStartWorkflow(
        RECONCILE,
        asked,
        id=upkeep_id(asked.tenant, "reconcile"),
        task_queue=caller.settings.task_queue,
        # One that nobody works on any more, because the workers of its version are gone, must not
        # keep the next ones away.
        execution_timeout=LONGEST_RECONCILE,
    )
    wanted = client.Schedule(
        action=action,
        spec=client.ScheduleSpec(intervals=[client.ScheduleIntervalSpec(every=every)]),
        policy=client.SchedulePolicy(overlap=client.ScheduleOverlapPolicy.SKIP),
    )
    with connection.translated(""):
        try:
            await connection.client.create_schedule(name, wanted)
        except client.ScheduleAlreadyRunningError:
            handle = connection.client.get_schedule_handle(name)
            await handle.update(lambda _: client.ScheduleUpdate(schedule=wanted))
    queue = caller.settings.task_queue
    return Reply(
        Scheduled(schedule_id=name, every_seconds=every.total_seconds()),
        f"Schedule {name}: every {every}, by the workers of task queue {queue}",
    )


async def unwind(
    caller: options.Actor,
    run: options.Run,
    dry_run: Annotated[bool, flag("Only say what would be undone; works for any run.")] = False,
    check: Annotated[bool, flag("With --dry-run: ask each `only_if`, too.")] = False,
) -> Reply:
    """Undo the effects of a run that was stopped from outside, last one first.

    Example: surehand unwind refund-1 --as ana
    """
    if check and not dry_run:
        raise WrongUse("--check goes with --dry-run")
    run_id = caller.run_id(run)
    asked = UnwindRun(
        tenant=caller.tenant,
        run_id=run_id,
        actor=caller.settings.user,
        dry_run=dry_run,
        check=check,
    )
    report = await (await caller.connection()).unwind(asked)
    more = [f"{report.more_undone} more"] if report.more_undone else []
    undone = ", ".join([*report.undone, *more]) or "nothing"
    lines = [f"Run {run_id}: {'would undo' if dry_run else 'undone'} {undone}"]
    lines += [f"  not undone {left.step_id}: {left.reason}" for left in report.left]
    if dry_run:
        lines.append("  To undo: `unwind` if it was stopped from outside, `cancel` if it goes on")
    if report.more_left:
        lines.append(f"  and {report.more_left} more, listed by `effects`")
    asks = report.left and not dry_run
    return Reply(report, lines, ExitCode.HUMAN_NEEDED if asks else ExitCode.DONE)


async def restored(
    caller: options.Actor,
    to: Annotated[
        str | None, option("The instant it was restored to; opens an epoch.", metavar="T")
    ] = None,
    done: Annotated[bool, flag("What was forgotten is settled: close the epoch.")] = False,
) -> Reply:
    """Say that the ledger was restored to an earlier instant; or show what is to be done since.

    While an epoch is open, what the ledger may have forgotten is looked up, or asked about, before
    it is called. Run it before the workers start. It lists the runs of all tenants of the ledger.

    Example: surehand ledger restored --to 2026-11-23T14:00:00Z
    """
    if to is not None and done:
        raise WrongUse("--to opens an epoch and --done closes it: name one of them")

    moment = None if to is None else _instant_of(to)
    newest: int | None = None
    if moment is None and not done:
        known = await caller.do_transaction(epochs.list_epochs)
        epoch = known[-1] if known else None
    else:
        async with administration(caller.tenant) as tx:
            epoch = _change_epoch(tx, moment, to, caller.settings.user)
            newest = epochs.newest_event_ms(tx) if to else None
    behind = []
    if epoch is not None and (done or epoch.closed_ms is None):
        behind = await _find_behind(caller, epoch)
    shown = EpochShown(epoch=epoch, newest_event_ms=newest, behind=behind)
    return Reply(shown, _epoch_lines(caller.settings, shown))


def _instant_of(to: str) -> datetime:
    try:
        return options.parse_moment(to)
    except ValueError as error:
        raise WrongUse(
            f"--to {to[:40]!r}: write a time with its zone, such as 2026-11-23T14:00:00Z or"
            " 2026-11-23T15:00:00+01:00"
        ) from error


def _change_epoch(tx: Transaction, moment: datetime | None, to: str | None, actor: str) -> Epoch:
    try:
        if moment is None:
            return close_epoch(tx, actor)
        return begin_epoch(tx, int(moment.timestamp() * 1000), actor)
    except EpochError as error:
        option = "--done" if moment is None else f"--to {to}"
        raise WrongUse(f"{option}: {error}") from error


async def _find_behind(caller: Caller, epoch: Epoch) -> list[RunBehind]:
    """Return the runs, of every tenant, that Temporal knows more of than the ledger does."""
    try:
        connection = await caller.connection()
    except NotReachable as error:
        caller.printer.warn(f"which runs are behind cannot be said: {error}")
        return []
    since = time_of(epoch.restored_to_ms).isoformat()
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


def _epoch_lines(settings: ClientSettings, shown: EpochShown) -> Lines:
    epoch = shown.epoch
    if epoch is None:
        yield "The ledger was never restored, as far as it knows: no epoch was opened."
        return
    to = time_of(epoch.restored_to_ms)
    opened = f"opened {shown_time(time_of(epoch.opened_ms))} by {epoch.opened_by}"
    yield f"Epoch {epoch.number}: restored to {shown_time(to)}; {opened}"
    if epoch.closed_ms is not None:
        yield f"Closed {shown_time(time_of(epoch.closed_ms))} by {epoch.closed_by}"
        if shown.behind:
            again = settings.command("ledger", "restored", "--to", to.isoformat())
            yield (
                f"{counted(len(shown.behind), 'run')} went on since the restore, and would make"
                f" effects again once they start again. Open another epoch before: {again}"
            )
            yield _behind_table(shown)
        return
    if shown.newest_event_ms is not None:
        yield f"The newest event in the ledger is of {shown_time(time_of(shown.newest_event_ms))}."
    yield "Open: what may be forgotten is looked up, or asked about, before it is called."
    if shown.behind:
        yield f"{counted(len(shown.behind), 'run')} went on since. Start each again:"
        yield _behind_table(shown)
    yield f"When all is settled: {settings.command('ledger', 'restored', '--done')}"


def _behind_table(shown: EpochShown) -> Table:
    rows = [[one.run_id, "behind" if one.known else "unknown", one.command] for one in shown.behind]
    return Table(("run", "in the ledger", "command"), rows)


async def stats(
    caller: options.Onlooker,
    since: Annotated[
        timedelta, duration_option("How far back to look.", show_default="1d")
    ] = timedelta(hours=24),
    probe: Annotated[
        int, option("Write transactions to make and measure now.", min=0, max=10_000)
    ] = 0,
) -> Reply:
    """Show recoveries, retries, leases, compensations, and whether all invariants hold.

    Example: surehand stats --since 7d --probe 100
    """
    scope = StatsScope(caller.tenant, datetime.now(UTC) - since)
    async with ledger_of(read_settings()) as ledger:
        found = figures(ledger, scope, probes=probe)
    holds = not found.invariants.broken and not found.duplicates.keys
    code = ExitCode.DONE if holds else ExitCode.BROKEN
    return Reply(found, _stats_lines(found), code)


#: The parts of figures that are a row each.
_NOUNS: Final = (
    "recoveries",
    "duplicates",
    "leases",
    "compensations",
    "interventions",
    "approvals",
    "checkpoint",
    "invariants",
)


def _stats_lines(found: Stats) -> Lines:
    since = f"{found.since:%Y-%m-%d %H:%M:%S} UTC"
    yield Styled(f"Figures of tenant {found.tenant} since {since}", "bold")
    if found.epoch is not None:
        yield f"Epoch {found.epoch} is open: the ledger was restored"
    if any(found.halts.values()):
        yield f"Calls are halted ({_figure_text('halts', found.halts)}): {command('halts')}"
    by_person = ("asked_each_day", "decided_each_day")
    figures = found.model_dump(exclude={"invariants": {"broken"}, "approvals": set(by_person)})
    yield Table(("what", "figures"), [[noun, _figure_text(noun, figures[noun])] for noun in _NOUNS])
    if found.checkpoint is None:
        yield "No latency of a checkpoint: `--probe N` measures it, once there is a run"
    each_day = [getattr(found.approvals, name) for name in by_person]
    if people := sorted({*each_day[0], *each_day[1]}):
        rows = [[name, *(f"{one.get(name, 0):.3g}" for one in each_day)] for name in people]
        yield ""
        yield Table(("person", "asked a day", "decided a day"), rows)
    if found.retries:
        yield ""
        columns = [name.replace("_", " ") for name in Retried.model_fields]
        rows = [[_figure_text(name, value) for name, value in one] for one in found.retries]
        yield Table(columns, rows)
    for broken in found.invariants.broken:
        yield Styled(f"BROKEN {broken.run_id}: {broken.first_break}", "bold red")
    yield ""
    yield "Only the metrics endpoint (SUREHAND_METRICS) has real latencies, and waits for leases."


def _figure_text(name: str, value: Any) -> str:
    """Return a figure as people read it; its name says whether it is a rate, or seconds."""
    if isinstance(value, dict):
        texts = {key: (one, _figure_text(key, one)) for key, one in value.items()}
        return ", ".join(
            f"{key.replace('_', ' ')} {f'({text})' if isinstance(one, dict) else text}"
            for key, (one, text) in texts.items()
        )
    if isinstance(value, float):
        return f"{value:.1%}" if name.endswith("rate") else f"{value:.3g} s"
    return "none" if value is None else str(value)
