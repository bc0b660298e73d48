"""``reconcile``, ``unwind``, ``ledger restored`` and ``stats``: the upkeep of a ledger."""

from __future__ import annotations

import re
import shlex
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import typer
from temporalio.client import (
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleUpdate,
    WorkflowFailureError,
)
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError

from surehand.activities.ledger.core.store import Ledger, RunNotFound, Transaction
from surehand.activities.ledger.effects import epochs
from surehand.activities.ledger.effects.epochs import Epoch, EpochError, close, open_at
from surehand.activities.ledger.history.audit import without_forgotten
from surehand.activities.ledger.history.reads import chain_of, knows_run, open_interventions
from surehand.activities.ledger.history.stats import Spread, Stats, StatsScope
from surehand.activities.ledger.history.stats import read_stats as figures
from surehand.activities.maintenance import reconcile_round
from surehand.activities.worker.context import WorkerContext
from surehand.activities.worker.crash_points import Crash
from surehand.activities.worker.settings import Settings
from surehand.cli import options
from surehand.cli.audit import history_heads
from surehand.cli.ledger_door import (
    administration,
    ledger_of,
    open_artifacts,
    read_settings,
    read_toolbox,
)
from surehand.cli.options import Caller
from surehand.cli.printer import Lines, Reply, Styled, Table, counted, shown_time
from surehand.cli.shapes import Shape
from surehand.cli.workers import ping
from surehand.client.connection import Connection
from surehand.process.exits import ExitCode, NotReachable, NoWorker, Refused, WrongUse
from surehand.process.settings import ClientSettings
from surehand.workflows.contracts.effects import Reconciled, ReconcileLedger, UnwindRun, Unwound
from surehand.workflows.identity import tenant_of_run, tenant_problem, unwind_id, upkeep_id
from surehand.workflows.names import RECONCILE, UNWIND
from surehand.workflows.ports import LONGEST_RECONCILE


class RunBehind(Shape):
    """A run that has gone on in Temporal beyond what a restored ledger has of it."""

    run_id: str
    known: bool
    """Whether the ledger has the run at all."""
    command: str
    """Has it begin anew, under the same keys."""


class EpochShown(Shape):
    """``ledger restored``: the newest epoch; all is null where the ledger was never restored."""

    number: int | None = None
    restored_to: datetime | None = None
    opened_at: datetime | None = None
    opened_by: str | None = None
    closed_at: datetime | None = None
    closed_by: str | None = None
    newest_event_at: datetime | None = None
    """Of the tenant, when the epoch was opened just now."""
    behind: list[RunBehind] = []
    """The runs that are to begin anew, of all tenants; with ``--done``, those that are left."""


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
    quiet: Annotated[
        timedelta | None,
        options.lasting(
            "--quiet-for",
            "Leave entries so long to their own run; default SUREHAND_RECONCILE_QUIET.",
        ),
    ] = None,
    every: Annotated[
        timedelta | None,
        options.lasting(
            "--every", "Have the workers do it so often from now on (a Temporal Schedule)."
        ),
    ] = None,
) -> Reply:
    """Settle effects that nobody is settling, and find runs that were stopped; never call.

    Example: python starter.py reconcile --every 60s
    """
    if every is not None and every < SHORTEST:
        raise WrongUse(f"--every: at least {SHORTEST.seconds} s")
    connection = await caller.connection()
    asked = ReconcileLedger(tenant=caller.tenant, quiet=quiet)
    if every is not None:
        return await _schedule(caller, connection, asked, every)
    settings = read_settings()
    async with ledger_of(settings) as ledger:
        done = await _reconcile(connection, settings, ledger, asked)
        for_a_human = await ledger.transact(caller.tenant, open_interventions)
    report = ReconcileReport(**done.model_dump(), for_a_human=for_a_human)
    return Reply(report, _reconciled_lines(caller.settings, report))


async def _reconcile(
    connection: Connection, settings: Settings, ledger: Ledger, asked: ReconcileLedger
) -> Reconciled:

    context = WorkerContext.of(
        settings,
        ledger=ledger,
        toolbox=read_toolbox(settings),
        artifacts=open_artifacts(settings, ledger),
        crash=Crash(),
    )
    try:
        return await reconcile_round(context, connection.client, asked)
    except RPCError as error:
        raise NotReachable(f"the Temporal server: {error}") from error


