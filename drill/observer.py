"""Follows one run's history as it is written: what it calls, and when each outcome arrives."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from surehand.client.connection import Connection
from surehand.client.launch import ENDS
from surehand.workflows.contracts.effects import Compensate
from surehand.workflows.contracts.tools import ToolCall, ToolSpec
from surehand.workflows.ports import COMPENSATE, EXECUTE_TOOL

#: A step's own call, or its undo: step id and whether it is the undo.
Place = tuple[str, bool]


@dataclass
class Observer:
    """What has been seen of one run; all times are this process's monotonic clock."""

    server: Connection
    run_id: str
    tools: dict[str, ToolSpec] = field(default_factory=dict)
    """The tools of the steps that were called, by step id."""
    _scheduled: dict[int, Place] = field(default_factory=dict)
    _outcomes: list[tuple[Place, float]] = field(default_factory=list)

    async def until_end(self) -> None:
        """Read the history, which needs no worker, and return at the end of the run.

        A run that is reset goes on under the same id, in another execution.
        """
        newest = ""
        with self.server.translated(self.run_id):
            while (found := await self.server.handle(self.run_id).describe()).run_id != newest:
                newest = found.run_id
                handle = self.server.client.get_workflow_handle(self.run_id, run_id=newest)
                async for event in handle.fetch_history_events(wait_new_event=True):
                    await self._see(event)
                    if event.event_type in ENDS:
                        break

    def recovered_at(self, place: Place, died_at: float) -> float | None:
        """Return when the first outcome of a call arrived after a death."""
        after = (at for where, at in self._outcomes if where == place and at > died_at)
        return next(after, None)

    async def _see(self, event: HistoryEvent) -> None:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            scheduled = event.activity_task_scheduled_event_attributes
            name, payloads = scheduled.activity_type.name, scheduled.input.payloads
            if name == EXECUTE_TOOL.name:
                call = await self._decoded(payloads, ToolCall)
                self.tools[call.step_id] = call.tool
                self._scheduled[event.event_id] = (call.step_id, False)
            elif name == COMPENSATE.name:
                undo = await self._decoded(payloads, Compensate)
                self._scheduled[event.event_id] = (undo.step_id, True)
        else:
            # Only an end for good is written down as one; attempts in between are not.
            completed = event.activity_task_completed_event_attributes.scheduled_event_id
            failed = event.activity_task_failed_event_attributes.scheduled_event_id
            place = self._scheduled.get(completed or failed)
            if place is not None:
                self._outcomes.append((place, time.monotonic()))

    async def _decoded(self, payloads: Any, model: type[Any]) -> Any:
        [value] = await self.server.client.data_converter.decode(payloads, [model])
        return value
