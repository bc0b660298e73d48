"""What people are told, and the API of those who tell them.

A notifier of your own is an object with ``async def send(self, notification)``, named in
``SUREHAND_NOTIFY`` by its dotted path: ``acme.pager:notifier``. It is called in a thread of its
own, so it may block; after ``SEND_LIMIT`` nobody waits for it, and what has become of it is
unknown. Each notification is sent at least once: what a worker has sent and did not live to record
is sent again, under the same ``delivery_id``.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Protocol
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, Field

from surehand.process.program import shared_program
from surehand.workflows.canonical_json import digest
from surehand.workflows.contracts.approvals import Assurance
from surehand.workflows.identity import DEFAULT_TENANT
from surehand.workflows.plain_text import plain, plain_line

#: How long one attempt to send may take.
SEND_LIMIT: Final = timedelta(seconds=10)
#: What our own notifiers take of it, so that they can say what has become of it.
ANSWER_LIMIT: Final = SEND_LIMIT - timedelta(seconds=1)
#: Characters of a title: it becomes the subject of a mail, or the text on a lock screen.
_LONGEST_TITLE: Final = 150
#: What can be undone, the question says itself.
_OUTCOMES: Final = "OUTCOME: happened, not-happened, call-off, compensated or give-up"


#: Notifiers whose messages say later what has become of a request.
CHATS: Final = frozenset({"slack", "teams"})


class NotDelivered(Exception):
    """A notification could not be sent; it is tried again.

    Example:
        >>> raise NotDelivered("the pager is busy", retry_after=timedelta(minutes=1))
        Traceback (most recent call last):
        NotDelivered: the pager is busy
    """

    def __init__(self, message: str, retry_after: timedelta = timedelta(0)) -> None:
        """Say why, and how long the receiver wants to be left alone."""
        super().__init__(message)
        self.retry_after = retry_after


class MaybeDelivered(NotDelivered):
    """Nobody has said whether it has arrived: it is tried again, less and less often."""


class ReceiverGone(NotDelivered):
    """The receiver wants nothing any more: this notifier is not used again by this worker.

    Example:
        >>> raise ReceiverGone("the channel was archived")
        Traceback (most recent call last):
        ReceiverGone: the channel was archived
    """


class Kind(StrEnum):
    """What a notification tells of."""

    APPROVAL = "approval.requested"
    REMINDER = "approval.reminder"
    INTERVENTION = "intervention.opened"
    PERMISSION = "permission.needed"
    QUESTION = "interrupt.opened"
    UNCOMPENSATED = "effect.uncompensated"
    STOPPED = "run.stopped"
    FLOOD = "approvals.held_back"


_TITLES: Final[dict[str, str]] = {
    Kind.APPROVAL: "Approval needed",
    Kind.INTERVENTION: "A human is needed",
    Kind.PERMISSION: "Paused",
    Kind.QUESTION: "An answer is needed",
    Kind.UNCOMPENSATED: "Not undone",
    Kind.STOPPED: "Stopped from outside",
    Kind.FLOOD: "Many approvals needed",
}


class Facts(BaseModel):
    """What a person is told beside the ids; every text of it is one plain line."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    what: str
    """The call as its tool describes it, or what a human is asked."""
    tool: str | None = None
    params_hash: str | None = None
    undo: str | None = None
    asked_by: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    """Whose approvals are asked for."""
    roles: tuple[str, ...] = ()
    """Who may decide, by their roles."""
    foreign: str = ""
    """What has brought its run content from outside; empty: nothing."""
    signed: bool = False
    """Only signed decisions count."""
    passkey: bool = False
    """Only those count that are signed by a passkey: no command makes one."""
    chat: bool = False
    """A button in a chat is enough."""
    until: datetime | None = None


