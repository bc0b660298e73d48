"""What has arrived for a run, and pausing it."""

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
from surehand.workflows.contracts.states import StepState
from surehand.workflows.contracts.steering import (
    IssuedToken,
    PauseRun,
    ReissueToken,
    ResumeKey,
    ResumeRun,
    Steer,
    Verb,
    Way,
)
from surehand.workflows.contracts.values import as_pasted
from surehand.workflows.deliveries import Answer, Delivery, Malformed
from surehand.workflows.state.records import NO_MORE, reason_of
from surehand.workflows.state.run_state import RunData
from surehand.workflows.wait_condition import comes_true


class Pausing:
    """Pauses and resumes one run."""

    def __init__(
        self,
        data: RunData,
        control: Control,
        freshen: Callable[[], list[str]],
        recall: Callable[[], Awaitable[list[str]]],
    ) -> None:
        self._data = data
        self._freshen = freshen
        self._recall = recall
        control.take_steering(Verb.PAUSE, self._pause)
        control.take_steering(Verb.RESUME, self._resume, self._token_of)
        control.take_steering(Verb.TOKEN, self._reissue)

    async def _pause(self, asked: PauseRun, delivery: Delivery) -> Answer:
        data = self._data
        if data.ending:
            return Answer(accepted=False, message="the run is ending: what it undoes is not paused")
        if data.paused is not None:
            return Answer(accepted=False, message=f"{data.paused.actor} has paused the run already")
        data.unacknowledged.update(await self._recall())
        if self._data.ending:
            return Answer(accepted=False, message="the run has ended meanwhile")
        data.paused = asked
        self._issue(asked.actor, asked.resume_key, delivery.verified)
        running = data.running()
        return Answer(
            accepted=True, message=f"pausing after {', '.join(running)}" if running else "paused"
        )

    async def _resume(self, asked: ResumeRun, delivery: Delivery) -> Answer:
        data = self._data
        shown = [view.id for view in data.in_state(StepState.PAUSED_FAILURE)]
        # Of a child run under way its own failure is shown: it has to be told itself.
        below = {one: data.children.running[one] for one in shown if one in data.children.running}
        failed = [one for one in shown if one not in below]
        if delivery.forwarded is not None and (asked.step, asked.params) != (None, None):
            # It is about a step of the parent's; here it only ends the pause.
            asked, failed = ResumeRun(actor=asked.actor), []
        unnamed = asked.step is None and not failed
        meant = sorted(run for one, run in below.items() if unnamed or one == asked.step)
        if meant and delivery.forwarded is None and data.paused is None:
            runs = ", ".join(meant)
            return Answer(accepted=False, message=f"what has failed is in run {runs}: resume it")
        if asked.step is not None and asked.step not in failed:
            listed = ", ".join(failed) or "none"
            return Answer(
                accepted=False, message=f"step {asked.step} has not failed: failed are {listed}"
            )
        named = [asked.step] if asked.step is not None else failed
        if asked.params is not None and (asked.way is not Way.RETRY or len(named) != 1):
            return Answer(
                accepted=False, message="params are for the retry of one step that has failed"
            )
        undone = [one for one in named if one in data.saga.barred and asked.way is Way.RETRY]
        if undone:
            return Answer(accepted=False, message=f"step {undone[0]} {NO_MORE}")
        paused = [view.id for view in data.in_state(StepState.PAUSED_PERMISSION)]
        if not paused and not named and data.paused is None:
            return Answer(accepted=True, message="nothing is paused; nothing changed")
        again = self._freshen()
        data.resumed += 1
        data.paused = data.token = None
        for step_id in named:
            data.of_step(step_id).way = asked
        going = ", ".join(paused + [f"{step_id} ({asked.way})" for step_id in named])
        said = f"going on: {going}" if going else "going on"
        return Answer(
            accepted=True,
            message=f"{said}; reading again first: {', '.join(again)}" if again else said,
        )

    def _token_of(self, asked: ResumeRun) -> dict[str, Any]:
        if asked.proof is None:
            return {}
        return {"token": self._data.token, "calls": self._data.calls_digest()}

    async def _reissue(self, asked: ReissueToken, delivery: Delivery) -> Answer:
        if self._data.paused is None:
            return Answer(
                accepted=False, message="nobody has paused the run: there is nothing to resume"
            )
        self._issue(asked.actor, asked.resume_key, delivery.verified)
        return Answer(accepted=True, message="a new resume token counts; the old one is void")

    def _issue(self, user: str, key: ResumeKey | None, verified: bool) -> None:
        if key is None:
            self._data.token = None
            return
        self._data.token = IssuedToken(
            user=user,
            public_key=key.public_key,
            expires_at=workflow.now() + key.lasts,
            calls=self._data.calls_digest(),
            verified=verified,
        )


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
    elsewhere: Callable[[Any], Answer | None]


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
        """Have the run take a verb, which arrives as a signal or as an update.

        Args:
            judge: Says what comes of each, and follows what counts.
            ready: Whether the run knows all that the sender may know.
            elsewhere: Hands a payload on to the run that it is for, if that is another one.
        """
        self._verbs[verb] = _Taken(judge, ready, elsewhere)

    def receive_signal(self, verb: Verb, payload: Any) -> None:
        """Take what a signal carries, also if that is nothing that the run understands."""
        try:
            sent = as_pasted(payload)
            if self._verbs[verb].elsewhere(sent) is None:
                self._data.inbox.receive(verb, sent)
        except Malformed as error:
            self._data.add_line(workflow.now(), f"signal {verb} ignored: {error}")
            self._refuse(verb, str(error))

    async def answer_update(self, verb: Verb, payload: Any) -> Any:
        """Take what an update carries, and return what comes of it.

        Raises:
            ApplicationError: ``SteeringRefused`` or ``Malformed``.
        """
        sent = as_pasted(payload)
        answer = self._verbs[verb].elsewhere(sent) or await self._answered(verb, sent)
        if answer.verdict is not None:
            return answer.verdict
        if not answer.accepted:
            raise ApplicationError(answer.message, type="SteeringRefused", non_retryable=True)
        return Acknowledged(message=answer.message)

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
