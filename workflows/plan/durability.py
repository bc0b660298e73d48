"""Durability modes: how often a run's progress is written to history.

The ledger is written at every step in all of them, and the guarantees are the same.
"""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Final


class Durability(StrEnum):
    """When the outcome of a step is written to history.

    Example:
        >>> Plan(steps=[{"id": "order", "tool": "orders.read"}], durability="exit").durability
        <Durability.EXIT: 'exit'>
    """

    SYNC = "sync"
    """At once: each tool call is an activity, with a row of its own in the Web UI."""
    ASYNC = "async"
    """Where the run waits for something else: short calls are local activities."""
    EXIT = "exit"
    """At the end of a batch: steps with no human between them run in one activity."""

    @property
    def calls_here(self) -> bool:
        """Whether the worker that has the run makes its short calls, as local activities."""
        match self:
            case Durability.SYNC:
                return False
            case Durability.ASYNC | Durability.EXIT:
                return True

    @property
    def in_batches(self) -> bool:
        """Whether calls with no human between them run in one activity."""
        match self:
            case Durability.SYNC | Durability.ASYNC:
                return False
            case Durability.EXIT:
                return True


#: Deadline of a tool up to which its calls are local activities: whatever is sent to the run waits
#: until they have ended.
LONGEST_LOCAL: Final = timedelta(seconds=5)
