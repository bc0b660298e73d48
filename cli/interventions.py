"""``resolve``: a human says what happened where nothing else could tell."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from cli import options
from cli.caller import Caller, perform
from cli.exits import ExitCode, NotFound, WrongUse
from cli.ids import find_run_id
from cli.shapes import Steered
from cli.tenant_client import TenantClient
from cli.yamlfile import Unreadable, parse_yaml
from workflows.contracts import Acknowledged, Resolution, ResolutionOutcome, RunState
from workflows.names import RESOLVE, RUN_STATE

EXAMPLE = (
    "Example: python starter.py resolve 7c1f... happened --as ana "
    "--evidence 'bank statement' --receipt '{\"refund_id\": \"refund-7\"}'"
)

#: Where runs with open interventions are looked for when ``--run`` is not given.
_SEARCHED = 200


class Answer(StrEnum):
    """What a human says about an effect in doubt."""

    HAPPENED = "happened"
    NOT_HAPPENED = "not-happened"
    COMPENSATED = "compensated"
    GIVE_UP = "give-up"


def resolve(
    intervention: Annotated[str, typer.Argument(metavar="INTERVENTION_ID")],
    outcome: Annotated[Answer, typer.Argument(help="What happened outside.")],
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="Its run; looked for if not given.")
    ] = None,
    user: options.Actor = None,
    evidence: Annotated[str, typer.Option("--evidence", help="How you know.")] = "",
    receipt: Annotated[
        str | None,
        typer.Option(
            "--receipt",
            metavar="JSON",
            help="What the call would have returned; later steps and the undo may need it.",
        ),
    ] = None,
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Settle an intervention: say whether the effect happened."""

    async def verb(caller: Caller) -> int:
        try:
            returned = None if receipt is None else parse_yaml(receipt)
        except Unreadable as error:
            raise WrongUse(f"--receipt: {error}") from error
        named = None if run is None else find_run_id(caller.settings.tenant, run)
        server = await caller.server()
        run_id = named or await _run_of(server, intervention)
        await server.describe(run_id)
        resolution = Resolution(
            intervention_id=intervention,
            outcome=ResolutionOutcome(outcome.replace("-", "_")),
            actor=caller.settings.user,
            evidence=evidence,
            receipt=returned,
        )
        answer = await server.update(run_id, RESOLVE, resolution, Acknowledged)
        if json_output:
            caller.printer.document(Steered(run_id=run_id, message=answer.message))
        else:
            caller.printer.say(f"Run {run_id}: {answer.message}")
        return ExitCode.DONE

    return perform(verb, json_output=json_output, tenant=tenant, user=user)


async def _run_of(server: TenantClient, intervention: str) -> str:
    """Return the run that waits for this intervention."""
    states = (RunState.NEEDS_INTERVENTION, RunState.COMPENSATING, RunState.WAITING_APPROVAL)
    listed = ", ".join(f"'{state}'" for state in states)
    condition = f"{RUN_STATE.name} IN ({listed}) AND ExecutionStatus = 'Running'"
    async for run in server.listed(condition, _SEARCHED):
        view = await server.view(run.id)
        if any(item.id == intervention for item in view.result.waiting_for):
            return run.id
    raise NotFound(f"intervention not found: {intervention}; name its run with --run")
