"""A run's history on the server, over all of its executions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

#: The last event of an execution.
ENDS: Final = frozenset(
    {
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW,
    }
)


async def every_event(client: Client, run_id: str) -> AsyncIterator[HistoryEvent]:
    """Yield the events of a run: those of its newest execution, then of the one before, ...

    Raises:
        RPCError: The server does not answer, or has none of the newest one any more. Where it has
            only dropped older ones, there is no more to yield.
    """
    handle = client.get_workflow_handle(run_id)
    while True:
        before = ""
        async for event in handle.fetch_history_events():
            started = event.workflow_execution_started_event_attributes
            before = before or started.continued_execution_run_id
            yield event
        if not before:
            return
        handle = client.get_workflow_handle(run_id, run_id=before)
        try:
            await handle.describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return
            raise


async def first_events(client: Client, run_id: str) -> AsyncIterator[HistoryEvent]:
    """Yield the events of a run's first execution, which says what it was started with.

    Raises:
        RPCError: The server does not answer, or has none of them any more.
    """
    handle = client.get_workflow_handle(run_id)
    async for event in handle.fetch_history_events(page_size=1):
        started = event.workflow_execution_started_event_attributes
        if started.continued_execution_run_id:
            first = started.first_execution_run_id
            handle = client.get_workflow_handle(run_id, run_id=first)
        break
    async for event in handle.fetch_history_events(page_size=1):
        yield event
