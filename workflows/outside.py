"""Events from outside: kept until a step waits for them, each used once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from pydantic import JsonValue
from temporalio import workflow

from workflows.book import Book
from workflows.calls import Calls
from workflows.contracts import (
    Interrupt,
    InterruptKind,
    OutsideEvent,
    RecordInterrupt,
    StepState,
    Verb,
)
from workflows.ends import StepFailed, leave_if_cancelled
from workflows.helm import Answer, Delivery, Helm
from workflows.plan import Wait
from workflows.ports import RECORD_INTERRUPT
from workflows.references import ReferenceUnresolved, resolve

#: Events that wait for a step; more are refused.
MOST_KEPT: Final = 1000
#: Ids of events that a run remembers to know them again.
MOST_IDS: Final = 10_000

Correlation = tuple[str, str]


class Outside:
    """The events that arrive for one run."""

    def __init__(self, book: Book, call: Calls, helm: Helm, changed: Callable[[], None]) -> None:
        self._book = book
        self._call = call
        self._helm = helm
        self._changed = changed
        self._kept: dict[Correlation, deque[JsonValue]] = {}
        self._ids: dict[str, None] = {}
        helm.take(Verb.EVENT, OutsideEvent, self._arrived)

    async def wait(self, step_id: str, wait: Wait, facts: dict[str, Any]) -> JsonValue:
        """Wait for a step's event and return its payload.

        Raises:
            StepFailed: It has not come in time, and nothing is taken instead.
        """
        try:
            key = str(resolve(wait.key, facts))
        except ReferenceUnresolved as error:
            raise StepFailed(str(error), called=False) from error
        correlation = (wait.event, key)
        await self._record(step_id, correlation, "opened")
        leave_if_cancelled()
        if not self._kept.get(correlation):
            self._book.say(workflow.now(), f"waits for event {wait.event} {key}".rstrip(), step_id)
            self._book.set_step(step_id, StepState.WAITING_EVENT)
            self._changed()
            await self._come(correlation, wait.expires_in)
        kept = self._kept.get(correlation)
        if kept:
            payload = kept.popleft()
            await self._record(step_id, correlation, "delivered", payload)
            return payload
        await self._record(step_id, correlation, "expired", wait.otherwise)
        if wait.otherwise is None:
            raise StepFailed(f"event {wait.event} {key} has not come in time", called=False)
        return wait.otherwise

    async def _come(self, correlation: Correlation, within: timedelta | None) -> None:
        try:
            await workflow.wait_condition(lambda: bool(self._kept.get(correlation)), timeout=within)
        except TimeoutError:
            # One that is being judged has come in time.
            await workflow.wait_condition(lambda: self._helm.idle)

    async def _arrived(self, event: OutsideEvent, _: Delivery) -> Answer:
        if event.event_id in self._ids:
            return Answer(True, f"event {event.event_id} has come before; nothing changed")
        if sum(map(len, self._kept.values())) >= MOST_KEPT:
            return Answer(False, f"{MOST_KEPT} events wait for a step already")
        self._ids[event.event_id] = None
        while len(self._ids) > MOST_IDS:
            del self._ids[next(iter(self._ids))]
        self._kept.setdefault((event.name, event.key), deque()).append(event.payload)
        return Answer(True, f"event {event.event_id} is taken")

    async def _record(
        self, step_id: str, correlation: Correlation, what: Any, output: JsonValue = None
    ) -> None:
        request, (name, key) = self._book.request, correlation
        interrupt = Interrupt(
            interrupt_id=f"{step_id}.event",
            step_id=step_id,
            kind=InterruptKind.EVENT,
            question=f"event {name} {key}".rstrip(),
        )
        recorded = await self._call(
            RECORD_INTERRUPT,
            RecordInterrupt(
                tenant=request.tenant,
                run_id=request.run_id,
                interrupt=interrupt,
                what=what,
                output=output,
            ),
            f"{step_id}: event {name} {what}",
        )
        self._book.saw(recorded.head)
