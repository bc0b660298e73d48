"""What every message has in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _storable(text: str) -> str:
    # PostgreSQL has no NUL in text: a row that can never be written would be tried for ever.
    if "\x00" in text:
        raise ValueError("must not contain the character NUL")
    return text


#: Text that people send and that the ledger keeps.
Text = Annotated[str, AfterValidator(_storable)]
#: Who says so; as long as the ledger's columns are.
Actor = Annotated[Text, Field(min_length=1, max_length=200)]


class Message(BaseModel):
    """Base of everything on the wire."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ChainHead(Message):
    """The newest event of a run: carried into history, so that a rewritten chain shows."""

    seq: int
    hash: str


class Recorded(Message):
    """Something was recorded; nothing else to say."""

    head: ChainHead


class Acknowledged(Message):
    """An update was taken."""

    message: str
