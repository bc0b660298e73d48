"""``list``: the runs of a tenant.

No server sorts by start time for us: the databases refuse ORDER BY. All list alike instead: first
what goes on, newest start first, then what has ended, latest end first.
"""

from __future__ import annotations

import heapq
from datetime import datetime
from typing import Annotated, Final

import typer
from temporalio.client import WorkflowExecution

from surehand.cli.verb import options
from surehand.cli.verb.printer import Reply, table_or
from surehand.cli.verb.shapes import RunList, RunSummary
from surehand.cli.verb.text import shown_time
from surehand.client.connection import Connection
from surehand.client.launch import PLAN_MEMO
from surehand.client.outcome import CUT_OFF_BY_SERVER, state_of
from surehand.workflows.contracts.states import RunState
from surehand.workflows.names import OPEN_ITEMS, RUN_STATE


async def newest_runs(
    connection: Connection, condition: str, limit: int
) -> list[WorkflowExecution]:
    """Return the runs that were started last, newest first, each id once.

    Args:
        connection: Where they are.
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

    async for run in connection.listed(f"{also}ExecutionStatus = 'Running'", limit):
        take(run)
    async for run in connection.listed(f"{also}ExecutionStatus != 'Running'"):
        # This one and all that follow have ended, and so were started, before the last we need.
        if len(starts) == limit and run.close_time and run.close_time <= starts[0]:
            break
        take(run)
    return sorted(found.values(), key=lambda run: run.start_time, reverse=True)[:limit]


#: In the place of a plan's name that is encrypted, and cannot be decrypted here.
UNREAD: Final = "(cannot be read)"
#: What ``list --state`` takes: the states of a run, and what the server did to it.
_STATES: Final = (*RunState, "terminated")


def _state(text: str) -> str:
    if text not in _STATES:
        raise typer.BadParameter(f"{text!r} is none of {', '.join(map(repr, map(str, _STATES)))}")
    return text


async def list_runs(
    caller: options.Onlooker,
    state: Annotated[
        str | None,
        typer.Option(
            "--state", parser=_state, metavar="STATE", help=f"Only these: {', '.join(_STATES)}."
        ),
    ] = None,
    limit: options.Limit = 50,
) -> Reply:
    """List runs, the one started last first.

    Example: python starter.py list --state waiting_approval
    """
    connection = await caller.connection()
    found = await newest_runs(connection, _condition(state), limit)
    runs = [await _summary(run) for run in found]
    rows = [[r.run_id, r.state, str(r.open_items), shown_time(r.started_at), r.plan] for r in runs]
    columns = ("run", "state", "open", "started", "plan")
    return Reply(RunList(runs=runs), table_or(columns, rows, "No runs"))


def _condition(state: str | None) -> str:
    match state:
        case None:
            return ""
        case "terminated":
            return "ExecutionStatus = 'Terminated'"
        case RunState.FAILED | RunState.CANCELLED:
            status = "Failed" if state == RunState.FAILED else "Canceled"
            return f"({RUN_STATE.name} = '{state}' OR ExecutionStatus = '{status}')"
        case RunState.COMPLETED:
            return f"{RUN_STATE.name} = '{state}'"
        case _:
            return f"{RUN_STATE.name} = '{state}' AND ExecutionStatus = 'Running'"


async def _summary(run: WorkflowExecution) -> RunSummary:
    state = state_of(run)
    # A run that the server has ended could not take its own number back.
    cut_off = state in CUT_OFF_BY_SERVER
    return RunSummary(
        run_id=run.id,
        state=state,
        open_items=0 if cut_off else run.typed_search_attributes.get(OPEN_ITEMS, 0),
        started_at=run.start_time,
        plan=await plan_of(run),
    )


async def plan_of(run: WorkflowExecution) -> str:
    """Return the name of a run's plan; of one that is encrypted or erased, that nobody reads it."""
    name = await run.memo_value(PLAN_MEMO, "")
    return name if isinstance(name, str) else UNREAD
