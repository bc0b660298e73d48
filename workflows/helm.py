"""What steers a run (cancel, pause, resume, ...): taken in, judged by the ledger, then followed.

A signal and an update of each verb take the same payload. Handlers only put things into the inbox;
the run's desk works it off, one at a time.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from workflows import ports
from workflows.book import Book
from workflows.calls import Calls
from workflows.contracts import (
    Acknowledged,
    AnswerInterrupts,
    Carried,
    Forwarded,
    KnownAnswer,
    Steer,
    Steered,
    Steering,
    Verb,
)
from workflows.deliveries import Deliveries
from workflows.ends import reason_of
from workflows.payloads import LARGEST, LARGEST_PLAN, Malformed, as_sent, parse

#: What a child is told when its parent is told; the rest it is told itself, and no parent's word
#: for it counts.
HANDED_ON: Final = frozenset({Verb.CANCEL, Verb.PAUSE, Verb.RESUME, Verb.ANSWER})


@dataclass(frozen=True)
class Delivery:
    """Something that steers the run, as it arrived."""

    steering_id: str
    verb: Verb
    message: Steering
    place: int
    """Among all that has arrived: what came first is judged first."""
    forwarded: Forwarded | None = None
    """As this run's parent has taken it."""
    verified: bool = False
    """Whether it is proven who has sent it; known once it is judged."""

    @property
    def content(self) -> dict[str, Any]:
        """What was sent, in JSON form; of answers that a parent hands on, those for this run."""
        if self.forwarded is None or isinstance(self.message, AnswerInterrupts):
            return self.message.content()
        return self.forwarded.content


@dataclass(frozen=True)
class Answer:
    """What the sender is told."""

    accepted: bool
    message: str


#: Follows a message that counts; ``accepted=False`` where it changes nothing, and says why.
Follow = Callable[[Any, Delivery], Awaitable[Answer]]
#: What the ledger has to know besides the message, as fields of ``Steer``.
Prepare = Callable[[Any], dict[str, Any]]


def _nothing_more(_: Any) -> dict[str, Any]:
    return {}


