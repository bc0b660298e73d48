"""Follows one run's history as it is written: what it calls, and when each outcome arrives."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client

from surehand.activities.ledger.history.evidence import Evidence
from surehand.client.connection import Connection
from surehand.client.history import ENDS
from surehand.workflows.contracts.effects import Compensate
from surehand.workflows.contracts.tools import ToolCall, ToolsDescribed, ToolSpec
from surehand.workflows.ports import COMPENSATE, DESCRIBE_TOOLS, EXECUTE_TOOL, TAKE_TURN

T = TypeVar("T")

#: Activities that carry a step's call: of a tool, or of a model.
CALLS: Final = (EXECUTE_TOOL.name, TAKE_TURN.name)

#: A step's own call, or its undo: step id and whether it is the undo.
Place = tuple[str, bool]


async def decoded(client: Client, payloads: Any, model: type[T]) -> T:
    """Return the one message that an event of a history carries."""
    [value] = await client.data_converter.decode(payloads, [model])
    found: T = value
    return found


@dataclass
class Observer:
    """What has been seen of one run; all times are this process's monotonic clock."""

    connection: Connection
    run_id: str
    tools: dict[str, ToolSpec] = field(default_factory=dict)
    """The tools of the steps that were called, by step id."""
    described: dict[str, ToolSpec] = field(default_factory=dict)
    """By name, those that the run was told of after its start, as code and agents ask."""
    _asked: set[int] = field(default_factory=set)
    _scheduled: dict[int, Place] = field(default_factory=dict)
    _outcomes: list[tuple[Place, float]] = field(default_factory=list)

    async def until_end(self) -> None:
        """Read the history, which needs no worker, and return at the end of the run.

        A run that is reset goes on under the same id, in another execution.
        """
        newest = ""
        with self.connection.translated(self.run_id):
            while (found := await self.connection.handle(self.run_id).describe()).run_id != newest:
                newest = found.run_id
                handle = self.connection.client.get_workflow_handle(self.run_id, run_id=newest)
                async for event in handle.fetch_history_events(wait_new_event=True):
                    await self._see(event)
                    if event.event_type in ENDS:
                        break

    def recovered_at(self, place: Place, died_at: float) -> float | None:
        """Return when the first outcome of a call arrived after a death."""
        after = (at for where, at in self._outcomes if where == place and at > died_at)
        return next(after, None)

    def whole(self, evidence: Evidence) -> Evidence:
        """Return what the ledger holds of the run, and the tools that it was told of later."""
        return replace(evidence, tools={**self.described, **evidence.tools})

    async def _see(self, event: HistoryEvent) -> None:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            client = self.connection.client
            scheduled = event.activity_task_scheduled_event_attributes
            name, payloads = scheduled.activity_type.name, scheduled.input.payloads
            if name in CALLS:
                call = await decoded(client, payloads, ToolCall)
                self.tools[call.step_id] = call.tool
                self._scheduled[event.event_id] = (call.step_id, False)
            elif name == COMPENSATE.name:
                undo = await decoded(client, payloads, Compensate)
                self._scheduled[event.event_id] = (undo.step_id, True)
            elif name == DESCRIBE_TOOLS.name:
                self._asked.add(event.event_id)
        else:
            # Only an end for good is written down as one; attempts in between are not.
            ended = event.activity_task_completed_event_attributes
            completed = ended.scheduled_event_id
            if completed in self._asked:
                payloads = ended.result.payloads
                told = await decoded(self.connection.client, payloads, ToolsDescribed)
                self.described.update(told.tools)
            failed = event.activity_task_failed_event_attributes.scheduled_event_id
            place = self._scheduled.get(completed or failed)
            if place is not None:
                self._outcomes.append((place, time.monotonic()))
