"""Takes what people send to a run, and works it off: one thing after the other, as it came.

A signal and an update of each verb take the same payload. Handlers only put things into the inbox;
the run's loop has each judged by the ledger and follows the rows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from surehand.workflows import ports
from surehand.workflows.activity_client import ActivityClient
from surehand.workflows.contracts.approvals import VerdictCode
from surehand.workflows.contracts.base import Acknowledged
from surehand.workflows.contracts.judging import Steer
from surehand.workflows.contracts.steering import Verb
from surehand.workflows.contracts.unreadable import as_pasted
from surehand.workflows.deliveries import Answer, Delivery, Malformed, as_sent
from surehand.workflows.state.run_state import RunData
from surehand.workflows.state.step_failure import reason_of
from surehand.workflows.wait_condition import comes_true

#: Asks the ledger whether something counts, and follows it where it does.
Judge = Callable[[Delivery], Awaitable[Answer]]
#: Follows what steers the run and counts; ``accepted=False`` where it changes nothing.
Follow = Callable[[Any, Delivery], Awaitable[Answer]]
#: What the ledger has to know besides the message, as fields of ``Steer``.
Prepare = Callable[[Any], dict[str, Any]]


def _nothing_more(_: Any) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class _Taken:
    """What a run does with a verb."""

    judge: Judge
    ready: Callable[[], bool]


class Control:
    """Takes what people send to one run."""

    def __init__(
        self,
        data: RunData,
        call: ActivityClient,
        changed: Callable[[], None],
        refuse: Callable[[str, str], None],
    ) -> None:
        self._data = data
        self._call = call
        self._changed = changed
        self._refuse = refuse
        self._verbs: dict[Verb, _Taken] = {}
        self.forward: Callable[[Delivery], None] = lambda _: None
        """Hands on to the run's children what counts."""

    @property
    def verbs(self) -> tuple[Verb, ...]:
        """What the run takes."""
        return tuple(self._verbs)

    def take(
        self,
        verb: Verb,
        judge: Judge,
        *,
        ready: Callable[[], bool] = lambda: True,
        elsewhere: Callable[[Any], Answer | None] = lambda _: None,
    ) -> None:
        """Have the run take a verb, as a signal and as an update.

        Args:
            verb: The verb.
            judge: Says what comes of each, and follows what counts.
            ready: Whether the run knows all that the sender may know.
            elsewhere: Hands a payload on to the run that it is for, if that is another one.
        """
        self._verbs[verb] = _Taken(judge, ready)

        # Whatever is sent, also with no argument or with several, must not raise here: the run
        # could not move on any more.
        def by_signal(payload: Any = None, *more: Any) -> None:
            try:
                sent = as_sent(verb, payload, more)
                if elsewhere(sent) is None:
                    self._data.inbox.receive(verb, sent)
            except Malformed as error:
                self._data.add_line(workflow.now(), f"signal {verb} ignored: {error}")
                self._refuse(verb, str(error))

        async def by_update(payload: Any = None, *_: Any) -> Any:
            sent = as_pasted(payload)
            answer = elsewhere(sent) or await self._answered(verb, sent)
            if answer.verdict is not None:
                return answer.verdict
            if not answer.accepted:
                raise ApplicationError(answer.message, type="SteeringRefused", non_retryable=True)
            return Acknowledged(message=answer.message)

        workflow.set_signal_handler(verb, by_signal)
        workflow.set_update_handler(verb, by_update)

    def take_steering(
        self,
        verb: Verb,
        follow: Follow,
        prepare: Prepare = _nothing_more,
        *,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        """Have the run take a verb that steers it.

        Args:
            verb: The verb.
            follow: Follows what counts.
            prepare: What the ledger has to know besides.
            ready: As for ``take``.
        """
        self.take(verb, partial(self._steer, follow, prepare), ready=ready)

    def receive_forwarded(self, payload: Any) -> None:
        """Take what the run's parent hands on; what is nothing such is dropped."""
        parent = self._data.request.parent
        try:
            self._data.inbox.receive_forwarded(payload, parent.step_id if parent else None)
        except Malformed as error:
            self._refuse("forwarded", str(error))

    async def wait_until(self, arrived: Callable[[], bool], within: timedelta | None) -> bool:
        """Wait for something that is sent to the run; returns whether it came in time."""
        if within is None:
            await workflow.wait_condition(arrived)
        elif not await comes_true(arrived, within):
            # What is being judged was in time: the ledger may have taken it already.
            await workflow.wait_condition(lambda: self._data.inbox.idle)
        return arrived()

    async def work(self) -> None:
        """Work off what arrives, for as long as the run lasts."""
        inbox = self._data.inbox
        while True:
            await workflow.wait_condition(lambda: bool(inbox.queue))
            delivery = inbox.take_next()
            answer = await self._judged(delivery)
            inbox.answer(delivery, answer)
            self._add_line(delivery, answer)
            self._changed()

    async def _answered(self, verb: Verb, payload: Any) -> Answer:
        inbox = self._data.inbox
        try:
            id_ = inbox.receive(verb, payload, update=True)
        except Malformed as error:
            raise ApplicationError(str(error), type="Malformed", non_retryable=True) from error
        await workflow.wait_condition(lambda: id_ in inbox.answers)
        return inbox.answers[id_]

    async def _judged(self, delivery: Delivery) -> Answer:
        verb = self._verbs[delivery.verb]
        await workflow.wait_condition(verb.ready)
        try:
            return await verb.judge(delivery)
        except Exception as error:
            # Nothing that is sent may stop the loop: everything else waits behind it.
            if not isinstance(error, ActivityError):
                workflow.logger.exception("a message could not be judged or followed")
            return delivery.refuse(reason_of(error))

    async def _steer(self, follow: Follow, prepare: Prepare, delivery: Delivery) -> Answer:
        data, sent = self._data, delivery.steering
        parent, forwarded = data.request.parent, delivery.forwarded
        asked = Steer(
            tenant=data.request.tenant,
            run_id=data.request.run_id,
            steering_id=delivery.id,
            workflow_run_id=data.execution,
            lives=list(data.lives),
            verb=delivery.verb,
            actor=sent.actor,
            content=delivery.content,
            signature=None if forwarded else sent.signature,
            forwarded_by=parent.run_id if parent and forwarded else None,
            forwarded_as=forwarded.steering_id if forwarded else None,
            **prepare(sent),
        )
        steered = await self._call(ports.STEER, asked, f"judge {delivery.verb}")
        data.keep_head(steered.head)
        if not steered.accepted:
            return Answer(accepted=False, message=steered.message)
        known = {"verified": steered.verified, "answers": asked.answers}
        answer = await follow(sent, delivery.model_copy(update=known))
        if answer.accepted:
            self.forward(delivery)
        return answer.model_copy(update={"verified": steered.verified})

    def _add_line(self, delivery: Delivery, answer: Answer) -> None:
        """Tell people what has come of something that was sent."""
        mark = "" if answer.verified else " (unverified)"
        verdict = answer.verdict
        if verdict is None:
            what = f"{delivery.verb} by {delivery.steering.actor}"
            text = f"{what}{mark}: {answer.message}"
            if not answer.accepted:
                self._refuse(delivery.verb, answer.message)
                text = f"{what} refused: {answer.message}"
        elif verdict.code is VerdictCode.ACCEPTED:
            text = f"{verdict.approval_id}: {verdict.message}{mark}"
        elif verdict.code is VerdictCode.HELD:
            return
        else:
            text = f"decision refused ({verdict.code}): {verdict.message}"
        self._data.add_line(workflow.now(), text)
