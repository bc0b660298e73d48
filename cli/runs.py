"""``list`` and ``show``."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from temporalio.client import WorkflowExecution, WorkflowExecutionDescription

from cli import options
from cli.caller import Caller, perform
from cli.exits import ExitCode, NeverTakenUp, NoWorker, OutOfReach, WrongUse
from cli.follow import tell
from cli.heartbeats import told_by_calls
from cli.ids import find_approval, find_run_id
from cli.launch import PLAN_MEMO
from cli.newest import newest_runs
from cli.one_approval import approval_lines, find_shown
from cli.out_of_reach import show_kept
from cli.outcome import CUT_OFF_BY_SERVER, last_own_state, state_of
from cli.render import print_view
from cli.shapes import CutOffRun, RunList, RunSummary, ShownRun
from cli.tenant_client import what_to_do
from cli.text import shown_time
from workflows.contracts import RunView
from workflows.names import PENDING_APPROVALS, RUN_STATE

LIST_EXAMPLE = "Example: python starter.py list --state waiting_approval"
SHOW_EXAMPLE = "Example: python starter.py show refund-1, or show refund-1/refund/1"


RunOrApproval = Annotated[
    str,
    typer.Argument(
        metavar="RUN|APPROVAL_ID", help="A run's name or full id, or an approval: RUN/STEP/NUMBER."
    ),
]


class ListedState(StrEnum):
    """What ``list --state`` takes: the states of a run, and what the server did to it."""

    RUNNING = "running"
    WAITING_APPROVAL = "waiting_approval"
    WAITING_INPUT = "waiting_input"
    WAITING_RATE_LIMIT = "waiting_rate_limit"
    PAUSED_USER = "paused_user"
    WAITING_EVENT = "waiting_event"
    PAUSED_BUDGET = "paused_budget"
    PAUSED_FAILURE = "paused_failure"
    PAUSED_PERMISSION = "paused_permission"
    NEEDS_INTERVENTION = "needs_intervention"
    COMPENSATING = "compensating"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TERMINATED = "terminated"


def list_runs(
    state: Annotated[
        ListedState | None,
        typer.Option("--state", metavar="STATE", help=f"Only these: {', '.join(ListedState)}."),
    ] = None,
    limit: options.Limit = 50,
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """List runs, the one started last first."""

    async def verb(caller: Caller) -> int:
        server = await caller.server()
        found = await newest_runs(server, _condition(state), limit)
        runs = [await _summary(run) for run in found]
        if json_output:
            caller.printer.document(RunList(runs=runs))
        elif not runs:
            caller.printer.say("No runs")
        else:
            rows = [
                [r.run_id, r.state, str(r.pending_approvals), shown_time(r.started_at), r.plan]
                for r in runs
            ]
            caller.printer.table(("run", "state", "pending", "started", "plan"), rows)
        return ExitCode.DONE

    return perform(verb, json_output=json_output, tenant=tenant)


def _condition(state: ListedState | None) -> str:
    match state:
        case None:
            return ""
        case ListedState.TERMINATED:
            return "ExecutionStatus = 'Terminated'"
        case ListedState.FAILED | ListedState.CANCELLED:
            status = "Failed" if state is ListedState.FAILED else "Canceled"
            return f"({RUN_STATE.name} = '{state}' OR ExecutionStatus = '{status}')"
        case ListedState.COMPLETED:
            return f"{RUN_STATE.name} = '{state}'"
        case _:
            return f"{RUN_STATE.name} = '{state}' AND ExecutionStatus = 'Running'"


async def _summary(run: WorkflowExecution) -> RunSummary:
    state = state_of(run)
    # A run that the server has ended could not take its own number back.
    cut_off = state in CUT_OFF_BY_SERVER
    return RunSummary(
        run_id=run.id,
        state=state,
        pending_approvals=0 if cut_off else run.typed_search_attributes.get(PENDING_APPROVALS, 0),
        started_at=run.start_time,
        plan=await run.memo_value(PLAN_MEMO, "", type_hint=str),
    )


def show(
    run: RunOrApproval,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            help="Print its timeline as it goes on, until it ends; with --json an object a line.",
        ),
    ] = False,
    tenant: options.Tenant = None,
    ui_url: options.Ui = None,
    json_output: options.Json = False,
) -> int:
    """Show a run: steps, effects, decisions, timeline, what it waits for; or one approval."""

    async def verb(caller: Caller) -> int:
        caller.printer.one_a_line = follow
        if run.count("/") > 1:
            if follow:
                raise WrongUse(f"{run}: an approval has no timeline: --follow takes a RUN")
            return await _show_approval(caller, run)
        run_id = find_run_id(caller.settings.tenant, run)
        server = await caller.server()
        found = await server.describe(run_id)
        if follow:
            return await tell(caller.printer, server, run_id)
        state = state_of(found)
        try:
            view = await server.view(run_id)
        except OutOfReach as error:
            await show_kept(caller.printer, server, run_id, error)
            return ExitCode.DONE
        except (NoWorker, NeverTakenUp):
            if state not in CUT_OFF_BY_SERVER:
                raise
            _print_cut_off(caller, await _cut_off(found, server.web_ui(run_id)))
            return ExitCode.DONE
        cut_off, told = state in CUT_OFF_BY_SERVER, await told_by_calls(found)
        if cut_off:
            view = _without_requests(view)
        if json_output:
            web_ui = server.web_ui(run_id)
            caller.printer.document(
                ShownRun(
                    **view.model_dump(),
                    state=state,
                    web_ui=web_ui,
                    as_it_stood=cut_off,
                    under_way=told.under_way,
                    progress=told.progress,
                )
            )
        else:
            if cut_off:
                caller.printer.say(f"The server has ended this run ({state}).", "red")
                caller.printer.say(what_to_do(run_id))
                caller.printer.say("It stood at:")
            print_view(caller.printer, server, view, told)
        return ExitCode.DONE

    return perform(verb, json_output=json_output, tenant=tenant, ui_url=ui_url)


async def _show_approval(caller: Caller, approval: str) -> int:
    run_id, approval_id = find_approval(caller.settings.tenant, approval)
    one = await find_shown(await caller.server(), run_id, approval_id)
    if caller.printer.json_output:
        caller.printer.document(one)
    else:
        for line in approval_lines(one):
            caller.printer.say(line)
    return ExitCode.DONE


def _without_requests(view: RunView) -> RunView:
    """Return the view of a run that no decision reaches any more; its interventions stay."""
    questions = [item for item in view.result.waiting_for if item.kind == "intervention"]
    result = view.result.model_copy(update={"waiting_for": questions})
    return view.model_copy(update={"pending": [], "held": [], "result": result})


async def _cut_off(run: WorkflowExecutionDescription, web_ui: str) -> CutOffRun:
    return CutOffRun(
        run_id=run.id,
        state=state_of(run),
        task_queue=run.task_queue,
        started_at=run.start_time,
        ended_at=run.close_time,
        plan=await run.memo_value(PLAN_MEMO, "", type_hint=str),
        last_known_state=last_own_state(run),
        web_ui=web_ui,
    )


def _print_cut_off(caller: Caller, run: CutOffRun) -> None:
    if caller.printer.json_output:
        caller.printer.document(run)
        return
    say = caller.printer.say
    say(f"Run {run.run_id}: {run.state}", "bold red")
    say(f"  plan     {run.plan}")
    say(f"  started  {shown_time(run.started_at)}")
    if run.ended_at is not None:
        say(f"  ended    {shown_time(run.ended_at)}")
    say(f"  was      {run.last_known_state}, as far as the server knows")
    say(f"  web ui   {run.web_ui}")
    say(what_to_do(run.run_id))
    say(f"No worker answers (task queue {run.task_queue}): with one, its steps are shown, too.")
