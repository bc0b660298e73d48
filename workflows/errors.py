"""Wire error types: the names under which failures cross from activities to workflows.

A name listed here is an API: recorded histories contain it. ``NON_RETRYABLE`` says which of them
Temporal must not retry by itself; the others carry their own next retry delay.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class ErrorType(StrEnum):
    """``type`` of the ``ApplicationError`` that an activity raises."""

    PARAMS_MISMATCH = "ParamsMismatch"
    """The key is taken by a call with other params, or the params are not the approved ones."""

    INVALID_PARAMS = "InvalidParams"
    """The tool's own model refuses the params."""

    TOOL_NOT_FOUND = "ToolNotFound"
    """No tool of that name is loaded in this worker."""

    TOOL_CHANGED = "ToolChanged"
    """The tool's version or schema is not the one recorded when the run started."""

    TOOL_FAILED = "ToolFailed"
    """The tool failed for good and its effect is proven not applied (or it is a read)."""

    NOT_AS_REVIEWED = "NotAsReviewed"
    """The server's tool is not as it was reviewed; nothing was called, and a human has to look."""

    STEP_BARRED = "StepBarred"
    """The step was undone already; a late attempt must not apply it."""

    CALLED_OFF = "CalledOff"
    """A human has said that it did not happen, and is not to be tried again."""

    QUOTA_EXCEEDED = "QuotaExceeded"
    """The tenant has used up a quota, and what is over it is rejected; nothing was called."""

    PLAN_INVALID = "PlanInvalid"
    """The plan does not fit the tools that are loaded."""

    RUN_ID_TAKEN = "RunIdTaken"
    """A run of this id was recorded before; ids are never reused."""

    RUN_ID_INVALID = "RunIdInvalid"
    """The Workflow Id does not carry the run's tenant."""

    TENANT_ELSEWHERE = "TenantElsewhere"
    """The tenant is of another cell: nothing of its run begins here."""

    START_REFUSED = "StartRefused"
    """Nothing proves who has started the run, or nobody can have."""

    RUN_NOT_FOUND = "RunNotFound"
    """The ledger has no such run in this tenant."""

    RUN_STILL_OPEN = "RunStillOpen"
    """Only a run that was stopped from outside is unwound from outside."""

    LEDGER_LOST = "LedgerLost"
    """The ledger does not know this run any more: its database was replaced or emptied."""
    RUN_ENDED = "RunEnded"
    """The run has ended by itself: what was to be undone, it has undone."""

    RUN_FAILED = "RunFailed"
    """The run ended in state ``failed``; details carry its ``RunResult``."""

    TRANSIENT = "Transient"
    """It may work in a moment; the effect was not applied."""
    DEPENDENCY_DOWN = "DependencyDown"
    """The outside system cannot be reached; the effect was not applied."""
    RATE_LIMITED = "RateLimited"
    """Too many calls; the effect was not applied."""
    IN_DOUBT = "InDoubt"
    """The call ended without saying whether it happened: reconciled by the next attempt."""

    LEASE_HELD = "LeaseHeld"
    """Another attempt holds the entry's lease: wait for it."""

    ARTIFACT_UNAVAILABLE = "ArtifactUnavailable"
    """The artifact store does not answer, or not with what was kept there."""

    RESOURCE_BUSY = "ResourceBusy"
    """Another call holds a resource that this one names: wait for it."""

    WORKER_DIED = "WorkerDied"
    """Another worker has noticed that the attempt's worker is dead: it is tried again at once."""

    SETTLING = "Settling"
    """A lookup found nothing, but the first call may still arrive: wait and look again."""

    @classmethod
    def for_failure(cls, failure_class: str) -> ErrorType:
        """Return the type of a retryable failure class: ``rate_limited`` -> ``RateLimited``."""
        return cls("".join(word.capitalize() for word in failure_class.split("_")))


#: Failures that only mean waiting: nobody has to look at them.
WAITS: Final = frozenset({ErrorType.LEASE_HELD, ErrorType.SETTLING})

#: Failures that repeating the same activity cannot heal.
NON_RETRYABLE: Final = frozenset(
    {
        ErrorType.PARAMS_MISMATCH,
        ErrorType.INVALID_PARAMS,
        ErrorType.TOOL_NOT_FOUND,
        ErrorType.TOOL_CHANGED,
        ErrorType.TOOL_FAILED,
        ErrorType.NOT_AS_REVIEWED,
        ErrorType.STEP_BARRED,
        ErrorType.CALLED_OFF,
        ErrorType.QUOTA_EXCEEDED,
        ErrorType.PLAN_INVALID,
        ErrorType.RUN_ID_TAKEN,
        ErrorType.RUN_ID_INVALID,
        ErrorType.TENANT_ELSEWHERE,
        ErrorType.START_REFUSED,
        ErrorType.LEDGER_LOST,
        ErrorType.RUN_FAILED,
        ErrorType.RUN_NOT_FOUND,
        ErrorType.RUN_STILL_OPEN,
        ErrorType.RUN_ENDED,
    }
)
