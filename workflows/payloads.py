"""What people send to a run: taken in any form, so that whoever sends it wrong is told why."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import ValidationError

from workflows.contracts import Message

M = TypeVar("M", bound=Message)


class Malformed(ValueError):
    """A payload is not what it is taken for; the message names the first thing wrong with it."""


def parse(model: type[M], payload: Any) -> M:
    """Return a payload as the message it is meant to be.

    Raises:
        Malformed: It is none.
    """
    try:
        return model.model_validate(payload)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or model.__name__.lower()
        raise Malformed(f"{where}: {first['msg']}") from error
