"""``start``, ``retry``, ``fork`` and ``list``."""

from __future__ import annotations

import heapq
from datetime import datetime, timedelta
from typing import Annotated, Final

import typer
from pydantic import JsonValue
from temporalio.client import WorkflowExecution, WorkflowExecutionDescription

from surehand.cli import options, workers
from surehand.cli.options import Caller
from surehand.cli.printer import Reply, shown_time, table_or
from surehand.cli.shapes import Shape
from surehand.cli.show import follow, plan_of
from surehand.cli.tools import refuse_unfit
from surehand.client.connection import Connection
from surehand.client.messages import chosen_run_id, new_run_name
from surehand.client.outcome import CUT_OFF_BY_SERVER, code_of, state_of
from surehand.client.plan_file import PlanDraft, load_plan
from surehand.client.run import Run
from surehand.process.exits import NotFound, PlanRefused, WrongUse
from surehand.process.program import command
from surehand.workflows.contracts.base import ENDED, RunState, StepState
from surehand.workflows.contracts.runs import Linked, RunView, is_cut
from surehand.workflows.names import MODEL_RUN, OPEN_ITEMS, RUN_STATE, WORKFLOW
from surehand.workflows.plan.plan import ITERATION, Durability, Plan
from surehand.workflows.plan.references import ancestors


class Started(Shape):
    """``start`` without ``--wait``."""

    run_id: str
    started: bool
    """False: a run of this id and plan was there already, and nothing was started."""
    taken_up: bool
    """False: no worker has validated the plan yet."""
    state: str
    task_queue: str
    web_ui: str


class RunSummary(Shape):
    """One run as the server lists it."""

    run_id: str
    state: str
    open_items: int
    started_at: datetime
    plan: str


class RunList(Shape):
    """``list``."""

    runs: list[RunSummary]


class RunLinked(Shape):
    """``retry`` and ``fork`` without ``--wait``."""

    run_id: str
    linked: str
    taken_up: bool
    """Whether a worker has begun with it."""
    taken_over: list[str]
    """Steps that are facts to the new run, and are not done again."""


async def start(
    caller: Annotated[Caller, options.Shares(("user", "key", "tenant", "ui_url", "json_output"))],
    plan: options.PlanFile,
    run_id: options.RunName = None,
    changes: options.Changes = None,
    durability: Annotated[
        Durability | None,
        typer.Option(help="When progress is written to history; default the plan's, else sync."),
    ] = None,
    for_user: options.For = None,
    wait: options.Wait = False,
    timeout: options.Timeout = None,
) -> Reply:
    """Validate a plan and start a run of it.

    Example: python starter.py start examples/refund.yaml --run-id refund-1 --wait
    """
    options.refuse_lone_timeout(wait, timeout)
    parsed = load_plan(plan, changes or [])
    chosen = chosen_run_id(caller.tenant, run_id or new_run_name(parsed.name))
    client = await caller.client()
    connection = client.connection
    if not await _exists(connection, chosen):
        refuse_unfit(caller, plan, parsed)
    run = await client.start(parsed, run_id=chosen, for_user=for_user, durability=durability)
    if not run.is_new:
        caller.printer.say(f"Run {chosen} exists already; nothing was started")
    try:
        if wait:
            return await follow(caller.printer, connection, chosen, limit=timeout)
        return await _report(caller, run)
    except PlanRefused as error:
        # Found by the run itself, which does not know the file.
        raise PlanRefused(plan, error.problems) from error


async def _exists(connection: Connection, run_id: str) -> bool:
    try:
        await connection.describe(run_id)
    except NotFound:
        return False
    return True


async def why_waiting(connection: Connection, found: WorkflowExecutionDescription) -> str:
    """Return what to say of a new run that no worker has taken up."""
    failed = await connection.task_failure(found)
    if failed is not None:
        return f", but its workflow task fails: {failed}"
    queue = connection.settings.task_queue
    silent = f", but no worker has taken it up yet (task queue {queue})"
    with connection.translated(found.id):
        polled = await workers.polling(connection.client, queue)
    if polled.seen:
        silent += f": workers poll there; `{command('doctor')}` says why they do not take it"
    if found.workflow_type not in (WORKFLOW, MODEL_RUN):
        silent += f"; does their SUREHAND_WORKFLOW_MODULES name {found.workflow_type}'s module?"
    return silent


