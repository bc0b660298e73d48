"""What every message has in common."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, PlainSerializer

from surehand.workflows.identity import LOST_DIGITS, loses_digits

#: Levels of lists and objects: far more than params have, far fewer than the readers of JSON take.
MOST_LEVELS: Final = 50


def _storable(text: str) -> str:
    # PostgreSQL has no NUL in text: a row that can never be written would be tried for ever.
    if "\x00" in text:
        raise ValueError("must not contain the character NUL")
    return _utf8(text)


def _utf8(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must not contain half of a character") from None
    return text


def is_storable(text: str) -> bool:
    """Return whether the ledger can keep a text."""
    try:
        _storable(text)
    except ValueError:
        return False
    return True


def _carried(value: Any) -> Any:
    # What arrives one level below a reader's limit could not be handed on: it would be tried for
    # ever, and hold up everything that arrives after it.
    level = [value]
    for _ in range(MOST_LEVELS):
        for text in level:
            if isinstance(text, str):
                _utf8(text)
        if any(isinstance(one, int | float) and loses_digits(one) for one in level):
            raise ValueError(LOST_DIGITS)
        level = [part for item in level for part in _parts(item)]
        if not level:
            return value
    raise ValueError(f"must not be nested in more than {MOST_LEVELS} levels")


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.keys()
        yield from value.values()
    elif isinstance(value, list):
        yield from value


#: Text that people send and that the ledger keeps.
Text = Annotated[str, AfterValidator(_storable)]
#: As long as the ledger's columns for people are.
LONGEST_NAME: Final = 200
#: Who says so.
Actor = Annotated[Text, Field(min_length=1, max_length=LONGEST_NAME)]


#: Values that people send, and that are handed on.
Json = Annotated[JsonValue, AfterValidator(_carried)]
#: Params that people send.
JsonObject = Annotated[dict[str, JsonValue], AfterValidator(_carried)]


class Message(BaseModel):
    """Base of everything on the wire."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Record(BaseModel):
    """A part of a run's state: changed in place, and serialised with the whole.

    All that it knows is in its fields, so that nothing of it can be left behind.
    """

    model_config = ConfigDict(extra="ignore")


#: A set of names in a record; it is the same text each time.
NameSet = Annotated[set[str], PlainSerializer(sorted, return_type=list[str])]


class TimelineLine(Message):
    """One line of a run's own story; the ledger's events are the proof."""

    at: datetime
    step_id: str | None = None
    text: str


class ChainHead(Message):
    """The newest event of a run: carried into history, so that a rewritten chain shows."""

    seq: int
    hash: str


class Recorded(Message):
    """Something was recorded; nothing else to say."""

    head: ChainHead


class Acknowledged(Message):
    """An update was taken.

    Example:
        >>> said = await run.pause(reason="waiting for legal")
        >>> said = await run.resume(reason="legal agrees")
        >>> type(said)
        <class 'surehand.workflows.contracts.base.Acknowledged'>
    """

    message: str
