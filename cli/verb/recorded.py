"""What the ledger knows of runs for which no worker answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from temporalio.client import WorkflowExecution

from surehand.cli.verb.caller import Caller
from surehand.client.outcome import last_own_state
from surehand.process.exits import NoSuchRun, SurehandError
from surehand.workflows.contracts.runs import RunView
from surehand.workflows.contracts.states import ENDED, RunState, Waiting

if TYPE_CHECKING:
    from surehand.activities.ledger.core.store import Ledger


async def recorded_view(caller: Caller, run: WorkflowExecution) -> RunView | None:
    """Return a run as the ledger has it; ``None``: no ledger is named, or it does not have it."""
    from surehand.cli.verb.ledger_door import ledger_of, read_settings

    if not caller.has_ledger:
        return None
    try:
        async with ledger_of(read_settings()) as ledger:
            return await _view(ledger, caller.tenant, run)
    except SurehandError as error:
        if not isinstance(error, NoSuchRun):
            caller.printer.warn(str(error))
        return None


async def _view(ledger: Ledger, tenant: str, run: WorkflowExecution) -> RunView:
    from surehand.activities.ledger.history import recorded_view

    view = await ledger.transact(tenant, recorded_view.recorded_view, run.id)
    if view.result.state in ENDED:
        return view
    # The ledger knows that it is open, the server what it waits for.
    state = RunState(last_own_state(run))
    return view.model_copy(update={"result": view.result.model_copy(update={"state": state})})


async def open_doubts(caller: Caller, seen: Sequence[str]) -> list[Waiting]:
    """Return the interventions that no run shows: mostly those of runs that have ended.

    Args:
        caller: Whose tenant's.
        seen: Runs that tell of theirs themselves.

    Raises:
        SurehandError: The ledger cannot be read.
    """
    from surehand.activities.ledger.history import recorded_view
    from surehand.cli.verb.ledger_door import ledger_of, read_settings

    async with ledger_of(read_settings()) as ledger:
        found = await ledger.transact(caller.tenant, recorded_view.open_doubts)
    return [one for one in found if one.run_id not in seen]
