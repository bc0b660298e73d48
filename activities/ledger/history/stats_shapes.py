"""What ``starter.py stats`` tells, computed from the ledger. Add-only: scripts read it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from pydantic import BaseModel, ConfigDict


class Figures(BaseModel):
    """Base of the parts."""

    model_config = ConfigDict(frozen=True)


class Spread(Figures):
    """Percentiles of durations, in seconds."""

    count: int
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread | None:
        """Return the percentiles (nearest rank) of some durations; ``None`` if there are none."""
        if not seconds:
            return None
        ranked = sorted(seconds)
        at = [ranked[math.ceil(len(ranked) * share) - 1] for share in (0.50, 0.95, 0.99)]
        return cls(count=len(ranked), p50=at[0], p95=at[1], p99=at[2])


class Recoveries(Figures):
    """Effects whose outcome an attempt has left open."""

    begun: dict[str, int]
    """How they began: ``lease_over``, ``stale``, ``call_ended_without_an_outcome``,
    ``no_to_a_repeat``, ``restored``."""
    branches: dict[str, int]
    """What was done about them: ``rule: action``."""
    ended: int
    without_human: int
    by_human: int
    under_way: int
    """Now, whenever they began."""
    waiting_for_human: int
    """Of those under way."""
    success_rate: float | None
    """Those ended without a human, of all that have ended or wait for one."""
    human_takeover_rate: float | None
    """The others of these."""
    time: Spread | None
    """From the moment an attempt found the outcome missing; without a human."""
    time_by_human: Spread | None


class Duplicates(Figures):
    """What must never be, and what came close."""

    keys: int
    """Business keys with two committed effects that are not undone: must be 0."""
    late_receipts: int
    """Receipts of attempts that had been taken over: kept as evidence."""
    repeats_answered: int
    """Calls that were answered with the receipt of an effect made before."""


class Retried(Figures):
    """Failures of one class, of writes and reads."""

    failure_class: str
    failures: int
    retried: int
    mean_delay: float | None
    """Seconds before a retry."""
    calls: int
    """Effects and reads that were tried again."""
    succeeded: int
    """Those of them that have succeeded since."""
    success_rate: float | None


class Leases(Figures):
    """Leases on effects."""

    claims: int
    lost: int
    """Ran out before an outcome was recorded: another attempt, or the reaper, took over."""
    success_rate: float | None


class Compensations(Figures):
    """Effects of runs that were undone."""

    compensated: int
    uncompensated: int
    """Listed: kept, irreversible, or left so by a human."""
    failed: int
    """Put in front of a human."""


class Interventions(Figures):
    """Questions that only a human can settle."""

    opened: dict[str, int]
    """By rule: ``unknown``, ``partial``, ``compensation_failed``, ``undo_changed``."""
    settled: int
    open: int
    """Now, whenever they were opened."""


class Probe(Figures):
    """Write transactions that were made to measure them."""

    transactions: int
    failed: int
    success_rate: float
    latency: Spread | None


class BrokenRun(Figures):
    """A run whose records do not hold."""

    run_id: str
    first_break: str


class Invariants(Figures):
    """What ``audit`` finds in each run."""

    runs: int
    ok: int
    broken: list[BrokenRun]


class Stats(Figures):
    """``stats``."""

    tenant: str
    run_id: str | None
    since: datetime
    recoveries: Recoveries
    duplicates: Duplicates
    retries: list[Retried]
    leases: Leases
    compensations: Compensations
    interventions: Interventions
    epoch: int | None
    """The epoch that is open: the ledger was restored."""
    checkpoint: Probe | None
    """With ``--probe``."""
    invariants: Invariants
    only_in_metrics: list[str]
    """What the ledger does not record."""


def rate(part: int, whole: int) -> float | None:
    """Return a share, or ``None`` of nothing."""
    return part / whole if whole else None
