"""What a run asks of people, and what it waits for from outside: approvals, answers, events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

from pydantic import JsonValue
from temporalio import workflow

from surehand.workflows import ports
from surehand.workflows.contracts import approvals, steering
from surehand.workflows.contracts.base import ENDED_STEPS, StepState, WaitKind
from surehand.workflows.contracts.runs import OutsideEvent
from surehand.workflows.contracts.tools import ToolCall
from surehand.workflows.plan.plan import Step, Wait
from surehand.workflows.plan.policy import Escalate
from surehand.workflows.run.deliveries import Answer, Delivery, accept, answer_of, refuse
from surehand.workflows.run.run_core import RunPart, wait_at_most
from surehand.workflows.run.run_records import StepFailed, cut_short, leave_if_cancelled

#: Requests of one step that nobody has answered before nobody is asked any more. Each adds to the
#: run's history, and the server ends a run whose history is too long without undoing anything.
MOST_UNANSWERED: Final = 200
#: How soon a run looks again at a request whose time is over by its own clock only; each time twice
#: as long.
FIRST_LOOK_AT_DECISIONS: Final = timedelta(seconds=1)
LONGEST_LOOK_AT_DECISIONS: Final = timedelta(minutes=10)


class Approvals(RunPart):
    """Asks humans about the calls of one run's steps, and has their decisions judged."""

    async def judge_decision(self, delivery: Delivery) -> Answer:
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
        reached = await self._core.call(
            ports.VERIFY_DECISION,
            self._to_verify(delivery),
            "verify a decision",
            here=not delivery.update,
        )
        data.gate.follow_verdict(delivery, reached.verdict, reached.params)
        return answer_of(reached.verdict)

    def _to_verify(self, delivery: Delivery) -> approvals.VerifyDecision:
        return approvals.VerifyDecision(
            **self._data.ids,
            decision_id=delivery.id,
            decision=delivery.decision,
            refused=delivery.refused,
        )

    async def close_request(self, approval_id: str, *, expired: bool = False) -> None:
        """Void a request, or expire it: a decision may have been quicker, and counts then."""
        asked = approvals.CloseApproval(
            **self._data.ids, approval_id=approval_id, to="expired" if expired else "void"
        )
        closed = await self._core.call(ports.CLOSE_APPROVAL, asked, f"close {approval_id}")
        self._data.gate.follow_state(approval_id, closed.state)

    async def get_approval(self, step: Step, call: ToolCall) -> ToolCall:
        """Return the call as it was approved; unchanged, if no human has to be asked.

        ``StepFailed``: it was rejected, nobody has answered in time, or the run is ending.
        """
        data, known = self._data, self._data.of_step(step.id)
        escalated_to = data.progress_of(step.id).escalated_to
        request = data.progress_of(step.id).request
        while True:
            if request is None:
                data.set_progress(step.id, call=call, asks=True, escalated_to=escalated_to)
                request = await self._request_approval(step, call, escalated_to)
            if request is None:
                return call
            data.set_progress(step.id, request=request)
            approval_id = request.approval_id
            state = await self._wait_for_decision(request)
            match state:
                case approvals.ApprovalState.APPROVED:
                    return call.model_copy(
                        update={"approval_id": approval_id, "params_hash": request.params_hash}
                    )
                case approvals.ApprovalState.SUPERSEDED:
                    call = await self._take_edit(step, call, approval_id)
                case approvals.ApprovalState.EXPIRED:
                    known.unanswered += 1
                    if request.on_expiry == "deny" or known.unanswered >= MOST_UNANSWERED:
                        raise self._approval_failure(approval_id, state)
                    if isinstance(request.on_expiry, Escalate):
                        escalated_to = request.on_expiry.escalate
                    whom = f" {escalated_to}" if escalated_to else ""
                    self._core.add_line(f"{approval_id} has expired: asking{whom} again", step.id)
                case _:
                    raise self._approval_failure(approval_id, state)
            request = None
            data.set_progress(step.id, request=None)

    async def _request_approval(
        self, step: Step, call: ToolCall, escalated_to: str | None
    ) -> approvals.ApprovalRequest | None:
        data = self._data
        summary = f"{step.id}: ask for approval of {call.tool.name}"
        while True:
            early = data.gate.list_early(step.id, data.inbox.queue)
            wanted = approvals.RequestApproval(
                call=call,
                number=data.gate.next_number(step.id),
                editors=data.of_step(step.id).editors,
                escalated_to=escalated_to,
                early=tuple(self._to_verify(one) for one in early),
            )
            here = not any(one.update for one in early)
            data.gate.asking.add(step.id)
            try:
                asked = await self._core.call(ports.REQUEST_APPROVAL, wanted, summary, here=here)
            except asyncio.CancelledError:
                self._leave_if_ending(step)
                raise
            finally:
                data.gate.asking.discard(step.id)
            if asked.over_quota is None:
                break
            self._leave_if_ending(step)
            leave_if_cancelled()
            await self._core.wait_to_look_again(step.id, asked.over_quota)
        self._core.end_looking(step.id)
        request = asked.request
        if request is None:
            return None
        data.note_foreign(request.foreign)
        data.calls[step.id] = request.params_hash
        state = asked.state or approvals.ApprovalState.PENDING
        data.inbox.put_back(
            data.gate.note_request(request, state, asked.decided, verified=asked.verified)
        )
        self._leave_if_ending(step)
        leave_if_cancelled()  # An amended plan asks again.
        for vote in asked.standing:
            self._core.add_line(f"{request.approval_id}: approved by {vote}", step.id)
        if state is approvals.ApprovalState.PENDING:
            self._core.add_line(f"waiting for approval: {request.description}", step.id)
            data.set_step(step.id, StepState.WAITING_APPROVAL)
        self._core.show_change()
        return request

    def _leave_if_ending(self, step: Step) -> None:
        if self._data.stopping:
            raise cut_short(self._data.saga, step.id)

    async def _wait_for_decision(
        self, request: approvals.ApprovalRequest
    ) -> approvals.ApprovalState:
        states, id_ = self._data.gate.states, request.approval_id
        left, look = request.expires_at - workflow.now(), FIRST_LOOK_AT_DECISIONS
        while states[id_] is approvals.ApprovalState.PENDING:
            if not await wait_at_most(
                lambda: states[id_] is not approvals.ApprovalState.PENDING,
                max(left, timedelta(milliseconds=1)),
            ):
                # The database's clock may be a little behind: then the row is still pending.
                await self.close_request(id_, expired=True)
                left, look = look, min(2 * look, LONGEST_LOOK_AT_DECISIONS)
        return states[id_]

    async def _take_edit(self, step: Step, call: ToolCall, approval_id: str) -> ToolCall:
        # The row may tell of an edit before the run has heard of it.
        gate = self._data.gate
        await workflow.wait_condition(lambda: approval_id in gate.accepted)
        edit, known = gate.accepted[approval_id], self._data.of_step(step.id)
        others = (name for name in known.editors if name != edit.approver)
        known.editors = (*others, edit.approver)
        by = gate.decided_by(approval_id)
        self._core.add_line(f"{by} has edited the params: asking again", step.id)
        known.edited = edit.params or {}
        return call.model_copy(update={"params": known.edited, "late": []})

    def _approval_failure(self, approval_id: str, state: approvals.ApprovalState) -> StepFailed:
        gate = self._data.gate
        decision = gate.accepted.get(approval_id)
        if decision is None or state is not approvals.ApprovalState.REJECTED:
            return StepFailed(f"approval {approval_id} is {state}", rejected=True)
        reason = f": {decision.reason}" if decision.reason else ""
        said = f"rejected by {gate.decided_by(approval_id)}{reason}"
        return StepFailed(said, rejected=True, declined=True)


