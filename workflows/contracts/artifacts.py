"""Artifacts: large values kept outside history, referred to by digest and URI."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field, JsonValue, ValidationError

from surehand.workflows.contracts.base import Message

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
