"""Names that are an API: workflows, their handlers, types of errors, tools.

Recorded histories contain them.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from enum import StrEnum
from typing import Final

WORKFLOW: Final = "AgentRun"
MODEL_RUN: Final = "ModelRun"
PING: Final = "Ping"
RECONCILE: Final = "Reconcile"
UNWIND: Final = "Unwind"
#: Workflows of ours that are no runs. Any other may be one: users have workflows of their own.
NO_RUNS: Final = frozenset({PING, RECONCILE, UNWIND})

#: In lines that are shown to be pasted: for the reader to replace.
YOUR_NAME: Final = "YOUR-NAME"

#: Signals between a run and its child runs. What people send is ``contracts.Verb``.
CHILD: Final = "child"
FORWARDED: Final = "forwarded"

#: Queries.
VIEW: Final = "view"
CHECKPOINT: Final = "checkpoint"


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
    """The tool failed finally, and its effect is proven not applied (or it is a read)."""
    NOT_AS_REVIEWED = "NotAsReviewed"
    """The server's tool is not as it was reviewed; nothing was called, and a human has to look."""
    STEP_BARRED = "StepBarred"
    """The step was undone already; a late attempt must not apply it."""
    CALLED_OFF = "CalledOff"
    """A human has said that it did not happen, and must not be tried again."""
    HALTED = "Halted"
    """Somebody has halted calls; the attempt comes again once nothing covers it."""
    LIMIT_EXCEEDED = "LimitExceeded"
    """The call would be over a limit, and nobody may let it through; nothing was called."""
    QUOTA_EXCEEDED = "QuotaExceeded"
    """The tenant has used up a quota, and what is over it is rejected; nothing was called."""
    PLAN_INVALID = "PlanInvalid"
    """The plan does not fit the tools that are loaded."""
    RUN_ID_TAKEN = "RunIdTaken"
    """A run of this id was recorded before; ids are never reused."""
    RUN_ID_INVALID = "RunIdInvalid"
    """The Workflow Id does not carry the run's tenant."""
    TENANT_ELSEWHERE = "TenantElsewhere"
    """The tenant belongs to another cell, so its run does not begin here."""
    START_REFUSED = "StartRefused"
    """Nothing proves who has started the run, or nobody can have."""
    RUN_NOT_FOUND = "RunNotFound"
    """The ledger has no such run in this tenant."""
    RUN_STILL_OPEN = "RunStillOpen"
    """`unwind` undoes only runs that were stopped from outside."""
    LEDGER_LOST = "LedgerLost"
    """The ledger does not know this run any more: its database was replaced or emptied."""
    RUN_ENDED = "RunEnded"
    """The run has ended by itself, and has undone what it had to."""
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
    """The artifact store does not answer, or returns other content than was stored."""
    RESOURCE_BUSY = "ResourceBusy"
    """Another call holds a resource that this one names: wait for it."""
    WORKER_DIED = "WorkerDied"
    """Another worker has noticed that the attempt's worker is dead: it is tried again at once."""
    SETTLING = "Settling"
    """A lookup found nothing, but the first call may still arrive: wait and look again."""


#: Failures that only mean waiting: nobody has to look at them.
WAITS: Final = frozenset({ErrorType.LEASE_HELD, ErrorType.SETTLING, ErrorType.HALTED})

#: Pause before the next attempt after a failure that does not say itself how long to wait.
PAUSES: Final = {
    ErrorType.LEASE_HELD: timedelta(seconds=1),
    ErrorType.RESOURCE_BUSY: timedelta(seconds=1),
    ErrorType.TRANSIENT: timedelta(seconds=2),
    ErrorType.ARTIFACT_UNAVAILABLE: timedelta(seconds=5),
}

#: Failures that the same activity may heal when it is tried again; others Temporal must not retry.
_RETRYABLE: Final = WAITS | {
    ErrorType.TRANSIENT,
    ErrorType.DEPENDENCY_DOWN,
    ErrorType.RATE_LIMITED,
    ErrorType.IN_DOUBT,
    ErrorType.ARTIFACT_UNAVAILABLE,
    ErrorType.RESOURCE_BUSY,
    ErrorType.WORKER_DIED,
}
NON_RETRYABLE: Final = frozenset(ErrorType) - _RETRYABLE

_LONGEST: Final = 64
_REFUSED: Final = re.compile(r"[^a-zA-Z0-9_-]")


def provider_names(tools: Iterable[str]) -> dict[str, str]:
    """Return the name that each tool has for a provider: ``payments_refund``, by the tool's own.

    No two tools get the same, so the reverse leads back. It depends on the set of tools alone. A
    tool whose own name will do keeps it. Of others that would be the same, or too long, the name
    ends with some digits of a digest.

    Args:
        tools: All tools that one model is told of.

    Example:
        >>> names = provider_names(["payments.refund", "orders.read", "orders_read"])
        >>> names["payments.refund"], names["orders_read"]
        ('payments_refund', 'orders_read')
        >>> {theirs: tool for tool, theirs in names.items()}["payments_refund"]
        'payments.refund'
    """
    wanted = {tool: _REFUSED.sub("_", tool) for tool in sorted(set(tools))}
    shared = Counter(wanted.values())
    kept = {
        tool: plain
        for tool, plain in wanted.items()
        if 0 < len(plain) <= _LONGEST and (tool == plain or shared[plain] == 1)
    }
    taken = set(kept.values())
    for tool, plain in wanted.items():
        if tool not in kept:
            kept[tool] = _make_unique(tool, plain, taken)
            taken.add(kept[tool])
    return kept


def _make_unique(tool: str, plain: str, taken: set[str]) -> str:
    digest = hashlib.sha256(tool.encode()).hexdigest()
    made = (f"{plain[: _LONGEST - 1 - digits]}_{digest[:digits]}" for digits in range(8, _LONGEST))
    return next(name for name in made if name not in taken)