async def _report(caller: Caller, run: Run) -> Reply:
    """Say where the run stands now; a run that was there already may have ended."""
    connection, run_id, started = run.connection, run.run_id, run.is_new
    taken = await run.taken_up()
    found = await connection.describe(run_id)
    state = state_of(found)
    queue = caller.settings.task_queue
    if not started:
        lines = [f"It is {state}: {caller.settings.command('show', run_id)}"]
    else:
        silent = "" if taken else await why_waiting(connection, found)
        look = f"  look    {caller.settings.command('show', run_id)}"
        lines = [f"Run {run_id} started{silent}", look, f"  web ui  {connection.web_ui(run_id)}"]
    shown = Started(
        run_id=run_id,
        started=started,
        taken_up=taken,
        state=state,
        task_queue=queue,
        web_ui=connection.web_ui(run_id),
    )
    return Reply(shown, lines, code_of(state))


async def retry(
    caller: options.Sender,
    run: options.Run,
    run_id: options.RunName = None,
    changes: options.Changes = None,
    for_user: options.For = None,
    wait: options.Wait = False,
    timeout: options.Timeout = None,
) -> Reply:
    """Start a failed or cancelled run once more, as a new run; what stands is not repeated.

    Example: python starter.py retry refund-1 --wait
    """
    options.refuse_lone_timeout(wait, timeout)
    source, view = await _look(caller, run)
    if view.result.state not in ENDED:
        raise WrongUse(
            f"run {source} is {view.result.state}: it goes on by itself, or with `resume`"
        )
    if view.result.state is RunState.COMPLETED:
        raise WrongUse(f"run {source} has completed: `fork` begins from one of its steps")
    plan = PlanDraft.of(view.plan).amending(view.plan, changes or [])
    return await _start_linked(caller, plan, run_id, Linked(run_id=source), for_user, wait, timeout)


async def fork(
    caller: options.Sender,
    run: options.Run,
    step: Annotated[str, typer.Option("--from", metavar="STEP", help="The first step done anew.")],
    run_id: options.RunName = None,
    changes: options.Changes = None,
    for_user: options.For = None,
    wait: options.Wait = False,
    timeout: options.Timeout = None,
) -> Reply:
    """Start a new run at a step of another one, whose earlier outputs are facts to it.

    Example: python starter.py fork refund-1 --from restock --set input.shelf=B
    """
    options.refuse_lone_timeout(wait, timeout)
    source, view = await _look(caller, run)
    linked = Linked(run_id=source, outputs=outputs_before(view, step))
    plan = PlanDraft.of(view.plan).amending(view.plan, changes or [])
    return await _start_linked(caller, plan, run_id, linked, for_user, wait, timeout)


def outputs_before(view: RunView, step_id: str) -> dict[str, JsonValue]:
    """Return the outputs of the steps that have succeeded and do not come after a step."""
    if view.plan.code is not None:
        reason = f"the workflow {view.plan.code} makes the steps of {view.result.run_id}"
        raise WrongUse(f"--from {step_id}: {reason}, so none of them is a place to begin at")
    dependencies = view.plan.dependencies
    if step_id not in dependencies:
        raise WrongUse(f"--from {step_id}: the plan's steps are {', '.join(dependencies)}")
    states = {one.id: one for one in view.result.steps}
    done = (StepState.SUCCEEDED, StepState.SKIPPED)
    open_ = [one for one in ancestors(dependencies, step_id) if states[one].state not in done]
    if open_:
        raise WrongUse(f"--from {step_id}: before it, {', '.join(sorted(open_))} has not succeeded")
    taken = {
        one: states[one].output
        for one in dependencies
        if one != step_id
        and step_id not in ancestors(dependencies, one)
        and states[one].state is StepState.SUCCEEDED
    }
    # Of a list, its items tell.
    undone = {ITERATION.sub("", view.id) for view in view.result.steps if view.undone}
    gone = [one for one in taken if one in undone]
    if gone:
        raise WrongUse(
            f"--from {step_id}: what {', '.join(gone)} did has been undone, so its output is no"
            f" fact any more: begin with --from {gone[0]}"
        )
    cut = [one for one, output in taken.items() if is_cut(output)]
    if cut:
        raise WrongUse(
            f"--from {step_id}: the output of {', '.join(cut)} is too large to be shown, so nobody"
            f" can take it over: begin with --from {cut[0]}"
        )
    return taken


