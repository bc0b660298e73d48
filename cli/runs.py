"""``start``, ``retry``, ``fork`` and ``list``."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer
from pydantic import JsonValue
from temporalio.client import WorkflowExecutionDescription

from surehand.cli import options
from surehand.cli.options import Caller
from surehand.cli.printer import Reply, Shape, shown_time, table_or
from surehand.cli.show import wait_for_run
from surehand.cli.tools import refuse_unfit
from surehand.client.client import STATES, ListedRun
from surehand.client.connection import Connection
from surehand.client.messages import choose_run_id, make_run_name
from surehand.client.outcome import code_of, state_of
from surehand.client.plan_file import PlanDraft, load_plan
from surehand.client.run import Run
from surehand.process.exits import NotFound, PlanRefused, WrongUse
from surehand.process.program import command
from surehand.workflows.contracts.base import ENDED, RunState, StepState
from surehand.workflows.contracts.runs import Linked, RunView, is_cut
from surehand.workflows.names import MODEL_RUN, WORKFLOW
from surehand.workflows.plan.plan import ITERATION, Durability, Plan
from surehand.workflows.plan.references import ancestors


class Started(Shape):
    """``start``, ``retry`` and ``fork`` without ``--wait``."""

    run_id: str
    started: bool
    """False: a run of this id and plan was there already, and nothing was started."""
    taken_up: bool
    """False: no worker has validated the plan yet."""
    state: str
    task_queue: str
    web_ui: str
    linked: str | None = None
    """The run that this one begins from."""
    taken_over: list[str] = []
    """Steps that are facts to the new run, and are not done again."""


class RunList(Shape):
    """``list``."""

    runs: list[ListedRun]


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

    Example: surehand start examples/refund.yaml --run-id refund-1 --wait
    """
    options.refuse_lone_timeout(wait, timeout)
    parsed = load_plan(plan, changes or [])
    chosen = choose_run_id(caller.tenant, run_id or make_run_name(parsed.name))
    client = await caller.client()
    connection = client.connection
    try:
        await connection.describe(chosen)
    except NotFound:
        refuse_unfit(caller, plan, parsed)
    run = await client.start(parsed, run_id=chosen, for_user=for_user, durability=durability)
    if not run.is_new:
        caller.printer.say(f"Run {chosen} exists already; nothing was started")
    try:
        if wait:
            return await wait_for_run(caller.printer, connection, chosen, limit=timeout)
        return await _report(caller, run)
    except PlanRefused as error:
        # Found by the run itself, which does not know the file.
        raise PlanRefused(plan, error.problems) from error


async def why_waiting(connection: Connection, found: WorkflowExecutionDescription) -> str:
    """Return what to say of a new run that no worker has taken up."""
    failed = await connection.task_failure(found)
    if failed is not None:
        return f", but its workflow task fails: {failed}"
    queue = connection.settings.task_queue
    silent = f", but no worker has taken it up yet (task queue {queue})"
    with connection.translated(found.id):
        polled = await connection.polling(queue)
    if polled.seen:
        silent += f": workers poll there; `{command('doctor')}` says why they do not take it"
    if found.workflow_type not in (WORKFLOW, MODEL_RUN):
        silent += f"; does their SUREHAND_WORKFLOW_MODULES name {found.workflow_type}'s module?"
    return silent


async def _report(caller: Caller, run: Run, linked: Linked | None = None) -> Reply:
    """Say where the run stands now; a run that was there already may have ended."""
    connection, run_id = run.connection, run.run_id
    taken_up = await run.taken_up()  # or it says why it was refused
    found = await connection.describe(run_id)
    state, web_ui = state_of(found), connection.web_ui(run_id)
    taken_over = [] if linked is None else sorted(linked.outputs)
    look = caller.settings.command("show", run_id)
    lines = [f"It is {state}: {look}"]
    if run.is_new:
        begun = "started" if linked is None else f"begins from {linked.run_id}"
        silent = "" if taken_up else await why_waiting(connection, found)
        over = [f"  taken over  {', '.join(taken_over)}"] if taken_over else []
        lines = [f"Run {run_id} {begun}{silent}", *over, f"  look    {look}", f"  web ui  {web_ui}"]
    shown = Started(
        run_id=run_id,
        started=run.is_new,
        taken_up=taken_up,
        state=state,
        task_queue=caller.settings.task_queue,
        web_ui=web_ui,
        linked=None if linked is None else linked.run_id,
        taken_over=taken_over,
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

    Example: surehand retry refund-1 --wait
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

    Example: surehand fork refund-1 --from restock --set input.shelf=B
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
    if not run.is_new:
        raise WrongUse(f"run {run.run_id} exists already")
    if wait:
        return await wait_for_run(caller.printer, client.connection, run.run_id, limit=timeout)
    return await _report(caller, run, linked)


def _parse_state(text: str) -> str:
    if text not in STATES:
        raise typer.BadParameter(f"{text!r} is none of {', '.join(map(repr, map(str, STATES)))}")
    return text


async def list_runs(
    caller: options.Onlooker,
    state: Annotated[
        str | None,
        typer.Option(
            parser=_parse_state, metavar="STATE", help=f"Only these: {', '.join(STATES)}."
        ),
    ] = None,
    limit: options.Limit = 50,
) -> Reply:
    """List runs: those that go on, the newest first, then those that have ended.

    Example: surehand list --state waiting_approval
    """
    runs = await (await caller.client()).list_runs(state=state, limit=limit)
    rows = [[r.run_id, r.state, str(r.open_items), shown_time(r.started_at), r.plan] for r in runs]
    columns = ("run", "state", "open", "started", "plan")
    return Reply(RunList(runs=runs), table_or(columns, rows, "No runs"))
