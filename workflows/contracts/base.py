"""What every message has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


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
