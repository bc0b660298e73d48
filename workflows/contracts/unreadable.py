"""What stands for a payload that cannot be read where it has arrived."""

from __future__ import annotations

from typing import Any, Final

from pydantic import ValidationError

from surehand.workflows.contracts.base import Message

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
