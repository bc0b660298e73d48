"""Interrupts of one run: asking, waiting, and giving each answer to whoever has asked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from pydantic import JsonValue
from temporalio import workflow

from surehand.workflows import ports
from surehand.workflows.activity_client import ActivityClient
from surehand.workflows.contracts.interrupts import (
    AnswerInterrupts,
    GivenAnswer,
    Interrupt,
    InterruptKind,
    RecordInterrupt,
    accept_replace_reject,
)
from surehand.workflows.contracts.states import StepState
from surehand.workflows.contracts.steering import Verb
from surehand.workflows.control.child_runs import Children
from surehand.workflows.control.inbox import Control
from surehand.workflows.deliveries import Answer, Delivery
from surehand.workflows.state.run_state import RunData
from surehand.workflows.state.step_failure import StepFailed, leave_if_cancelled


def left(interrupt: Interrupt) -> timedelta | None:
    """Return how long a question that was asked before may still wait; ``None``: for ever."""
    if interrupt.expires_at is None:
        return None
    return max(interrupt.expires_at - workflow.now(), timedelta(milliseconds=1))


class Interrupts:
    """Asks humans for values, for the steps of one run."""

    def __init__(
        self,
        data: RunData,
        call: ActivityClient,
        control: Control,
        children: Children,
        changed: Callable[[], None],
    ) -> None:
        self._data = data
        self._children = children
        self._call = call
        self._control = control
        self._changed = changed
        # An answer can be quicker than the report that its question is recorded.
        control.take_steering(
            Verb.ANSWER, self._answered, self._find, ready=lambda: not data.opening
        )

    async def ask(
        self,
        step_id: str,
        kind: InterruptKind,
        question: str,
        schema: dict[str, Any],
        *,
        value: JsonValue = None,
        secret: bool = False,
        expires_in: timedelta | None = None,
        otherwise: JsonValue = None,
    ) -> JsonValue:
        """Ask a human, wait holding no process, and return the answer.

        Raises:
            StepFailed: Nobody has answered in time, and nothing is taken instead.
        """
        interrupt = self._data.progress_of(step_id).interrupt
        if interrupt is not None:
            # Asked by the execution before; the question waits, or has its answer already.
            expires_in = left(interrupt)
        else:
            interrupt = self.new(
                step_id,
                kind,
                question,
                answer_schema=schema,
                value=value,
                secret=secret,
                expires_at=None if expires_in is None else workflow.now() + expires_in,
            )
            self._data.opening.add(interrupt.interrupt_id)
            try:
                await self.record(interrupt, "opened")
                leave_if_cancelled()
                self._data.interrupts[interrupt.interrupt_id] = interrupt
            finally:
                self._data.opening.discard(interrupt.interrupt_id)
            self._data.add_line(workflow.now(), f"asks: {question}", step_id)
            self._data.set_progress(step_id, interrupt=interrupt)
        self._data.set_step(step_id, StepState.WAITING_INPUT)
        self._changed()
        try:
            answers, id_ = self._data.answers, interrupt.interrupt_id
            if await self._control.wait_until(lambda: id_ in answers, expires_in):
                self._data.set_progress(step_id, interrupt=None)
                return answers.pop(id_)
        finally:
            self._data.interrupts.pop(interrupt.interrupt_id, None)
        await self.record(interrupt, "expired", otherwise)
        self._data.set_progress(step_id, interrupt=None)
        if otherwise is None:
            reason = f"nobody has answered {interrupt.interrupt_id} in time"
            raise StepFailed(reason, rejected=True, called=kind is InterruptKind.AFTER)
        self._data.add_line(workflow.now(), "nobody has answered: going on without", step_id)
        return otherwise

    async def static(
        self,
        step_id: str,
        kind: InterruptKind,
        question: str,
        value: JsonValue,
        *,
        secret: bool = False,
    ) -> JsonValue:
        """Have a human look before or after a step; returns the value to go on with.

        Args:
            step_id: The step.
            kind: Before or after.
            question: What is asked.
            value: What is looked at.
            secret: Whether it is to be on record who is shown the value.

        Raises:
            StepFailed: It was rejected.
        """
        ways = accept_replace_reject(kind)
        answer = await self.ask(step_id, kind, question, ways, value=value, secret=secret)
        if answer == "reject" or (isinstance(answer, dict) and "reject" in answer):
            why = answer["reject"] if isinstance(answer, dict) else ""
            reason = f"rejected by a human: {why}" if why else "rejected by a human"
            raise StepFailed(reason, rejected=True, called=kind is InterruptKind.AFTER)
        if isinstance(answer, dict) and "replace" in answer:
            self._data.add_line(workflow.now(), "a human has replaced the output", step_id)
            return answer["replace"]
        return value

    @asynccontextmanager
    async def paused(self, step_id: str, kind: InterruptKind, text: str) -> AsyncIterator[None]:
        """Have people told for as long as a step is paused."""
        interrupt = self._data.progress_of(step_id).interrupt
        if interrupt is None:  # or told by the execution before
            interrupt = self.new(step_id, kind, text)
            await self.record(interrupt, "opened")
            leave_if_cancelled()
            self._data.set_progress(step_id, interrupt=interrupt)
        yield
        await self.record(interrupt, "void")
        self._data.set_progress(step_id, interrupt=None)

    def new(self, step_id: str, kind: InterruptKind, question: str, **more: Any) -> Interrupt:
        """Return the next interrupt of a step; no two of a run have one id."""
        known = self._data.of_step(step_id)
        known.asked += 1
        id_ = f"{step_id}.{known.asked}"
        return Interrupt(interrupt_id=id_, step_id=step_id, kind=kind, question=question, **more)

    async def record(self, interrupt: Interrupt, what: Any, output: JsonValue = None) -> None:
        """Record what has become of an interrupt, for whoever is to be told.

        Args:
            interrupt: What was asked, or waited for.
            what: ``opened``, ``delivered``, ``expired`` or ``void``.
            output: What its step goes on with.
        """
        request = self._data.request
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
        self._data.keep_head(recorded.head)

    def _find(self, sent: AnswerInterrupts) -> dict[str, Any]:
        """Return what the ledger has to know: each answer with its question, or what is wrong."""
        own, inside = self._data.interrupts, dict(self._children.questions())
        waiting = {**own, **inside}
        answers = dict(sent.answers or {})
        listed = ", ".join(sorted(waiting)) or "none"
        if sent.answers is not None and not answers:
            return {"refused": f"no answer is given: waiting are {listed}"}
        if not answers:
            if len(waiting) != 1 or not own:
                # A child may ask something else until it hears of this: its questions are named.
                reason = f"say which question is answered: waiting are {listed}"
                return {"refused": reason if waiting else "nothing is asked"}
            answers = {next(iter(own)): sent.answer}
        unknown = [one for one in answers if one not in waiting]
        if unknown:
            return {"refused": f"no question {', '.join(unknown)} waits: waiting are {listed}"}
        found = [
            GivenAnswer(interrupt=waiting[id_], value=value, elsewhere=id_ in inside)
            for id_, value in answers.items()
        ]
        return {"answers": found}

    async def _answered(self, _: AnswerInterrupts, delivery: Delivery) -> Answer:
        # Those that the ledger has looked at: others may be asked since then.
        found = delivery.answers
        for one in found:
            if not one.elsewhere:
                self._data.answers[one.interrupt.interrupt_id] = one.value
                self._data.interrupts.pop(one.interrupt.interrupt_id, None)
        text = f"answered {', '.join(one.interrupt.interrupt_id for one in found)}"
        return Answer(accepted=bool(found), message=text)