def schedule_of(tenant: str) -> str:
    """Return the id of the schedule that reconciles a tenant."""
    return f"surehand-reconcile-{tenant}"


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


async def _schedule(
    caller: Caller, connection: Connection, asked: ReconcileLedger, every: timedelta
) -> Reply:
    """Create the tenant's schedule, or change it."""
    name = schedule_of(asked.tenant)
    action = ScheduleActionStartWorkflow(
        RECONCILE,
        asked,
        id=upkeep_id(asked.tenant, "reconcile"),
        task_queue=caller.settings.task_queue,
        # One that nobody works on any more, because the workers of its version are gone, must not
        # keep the next ones away.
        execution_timeout=LONGEST_RECONCILE,
    )
    wanted = Schedule(
        action=action,
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=every)]),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP),
    )
    with connection.translated(""):
        try:
            await connection.client.create_schedule(name, wanted)
        except ScheduleAlreadyRunningError:
            handle = connection.client.get_schedule_handle(name)
            await handle.update(lambda _: ScheduleUpdate(schedule=wanted))
    queue = caller.settings.task_queue
    return Reply(
        Scheduled(schedule_id=name, every_seconds=every.total_seconds()),
        f"Schedule {name}: every {every}, by the workers of task queue {queue}",
    )


async def unwind(
    caller: options.Actor,
    run: options.Run,
) -> Reply:
    """Undo what a run that was stopped from outside has committed, last first.

    Example: python starter.py unwind refund-1 --as ana
    """
    run_id = caller.run_id(run)
    connection = await caller.connection()
    queue = caller.settings.task_queue
    with connection.translated(""):
        answer = await ping(connection.client, queue)
    if answer is None:
        raise NoWorker(f"no worker answers (task queue {queue}); nothing was undone")
    asked = UnwindRun(tenant=caller.tenant, run_id=run_id, actor=caller.settings.user)
    report = await _unwind(connection, asked, queue)
    more = [f"{report.more_undone} more"] if report.more_undone else []
    undone = ", ".join([*report.undone, *more]) or "nothing"
    lines = [f"Run {run_id}: undone {undone}"]
    lines += [f"  not undone {left.step_id}: {left.reason}" for left in report.left]
    if report.more_left:
        lines.append(f"  and {report.more_left} more, listed by `effects`")
    return Reply(report, lines, ExitCode.HUMAN_NEEDED if report.left else ExitCode.DONE)


async def _unwind(connection: Connection, asked: UnwindRun, queue: str) -> Unwound:
    try:
        with connection.translated(""):
            done: Unwound = await connection.client.execute_workflow(
                UNWIND,
                asked,
                id=unwind_id(asked.run_id),
                task_queue=queue,
                result_type=Unwound,
            )
        return done
    except WorkflowAlreadyStartedError as error:
        raise Refused(f"run {asked.run_id} is being unwound already") from error
    except WorkflowFailureError as error:
        # The activity's own, or what the workflow itself has raised.
        for cause in (error.cause.__cause__, error.cause):
            if isinstance(cause, ApplicationError):
                raise Refused(cause.message) from error
        raise Refused(f"run {asked.run_id} was not unwound: {error.cause}") from error


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
    return Reply(shown, _epoch_lines(caller.settings, shown))


def parse_moment(text: str) -> datetime:
    """Return an instant; it has to say of which time zone it is."""
    how = "write a time with its zone, such as 2026-11-23T14:00:00Z or 2026-11-23T15:00:00+01:00"
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise WrongUse(f"--to {text[:40]!r} is no time: {how}") from error
    if moment.tzinfo is None or re.fullmatch(r"[0-9-]+", text):
        raise WrongUse(f"--to {text[:40]!r} does not say its time zone: {how}")
    return moment


def _changed(tx: Transaction, moment: datetime | None, to: str | None, actor: str) -> Epoch:

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


def _epoch_lines(settings: ClientSettings, shown: EpochShown) -> Lines:
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


