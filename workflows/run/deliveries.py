"""What people send to a run: taken in any form, and the same again is no second one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final, TypeVar

from pydantic import SerializeAsAny, ValidationError, ValidationInfo, field_validator

from surehand.workflows.canonical_json import is_too_deep
from surehand.workflows.contracts.approvals import Decision, Verdict, VerdictCode
from surehand.workflows.contracts.base import Message, Record, as_unreadable
from surehand.workflows.contracts.effects import Resolution
from surehand.workflows.contracts.runs import Amend, Forwarded, OutsideEvent, TopUp
from surehand.workflows.contracts.steering import (
    AnswerInterrupts,
    CancelRun,
    GivenAnswer,
    PauseRun,
    ResumeRun,
    Steering,
    Verb,
)
from surehand.workflows.plain_text import reasons

M = TypeVar("M", bound=Message)

#: What is wrong with a payload is told up to this many things, and characters.
MOST_REASONS: Final = 20
LONGEST_REASON: Final = 4000
#: Characters of JSON of what is looked at at all. The ledger takes less, and says so; what is
#: larger is kept nowhere but in the history that it came with.
LARGEST_DELIVERY: Final = 256 * 1024
#: The same of another plan.
LARGEST_PLAN: Final = 1024 * 1024


class Malformed(ValueError):
    """A payload is not what it is taken for; the message names what is wrong with it."""


def parse(model: type[M], payload: Any, largest: int = LARGEST_DELIVERY) -> M:
    """Return a payload as the message it is meant to be; ``Malformed``: it is none, and why."""
    name = model.__name__.lower()
    unreadable = as_unreadable(payload)
    if unreadable is not None:
        raise Malformed(f"{name}: {unreadable}"[:LONGEST_REASON])
    try:
        value = payload.model_dump(mode="json") if isinstance(payload, Message) else payload
        size = len(json.dumps(value, allow_nan=False, default=str, skipkeys=True))
    except (ValueError, RecursionError) as error:
        # No database has it: it would be tried forever, and hold up all that arrives after it.
        raise Malformed(f"{name}: it has what JSON does not have: {error}") from error
    # First: of what is too large, nothing else is looked at.
    if size > largest:
        raise Malformed(f"{name}: it is too large: {size} characters, {largest} at most")
    if is_too_deep(payload):
        raise Malformed(f"{name}: it is nested too deeply")
    try:
        return model.model_validate(payload)
    except ValidationError as error:
        raise Malformed(_explain_error(model, payload, error)) from error


def _explain_error(model: type[Message], payload: Any, error: ValidationError) -> str:
    name = model.__name__.lower()
    if not isinstance(payload, dict):
        needed = [name for name, field in model.model_fields.items() if field.is_required()]
        return f"{name}: must be a JSON object with {', '.join(needed)}"
    # The names in it are the sender's, as many and as long as they like.
    text = "; ".join(islice(reasons(error, name), MOST_REASONS))
    return text[:LONGEST_REASON].encode(errors="replace").decode()


#: What is sent with each verb.
MESSAGES: Final[dict[Verb, type[Message]]] = {
    Verb.DECIDE: Decision,
    Verb.CANCEL: CancelRun,
    Verb.PAUSE: PauseRun,
    Verb.RESUME: ResumeRun,
    Verb.ANSWER: AnswerInterrupts,
    Verb.EVENT: OutsideEvent,
    Verb.TOP_UP: TopUp,
    Verb.AMEND: Amend,
    Verb.RESOLVE: Resolution,
}
#: What is said once, however often it is sent, also with no id and no signature: a decision counts
#: once, an intervention is settled once, and an event has an id.
_SAID_ONCE: Final = frozenset({Verb.DECIDE, Verb.RESOLVE, Verb.EVENT})
#: What a child run is told when its parent is told; the rest it is told itself, and no parent's
#: word for it counts.
HANDED_ON: Final = frozenset({Verb.CANCEL, Verb.PAUSE, Verb.RESUME, Verb.ANSWER})
#: Answers that a run remembers for those who wait for them; the ledger keeps all.
MOST_ANSWERS: Final = 200


class Answer(Message):
    """What the sender is told."""

    accepted: bool
    """Whether it counts, or still may."""
    message: str
    verified: bool = False
    """Whether it is proven who has sent it."""
    verdict: Verdict | None = None
    """Of a decision."""


def accept(message: str) -> Answer:
    return Answer(accepted=True, message=message)


def refuse(message: str) -> Answer:
    return Answer(accepted=False, message=message)


def answer_of(verdict: Verdict) -> Answer:
    counts = verdict.code in (VerdictCode.ACCEPTED, VerdictCode.HELD)
    message, verified = verdict.message, verdict.verified
    return Answer(accepted=counts, message=message, verified=verified, verdict=verdict)


class Delivery(Message):
    """Something that was sent to a run, as it arrived."""

    id: str
    number: int
    """Among all that has arrived: what came first is judged first."""
    verb: Verb
    message: SerializeAsAny[Message] | None
    """``None``: it was none, and the ledger is to know."""
    refused: str | None = None
    """Why it cannot count, where the run knows that already."""
    forwarded: Forwarded | None = None
    """As this run's parent has taken it."""
    update: bool = False
    """Whether it was sent as an update: history has those only once their workflow task has ended,
    and signals that arrive meanwhile come before them."""
    verified: bool = False
    """Whether it is proven who has sent it; known once it is judged."""
    answers: list[GivenAnswer] = []
    """What it answers, with the questions that the ledger has seen it for."""

    @field_validator("message", mode="before")
    @classmethod
    def _as_its_verb_has_it(cls, value: Any, found: ValidationInfo) -> Any:
        model = MESSAGES[found.data["verb"]]
        return model.model_validate(value) if isinstance(value, dict) else value

    @property
    def decision(self) -> Decision | None:
        return self.message if isinstance(self.message, Decision) else None

    @property
    def steering(self) -> Steering:
        assert isinstance(self.message, Steering)
        return self.message

    @property
    def content(self) -> dict[str, Any]:
        """What was sent, in JSON form; of answers that a parent hands on, those for this run."""
        if self.forwarded is None or isinstance(self.message, AnswerInterrupts):
            return self.steering.content()
        return self.forwarded.content

    def refuse(self, reason: str) -> Answer:
        """Return what the sender is told where it could not be judged."""
        if self.verb is not Verb.DECIDE:
            return refuse(reason)
        verdict = Verdict(
            decision_id=self.id,
            approval_id=self.decision.approval_id if self.decision else "",
            code=VerdictCode.MALFORMED,
            message=f"it could not be judged: {reason}",
        )
        return answer_of(verdict)


