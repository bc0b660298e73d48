"""What people send to a run: taken in any form, so that whoever sends it wrong is told why."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from workflows.contracts import Message
from workflows.wording import reasons

M = TypeVar("M", bound=Message)

#: What is wrong with a payload is told up to this many things, and characters.
MOST_REASONS: Final = 20
LONGEST_REASON: Final = 4000


class Malformed(ValueError):
    """A payload is not what it is taken for; the message names what is wrong with it."""


def parse(model: type[M], payload: Any) -> M:
    """Return a payload as the message it is meant to be.

    Raises:
        Malformed: It is none.
    """
    try:
        return model.model_validate(payload)
    except ValidationError as error:
        raise Malformed(_explain(model, payload, error)) from error


def _explain(model: type[Message], payload: Any, error: ValidationError) -> str:
    name = model.__name__.lower()
    if not isinstance(payload, dict):
        needed = [name for name, field in model.model_fields.items() if field.is_required()]
        return f"{name}: must be a JSON object with {', '.join(needed)}"
    # The names in it are the sender's, as many and as long as they like.
    text = "; ".join(islice(reasons(error, name), MOST_REASONS))
    return text[:LONGEST_REASON].encode(errors="replace").decode()