async def stats(
    caller: options.Onlooker,
    since: Annotated[
        timedelta,
        options.lasting("--since", "How far back to look.", show_default="1d"),
    ] = timedelta(hours=24),
    run: Annotated[str | None, typer.Option("--run", help="Only this run's figures.")] = None,
    probe: Annotated[
        int,
        typer.Option(
            "--probe", min=0, max=10_000, help="Write transactions to make and measure now."
        ),
    ] = 0,
) -> Reply:
    """Show recoveries, retries, leases, compensations, and whether all invariants hold.

    Example: python starter.py stats --since 7d --probe 100
    """
    run_id = caller.run_id(run) if run else None
    scope = StatsScope(caller.tenant, datetime.now(UTC) - since, run_id)
    async with ledger_of(read_settings()) as ledger:
        found = figures(ledger, scope, probes=probe)
    holds = not found.invariants.broken and not found.duplicates.keys
    code = ExitCode.DONE if holds else ExitCode.BROKEN
    return Reply(found, _stats_lines(found, probed=bool(probe)), code)


def _stats_lines(found: Stats, *, probed: bool) -> Lines:
    whose = f"run {found.run_id}" if found.run_id else f"tenant {found.tenant}"
    yield Styled(f"Figures of {whose} since {found.since:%Y-%m-%d %H:%M:%S} UTC", "bold")
    if found.epoch is not None:
        yield f"Epoch {found.epoch} is open: the ledger was restored"
    rows = [*_recovery_rows(found), *_other_rows(found), _checkpoint_row(found, probed)]
    yield Table(("what", "figure", "more"), rows)
    if found.retries:
        yield ""
        yield Table(
            ("failure class", "failures", "retried", "mean delay", "calls", "succeeded"),
            [
                [
                    one.failure_class,
                    str(one.failures),
                    str(one.retried),
                    "" if one.mean_delay is None else f"{one.mean_delay:.1f} s",
                    str(one.calls),
                    f"{one.succeeded} ({_share(one.success_rate)})",
                ]
                for one in found.retries
            ],
        )
    for broken in found.invariants.broken:
        yield Styled(f"BROKEN {broken.run_id}: {broken.first_break}", "bold red")
    yield ""
    yield "Only at the metrics endpoint (SUREHAND_METRICS):"
    yield from (f"  {line}" for line in found.only_in_metrics)


def _recovery_rows(found: Stats) -> list[list[str]]:
    it = found.recoveries
    return [
        ["recoveries", str(it.ended), f"{it.under_way} under way; begun by {_counts(it.begun)}"],
        ["  settled without a human", _share(it.success_rate), _counts(it.branches)],
        [
            "  human takeover",
            _share(it.human_takeover_rate),
            f"{it.by_human} settled, {it.waiting_for_human} waiting",
        ],
        ["  time", *_spread(it.time)],
        ["  time, by a human", *_spread(it.time_by_human)],
    ]


def _other_rows(found: Stats) -> list[list[str]]:
    twice, leases, undone = found.duplicates, found.leases, found.compensations
    asked, checked = found.interventions, found.invariants
    return [
        [
            "duplicates",
            str(twice.keys),
            f"{twice.repeats_answered} repeats answered from the ledger,"
            f" {twice.late_receipts} late receipts",
        ],
        ["leases kept", _share(leases.success_rate), f"{leases.claims} claims, {leases.lost} lost"],
        [
            "compensations",
            str(undone.compensated),
            f"{undone.uncompensated} left as they were, {undone.failed} failed",
        ],
        [
            "interventions",
            str(sum(asked.opened.values())),
            f"{asked.settled} settled, {asked.open} open; by rule: {_counts(asked.opened)}",
        ],
        [
            "invariants hold",
            f"{checked.ok} of {checked.runs} runs",
            f"{len(checked.broken)} broken",
        ],
    ]


def _checkpoint_row(found: Stats, probed: bool) -> list[str]:
    it = found.checkpoint
    if it is None:
        why = "there is no run to measure on yet" if probed else "--probe N measures"
        return ["checkpoint latency", "", why]
    figure, more = _spread(it.latency)
    return ["checkpoint latency", figure, f"{more}; {_share(it.success_rate)} succeeded"]


def _spread(spread: Spread | None) -> tuple[str, str]:
    if spread is None:
        return "", "none"
    p50, p95, p99 = (_seconds(value) for value in (spread.p50, spread.p95, spread.p99))
    return p50, f"p50 of {spread.count}; p95 {p95}, p99 {p99}"


def _seconds(value: float) -> str:
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.1f} s"


def _share(rate: float | None) -> str:
    return "none" if rate is None else f"{rate:.1%}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "nothing"
