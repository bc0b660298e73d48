"""Events from outside: kept until a step waits for them, each used once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pydantic import JsonValue
from temporalio import workflow

from surehand.workflows.contracts.controls import OutsideEvent
from surehand.workflows.contracts.interrupts import InterruptKind, event_question
from surehand.workflows.contracts.states import StepState
from surehand.workflows.contracts.steering import Verb
from surehand.workflows.control.inbox import Control
from surehand.workflows.control.interrupts import Interrupts, left
from surehand.workflows.deliveries import Answer, Delivery
from surehand.workflows.plan.plan import Wait
from surehand.workflows.state.run_state import RunData
from surehand.workflows.state.step_failure import (
    StepFailed,
    leave_if_cancelled,
)

#: Events that wait for a step; more are refused.
MOST_KEPT: Final = 1000
#: Ids of events that a run remembers to know them again.
MOST_IDS: Final = 10_000


class ExternalEvents:
    """The events that arrive for one run."""

    def __init__(
        self, data: RunData, control: Control, interrupts: Interrupts, changed: Callable[[], None]
    ) -> None:
        self._data = data
        self._interrupts = interrupts
        self._control = control
        self._changed = changed
        control.take_steering(Verb.EVENT, self._arrived)

    async def wait(self, step_id: str, wait: Wait, key: str) -> JsonValue:
        """Wait for a step's event, which is about a key, and return its payload.

        Raises:
            StepFailed: It has not come in time, and nothing is taken instead.
        """
        events = self._data.events
        interrupt, expires_in = self._data.progress_of(step_id).interrupt, wait.expires_in
        if interrupt is not None:
            expires_in = left(interrupt)
        else:
            interrupt = self._interrupts.new(
                step_id,
                InterruptKind.EVENT,
                event_question(wait.event, key),
                expires_at=None if expires_in is None else workflow.now() + expires_in,
            )
            await self._interrupts.record(interrupt, "opened")
            leave_if_cancelled()
            self._data.set_progress(step_id, interrupt=interrupt)
            if not events.has(wait.event, key):
                text = f"waits for {interrupt.question}"
                self._data.add_line(workflow.now(), text, step_id)
        if not events.has(wait.event, key):
            self._data.set_step(step_id, StepState.WAITING_EVENT)
            self._changed()
            # One event wakes all that wait for it, and one of them takes it.
            while not events.has(wait.event, key):
                await self._control.wait_until(lambda: events.has(wait.event, key), expires_in)
                if interrupt.expires_at is not None and workflow.now() >= interrupt.expires_at:
                    break
                expires_in = left(interrupt)
        if events.has(wait.event, key):
            # What waits can be given up for another plan; the event would be lost with it.
            self._data.set_step(step_id, StepState.RUNNING)
            self._changed()
            payload = events.take(wait.event, key)
            await self._interrupts.record(interrupt, "delivered", payload)
            self._data.set_progress(step_id, interrupt=None)
            return payload
        await self._interrupts.record(interrupt, "expired", wait.otherwise)
        self._data.set_progress(step_id, interrupt=None)
        if wait.otherwise is None:
            raise StepFailed(f"event {wait.event} {key} has not come in time", called=False)
        return wait.otherwise

    async def _arrived(self, event: OutsideEvent, _: Delivery) -> Answer:
        events = self._data.events
        if event.event_id in events.ids:
            text = f"event {event.event_id} has come before; nothing changed"
            return Answer(accepted=True, message=text)
        if events.count >= MOST_KEPT:
            return Answer(accepted=False, message=f"{MOST_KEPT} events wait for a step already")
        events.ids[event.event_id] = None
        while len(events.ids) > MOST_IDS:
            del events.ids[next(iter(events.ids))]
        events.keep(event.name, event.about, event.payload)
        text = f"event {event.event_id} is taken{self._unawaited(event)}"
        return Answer(accepted=True, message=text)

    def _unawaited(self, event: OutsideEvent) -> str:
        """Return that nothing waits for an event, if nothing does; a mistyped one is taken, too."""
        question = event_question(event.name, event.about)
        waits = (view.id for view in self._data.in_state(StepState.WAITING_EVENT))
        awaited = (self._data.progress_of(step_id).interrupt for step_id in waits)
        if any(one is not None and one.question == question for one in awaited):
            return ""
        named = sorted({step.wait.event for step in self._data.request.plan.steps if step.wait})
        known = f" (the plan's steps wait for: {', '.join(named)})" if named else ""
        return f", but nothing waits for {question.removeprefix('event ')} now{known}"
