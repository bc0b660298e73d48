"""``resolve``: a human says what happened where nothing else could tell."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from temporalio.client import WorkflowExecutionStatus

from surehand.cli.control.verbs import json_of, steered
from surehand.cli.verb import options
from surehand.cli.verb.caller import Caller
from surehand.cli.verb.ledger_door import ledger_of, read_settings
from surehand.cli.verb.pending import silent_line
from surehand.cli.verb.printer import Reply
from surehand.client.connection import Connection
from surehand.client.messages import composed
from surehand.client.query import look_at
from surehand.process.exits import NotFound, NoWorker, Refused, WrongUse
from surehand.workflows.contracts.base import Acknowledged
from surehand.workflows.contracts.effects import Resolution, ResolutionOutcome
from surehand.workflows.contracts.states import RunState
from surehand.workflows.identity import digest
from surehand.workflows.names import OPEN_ITEMS, RUN_STATE

#: Where runs with open interventions are looked for when ``--run`` is not given.
_SEARCHED = 200


class Answer(StrEnum):
    """What a human says about an effect in doubt."""

    HAPPENED = "happened"
    NOT_HAPPENED = "not-happened"
    CALL_OFF = "call-off"
    COMPENSATED = "compensated"
    UNDO = "undo"
    GIVE_UP = "give-up"


async def resolve(
    caller: options.Sender,
    intervention: Annotated[
        str,
        typer.Argument(
            metavar="INTERVENTION_ID", help="As `show RUN` and `interventions` show it."
        ),
    ],
    outcome: Annotated[
        Answer, typer.Argument(metavar="OUTCOME", help=f"What happened: {', '.join(Answer)}.")
    ],
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="Its run; looked for if not given.")
    ] = None,
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
) -> Reply:
    r"""Settle an intervention: say whether the effect happened.

    That of a run that has ended is settled in the ledger, which needs SUREHAND_DATABASE_URL.

    Example: python starter.py resolve iv-7c1f...-1 happened --as ana \
      --evidence 'bank statement' --receipt '{"refund_id": "refund-7"}'
    """
    wrong = '--receipt must be JSON, such as \'{"refund_id": "refund-7"}\' or null'
    returned = None if receipt is None else json_of(receipt, wrong)
    named = None if run is None else caller.run_id(run)
    client, said = await caller.client(), ResolutionOutcome(outcome.replace("-", "_"))
    run_id = named or await _run_of(caller, client.connection, intervention)
    if await _has_ended(caller, client.connection, run_id):
        resolution = composed(
            Resolution,
            intervention_id=intervention,
            outcome=said,
            actor=caller.settings.user,
            evidence=evidence,
            receipt=returned,
        )
        message = await _settle_in_ledger(caller, run_id, resolution)
        return steered(run_id, Acknowledged(message=message))
    answer = await client.run(run_id).resolve(
        intervention,
        said,
        evidence=evidence,
        receipt=returned,
        nothing_to_give=receipt is not None,
        leave=leave,
    )
    return steered(run_id, answer)


async def _run_of(caller: Caller, connection: Connection, intervention: str) -> str:
    """Return the run whose intervention it is: of those that wait, else of those in the ledger."""
    # One beside a call that is under way is not among them: its run's own lines name the run.
    doubtful = (RunState.NEEDS_INTERVENTION, RunState.COMPENSATING, RunState.WAITING_APPROVAL)
    states = ", ".join(f"'{state}'" for state in doubtful)
    condition = (
        f"{OPEN_ITEMS.name} > 0 AND {RUN_STATE.name} IN ({states}) AND ExecutionStatus = 'Running'"
    )
    looked = await look_at(
        connection, [run async for run in connection.listed(condition, _SEARCHED)]
    )
    for view in looked.views:
        if any(item.id == intervention for item in view.result.waiting_for):
            return view.result.run_id
    if caller.has_ledger:
        async with ledger_of(read_settings()) as ledger:
            from surehand.activities.ledger.history.reads import run_of_intervention

            found = await ledger.transact(caller.tenant, run_of_intervention, intervention)
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


async def _has_ended(caller: Caller, connection: Connection, run_id: str) -> bool:
    """Say whether the run cannot settle it any more."""
    try:
        found = await connection.describe(run_id)
    except NotFound:
        if not caller.has_ledger:
            raise
        return True  # The server keeps runs for a while; the ledger keeps all, and its tenants.
    return found.status is not WorkflowExecutionStatus.RUNNING


async def _settle_in_ledger(caller: Caller, run_id: str, resolution: Resolution) -> str:
    """Settle an intervention of a run that has ended, and return what was made of it."""
    if not caller.has_ledger:
        raise WrongUse(
            f"run {run_id} has ended: its interventions are settled in the ledger; set"
            " SUREHAND_DATABASE_URL and try again"
        )
    async with ledger_of(read_settings()) as ledger:
        from surehand.activities.ledger.effects.resolve import settle

        sent_as = _ledger_resolution_id(resolution)
        accepted, message = await ledger.transact(
            caller.tenant, settle, run_id, sent_as, resolution
        )
    if not accepted:
        raise Refused(f"run {run_id}: {message}")
    return f"{message} (in the ledger: the run has ended)"


def _ledger_resolution_id(resolution: Resolution) -> str:
    """Return the id under which a resolution is delivered once, however often it is sent."""
    return f"ledger#{digest(resolution.model_dump(mode='json')).removeprefix('sha256:')}"
