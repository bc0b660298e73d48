"""What arrives for a run: taken in, judged by the ledger in order, followed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from surehand.workflows import ports
from surehand.workflows.contracts.approvals import VerdictCode
from surehand.workflows.contracts.base import Acknowledged, as_pasted
from surehand.workflows.contracts.steering import Steer, Verb
from surehand.workflows.run.child_runs import ChildRunner
from surehand.workflows.run.deliveries import Answer, Delivery, Malformed, refuse
from surehand.workflows.run.questions import Approvals
from surehand.workflows.run.run_core import RunPart
from surehand.workflows.run.run_records import reason_of


@dataclass(frozen=True)
class VerbHandler:
    """What a run does with a verb that steers it."""

    follow: Callable[[Any, Delivery], Awaitable[Answer]]
    """Follows a message that counts; refuses where it changes nothing."""
    prepare: Callable[[Any], dict[str, Any]] = lambda _: {}
    """What the ledger has to know besides the message, as fields of ``Steer``."""
    ready: Callable[[], bool] = lambda: True
    """Whether the run knows all that the sender may know."""


@dataclass(eq=False)
class InboxWorker(RunPart):
    """Works off what people send to one run."""

    _approvals: Approvals
    _children: ChildRunner
    _handlers: Mapping[Verb, VerbHandler]

    def receive_signal(self, verb: Verb, payload: Any) -> None:
        """Take what a signal carries, also if that is nothing that the run understands."""
        try:
            sent = as_pasted(payload)
            if self._hand_on(verb, sent) is None:
                self._data.inbox.receive(verb, sent)
        except Malformed as error:
            self._core.add_line(f"signal {verb} ignored: {error}")
            self._core.refuse_signal(verb, str(error))

    async def answer_update(self, verb: Verb, payload: Any) -> Any:
        """Take what an update carries, and return what comes of it, or raise why not."""
        sent, inbox = as_pasted(payload), self._data.inbox
        answer = self._hand_on(verb, sent)
        if answer is None:
            try:
                id_ = inbox.receive(verb, sent, update=True)
            except Malformed as error:
                raise ApplicationError(str(error), type="Malformed", non_retryable=True) from error
            await workflow.wait_condition(lambda: id_ in inbox.answers)
            answer = inbox.answers[id_]
        if answer.verdict is not None:
            return answer.verdict
        if not answer.accepted:
            raise ApplicationError(answer.message, type="SteeringRefused", non_retryable=True)
        return Acknowledged(message=answer.message)

    def receive_forwarded(self, payload: Any) -> None:
        """Take what the run's parent hands on; what is nothing such is dropped."""
        parent = self._data.request.parent
        try:
            self._data.inbox.receive_forwarded(payload, parent.step_id if parent else None)
        except Malformed as error:
            self._core.refuse_signal("forwarded", str(error))

    async def work(self) -> None:
        inbox = self._data.inbox
        while True:
            await workflow.wait_condition(lambda: bool(inbox.queue))
            delivery = inbox.take_next()
            answer = await self._judge_delivery(delivery)
            inbox.answer(delivery, answer)
            self._add_line(delivery, answer)
            self._core.show_change()

    def _hand_on(self, verb: Verb, sent: Any) -> Answer | None:
        return self._children.hand_on_decision(sent) if verb is Verb.DECIDE else None

    async def _judge_delivery(self, delivery: Delivery) -> Answer:
        try:
            if delivery.verb is Verb.DECIDE:
                return await self._approvals.judge_decision(delivery)
            return await self._judge_steering(self._handlers[delivery.verb], delivery)
        except Exception as error:
            # Nothing that is sent may stop the loop: everything else waits behind it.
            if not isinstance(error, ActivityError):
                workflow.logger.exception("a message could not be judged or followed")
            return delivery.refuse(reason_of(error))

    async def _judge_steering(self, handler: VerbHandler, delivery: Delivery) -> Answer:
        await workflow.wait_condition(handler.ready)
        data, sent = self._data, delivery.steering
        parent, forwarded = data.request.parent, delivery.forwarded
        asked = Steer(
            **data.ids,
            steering_id=delivery.id,
            workflow_run_id=data.execution,
            lives=list(data.lives),
            verb=delivery.verb,
            actor=sent.actor,
            content=delivery.content,
            signature=None if forwarded else sent.signature,
            forwarded_by=parent.run_id if parent and forwarded else None,
            forwarded_as=forwarded.steering_id if forwarded else None,
            **handler.prepare(sent),
        )
        steered = await self._core.call(ports.STEER, asked, f"judge {delivery.verb}")
        if not steered.accepted:
            return refuse(steered.message)
        known = {"verified": steered.verified, "answers": asked.answers}
        answer = await handler.follow(sent, delivery.model_copy(update=known))
        if answer.accepted:
            self._children.hand_on_delivery(delivery)
        return answer.model_copy(update={"verified": steered.verified})

    def _add_line(self, delivery: Delivery, answer: Answer) -> None:
        mark = "" if answer.verified else " (unverified)"
        verdict = answer.verdict
        if verdict is None:
            what = f"{delivery.verb} by {delivery.steering.actor}"
            text = f"{what}{mark}: {answer.message}"
            if not answer.accepted:
                self._core.refuse_signal(delivery.verb, answer.message)
                text = f"{what} refused: {answer.message}"
        elif verdict.code is VerdictCode.ACCEPTED:
            text = f"{verdict.approval_id}: {verdict.message}{mark}"
        elif verdict.code is VerdictCode.HELD:
            return
        else:
            text = f"decision refused ({verdict.code}): {verdict.message}"
        self._core.add_line(text)
