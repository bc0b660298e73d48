"""What tools and their lookups answer, and how an effect is undone: values of the user's API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pydantic import JsonValue

from activities.outputs import clean_text


@dataclass(frozen=True)
class No:
    """The tool's answer is no (not found, already shipped): a value, never retried."""

    reason: str
    code: str = "no"

    def cleaned(self) -> No:
        """Return the answer as ledger and history can carry it, whatever the tool has put in."""
        return No(clean_text(str(self.reason))[:2000], clean_text(str(self.code))[:80])


@dataclass(frozen=True)
class Dedupes:
    """The provider honours our key."""

    window: timedelta
    """For how long after the first call; later only a lookup or a human can tell."""


@dataclass(frozen=True)
class Undo:
    """How an effect is undone: another tool, with params made from the call and its receipt."""

    tool: str
    params: Callable[[dict[str, Any], Any], Mapping[str, Any]]
    """``(params, receipt) -> params of the undoing tool``, all in JSON form."""


@dataclass(frozen=True)
class Found:
    """Lookup: the effect happened; ``receipt`` is what the call would have returned."""

    receipt: JsonValue


@dataclass(frozen=True)
class NotFound:
    """Lookup: there is no such effect (yet)."""


@dataclass(frozen=True)
class Partial:
    """Lookup: the effect happened in part."""

    details: str
    receipt: JsonValue = None
    """What the part would have returned; a compensation that a human asks for is given it."""


@dataclass(frozen=True)
class Unknown:
    """Lookup: the outside system cannot tell."""

    reason: str


#: A ``No``: the outside system was asked, and has refused.
LookupAnswer = Found | NotFound | Partial | Unknown | No
