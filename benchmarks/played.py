"""Playing one run to its end."""

from __future__ import annotations

import secrets

from surehand.client.connection import Connection
from surehand.client.launch import launch
from surehand.client.outcome import run_result
from surehand.process.exits import SurehandError
from surehand.workflows.contracts.runs import RunResult
from surehand.workflows.contracts.starting import StartRun
from surehand.workflows.contracts.states import RunState
from surehand.workflows.identity import run_id_for
from surehand.workflows.plan.durability import Durability
from surehand.workflows.plan.plan import Plan


async def played(connection: Connection, name: str, plan: Plan, mode: str) -> RunResult:
    """Start a run of a plan, and return its result.

    Args:
        connection: Where it is started.
        name: What its id begins with.
        plan: The plan.
        mode: Its durability.

    Raises:
        SurehandError: It did not complete.
    """
    settings = connection.settings
    run_id = run_id_for(settings.tenant, f"{name}-{secrets.token_hex(6)}")
    request = StartRun(
        run_id=run_id,
        tenant=settings.tenant,
        user=settings.user,
        plan=plan,
        durability=Durability(mode),
    )
    await launch(connection, request)
    result = await run_result(connection, run_id)
    if result.state is not RunState.COMPLETED:
        raise SurehandError(f"{run_id} is {result.state.value}: {result.error}")
    return result