async def _look(caller: Caller, run: str) -> tuple[str, RunView]:
    source = caller.run_id(run)
    connection = await caller.connection()
    await connection.describe(source)
    return source, await connection.view(source)


async def _start_linked(
    caller: Caller,
    plan: Plan,
    name: str | None,
    linked: Linked,
    for_user: str | None,
    wait: bool,
    timeout: timedelta | None,
) -> Reply:
    client = await caller.client()
    run = await client.start(plan, run_id=name, for_user=for_user, linked=linked)
    chosen = run.run_id
    if not run.is_new:
        raise WrongUse(f"run {chosen} exists already")
    if wait:
        return await follow(caller.printer, client.connection, chosen, limit=timeout)
    taken_up = await run.taken_up()  # or it says why it was refused
    connection, taken = client.connection, sorted(linked.outputs)
    silent = "" if taken_up else await why_waiting(connection, await connection.describe(chosen))
    lines = [f"Run {chosen} begins from {linked.run_id}{silent}"]
    lines += [f"  taken over  {', '.join(taken)}"] if taken else []
    return Reply(
        RunLinked(run_id=chosen, linked=linked.run_id, taken_up=taken_up, taken_over=taken),
        [*lines, f"  look        {caller.settings.command('show', chosen)}"],
    )


async def newest_runs(
    connection: Connection, condition: str, limit: int
) -> list[WorkflowExecution]:
    """Return the runs that were started last, newest first, each id once."""
    also = f"({condition}) AND " if condition else ""
    found: dict[str, WorkflowExecution] = {}
    starts: list[datetime] = []  # the newest ones, the oldest of them first

    def take(run: WorkflowExecution) -> None:
        if run.id not in found:  # else an earlier run, whose plan was refused
            found[run.id] = run
            (heapq.heappush if len(starts) < limit else heapq.heappushpop)(starts, run.start_time)

    async for run in connection.listed(f"{also}ExecutionStatus = 'Running'", limit):
        take(run)
    async for run in connection.listed(f"{also}ExecutionStatus != 'Running'"):
        # This one and all that follow have ended, and so were started, before the last we need.
        if len(starts) == limit and run.close_time and run.close_time <= starts[0]:
            break
        take(run)
    return sorted(found.values(), key=lambda run: run.start_time, reverse=True)[:limit]


#: What ``list --state`` takes: the states of a run, and what the server did to it.
_STATES: Final = (*RunState, "terminated")


def _state(text: str) -> str:
    if text not in _STATES:
        raise typer.BadParameter(f"{text!r} is none of {', '.join(map(repr, map(str, _STATES)))}")
    return text


async def list_runs(
    caller: options.Onlooker,
    state: Annotated[
        str | None,
        typer.Option(
            "--state", parser=_state, metavar="STATE", help=f"Only these: {', '.join(_STATES)}."
        ),
    ] = None,
    limit: options.Limit = 50,
) -> Reply:
    """List runs, the one started last first.

    Example: python starter.py list --state waiting_approval
    """
    connection = await caller.connection()
    found = await newest_runs(connection, _condition_of_state(state), limit)
    runs = [await _summary(run) for run in found]
    rows = [[r.run_id, r.state, str(r.open_items), shown_time(r.started_at), r.plan] for r in runs]
    columns = ("run", "state", "open", "started", "plan")
    return Reply(RunList(runs=runs), table_or(columns, rows, "No runs"))


def _condition_of_state(state: str | None) -> str:
    match state:
        case None:
            return ""
        case "terminated":
            return "ExecutionStatus = 'Terminated'"
        case RunState.FAILED | RunState.CANCELLED:
            status = "Failed" if state == RunState.FAILED else "Canceled"
            return f"({RUN_STATE.name} = '{state}' OR ExecutionStatus = '{status}')"
        case RunState.COMPLETED:
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
        open_items=0 if cut_off else run.typed_search_attributes.get(OPEN_ITEMS, 0),
        started_at=run.start_time,
        plan=await plan_of(run),
    )
