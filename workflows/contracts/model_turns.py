"""Turns of a model: what it is asked, and what it has said.

Messages travel once. A turn names the conversation that it goes on from by its digest, and brings
what is new; the worker keeps each conversation as an artifact. So history and ledger grow with what
is new, not with the conversation.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field

from surehand.workflows.contracts.base import Message
from surehand.workflows.identity import digest

#: What a step that asks a model is called where others have a tool's name.
MODEL: Final = "model"

_SHA256: Final = "^[0-9a-f]{64}$"


def text_digest(text: str) -> str:
    """Return the SHA-256 of a text's canonical JSON, as the artifact store has it."""
    return digest(text).removeprefix("sha256:")


class Conversation(Message):
    """A conversation as it is kept: the first messages of an earlier one, and some more."""

    before: str | None = Field(default=None, pattern=_SHA256)
    """The digest of the earlier one; ``None``: it begins here."""
    keep: int = Field(default=0, ge=0)
    """How many messages of the earlier one it goes on from."""
    messages: list[str]
    """Each as the framework writes it, in JSON."""

    @property
    def sha256(self) -> str:
        """The digest under which it is kept."""
        return digest(self.model_dump(mode="json")).removeprefix("sha256:")


class ModelTurn(Message):
    """What a model is asked; the params of its step."""

    framework: str = Field(max_length=40)
    """Whose models and messages they are, such as ``pydantic-ai``."""
    model: str = Field(max_length=200)
    """The model, as the framework names it."""
    setup: str = Field(pattern=_SHA256)
    """The digest of settings and tools."""
    setup_text: str | None = None
    """They themselves, as the framework writes them in JSON; ``None``: an earlier turn had them."""
    conversation: Conversation
    known_by: str = Field(pattern=_SHA256)
    """The digest of what people and the model have said so far. What tools have returned is not in
    it: a run that is reset reads anew, and what was decided stays decided."""

    def as_recorded(self) -> dict[str, Any]:
        """Return what the ledger knows it by."""
        return {
            "framework": self.framework,
            "model": self.model,
            "setup": self.setup,
            "known_by": self.known_by,
        }


class ModelSaid(Message):
    """What a model has said; the output of its step."""

    response: str
    """As the framework writes it, in JSON."""
    line: str
    """The same in a line for people."""
    setup: str = Field(pattern=_SHA256)
    """The digest of what it was asked with, as the worker has kept it."""
    conversation: str = Field(pattern=_SHA256)
    """The same of the conversation so far."""
