"""What a run asks of people, and what it waits for from outside."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

from pydantic import JsonValue
from temporalio import workflow

from surehand.workflows import ports
from surehand.workflows.activity_client import ActivityClient
from surehand.workflows.contracts.approvals import ApprovalState, CloseApproval, VerifyDecision
from surehand.workflows.contracts.effects import (
    OpenIntervention,
    Resolution,
    ResolutionOutcome,
    SettleIntervention,
)
from surehand.workflows.contracts.runs import OutsideEvent
from surehand.workflows.contracts.states import ENDED_STEPS, StepState
from surehand.workflows.contracts.steering import (
    AnswerInterrupts,
    GivenAnswer,
    Interrupt,
    InterruptKind,
    RecordInterrupt,
    Verb,
    accept_replace_reject,
    event_question,
)
from surehand.workflows.control.child_runs import Children
from surehand.workflows.control.inbox import Control
from surehand.workflows.deliveries import Answer, Delivery, answer_of
from surehand.workflows.plan.plan import Wait
from surehand.workflows.state.records import StepFailed, leave_if_cancelled
from surehand.workflows.state.run_state import RunData


class Decisions:
    """Has the decisions that one run is sent judged, and follows what counts."""

    def __init__(self, data: RunData, call: ActivityClient) -> None:
        self._data = data
        self._call = call

    async def judge(self, delivery: Delivery) -> Answer:
        """Return the verdict on a decision; one that comes before its request is held."""
        data = self._data
        # One that is quicker than the report of its request is for a request that exists. But a
        # request may take long to write, and a cancellation does not wait for that.
        await workflow.wait_condition(
            lambda: (
                not data.gate.is_being_asked(delivery)
                or not all(map(data.gate.is_being_asked, data.inbox.queue))
            )
        )
        unfinished = {view.id for view in data.steps.values() if view.state not in ENDED_STEPS}
        may_come = data.ended is None and not data.compensating
        if may_come and data.gate.is_early(delivery, unfinished):
            return answer_of(data.gate.hold(delivery))
        asked = self.to_verify(delivery)
        reached = await self._call(
            ports.VERIFY_DECISION, asked, "verify a decision", here=not delivery.update
        )
        data.keep_head(reached.head)
        data.gate.settle(delivery, reached.verdict, reached.params)
        return answer_of(reached.verdict)

    def to_verify(self, delivery: Delivery) -> VerifyDecision:
        """Return what the ledger is asked about a decision."""
        return VerifyDecision(
            tenant=self._data.request.tenant,
            run_id=self._data.request.run_id,
            decision_id=delivery.id,
            decision=delivery.decision,
            refused=delivery.refused,
        )

    async def close(self, approval_id: str, *, expired: bool) -> ApprovalState:
        """Expire or void a request and return its state now: a decision may have been quicker."""
        request = self._data.request
        asked = CloseApproval(
            tenant=request.tenant,
            run_id=request.run_id,
            approval_id=approval_id,
            to="expired" if expired else "void",
        )
        closed = await self._call(ports.CLOSE_APPROVAL, asked, f"close {approval_id}")
        self._data.keep_head(closed.head)
        self._data.gate.close(approval_id, closed.state)
        return closed.state


class Interventions:
    """The interventions of one run."""

    def __init__(
        self, data: RunData, call: ActivityClient, control: Control, changed: Callable[[], None]
    ) -> None:
        self._data = data
        self._call = call
        self._changed = changed
        control.take_steering(Verb.RESOLVE, self._settle)

    def show(self, question: OpenIntervention) -> None:
        """Show an intervention to whoever looks at the run, unless it is settled meanwhile."""
        id_ = question.intervention_id
        if id_ in self._data.settled_interventions or id_ in self._data.interventions:
            return
        self._data.interventions[id_] = question
        self._data.add_line(workflow.now(), question.question, question.step_id)
        self._changed()

    async def settled(self, question: OpenIntervention) -> None:
        """Wait until a human has settled an intervention, holding no process."""
        await workflow.wait_condition(
            lambda: question.intervention_id not in self._data.interventions
        )

    async def _settle(self, resolution: Resolution, delivery: Delivery) -> Answer:
        data, id_ = self._data, resolution.intervention_id
        asked = SettleIntervention(
            tenant=data.request.tenant,
            run_id=data.request.run_id,
            resolution_id=delivery.id,
            resolution=resolution,
        )
        settled = await self._call(ports.SETTLE_INTERVENTION, asked, "settle an intervention")
        data.keep_head(settled.head)
        if settled.accepted or settled.settled:
            # Refused because it is settled already (a reset run asks anew): the row decides.
            data.settled_interventions.add(id_)
            data.interventions.pop(id_, None)
        if settled.accepted and resolution.outcome is ResolutionOutcome.UNDO:
            data.to_undo[id_] = resolution.actor
        return Answer(accepted=settled.accepted, message=settled.message)


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
