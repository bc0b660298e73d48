"""Playing one run to its end."""

from __future__ import annotations

import secrets

from cli.exits import StarterError
from cli.launch import launch
from cli.outcome import run_result
from cli.tenant_client import TenantClient
from workflows.contracts import RunResult, RunState, StartRun
from workflows.durability import Durability
from workflows.identity import run_id_for
from workflows.plan import Plan


async def played(server: TenantClient, name: str, plan: Plan, mode: str) -> RunResult:
    """Start a run of a plan, and return its result.

    Args:
        server: Where it is started.
        name: What its id begins with.
        plan: The plan.
        mode: Its durability.

    Raises:
        StarterError: It did not complete.
    """
    settings = server.settings
    run_id = run_id_for(settings.tenant, f"{name}-{secrets.token_hex(6)}")
    request = StartRun(
        run_id=run_id,
        tenant=settings.tenant,
        user=settings.user,
        plan=plan,
        durability=Durability(mode),
    )
    await launch(server, request)
    result = await run_result(server, run_id)
    if result.state is not RunState.COMPLETED:
        raise StarterError(f"{run_id} is {result.state.value}: {result.error}")
    return result
