"""What a drill does to a run: crash points, forced waits, and what operators do."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from surehand.activities.worker.crash_points import CrashPoint


class ForcedWait(StrEnum):
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


class Operation(StrEnum):
    """What an operator does to a run, or to its workers."""

    RESET = "reset"
    """Behind the step, Temporal begins the run anew at its first workflow task."""
    RESET_STEP = "reset_step"
    """From its end, it begins anew right before the step's call, or the start of its child run."""
    RESET_KILLED = "reset_killed"
    """Its worker is killed in the middle of its calls, and it is reset before another goes on."""
    TERMINATE = "terminate"
    """Behind the step it is terminated, and unwound from outside."""
    DEPLOY = "deploy"
    """Its worker is killed in the call; the next one has shorter timeouts and a shorter lease."""
    FREEZE = "freeze"
    """Its worker is frozen in the call (SIGSTOP), and goes on when another one has done all."""

    @property
    def crash_point(self) -> CrashPoint | None:
        """Return where the worker is killed or frozen; ``None``: the run waits behind the step."""
        match self:
            case Operation.RESET_KILLED:
                return CrashPoint.AFTER_OUTCOME
            case Operation.DEPLOY | Operation.FREEZE:
                return CrashPoint.DURING_CALL
        return None


class Halt(StrEnum):
    """Where an undisturbed run is left waiting: a run that needs a human is compared with it."""

    BEFORE = "before"
    AFTER = "after"
    BEFORE_ALREADY_TRUE = "before_already_true"
    """Before the call, in a world that is already as the call would leave it."""


Point = CrashPoint | ForcedWait | Beforehand | Operation | Halt
#: What is drilled.
POINTS: Final[tuple[Point, ...]] = (*CrashPoint, *ForcedWait, *Beforehand, *Operation)
