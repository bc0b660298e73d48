"""Starts a run, and finds out whether its plan was taken up."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any, Final

from temporalio.client import WorkflowExecutionStatus
from temporalio.common import (
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError

from surehand.client.connection import ENDS, Connection, first_events, understood
from surehand.client.messages import read_key, signed_start
from surehand.client.outcome import run_result
from surehand.process.exits import PlanRefused, StartNotTaken, SurehandError, WrongUse
from surehand.process.settings import ClientSettings
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.runs import StartRun
from surehand.workflows.names import OPEN_ITEMS, RUN_STATE, TENANT, WORKFLOW
from surehand.workflows.ports import OPEN_RUN, fair, move_timeout

#: A worker that polls takes a run up within milliseconds and has validated its plan within a
#: second; after this long there is none, and the run waits for one.
TAKEN_UP_WITHIN: Final = timedelta(seconds=10)

#: Memo field that ``list`` shows; what a workflow is called in the Web UI cannot be listed.
PLAN_MEMO: Final = "plan"

#: The first thing that a run does, and the last one before its first step.
_OPENS: Final = OPEN_RUN.name
#: What the SDK calls the event of a local activity.
_LOCAL: Final = "core_local_activity"


def start_request(
    settings: ClientSettings, *, for_user: str | None, signed_only: bool = False, **what: Any
) -> StartRun:
    """Return a run as it is started: signed where there is a key."""
    user = settings.user if for_user is None else for_user
    request = StartRun(tenant=settings.tenant, user=user, started_by=settings.user, **what)
    problem = request.problem()
    if problem is not None:
        raise WrongUse(problem)
    if settings.key is not None:
        return signed_start(request, read_key(settings.key), int(time.time()))
    if signed_only:
        raise WrongUse(
            "only signed starts count here (SUREHAND_DECISIONS=signed): name your private key"
            " (`--key`, `key=` or SUREHAND_KEY)"
        )
    return request


async def launch(connection: Connection, request: StartRun) -> bool:
    """Start a run; return ``False`` if the same run exists already."""
    if await _start(connection, request, WorkflowIDReusePolicy.REJECT_DUPLICATE):
        return True
    # Seen from the server first: a workflow of that id may be no run of this tenant.
    existing = await connection.describe(request.run_id)
    # A start that was refused has left nothing under its id, so a corrected one may have it. Should
    # another starter be quicker, the ledger still takes an id only once.
    refused = existing.status is WorkflowExecutionStatus.FAILED and await _was_refused(
        connection, request.run_id
    )
    again = WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY
    if refused and await _start(connection, request, again):
        return True
    first = await _first_request(connection, request.run_id)
    if _wish(first) != _wish(request):
        part = "plan or input" if first.plan != request.plan else "user or durability"
        raise WrongUse(
            f"run {request.run_id} exists already, with another {part}; nothing was started:"
            " choose another run id"
        )
    return False


def _wish(request: StartRun) -> dict[str, Any]:
    """Return what people ask for with a start; when a worker begins anew is its own affair."""
    return {**request.content(), "continue_after": None}


async def _start(connection: Connection, request: StartRun, reuse: WorkflowIDReusePolicy) -> bool:
    summary = f"{request.plan.name}: {request.plan.goal}".rstrip(": ")
    try:
        with connection.translated(request.run_id):
            await connection.client.start_workflow(
                request.plan.code or WORKFLOW,
                request,
                id=request.run_id,
                task_queue=connection.settings.task_queue,
                id_reuse_policy=reuse,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                task_timeout=move_timeout(len(request.plan.steps)),
                priority=fair(request.tenant, priority=request.plan.priority),
                memo={PLAN_MEMO: summary},
                static_summary=summary,
                search_attributes=TypedSearchAttributes(
                    [
                        SearchAttributePair(RUN_STATE, RunState.RUNNING.value),
                        SearchAttributePair(TENANT, request.tenant),
                        SearchAttributePair(OPEN_ITEMS, 0),
                    ]
                ),
            )
    except WorkflowAlreadyStartedError:
        return False
    return True


async def _was_refused(connection: Connection, run_id: str) -> bool:
    """Say whether the existing run's start was refused before anything was recorded."""
    try:
        with connection.translated(run_id):
            await run_result(connection, run_id)
    except (PlanRefused, StartNotTaken):
        return True
    except SurehandError:
        return False
    return False


async def taken_up(connection: Connection, run_id: str) -> bool:
    """Wait until the run's own validation has passed; ``False`` if no worker takes it up.

    Read from the history, which needs no worker.
    """
    handle, opening = connection.handle(run_id), 0
    try:
        async with asyncio.timeout(TAKEN_UP_WITHIN.total_seconds()):
            with connection.translated(run_id):
                async for event in handle.fetch_history_events(wait_new_event=True):
                    if event.workflow_execution_started_event_attributes.continued_execution_run_id:
                        return True
                    if event.event_type in ENDS:
                        await run_result(connection, run_id)
                        return True
                    here = event.marker_recorded_event_attributes
                    if here.marker_name == _LOCAL and not here.HasField("failure"):
                        return True
                    if event.activity_task_scheduled_event_attributes.activity_type.name == _OPENS:
                        opening = event.event_id
                    ended = event.activity_task_completed_event_attributes.scheduled_event_id
                    if opening and ended == opening:
                        return True
    except TimeoutError:
        pass
    return False


async def _first_request(connection: Connection, run_id: str) -> StartRun:
    """Return what a run was started with, from its first event."""
    with connection.translated(run_id):
        async for event in first_events(connection.client, run_id):
            started = event.workflow_execution_started_event_attributes
            [value] = await connection.client.data_converter.decode(started.input.payloads)
            return understood(value, StartRun, f"what run {run_id} was started with")
    raise WrongUse(f"run {run_id} has no history any more: choose another run id")
