"""``reconcile`` and ``unwind``: settling what is left over, undoing what a stopped run has done."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Final

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

from cli import options
from cli.caller import Caller, perform
from cli.exits import ExitCode, NotReachable, NoWorker, Refused
from cli.ids import find_run_id
from cli.ledger_door import ledger_of, open_artifacts, read_settings, read_toolbox
from cli.probes import ping
from cli.shapes import Scheduled, SweepReport, UnwindReport
from cli.tenant_client import TenantClient
from cli.text import command, counted
from workflows.contracts import Sweep, Swept, UnwindRun, Unwound
from workflows.names import RECONCILE, UNWIND
from workflows.options import LONGEST_SWEEP

if TYPE_CHECKING:
    from activities.ledger.store import Ledger
    from activities.settings import Settings

RECONCILE_EXAMPLE: Final = "Example: python starter.py reconcile --every 60s"
UNWIND_EXAMPLE: Final = "Example: python starter.py unwind refund-1 --as ana"


def reconcile(
    quiet: Annotated[
        timedelta | None,
        typer.Option(
            "--quiet-for",
            parser=options.duration,
            metavar="DURATION",
            help="Leave entries this long to their own run; default SUREHAND_SWEEP_QUIET.",
        ),
    ] = None,
    every: Annotated[
        timedelta | None,
        typer.Option(
            "--every",
            parser=options.duration,
            metavar="DURATION",
            help="Have the workers do it so often from now on (a Temporal Schedule).",
        ),
    ] = None,
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Settle effects that nobody is settling, and find runs that were stopped; never call."""

    async def verb(caller: Caller) -> int:
        server = await caller.server()
        asked = Sweep(tenant=caller.settings.tenant, quiet=quiet)
        if every is not None:
            return await _schedule(caller, server, asked, every)
        settings = read_settings()
        async with ledger_of(settings) as ledger:
            from activities.ledger.reads import open_interventions

            swept = await _sweep(server, settings, ledger, asked)
            for_a_human = await open_interventions(ledger, caller.settings.tenant)
        report = SweepReport(**swept.model_dump(exclude={"next"}), for_a_human=for_a_human)
        if json_output:
            caller.printer.document(report)
        else:
            _tell(caller, report)
        return ExitCode.DONE

    return perform(verb, json_output=json_output, tenant=tenant)


async def _sweep(server: TenantClient, settings: Settings, ledger: Ledger, asked: Sweep) -> Swept:
    from activities.attempt import Resources
    from activities.crashpoints import Crash
    from activities.upkeep import sweep_round

    resources = Resources.of(
        settings,
        ledger=ledger,
        toolbox=read_toolbox(settings),
        artifacts=open_artifacts(settings, ledger),
        crash=Crash(),
    )
    try:
        return await sweep_round(resources, server.client, asked)
    except RPCError as error:
        raise NotReachable(f"the Temporal server: {error}") from error


def _tell(caller: Caller, report: SweepReport) -> None:
    say = caller.printer.say
    say(
        f"Looked at {report.looked_at}: {report.committed} committed,"
        f" {report.not_applied} proven not applied, {report.asked} put in front of a"
        f" human, {report.waiting} to be settled later."
    )
    if report.freed:
        say(f"Freed {counted(report.freed, 'resource')} that dead calls have left behind.")
    for stopped in report.stopped:
        all_ = len(stopped.standing) + stopped.more_standing
        standing = counted(all_, "standing effect")
        say(f"Run {stopped.run_id} was stopped from outside, with {standing}")
        for view in stopped.standing:
            where = f" of {view.run_id}" if view.run_id is not None else ""
            say(f"  {view.tool} {view.key}{where}: {view.state}")
        if stopped.more_standing:
            say(f"  and {stopped.more_standing} more")
        if stopped.standing:
            say(f"  undo them: {command('unwind', stopped.run_id)}")
    if report.stopped_unnamed:
        say(f"and {counted(report.stopped_unnamed, 'run')} more, which people have been told of")
    if report.for_a_human:
        line = command("interventions", "--open")
        say(f"Waiting for a human: {report.for_a_human}, listed by `{line}`.")


async def _schedule(caller: Caller, server: TenantClient, asked: Sweep, every: timedelta) -> int:
    """Create the tenant's schedule, or change it."""
    name = f"surehand-reconcile-{asked.tenant}"
    action = ScheduleActionStartWorkflow(
        RECONCILE,
        asked,
        id=name,
        task_queue=caller.settings.task_queue,
        # One that nobody works on any more, because the workers of its version are gone, must not
        # keep the next ones away.
        execution_timeout=LONGEST_SWEEP,
    )
    wanted = Schedule(
        action=action,
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=every)]),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP),
    )
    try:
        await server.client.create_schedule(name, wanted)
    except ScheduleAlreadyRunningError:
        handle = server.client.get_schedule_handle(name)
        await handle.update(lambda _: ScheduleUpdate(schedule=wanted))
    if caller.printer.json_output:
        caller.printer.document(Scheduled(schedule_id=name, every_seconds=every.total_seconds()))
    else:
        queue = caller.settings.task_queue
        caller.printer.say(f"Schedule {name}: every {every}, by the workers of task queue {queue}")
    return ExitCode.DONE


def unwind(
    run: options.Run,
    user: options.Actor = None,
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Undo what a run that was stopped from outside has committed, last first."""

    async def verb(caller: Caller) -> int:
        run_id = find_run_id(caller.settings.tenant, run)
        server = await caller.server()
        queue = caller.settings.task_queue
        if await ping(server.client, queue) is None:
            raise NoWorker(f"no worker answers (task queue {queue}); nothing was undone")
        asked = UnwindRun(tenant=caller.settings.tenant, run_id=run_id, actor=caller.settings.user)
        done = await _unwind(server, asked, queue)
        report = UnwindReport.model_validate(done.model_dump())
        if json_output:
            caller.printer.document(report)
        else:
            more = [f"{report.more_undone} more"] if report.more_undone else []
            undone = ", ".join([*report.undone, *more]) or "nothing"
            caller.printer.say(f"Run {run_id}: undone {undone}")
            for left in report.left:
                caller.printer.say(f"  not undone {left.step_id}: {left.reason}")
            if report.more_left:
                caller.printer.say(f"  and {report.more_left} more, listed by `effects`")
        return ExitCode.HUMAN_NEEDED if report.left else ExitCode.DONE

    return perform(verb, json_output=json_output, tenant=tenant, user=user)


async def _unwind(server: TenantClient, asked: UnwindRun, queue: str) -> Unwound:
    try:
        done: Unwound = await server.client.execute_workflow(
            UNWIND,
            asked,
            id=f"{asked.run_id}.unwind",
            task_queue=queue,
            result_type=Unwound,
        )
        return done
    except WorkflowAlreadyStartedError as error:
        raise Refused(f"run {asked.run_id} is being unwound already") from error
    except WorkflowFailureError as error:
        cause = error.cause.__cause__ if error.cause else None
        if isinstance(cause, ApplicationError):
            raise Refused(cause.message) from error
        raise
