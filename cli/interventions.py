"""``resolve``: a human says what happened where nothing else could tell."""

from __future__ import annotations

import contextlib
from enum import StrEnum
from typing import Annotated

import typer
from temporalio.client import WorkflowExecutionStatus

from cli import options
from cli.answering import json_of
from cli.caller import Caller, perform
from cli.exits import NotFound, NoWorker, Refused, WrongUse
from cli.ids import find_run_id
from cli.ledger_door import ledger_of, read_settings
from cli.looking import look_at, silent_line
from cli.steering import say, steer
from cli.tenant_client import TenantClient
from workflows.contracts import (
    Acknowledged,
    Resolution,
    ResolutionOutcome,
    RunState,
    RunView,
    StepState,
    Verb,
)
from workflows.identity import digest
from workflows.names import RUN_STATE
from workflows.references import references

EXAMPLE = (
    "Example: python starter.py resolve 7c1f... happened --as ana \\\n"
    "  --evidence 'bank statement' --receipt '{\"refund_id\": \"refund-7\"}'"
)

#: Where runs with open interventions are looked for when ``--run`` is not given.
_SEARCHED = 200


class Answer(StrEnum):
    """What a human says about an effect in doubt."""

    HAPPENED = "happened"
    NOT_HAPPENED = "not-happened"
    COMPENSATED = "compensated"
    UNDO = "undo"
    GIVE_UP = "give-up"


def resolve(
    intervention: Annotated[str, typer.Argument(metavar="INTERVENTION_ID")],
    outcome: Annotated[
        Answer, typer.Argument(metavar="OUTCOME", help=f"What happened: {', '.join(Answer)}.")
    ],
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="Its run; looked for if not given.")
    ] = None,
    user: options.Actor = None,
    key: options.Key = None,
    evidence: Annotated[str, typer.Option("--evidence", help="How you know.")] = "",
    receipt: Annotated[
        str | None,
        typer.Option(
            "--receipt",
            metavar="JSON",
            help="What the call would have returned; later steps and the undo may need it.",
        ),
    ] = None,
    leave: options.Leave = False,
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Settle an intervention: say whether the effect happened.

    That of a run that has ended is settled in the ledger, which needs SUREHAND_DATABASE_URL.
    """

    async def verb(caller: Caller) -> int:
        wrong = '--receipt must be one JSON object, such as \'{"refund_id": "refund-7"}\''
        returned = None if receipt is None else json_of(receipt, wrong)
        named = None if run is None else find_run_id(caller.settings.tenant, run)
        server = await caller.server()
        resolution = Resolution(
            intervention_id=intervention,
            outcome=ResolutionOutcome(outcome.replace("-", "_")),
            actor=caller.settings.user,
            evidence=evidence,
            receipt=returned,
        )
        run_id = named or await _run_of(caller, server, intervention)
        if await _has_ended(caller, server, run_id):
            message = await _settle_in_ledger(caller, run_id, resolution)
        else:
            if resolution.outcome is ResolutionOutcome.HAPPENED and receipt is None:
                await _refuse_if_missed(server, run_id, intervention)
            answer = await steer(caller, run_id, Verb.RESOLVE, resolution, leave=leave)
            return say(caller, run_id, answer)
        return say(caller, run_id, Acknowledged(message=message))

    return perform(verb, json_output=json_output, tenant=tenant, user=user, key=key)


async def _refuse_if_missed(server: TenantClient, run_id: str, intervention: str) -> None:
    """Refuse to do without a receipt that a later step would ask for in vain.

    Raises:
        WrongUse: It names that step, and what it takes.
    """
    with contextlib.suppress(NoWorker):  # said, or left with the server, when it is delivered
        view = await server.view(run_id)
        missed = missed_without_receipt(view, intervention)
        if missed is not None:
            raise WrongUse(
                f"step {missed[0]} takes ${{{missed[1]}}} from what this call returned: give that"
                " with --receipt JSON (`--receipt null`: there is nothing to give)"
            )


def missed_without_receipt(view: RunView, intervention: str) -> tuple[str, str] | None:
    """Return the first step still to come that refers to the output in question, and how."""
    states = {step.id: step.state for step in view.result.steps}
    for item in view.result.waiting_for:
        # While a run unwinds, nothing is to come; its questions are of steps in other states.
        if item.id != intervention or states[item.step_id] is not StepState.NEEDS_INTERVENTION:
            continue
        for step in view.plan.steps:
            for _, reference in references(step.params):
                taken = reference.partition(".")[0] == item.step_id
                if taken and states[step.id] is StepState.PENDING:
                    return step.id, reference
    return None


async def _run_of(caller: Caller, server: TenantClient, intervention: str) -> str:
    """Return the run whose intervention it is: of those that wait, else of those in the ledger."""
    states = (RunState.NEEDS_INTERVENTION, RunState.COMPENSATING, RunState.WAITING_APPROVAL)
    listed = ", ".join(f"'{state}'" for state in states)
    condition = f"{RUN_STATE.name} IN ({listed}) AND ExecutionStatus = 'Running'"
    looked = await look_at(server, [run async for run in server.listed(condition, _SEARCHED)])
    for view in looked.views:
        if any(item.id == intervention for item in view.result.waiting_for):
            return view.result.run_id
    if _has_database(caller):
        async with ledger_of(read_settings()) as ledger:
            from activities.ledger.reads import run_of_intervention

            found = await run_of_intervention(ledger, caller.settings.tenant, intervention)
        if found is not None:
            return found
        raise NotFound(f"intervention not found: {intervention}")
    for run in looked.silent:
        caller.printer.warn(silent_line(run))
    if looked.silent:
        raise NoWorker(
            f"intervention {intervention} is of none of the runs that answer: name its run with"
            " --run, or set SUREHAND_DATABASE_URL to look it up in the ledger"
        )
    raise NotFound(
        f"intervention not found: {intervention}; that of a run that has ended is found in the"
        " ledger (set SUREHAND_DATABASE_URL)"
    )


async def _has_ended(caller: Caller, server: TenantClient, run_id: str) -> bool:
    """Say whether the run cannot settle it any more."""
    try:
        found = await server.describe(run_id)
    except NotFound:
        if not _has_database(caller):
            raise
        return True  # The server keeps runs for a while; the ledger keeps all, and its tenants.
    return found.status is not WorkflowExecutionStatus.RUNNING


async def _settle_in_ledger(caller: Caller, run_id: str, resolution: Resolution) -> str:
    """Settle an intervention of a run that has ended, and return what was made of it."""
    if not _has_database(caller):
        raise WrongUse(
            f"run {run_id} has ended: its interventions are settled in the ledger; set"
            " SUREHAND_DATABASE_URL and try again"
        )
    async with ledger_of(read_settings()) as ledger:
        from activities.ledger.interventions import settle

        sent_as = _ledger_resolution_id(resolution)
        async with ledger.transaction(caller.settings.tenant) as tx:
            accepted, message = await settle(tx, run_id, sent_as, resolution)
    if not accepted:
        raise Refused(f"run {run_id}: {message}")
    return f"{message} (in the ledger: the run has ended)"


def _ledger_resolution_id(resolution: Resolution) -> str:
    """Return the id under which a resolution is delivered once, however often it is sent."""
    return f"ledger#{digest(resolution.model_dump(mode='json')).removeprefix('sha256:')}"


def _has_database(caller: Caller) -> bool:
    return bool(caller.environment.get("SUREHAND_DATABASE_URL"))
