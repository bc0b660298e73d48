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


#: Deadline of a tool up to which its calls are local activities: whatever is sent to the run waits
#: until they have ended.
LONGEST_LOCAL: Final = timedelta(seconds=5)
