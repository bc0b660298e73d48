"""The runs that were started last, out of the order in which a server lists them.

No server sorts by start time for us: the databases refuse ORDER BY. All list alike instead: first
what goes on, newest start first, then what has ended, latest end first.
"""

from __future__ import annotations

import heapq
from datetime import datetime

from temporalio.client import WorkflowExecution

from cli.tenant_client import TenantClient


async def newest_runs(server: TenantClient, condition: str, limit: int) -> list[WorkflowExecution]:
    """Return the runs that were started last, newest first, each id once.

    Args:
        server: Where they are.
        condition: A further condition, or nothing.
        limit: At most so many.
    """
    also = f"({condition}) AND " if condition else ""
    found: dict[str, WorkflowExecution] = {}
    starts: list[datetime] = []  # the newest ones, the oldest of them first

    def take(run: WorkflowExecution) -> None:
        if run.id not in found:  # else an earlier run, whose plan was refused
            found[run.id] = run
            (heapq.heappush if len(starts) < limit else heapq.heappushpop)(starts, run.start_time)

    async for run in server.listed(f"{also}ExecutionStatus = 'Running'", limit):
        take(run)
    async for run in server.listed(f"{also}ExecutionStatus != 'Running'"):
        # This one and all that follow have ended, and so were started, before the last we need.
        if len(starts) == limit and run.close_time and run.close_time <= starts[0]:
            break
        take(run)
    return sorted(found.values(), key=lambda run: run.start_time, reverse=True)[:limit]