class Inbox(Record):
    """What has arrived for a run, in the order in which it is judged, and what was answered.

    What is sent again while it counts, or while nobody has judged it yet, gets the id of its first
    delivery: its sender had no answer, or made sure.
    """

    prefix: str
    """What ids begin with. It names Temporal's execution: a run that was reset counts again."""
    received: int = 0
    queue: list[Delivery] = []
    judging: Delivery | None = None
    answers: dict[str, Answer] = {}
    by_content: dict[str, str] = {}
    """Ids of those that count, or still may, by the digest of their content."""

    @property
    def idle(self) -> bool:
        """Whether everything that has arrived is judged, and followed."""
        return not self.queue and self.judging is None

    @property
    def verdicts(self) -> dict[str, Verdict]:
        return {id_: one.verdict for id_, one in self.answers.items() if one.verdict is not None}

    def receive(self, verb: Verb, payload: Any, *, update: bool = False) -> str:
        """Take in what was sent and return the id of its delivery.

        ``Malformed``: it is not what the verb takes, and why. A decision is taken in all the same:
        its verdict says so.
        """
        largest = LARGEST_PLAN if verb is Verb.AMEND else LARGEST_DELIVERY
        try:
            message = parse(MESSAGES[verb], payload, largest)
        except Malformed as error:
            if verb is not Verb.DECIDE:
                raise
            return self._add_delivery(verb, None, refused=str(error), update=update)
        content = _content_digest(verb, message)
        if content is None:
            return self._add_delivery(verb, message, update=update)
        if content not in self.by_content:
            self.by_content[content] = self._add_delivery(verb, message, update=update)
        return self.by_content[content]

    def receive_forwarded(self, payload: Any, step_id: str | None) -> None:
        """Take in what the run's parent hands on; ``Malformed``: it hands on nothing such.

        ``step_id`` is the step of the parent that the run is; ``None``: it has no parent.
        """
        forwarded = parse(Forwarded, payload)
        if step_id is None or forwarded.verb not in HANDED_ON:
            raise Malformed("there is no parent that could hand this on")
        message = parse(MESSAGES[forwarded.verb], forwarded.content)
        if isinstance(message, AnswerInterrupts):
            message = message.inside(step_id)
            if not message.answers:
                # Without a name it would answer whatever happens to be asked here.
                raise Malformed("it answers nothing of this run")
        self._add_delivery(forwarded.verb, message, forwarded=forwarded)

    def put_back(self, deliveries: Iterable[Delivery]) -> None:
        """Have deliveries judged that were held, in the place that they had come to."""
        self.queue = sorted([*self.queue, *deliveries], key=lambda one: one.number)

    def take_next(self) -> Delivery:
        """Return the first delivery, which is judged now; until then the inbox is not idle."""
        self.judging = self.queue.pop(0)
        return self.judging

    def answer(self, delivery: Delivery, answer: Answer) -> None:
        """Remember an answer; what does not count may be sent once more, and is judged again."""
        if self.judging is not None and self.judging.id == delivery.id:
            self.judging = None
        if not answer.accepted:
            self._forget_content(delivery.id)
        self.answers[delivery.id] = answer
        while len(self.answers) > MOST_ANSWERS:
            forgotten = next(iter(self.answers))
            del self.answers[forgotten]
            # Nobody may wait for an answer that is not remembered.
            self._forget_content(forgotten)

    def _add_delivery(self, verb: Verb, message: Message | None, **more: Any) -> str:
        self.received += 1
        id_ = f"{self.prefix}{self.received}"
        one = Delivery(id=id_, number=self.received, verb=verb, message=message, **more)
        self.queue.append(one)
        return id_

    def _forget_content(self, id_: str) -> None:
        self.by_content = {content: i for content, i in self.by_content.items() if i != id_}


def _content_digest(verb: Verb, message: Message) -> str | None:
    """Return what makes a message the same as another one; ``None``: it is like no other one."""
    own = isinstance(message, Steering) and (message.id, message.signature) == (None, None)
    if own and verb not in _SAID_ONCE:
        return None
    return hashlib.sha256(f"{verb} {message.model_dump_json()}".encode()).hexdigest()