class Helm:
    """Takes what steers one run."""

    def __init__(self, book: Book, call: Calls, refuse: Callable[[str, str], None]) -> None:
        self._book = book
        self._call = call
        self._refuse = refuse
        self._verbs: dict[Verb, tuple[type[Steering], Follow, Prepare]] = {}
        self._deliveries = Deliveries[Answer](f"{book.gate.run_id}#{book.gate.delivered_to}.s")
        self._ready: dict[Verb, Callable[[], bool]] = {}
        self.inbox: deque[Delivery] = deque()
        self.forward: Callable[[Delivery], None] = lambda _: None
        """Hands on to the run's children what counts."""

    def take(
        self,
        verb: Verb,
        model: type[Steering],
        follow: Follow,
        prepare: Prepare = _nothing_more,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        """Have the run take a verb, as a signal and as an update.

        Args:
            verb: The verb.
            model: What it takes.
            follow: Follows what counts.
            prepare: What the ledger has to know besides.
            ready: Whether the run knows all that the sender may know.
        """
        self._verbs[verb] = (model, follow, prepare)
        self._ready[verb] = ready

        # Whatever is sent, also with no argument or with several, must not raise here: the run
        # could not move on any more.
        def by_signal(payload: Any = None, *more: Any) -> None:
            try:
                self.receive(verb, as_sent(verb, payload, more))
            except Malformed as error:
                self._book.say(workflow.now(), f"signal {verb} ignored: {error}")
                self._refuse(verb, str(error))

        async def by_update(payload: Any = None, *_: Any) -> Acknowledged:
            try:
                steering_id = self.receive(verb, payload)
            except Malformed as error:
                raise ApplicationError(str(error), type="Malformed", non_retryable=True) from error
            answers = self._deliveries.answers
            await workflow.wait_condition(lambda: steering_id in answers)
            answer = answers[steering_id]
            if not answer.accepted:
                raise ApplicationError(answer.message, type="SteeringRefused", non_retryable=True)
            return Acknowledged(message=answer.message)

        workflow.set_signal_handler(verb, by_signal)
        workflow.set_update_handler(verb, by_update)

    def carry(self) -> dict[str, Any]:
        """Return what another execution of this run needs, as fields of ``Carried``."""
        return {
            "steerings_standing": self._deliveries.carry(),
            "steering_answers": {
                id_: KnownAnswer(accepted=answer.accepted, message=answer.message)
                for id_, answer in self._deliveries.answers.items()
            },
        }

    def restore(self, carried: Carried) -> None:
        """Take over what another execution has carried."""
        answers = {
            id_: Answer(known.accepted, known.message)
            for id_, known in carried.steering_answers.items()
        }
        self._deliveries.restore(carried.steerings_standing, answers)

    @property
    def idle(self) -> bool:
        """Whether everything that arrived has been judged and followed."""
        return not self.inbox

    @property
    def verbs(self) -> tuple[Verb, ...]:
        """What the run takes."""
        return tuple(self._verbs)

    async def come(self, arrived: Callable[[], bool], within: timedelta | None) -> bool:
        """Wait for something that is sent to the run; returns whether it came in time."""
        try:
            await workflow.wait_condition(arrived, timeout=within)
        except TimeoutError:
            # What is being judged was in time: the ledger may have taken it already.
            await workflow.wait_condition(lambda: self.idle)
        return arrived()

    def receive(self, verb: Verb, payload: Any) -> str:
        """Put a message into the inbox and return the id of its delivery.

        Raises:
            Malformed: It is not what the verb takes, and why.
        """
        largest = LARGEST_PLAN if verb is Verb.AMEND else LARGEST
        message = parse(self._verbs[verb][0], payload, largest)
        content = self._once(verb, message)
        known = self._deliveries.known(content)
        if known is not None:
            return known
        steering_id = self._deliveries.number(content)
        self.inbox.append(Delivery(steering_id, verb, message, next(self._book.gate.places)))
        return steering_id

    def receive_forwarded(self, payload: Any) -> None:
        """Put what the run's parent hands on into the inbox; what is nothing such is dropped."""
        parent = self._book.request.parent
        try:
            forwarded = parse(Forwarded, payload)
            if parent is None or forwarded.verb not in HANDED_ON:
                raise Malformed("there is no parent that could hand this on")
            model = self._verbs[forwarded.verb][0]
            message = parse(model, forwarded.content)
            if isinstance(message, AnswerInterrupts):
                message = message.inside(parent.step_id)
                if not message.answers:
                    # Without a name it would answer whatever happens to be asked here.
                    raise Malformed("it answers nothing of this run")
        except Malformed as error:
            self._refuse("forwarded", str(error))
            return
        steering_id = self._deliveries.number(None)
        place = next(self._book.gate.places)
        self.inbox.append(Delivery(steering_id, forwarded.verb, message, place, forwarded))

    def _once(self, verb: Verb, message: Steering) -> str | None:
        """Return what makes a message the same as another one; ``None``: each is its own."""
        # An intervention is settled once, and an event has an id: whoever has no answer, or what
        # sends them again and again, says the same.
        once = verb in (Verb.RESOLVE, Verb.EVENT)
        if message.id is None and message.signature is None and not once:
            return None
        return f"{verb} {message.signature} {json.dumps(message.content(), sort_keys=True)}"

    async def work_one(self) -> None:
        """Work off the first message of the inbox."""
        delivery = self.inbox[0]  # until it is judged: a question's time may end meanwhile
        await workflow.wait_condition(self._ready[delivery.verb])
        verified = False
        try:
            steered = await self._judged(delivery)
            verified = steered.verified
            if steered.accepted:
                proven = replace(delivery, verified=verified)
                answer = await self._verbs[delivery.verb][1](delivery.message, proven)
                if answer.accepted:
                    self.forward(delivery)
            else:
                answer = Answer(False, steered.message)
        except Exception as error:
            # Nothing that is sent may stop the desk: everything else waits behind it.
            if not isinstance(error, ActivityError):
                workflow.logger.exception("a message could not be judged or followed")
            answer = Answer(False, reason_of(error))
        if answer.accepted:
            mark = "" if verified else " (unverified)"
            text = f"{delivery.verb} by {delivery.message.actor}{mark}: {answer.message}"
        else:
            self._refuse(delivery.verb, answer.message)
            text = f"{delivery.verb} by {delivery.message.actor} refused: {answer.message}"
        self.inbox.popleft()
        self._book.say(workflow.now(), text)
        self._deliveries.answer(delivery.steering_id, answer, counts=answer.accepted)

    async def _judged(self, delivery: Delivery) -> Steered:
        book, message = self._book, delivery.message
        parent = book.request.parent
        asked = Steer(
            tenant=book.request.tenant,
            run_id=book.request.run_id,
            steering_id=delivery.steering_id,
            workflow_run_id=book.gate.delivered_to,
            lives=list(book.lives),
            verb=delivery.verb,
            actor=message.actor,
            content=delivery.content,
            signature=None if delivery.forwarded else message.signature,
            forwarded_by=parent.run_id if parent and delivery.forwarded else None,
            forwarded_as=delivery.forwarded.steering_id if delivery.forwarded else None,
            **self._verbs[delivery.verb][2](message),
        )
        steered = await self._call(ports.STEER, asked, f"judge {delivery.verb}")
        book.saw(steered.head)
        return steered
