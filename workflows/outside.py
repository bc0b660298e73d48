"""Events from outside: kept until a step waits for them, each used once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from pydantic import JsonValue
from temporalio import workflow

from workflows.book import Book
from workflows.contracts import (
    Carried,
    Interrupt,
    InterruptKind,
    KeptEvent,
    OutsideEvent,
    StepState,
    Verb,
)
from workflows.ends import StepFailed, StepRefused, leave_if_cancelled
from workflows.helm import Answer, Delivery, Helm
from workflows.interrupts import Interrupts, left
from workflows.plan import Wait
from workflows.references import ReferenceUnresolved, resolve

#: Events that wait for a step; more are refused.
MOST_KEPT: Final = 1000
#: Ids of events that a run remembers to know them again.
MOST_IDS: Final = 10_000

Correlation = tuple[str, str]


class Outside:
    """The events that arrive for one run."""

    def __init__(
        self, book: Book, helm: Helm, interrupts: Interrupts, changed: Callable[[], None]
    ) -> None:
        self._book = book
        self._interrupts = interrupts
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
            raise StepRefused(str(error), called=False) from error
        correlation = (wait.event, key)
        interrupt, expires_in = self._book.at(step_id).interrupt, wait.expires_in
        if interrupt is not None:
            expires_in = left(interrupt)
        else:
            interrupt = self._interrupt(step_id, correlation, expires_in)
            await self._interrupts.record(interrupt, "opened")
            leave_if_cancelled()
            self._book.note(step_id, interrupt=interrupt)
            if not self._kept.get(correlation):
                text = f"waits for {interrupt.question}"
                self._book.say(workflow.now(), text, step_id)
        if not self._kept.get(correlation):
            self._book.set_step(step_id, StepState.WAITING_EVENT)
            self._changed()
            await self._helm.come(lambda: bool(self._kept.get(correlation)), expires_in)
        kept = self._kept.get(correlation)
        if kept:
            payload = kept.popleft()
            await self._interrupts.record(interrupt, "delivered", payload)
            return payload
        await self._interrupts.record(interrupt, "expired", wait.otherwise)
        if wait.otherwise is None:
            raise StepFailed(f"event {wait.event} {key} has not come in time", called=False)
        return wait.otherwise

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

    def carry(self) -> dict[str, Any]:
        """Return what another execution of this run needs, as fields of ``Carried``."""
        return {
            "kept_events": [
                KeptEvent(name=name, key=key, payload=payload)
                for (name, key), payloads in self._kept.items()
                for payload in payloads
            ],
            "event_ids": list(self._ids),
        }

    def restore(self, carried: Carried) -> None:
        """Take over what another execution has carried."""
        self._ids = dict.fromkeys(carried.event_ids)
        for one in carried.kept_events:
            self._kept.setdefault((one.name, one.key), deque()).append(one.payload)

    def _interrupt(
        self, step_id: str, correlation: Correlation, expires_in: timedelta | None
    ) -> Interrupt:
        name, key = correlation
        return Interrupt(
            interrupt_id=f"{step_id}.event",
            step_id=step_id,
            kind=InterruptKind.EVENT,
            question=f"event {name} {key}".rstrip(),
            expires_at=None if expires_in is None else workflow.now() + expires_in,
        )