class Notification(Facts):
    """One message to people, by one notifier.

    Example:
        >>> notification.title
        'Approval needed: Refund 20.00 EUR for order-7'
        >>> notification.commands[0]
        'python starter.py show refund-7'
    """

    delivery_id: str
    """The same at each attempt: receivers drop what they know."""
    kind: str
    """One of ``Kind``; others may come."""
    tenant: str
    run_id: str
    step_id: str | None
    subject: str
    """The approval, the intervention, the entry, the step or the run that it is about."""
    number: int = Field(ge=0)
    """Of a reminder: how many intervals after the request; of what was held back: the hour; else 0,
    or the step's attempt."""
    at: datetime
    """When it was written, by the ledger's clock; if it was held back, when it was so last."""
    page: str | None = None
    """Where people decide or answer in a browser, where the worker knows. It decides nothing."""
    attempt: int = Field(default=1, exclude=True)
    """Above 1: an earlier attempt may have sent it."""
    message: str | None = Field(default=None, exclude=True)
    """The message in a chat that tells it already."""
    outcome: str | None = Field(default=None, exclude=True)
    """What has become of its request, which waits no more; only of what a chat may tell already."""

    def linked(self, approvals_url: str) -> Notification:
        """Return it with its page on an approvals server.

        ``{tenant}`` in the server's origin stands for the tenant; empty: there is none.
        """
        match self.kind:
            case Kind.APPROVAL | Kind.REMINDER:
                path, about = "approval", self.subject
            case Kind.INTERVENTION | Kind.QUESTION:
                path, about = "run", self.run_id
            case _:
                return self
        if not approvals_url:
            return self
        server = approvals_url.replace("{tenant}", self.tenant)
        return self.model_copy(update={"page": f"{server}/{path}?{urlencode({'id': about})}"})

    @property
    def title(self) -> str:
        """One line that says what this is about; nothing in it breaks a line or a header."""
        title = _TITLES.get(self.kind, plain_line(self.kind))
        if self.kind == Kind.REMINDER:
            title = f"Reminder {self.number}, approval needed"
        return f"{title}: {plain_line(self.what, _LONGEST_TITLE)}"

    @property
    def commands(self) -> tuple[str, ...]:
        """The command lines to look at it and to decide, ready to paste."""
        show = self._command("show", self.run_id)
        match self.kind:
            case Kind.APPROVAL | Kind.REMINDER if self.passkey:
                return (self._command("show", self.subject),)
            case Kind.APPROVAL | Kind.REMINDER:
                decide = [self.subject, "--params-hash", self.params_hash or ""]
                decide += ["--key", "KEYFILE"] if self.signed else []
                verbs = (self._command(verb, *decide) for verb in ("approve", "reject"))
                return (show, *verbs)
            case Kind.INTERVENTION:
                run = ["--run", self.run_id]
                return (show, self._command("resolve", self.subject, "OUTCOME", *run))
            case Kind.QUESTION:
                asked = self.subject.removeprefix(f"{self.run_id}/")
                return (show, self._command("answer", self.run_id, f"{asked}=ANSWER"))
            case Kind.PERMISSION:
                return (show, self._command("resume", self.run_id))
            case Kind.UNCOMPENSATED:
                return (show, self._command("effects", self.run_id))
            case Kind.FLOOD:
                return (show, self._command("pending"))
            case Kind.STOPPED:
                lines = (self._command(verb, self.run_id) for verb in ("effects", "unwind"))
                return (show, *lines)
            case _:
                return (show,)

    @property
    def text(self) -> str:
        """All of it for people, in plain lines."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield self.title
        yield ""
        if self.page:
            yield from (plain_line(self.page), "")
        # The title may be cut.
        yield plain_line(self.what)
        step = f", step {plain_line(self.step_id)}" if self.step_id else ""
        yield f"  run       {plain_line(self.run_id)}{step}"
        until = self.until.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if self.until else None
        told: dict[str, Sequence[str | None]] = {
            "tool": [self.tool],
            "asked by": [" and ".join(self.asked_by)],
            "foreign": [self.foreign],
            "needs": self.needs,
            "decisions": [Assurance.PASSKEY.as_text() if self.passkey else None],
            "until": [until],
            "undo": [self.undo],
            "hash": [self.params_hash],
        }
        for name, values in told.items():
            yield from (f"  {name:<9} {plain_line(value)}" for value in values if value)
        yield ""
        yield from self.commands
        if self.kind == Kind.INTERVENTION:
            yield f"({_OUTCOMES})"

    def _command(self, *parts: str) -> str:
        tenant = [] if self.tenant == DEFAULT_TENANT else ["--tenant", self.tenant]
        return plain(f"{shared_program()} {shlex.join([*parts, *tenant])}")


class Notifier(Protocol):
    """Tells somebody.

    Example:
        >>> class Pager:
        ...     def __init__(self) -> None:
        ...         self.paged: list[str] = []
        ...     async def send(self, notification: Notification) -> None:
        ...         self.paged.append(notification.title)
        >>> pager: Notifier = Pager()
        >>> await pager.send(notification)
        >>> pager.paged
        ['Approval needed: Refund 20.00 EUR for order-7']
    """

    async def send(self, notification: Notification) -> str | None:
        """Send it; return once the receiver has taken it, a chat which message that is.

        Raises:
            NotDelivered: It may name a pause; anything else that is raised counts the same.
            ReceiverGone: Nothing is to be sent there any more.
        """


def delivery_id(tenant: str, kind: str, subject: str, number: int, channel: str) -> str:
    """Return the id under which one notification is delivered, however often (35 characters)."""
    material: dict[str, Any] = {
        "tenant": tenant,
        "kind": kind,
        "subject": subject,
        "number": number,
        "channel": channel,
    }
    return f"nt-{digest(material).removeprefix('sha256:')[:32]}"
