"""Interrupts of one run: asking, waiting, and giving each answer to whoever has asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

from pydantic import JsonValue
from temporalio import workflow

from workflows import ports
from workflows.book import Book
from workflows.calls import Calls
from workflows.children import Children
from workflows.contracts import (
    AnswerInterrupts,
    Carried,
    GivenAnswer,
    Interrupt,
    InterruptKind,
    RecordInterrupt,
    StepState,
    Verb,
)
from workflows.contracts.interrupts import accept_replace_reject
from workflows.ends import StepFailed, leave_if_cancelled
from workflows.helm import Answer, Delivery, Helm

#: What a step waits for that nobody answers with a value.
_NO_QUESTIONS: Final = frozenset({InterruptKind.EVENT, InterruptKind.BUDGET, InterruptKind.FAILURE})


def left(interrupt: Interrupt) -> timedelta | None:
    """Return how long a question that was asked before may still wait; ``None``: for ever."""
    if interrupt.expires_at is None:
        return None
    return max(interrupt.expires_at - workflow.now(), timedelta(milliseconds=1))


class Interrupts:
    """Asks humans for values, for the steps of one run."""

    def __init__(
        self,
        book: Book,
        call: Calls,
        helm: Helm,
        children: Children,
        changed: Callable[[], None],
    ) -> None:
        self._book = book
        self._children = children
        self._call = call
        self._helm = helm
        self._changed = changed
        self._asked: Counter[str] = Counter()
        self._answers: dict[str, JsonValue] = {}
        self._opening: set[str] = set()
        """Questions that people may know of before this run knows that they do."""
        self._found: list[GivenAnswer] = []
        """What the message that is being judged answers."""
        helm.take(
            *(Verb.ANSWER, AnswerInterrupts, self._answered, self._find),
            # An answer can be quicker than the report that its question is recorded.
            ready=lambda: not self._opening,
        )

    async def ask(
        self,
        step_id: str,
        kind: InterruptKind,
        question: str,
        schema: dict[str, Any],
        *,
        value: JsonValue = None,
        expires_in: timedelta | None = None,
        otherwise: JsonValue = None,
    ) -> JsonValue:
        """Ask a human, wait holding no process, and return the answer.

        Raises:
            StepFailed: Nobody has answered in time, and nothing is taken instead.
        """
        interrupt = self._book.at(step_id).interrupt
        if interrupt is not None:
            # Asked by the execution before; the question waits, or has its answer already.
            expires_in = left(interrupt)
        else:
            interrupt = self._new(
                step_id,
                kind,
                question,
                answer_schema=schema,
                value=value,
                expires_at=None if expires_in is None else workflow.now() + expires_in,
            )
            self._opening.add(interrupt.interrupt_id)
            try:
                await self.record(interrupt, "opened")
                leave_if_cancelled()
                self._book.interrupts[interrupt.interrupt_id] = interrupt
            finally:
                self._opening.discard(interrupt.interrupt_id)
            self._book.say(workflow.now(), f"asks: {question}", step_id)
            self._book.note(step_id, interrupt=interrupt)
        self._book.set_step(step_id, StepState.WAITING_INPUT)
        self._changed()
        try:
            if await self._helm.come(lambda: interrupt.interrupt_id in self._answers, expires_in):
                self._book.note(step_id, interrupt=None)
                return self._answers.pop(interrupt.interrupt_id)
        finally:
            self._book.interrupts.pop(interrupt.interrupt_id, None)
        await self.record(interrupt, "expired", otherwise)
        self._book.note(step_id, interrupt=None)
        if otherwise is None:
            reason = f"nobody has answered {interrupt.interrupt_id} in time"
            raise StepFailed(reason, rejected=True, called=kind is InterruptKind.AFTER)
        self._book.say(workflow.now(), "nobody has answered: going on without", step_id)
        return otherwise

    def carry(self) -> dict[str, Any]:
        """Return what another execution of this run needs, as fields of ``Carried``."""
        return {"asked": dict(self._asked), "answers": self._answers}

    def restore(self, carried: Carried) -> None:
        """Take over what another execution has carried."""
        self._asked = Counter(carried.asked)
        self._answers = dict(carried.answers)
        for progress in carried.progress.values():
            asked = progress.interrupt
            if asked is None or asked.kind in _NO_QUESTIONS:
                continue
            if asked.interrupt_id not in self._answers:
                self._book.interrupts[asked.interrupt_id] = asked

    async def static(
        self, step_id: str, kind: InterruptKind, question: str, value: JsonValue
    ) -> JsonValue:
        """Have a human look before or after a step; returns the value to go on with.

        Raises:
            StepFailed: It was rejected.
        """
        answer = await self.ask(step_id, kind, question, accept_replace_reject(kind), value=value)
        if answer == "reject" or (isinstance(answer, dict) and "reject" in answer):
            why = answer["reject"] if isinstance(answer, dict) else ""
            reason = f"rejected by a human: {why}" if why else "rejected by a human"
            raise StepFailed(reason, rejected=True, called=kind is InterruptKind.AFTER)
        if isinstance(answer, dict) and "replace" in answer:
            self._book.say(workflow.now(), "a human has replaced the output", step_id)
            return answer["replace"]
        return value

    @asynccontextmanager
    async def paused(self, step_id: str, kind: InterruptKind, text: str) -> AsyncIterator[None]:
        """Have people told for as long as a step is paused."""
        interrupt = self._book.at(step_id).interrupt
        if interrupt is None:  # or told by the execution before
            interrupt = self._new(step_id, kind, text)
            await self.record(interrupt, "opened")
            leave_if_cancelled()
            self._book.note(step_id, interrupt=interrupt)
        yield
        await self.record(interrupt, "void")
        self._book.note(step_id, interrupt=None)

    def _new(self, step_id: str, kind: InterruptKind, question: str, **more: Any) -> Interrupt:
        """Return the next interrupt of a step."""
        self._asked[step_id] += 1
        id_ = f"{step_id}.{self._asked[step_id]}"
        return Interrupt(interrupt_id=id_, step_id=step_id, kind=kind, question=question, **more)

    async def record(self, interrupt: Interrupt, what: Any, output: JsonValue = None) -> None:
        """Record what has become of an interrupt, for whoever is to be told.

        Args:
            interrupt: What was asked, or waited for.
            what: ``opened``, ``delivered``, ``expired`` or ``void``.
            output: What its step goes on with.
        """
        request = self._book.request
        recorded = await self._call(
            ports.RECORD_INTERRUPT,
            RecordInterrupt(
                tenant=request.tenant,
                run_id=request.run_id,
                interrupt=interrupt,
                what=what,
                output=output,
            ),
            f"{interrupt.step_id}: {what} {interrupt.interrupt_id}",
        )
        self._book.saw(recorded.head)

    def _find(self, sent: AnswerInterrupts) -> dict[str, Any]:
        """Return what the ledger has to know: each answer with its question, or what is wrong."""
        self._found = []
        own, inside = self._book.interrupts, dict(self._children.questions())
        waiting = {**own, **inside}
        answers = dict(sent.answers)
        listed = ", ".join(sorted(waiting)) or "none"
        if not answers:
            if len(waiting) != 1 or not own:
                # A child may ask something else until it hears of this: its questions are named.
                reason = f"say which question is answered: waiting are {listed}"
                return {"refused": reason if waiting else "nothing is asked"}
            answers = {next(iter(own)): sent.answer}
        unknown = [one for one in answers if one not in waiting]
        if unknown:
            return {"refused": f"no question {', '.join(unknown)} waits: waiting are {listed}"}
        self._found = [
            GivenAnswer(interrupt=waiting[id_], value=value, elsewhere=id_ in inside)
            for id_, value in answers.items()
        ]
        return {"answers": self._found}

    async def _answered(self, sent: AnswerInterrupts, delivery: Delivery) -> Answer:
        # Those that the ledger has looked at: others may be asked since then.
        found, self._found = self._found, []
        for one in found:
            if not one.elsewhere:
                self._answers[one.interrupt.interrupt_id] = one.value
                self._book.interrupts.pop(one.interrupt.interrupt_id, None)
        return Answer(bool(found), f"answered {', '.join(o.interrupt.interrupt_id for o in found)}")
