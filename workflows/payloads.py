"""What people send to a run: taken in any form, so that whoever sends it wrong is told why."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any, Final, TypeVar

from pydantic import ValidationError
from temporalio import workflow
from temporalio.common import RawValue

from workflows.contracts import Message
from workflows.identity import is_too_deep
from workflows.payload_codec import as_unreadable
from workflows.wording import reasons

M = TypeVar("M", bound=Message)

#: What is wrong with a payload is told up to this many things, and characters.
MOST_REASONS: Final = 20
LONGEST_REASON: Final = 4000
#: Characters of JSON of what is looked at at all. The ledger takes less, and says so; what is
#: larger is kept nowhere but in the history that it came with.
LARGEST: Final = 256 * 1024
#: The same of another plan.
LARGEST_PLAN: Final = 1024 * 1024


class Malformed(ValueError):
    """A payload is not what it is taken for; the message names what is wrong with it."""


def as_sent(signal: str, payload: Any, more: tuple[Any, ...]) -> Any:
    """Return what a signal carries, also one that came before the run had a handler for it.

    The SDK takes such a one for a signal of an unknown name, and then hands that name and the raw
    values to the handler of the name: it would be lost.

    Raises:
        Malformed: It cannot be read.
    """
    raw = more[0] if payload == signal and more and isinstance(more[0], list) else None
    if raw is None or not all(isinstance(value, RawValue) for value in raw):
        return payload
    try:
        return workflow.payload_converter().from_payload(raw[0].payload) if raw else None
    except Exception as error:  # whatever a converter finds wrong with it
        raise Malformed(f"{signal}: cannot be read: {error}"[:LONGEST_REASON]) from error


def parse(model: type[M], payload: Any, largest: int = LARGEST) -> M:
    """Return a payload as the message it is meant to be.

    Raises:
        Malformed: It is none, or too large, or nothing that a database keeps.
    """
    name = model.__name__.lower()
    unreadable = as_unreadable(payload)
    if unreadable is not None:
        raise Malformed(f"{name}: {unreadable}"[:LONGEST_REASON])
    try:
        size = _size_of(payload)
    except (ValueError, RecursionError) as error:
        # No database has it: it would be tried for ever, and hold up all that arrives after it.
        raise Malformed(f"{name}: it has what JSON does not have: {error}") from error
    if is_too_deep(payload):
        raise Malformed(f"{name}: it is nested too deeply")
    if size > largest:
        raise Malformed(f"{name}: it is too large: {size} characters, {largest} at most")
    try:
        return model.model_validate(payload)
    except ValidationError as error:
        raise Malformed(_explain(model, payload, error)) from error


def _size_of(payload: Any) -> int:
    """Return the characters of JSON of what was sent; what is no JSON is refused for that."""
    value = payload.model_dump(mode="json") if isinstance(payload, Message) else payload
    return len(json.dumps(value, allow_nan=False, default=str, skipkeys=True))


def _explain(model: type[Message], payload: Any, error: ValidationError) -> str:
    name = model.__name__.lower()
    if not isinstance(payload, dict):
        needed = [name for name, field in model.model_fields.items() if field.is_required()]
        return f"{name}: must be a JSON object with {', '.join(needed)}"
    # The names in it are the sender's, as many and as long as they like.
    text = "; ".join(islice(reasons(error, name), MOST_REASONS))
    return text[:LONGEST_REASON].encode(errors="replace").decode()
