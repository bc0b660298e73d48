"""``start``: from a plan file to a run."""

from __future__ import annotations

from typing import Annotated

import typer
from temporalio.client import WorkflowExecutionDescription

from surehand.cli.plans.tool_check import refuse_unfit
from surehand.cli.runs.follow import follow
from surehand.cli.verb import options, probes
from surehand.cli.verb.caller import Caller
from surehand.cli.verb.printer import Reply
from surehand.cli.verb.shapes import Started
from surehand.client.connection import Connection
from surehand.client.ids import chosen_run_id, new_run_name
from surehand.client.outcome import code_of, state_of
from surehand.client.plan_file import load_plan
from surehand.client.run import Run
from surehand.process.exits import NotFound, PlanRefused
from surehand.process.program import command
from surehand.workflows.names import MODEL_RUN, WORKFLOW
from surehand.workflows.plan.durability import Durability


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
        polled = await probes.polling(connection.client, queue)
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