#: Events that wait for a step; more are refused.
MOST_KEPT: Final = 1000
#: Ids of events that a run remembers to know them again.
MOST_IDS: Final = 10_000


class Questions(RunPart):
    """Asks humans for values, and waits for events, for the steps of one run."""

    async def ask_human(
        self,
        step_id: str,
        kind: steering.InterruptKind,
        question: str,
        schema: dict[str, Any],
        *,
        value: JsonValue = None,
        secret: bool = False,
        expires_in: timedelta | None = None,
        otherwise: JsonValue = None,
    ) -> JsonValue:
        """Ask a human, wait holding no process, and return the answer.

        ``StepFailed``: nobody has answered in time, and nothing is taken instead.
        """
        known = self._data.progress_of(step_id).interrupt
        interrupt = await self._open_interrupt(
            *(step_id, kind, question, f"asks: {question}"),
            expires_in=expires_in,
            answer_schema=schema,
            value=value,
            secret=secret,
        )
        self._core.set_step(step_id, StepState.WAITING_INPUT)
        answers, id_ = self._data.answers, interrupt.interrupt_id
        left = expires_in if known is None else _time_left(interrupt)
        while True:
            try:
                if await self._core.wait_until_sent(lambda: id_ in answers, left):
                    self._data.set_progress(step_id, interrupt=None)
                    return answers.pop(id_)
            finally:
                self._data.interrupts.pop(id_, None)
            # Until that is known, an answer that comes now waits.
            self._data.opening.add(id_)
            try:
                left = await self._record_interrupt(interrupt, "expired", otherwise)
                if left is None:
                    break
                # Its time has stood still while calls were halted.
                self._data.interrupts[id_] = interrupt
            finally:
                self._data.opening.discard(id_)
        if otherwise is None:
            reason = f"nobody has answered {id_} in time"
            raise StepFailed(reason, rejected=True, called=kind is steering.InterruptKind.AFTER)
        self._core.add_line("nobody has answered: going on without", step_id)
        return otherwise

    async def ask_for_review(
        self,
        step_id: str,
        kind: steering.InterruptKind,
        question: str,
        value: JsonValue,
        *,
        secret: bool = False,
    ) -> JsonValue:
        """Have a human look before or after a step; returns the value to go on with."""
        ways = steering.accept_replace_reject(kind)
        answer = await self.ask_human(step_id, kind, question, ways, value=value, secret=secret)
        if answer == "reject" or (isinstance(answer, dict) and "reject" in answer):
            why = answer["reject"] if isinstance(answer, dict) else ""
            reason = f"rejected by a human: {why}" if why else "rejected by a human"
            called = kind is steering.InterruptKind.AFTER
            raise StepFailed(reason, rejected=True, declined=True, called=called)
        if isinstance(answer, dict) and "replace" in answer:
            self._core.add_line("a human has replaced the output", step_id)
            return answer["replace"]
        return value

    @asynccontextmanager
    async def tell_people(
        self, step_id: str, kind: steering.InterruptKind, text: str
    ) -> AsyncIterator[None]:
        interrupt = await self._open_interrupt(step_id, kind, text)
        yield
        await self._record_interrupt(interrupt, "void")

    async def wait_for_event(self, step_id: str, wait: Wait, key: str) -> JsonValue:
        """Wait for a step's event, which is about a key, and return its payload.

        ``StepFailed``: it has not come in time, and nothing is taken instead.
        """
        events, question = self._data.events, steering.event_question(wait.event, key)
        line = None if events.has(wait.event, key) else f"waits for {question}"
        known = self._data.progress_of(step_id).interrupt
        interrupt = await self._open_interrupt(
            *(step_id, steering.InterruptKind.EVENT, question, line), expires_in=wait.expires_in
        )
        if not events.has(wait.event, key):
            self._core.set_step(step_id, StepState.WAITING_EVENT)
            left = wait.expires_in if known is None else _time_left(interrupt)
            # One event wakes all that wait for it, and one of them takes it.
            while not events.has(wait.event, key):
                await self._core.wait_until_sent(lambda: events.has(wait.event, key), left)
                left = _time_left(interrupt)
                over = interrupt.expires_at is not None and workflow.now() >= interrupt.expires_at
                if over and not events.has(wait.event, key):
                    left = await self._record_interrupt(interrupt, "expired", wait.otherwise)
                    if left is None and wait.otherwise is None:
                        reason = f"event {wait.event} {key} has not come in time"
                        raise StepFailed(reason, called=False)
                    if left is None:
                        return wait.otherwise
        # What waits can be given up for another plan; the event would be lost with it.
        self._core.set_step(step_id, StepState.RUNNING)
        payload = events.take(wait.event, key)
        await self._record_interrupt(interrupt, "delivered", payload)
        return payload

    async def _open_interrupt(
        self,
        step_id: str,
        kind: steering.InterruptKind,
        question: str,
        line: str | None = None,
        *,
        expires_in: timedelta | None = None,
        **more: Any,
    ) -> steering.Interrupt:
        """Record what a step waits for from now on, and what the run's story says of it."""
        data, known = self._data, self._data.of_step(step_id)
        interrupt = data.progress_of(step_id).interrupt
        if interrupt is not None:  # opened by the execution before
            return interrupt
        known.asked += 1  # no two of a run have one id
        id_ = f"{step_id}.{known.asked}"
        interrupt = steering.Interrupt(
            interrupt_id=id_,
            step_id=step_id,
            kind=kind,
            question=question,
            expires_at=None if expires_in is None else workflow.now() + expires_in,
            **more,
        )
        is_question = kind.waits_for is WaitKind.QUESTION
        if is_question:
            data.opening.add(id_)
        try:
            await self._record_interrupt(interrupt, "opened")
            leave_if_cancelled()
            if is_question:
                data.interrupts[id_] = interrupt
        finally:
            data.opening.discard(id_)
        if line is not None:
            self._core.add_line(line, step_id)
        data.set_progress(step_id, interrupt=interrupt)
        return interrupt

    async def _record_interrupt(
        self, interrupt: steering.Interrupt, what: Any, output: JsonValue = None
    ) -> timedelta | None:
        """Record that an interrupt is open, or how it has ended and what its step goes on with.

        Returns how long it still waits, if it has not expired.
        """
        recorded = steering.RecordInterrupt(
            **self._data.ids, interrupt=interrupt, what=what, output=output
        )
        summary = f"{interrupt.step_id}: {what} {interrupt.interrupt_id}"
        done = await self._core.call(ports.RECORD_INTERRUPT, recorded, summary)
        if what != "opened" and done.left is None:
            self._data.set_progress(interrupt.step_id, interrupt=None)
        return done.left

    def find_questions(self, sent: steering.AnswerInterrupts) -> dict[str, Any]:
        """Return what the ledger has to know: each answer with its question, or what is wrong."""
        own, inside = self._data.interrupts, self._data.children.list_questions()
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
            steering.GivenAnswer(interrupt=waiting[id_], value=value, elsewhere=id_ in inside)
            for id_, value in answers.items()
        ]
        return {"answers": found}

    async def take_answers(self, _: steering.AnswerInterrupts, delivery: Delivery) -> Answer:
        """Give the answers that the ledger has looked at to the steps that have asked."""
        # Those that the ledger has looked at: others may be asked since then.
        found = delivery.answers
        for one in found:
            if not one.elsewhere:
                self._data.answers[one.interrupt.interrupt_id] = one.value
                self._data.interrupts.pop(one.interrupt.interrupt_id, None)
        text = f"answered {', '.join(one.interrupt.interrupt_id for one in found)}"
        return Answer(accepted=bool(found), message=text)

    async def take_event(self, event: OutsideEvent, _: Delivery) -> Answer:
        events = self._data.events
        if event.event_id in events.ids:
            return accept(f"event {event.event_id} has come before; nothing changed")
        if events.count >= MOST_KEPT:
            return refuse(f"{MOST_KEPT} events wait for a step already")
        events.ids[event.event_id] = None
        while len(events.ids) > MOST_IDS:
            del events.ids[next(iter(events.ids))]
        events.keep(event.name, event.about, event.payload)
        return accept(f"event {event.event_id} is taken{self._unless_awaited(event)}")

    def _unless_awaited(self, event: OutsideEvent) -> str:
        """Return that nothing waits for an event, if nothing does; a mistyped one is taken, too."""
        question = steering.event_question(event.name, event.about)
        waits = (view.id for view in self._data.in_state(StepState.WAITING_EVENT))
        awaited = (self._data.progress_of(step_id).interrupt for step_id in waits)
        if any(one is not None and one.question == question for one in awaited):
            return ""
        named = sorted({step.wait.event for step in self._data.request.plan.steps if step.wait})
        known = f" (the plan's steps wait for: {', '.join(named)})" if named else ""
        return f", but nothing waits for {question.removeprefix('event ')} now{known}"


def _time_left(interrupt: steering.Interrupt) -> timedelta | None:
    """Return how long a question that was asked before may still wait; ``None``: it has no limit.

    The time of a new one begins once the ledger has it: nobody can answer it before.
    """
    if interrupt.expires_at is None:
        return None
    return max(interrupt.expires_at - workflow.now(), timedelta(milliseconds=1))
