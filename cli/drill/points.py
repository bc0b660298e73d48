"""What a drill does to a run: the crash points, and the interruptions that it forces."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from activities.crashpoints import CrashPoint


class Interruption(StrEnum):
    """A way in which a run is made to wait at a step."""

    PAUSE = "pause"
    """It is paused right before the step's call, and resumed by another worker."""
    APPROVAL = "approval"
    """The call needs an approval, whatever its policies say; another worker makes it."""
    ASK = "ask"
    """A human is asked before the step, and answers to another worker."""
    PERMISSION_LOSS = "permission_loss"
    """The acting user loses the tool's permission between approval and call."""
    EXPIRY = "expiry"
    """An approval expires; the one that is asked for anew is given."""


class Beforehand(StrEnum):
    """What is done to the world outside before a run whose worker is killed."""

    ALREADY_TRUE = "already_true"
    """It is already as the call would leave it, and the worker dies between claim and call: the
    write must not be skipped in silence."""


Point = CrashPoint | Interruption | Beforehand
POINTS: Final[tuple[Point, ...]] = (*CrashPoint, *Interruption, *Beforehand)
