"""``start``: from a plan file to a run."""

from __future__ import annotations

from typing import Annotated

import typer

from cli import options, probes
from cli.caller import Caller, perform
from cli.exits import NotFound, PlanRefused
from cli.follow import follow
from cli.ids import chosen_run_id, new_run_name
from cli.launch import composed, launch, taken_up
from cli.outcome import code_of, state_of
from cli.planfile import load_plan
from cli.shapes import Started
from cli.tenant_client import TenantClient
from cli.text import command
from cli.toolcheck import refuse_unfit
from workflows.durability import Durability
from workflows.names import MODEL_RUN, WORKFLOW

EXAMPLE = "Example: python starter.py start examples/refund.yaml --run-id refund-1 --wait"


def start(
    plan: options.PlanFile,
    run_id: options.RunName = None,
    changes: options.Changes = None,
    durability: Annotated[
        Durability | None,
        typer.Option(help="When progress is written to history; default the plan's, else sync."),
    ] = None,
    user: options.Actor = None,
    key: options.Key = None,
    acts_for: options.For = None,
    tenant: options.Tenant = None,
    wait: options.Wait = False,
    timeout: options.Timeout = None,
    ui_url: options.Ui = None,
    json_output: options.Json = False,
) -> int:
    """Validate a plan and start a run of it."""

    async def verb(caller: Caller) -> int:
        parsed = load_plan(plan, changes or [])
        chosen = chosen_run_id(caller.settings.tenant, run_id or new_run_name(parsed.name))
        request = composed(
            caller, acts_for=acts_for, run_id=chosen, plan=parsed, durability=durability
        )
        server = await caller.server()
        if not await _exists(server, chosen):
            refuse_unfit(caller, plan, parsed)
        started = await launch(server, request)
        if not started:
            caller.printer.say(f"Run {chosen} exists already; nothing was started")
        try:
            if wait:
                return await follow(caller.printer, server, chosen, limit=timeout)
            return await _report(caller, server, chosen, started=started)
        except PlanRefused as error:
            # Found by the run itself, which does not know the file.
            raise PlanRefused(plan, error.problems) from error

    return perform(verb, json_output=json_output, tenant=tenant, user=user, ui_url=ui_url, key=key)


async def _exists(server: TenantClient, run_id: str) -> bool:
    try:
        await server.describe(run_id)
    except NotFound:
        return False
    return True


async def _report(caller: Caller, server: TenantClient, run_id: str, *, started: bool) -> int:
    """Say where the run stands now; a run that was there already may have ended."""
    taken = await taken_up(server, run_id)
    found = await server.describe(run_id)
    state = state_of(found)
    queue = caller.settings.task_queue
    if caller.printer.json_output:
        caller.printer.document(
            Started(
                run_id=run_id,
                started=started,
                taken_up=taken,
                state=state,
                task_queue=queue,
                web_ui=server.web_ui(run_id),
            )
        )
    elif not started:
        caller.printer.say(f"It is {state}: {command('show', run_id)}")
    else:
        silent = "" if taken else f", but no worker has taken it up yet (task queue {queue})"
        if not taken and (await probes.polling(server.client, queue)).seen:
            silent += f": workers poll there; `{command('doctor')}` says why they do not take it"
        if not taken and found.workflow_type not in (WORKFLOW, MODEL_RUN):
            silent += f"; does their SUREHAND_WORKFLOW_MODULES name {found.workflow_type}'s module?"
        caller.printer.say(f"Run {run_id} started{silent}")
        caller.printer.say(f"  look    {command('show', run_id)}")
        caller.printer.say(f"  web ui  {server.web_ui(run_id)}")
    return code_of(state)
