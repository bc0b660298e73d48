"""Small values of messages: artifacts, outside content, usage, quotas, what is unreadable."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, JsonValue, ValidationError

from surehand.workflows.contracts.base import ChainHead, Message

#: The one key of a reference in JSON.
ARTIFACT: Final = "$artifact"


class Artifact(Message):
    """A value kept in the artifact store; content-addressed."""

    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    """Of the value's canonical JSON; of what a tool has written, of its bytes. Where it is sealed,
    a digest of that which only the run's key can make."""
    uri: str
    """Path inside the artifact store, or ``ledger:`` for what the ledger itself keeps."""
    bytes: int
    type: str = "application/json"
    sealed_for: str | None = None
    """The run at the top of the tree with whose key it is encrypted; ``None``: it is in plain."""

    def reference(self) -> dict[str, Any]:
        """Return the reference as JSON."""
        return {ARTIFACT: self.model_dump(mode="json", exclude_none=True)}


class Late(Message):
    """A text among the params that refers to artifacts: filled in by the activity."""

    path: list[str | int]
    """Where in the params it stands."""
    artifacts: dict[str, Artifact]
    """By step id."""
    values: dict[str, JsonValue] = {}
    """What its other references stand for, by reference."""


class ReadArtifact(Message):
    """Asks for the value of an artifact."""

    tenant: str
    artifact: Artifact


class ArtifactRead(Message):
    """The value of an artifact, for code that decides by it."""

    value: JsonValue


def as_artifact(value: Any) -> Artifact | None:
    """Return the artifact that a JSON value refers to, or ``None``: it is the value itself."""
    if not isinstance(value, dict) or set(value) != {ARTIFACT}:
        return None
    try:
        return Artifact.model_validate(value[ARTIFACT])
    except ValidationError:
        return None


class ForeignContent(Message):
    """What has brought a run content from outside, which a stranger may have written.

    Example:
        >>> ForeignContent(tool="mail.read", step_id="inbox").as_text()
        'mail.read (step inbox)'
    """

    tool: str
    step_id: str
    run_id: str | None = None
    """The run whose step it is, where it is another one: a child run, a parent, one taken over."""

    def as_text(self) -> str:
        """Return where it comes from, as one clause."""
        of = f" of run {self.run_id}" if self.run_id else ""
        return f"{self.tool} (step {self.step_id}{of})"

    def of(self, run_id: str) -> ForeignContent:
        """Return the same as another run has it, to which it has come from this one."""
        return self if self.run_id else self.model_copy(update={"run_id": run_id})


def foreign_text(found: tuple[ForeignContent, ...]) -> str:
    """Return all of it as one clause; empty: there is none."""
    return ", ".join(content.as_text() for content in found)


def _money(value: str) -> str:
    amount = Decimal(value)
    if not amount.is_finite() or amount < 0:
        raise ValueError("must be a decimal number of at least 0")
    return value


#: A decimal number as text, exact to the last digit.
Money = Annotated[str, Field(max_length=40, pattern=r"^[0-9]+(\.[0-9]+)?$"), AfterValidator(_money)]


class Usage(Message):
    """What a tool call has used."""

    tokens: int = 0
    money: Money = "0"


#: Whoever waits for a quota looks at it after times between these: nobody is told that it is free.
SHORTEST_LOOK: Final = timedelta(seconds=2)
LONGEST_LOOK: Final = timedelta(minutes=5)


class Quota(StrEnum):
    """What a tenant may use no more than so much of; named as the ledger's columns are."""

    OPEN_RUNS = "open_runs"
    EFFECTS = "effects_per_hour"
    APPROVALS = "pending_approvals"
    TOKENS = "tokens_per_day"
    MONEY = "money_per_day"


class QuotaWait(Message):
    """A quota that is used up, and how long it may be."""

    quota: Quota
    used: str
    limit: str
    until: datetime | None = None
    """When its hour or day ends; ``None``: when somebody else's run or approval does."""
    ahead: int | None = None
    """Of a run that is not admitted: how many were opened before it, and wait, too."""
    pause: timedelta
    """After which it may be free; it may be raised sooner."""

    @property
    def text(self) -> str:
        """Return it as one clause."""
        said = f"{self.quota}: {self.used} of {self.limit} used"
        if self.until is not None:
            said += f", until {self.until.isoformat(timespec='seconds')}"
        if self.ahead is not None:
            said += f", {self.ahead} ahead in the queue"
        return said


class AdmitRun(Message):
    """Asks whether a run may take steps."""

    tenant: str
    run_id: str


class RunAdmitted(Message):
    """Whether it may."""

    queued: QuotaWait | None
    """What it waits for; ``None``: it may."""
    head: ChainHead


#: The one key of what stands for a payload that cannot be had here.
UNREADABLE: Final = "$unreadable"


class NotReadable(Exception):
    """What has to be read is ``Unreadable``; in one line."""


class Unreadable(Message):
    """What a reader gets whose artifact store cannot be reached, or is another one."""

    uri: str = ""
    bytes: int = 0
    problem: str
    pasted: bool = False
    """It came in plain, or for no run, where only what is encrypted for it counts: what it says."""
    said: Any = None

    def __str__(self) -> str:
        """Return it as one line."""
        size = f" of {self.bytes} bytes" if self.bytes else ""
        where = f", kept as {self.uri} in the artifact store," if self.uri else ""
        return f"a payload{size}{where} cannot be read here: {self.problem}"


def as_unreadable(value: Any) -> Unreadable | None:
    """Return what is known of a payload that could not be had; ``None``: it is the value itself."""
    if not isinstance(value, dict) or set(value) != {UNREADABLE}:
        return None
    try:
        return Unreadable.model_validate(value[UNREADABLE])
    except ValidationError:
        return None


def as_pasted(value: Any) -> Any:
    """Return what people may send in plain: it is judged by who proves to have sent it.

    Nothing else takes what is in plain where payloads are encrypted: it stays ``Unreadable``.
    """
    unreadable = as_unreadable(value)
    return unreadable.said if unreadable is not None and unreadable.pasted else value


def readable(value: Any) -> Any:
    """Return a value as it is.

    Raises:
        NotReadable: It stands for a payload, and why that cannot be read.
    """
    unreadable = as_unreadable(value)
    if unreadable is not None:
        raise NotReadable(str(unreadable))
    return value
