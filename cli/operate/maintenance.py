"""``reconcile`` and ``unwind``: settling what is left over, undoing what a stopped run has done."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Final

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

from surehand.cli.verb import options
from surehand.cli.verb.caller import Caller
from surehand.cli.verb.ledger_door import (
    ledger_of,
    open_artifacts,
    read_settings,
    read_toolbox,
)
from surehand.cli.verb.printer import Lines, Reply
from surehand.cli.verb.probes import ping
from surehand.cli.verb.shapes import ReconcileReport, Scheduled, UnwindReport
from surehand.cli.verb.text import counted
from surehand.client.connection import Connection
from surehand.process.exits import ExitCode, NotReachable, NoWorker, Refused, WrongUse
from surehand.process.settings import ClientSettings
from surehand.workflows.contracts.maintenance import Reconciled, ReconcileLedger, UnwindRun, Unwound
from surehand.workflows.identity import unwind_id, upkeep_id
from surehand.workflows.names import RECONCILE, UNWIND
from surehand.workflows.options import LONGEST_RECONCILE

if TYPE_CHECKING:
    from surehand.activities.ledger.core.store import Ledger
    from surehand.activities.worker.settings import Settings

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
        from surehand.activities.ledger.history.reads import open_interventions

        done = await _reconcile(connection, settings, ledger, asked)
        for_a_human = await ledger.transact(caller.tenant, open_interventions)
    report = ReconcileReport(**done.model_dump(exclude={"next"}), for_a_human=for_a_human)
    return Reply(report, _lines(caller.settings, report))


async def _reconcile(
    connection: Connection, settings: Settings, ledger: Ledger, asked: ReconcileLedger
) -> Reconciled:
    from surehand.activities.maintenance import reconcile_round
    from surehand.activities.worker.context import WorkerContext
    from surehand.activities.worker.crash_points import Crash

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


def _lines(settings: ClientSettings, report: ReconcileReport) -> Lines:
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
    done = await _unwind(connection, asked, queue)
    report = UnwindReport.model_validate(done.model_dump())
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
