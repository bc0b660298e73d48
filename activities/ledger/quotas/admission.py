"""The quota of open runs: a run that is over it is recorded, and waits for its turn.

First come, first served. A run asks for itself, so whoever is ahead and does not ask keeps its
turn: only as many of those that wait are let in as places are free for those at the front.

Child runs are admitted with their parent. A run that was admitted stays so, also where it is reset
after its end.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import and_, func, or_

from surehand.activities.ledger.core.statements import rows_of, update_rows
from surehand.activities.ledger.core.store import RunNotFound, Transaction
from surehand.activities.ledger.core.tables import runs
from surehand.activities.ledger.quotas.limits import (
    Limits,
    OverQuota,
    QuotaUsedUp,
    limits_of,
    take_turn,
)
from surehand.workflows.contracts.values import (
    LONGEST_LOOK,
    SHORTEST_LOOK,
    Quota,
    QuotaWait,
)

_OPEN: Final = rows_of(runs, func.count(), closed_ms=None, parent_run_id=None)
_ADMITTED: Final = _OPEN.where(runs.c.admitted_ms.is_not(None))
_QUEUED: Final = _OPEN.where(runs.c.admitted_ms.is_(None))


def open_runs(tx: Transaction) -> int:
    """Return how many runs of the tenant are open and admitted, without child runs."""
    return tx.count(_ADMITTED)


def queued_runs(tx: Transaction) -> int:
    """Return how many wait."""
    return tx.count(_QUEUED)


def at_opening(tx: Transaction, limits: Limits) -> int | None:
    """Return since when a run that is opened now is admitted; ``None``: it waits.

    Args:
        tx: The transaction.
        limits: What the tenant may use.

    Raises:
        QuotaUsedUp: There is no place, and what is over the quota does not wait.
    """
    if limits.open_runs is None:
        return tx.now_ms
    take_turn(tx, Quota.OPEN_RUNS)
    used, ahead = open_runs(tx), queued_runs(tx)
    if used + ahead < limits.open_runs:
        return tx.now_ms
    if limits.over == "reject":
        raise QuotaUsedUp(OverQuota(_wait(used, limits.open_runs, ahead), limits.over))
    return None


def admit(tx: Transaction, run_id: str) -> QuotaWait | None:
    """Admit a run if it is its turn; returns what it waits for, if it is not.

    Raises:
        RunNotFound: No such run in this tenant.
    """
    limits = limits_of(tx)
    if limits.open_runs is not None:
        take_turn(tx, Quota.OPEN_RUNS)
    row = tx.one(rows_of(runs, runs.c.opened_ms, runs.c.admitted_ms, run_id=run_id))
    if row is None:
        raise RunNotFound(run_id)
    if row["admitted_ms"] is not None:
        return None
    if limits.open_runs is not None:
        used, ahead = open_runs(tx), _ahead(tx, run_id, row["opened_ms"])
        if used + ahead >= limits.open_runs:
            return _wait(used, limits.open_runs, ahead)
    tx.execute(update_rows(runs, run_id=run_id, admitted_ms=None).values(admitted_ms=tx.now_ms))
    tx.event(run_id, "run.admitted", waited_ms=tx.now_ms - row["opened_ms"])
    return None


def queued(tx: Transaction, run_id: str) -> QuotaWait | None:
    """Return what a run waits for; ``None``: it is admitted."""
    row = tx.one(rows_of(runs, runs.c.opened_ms, runs.c.admitted_ms, run_id=run_id))
    if row is None or row["admitted_ms"] is not None:
        return None
    limit = limits_of(tx).open_runs or 0
    return _wait(open_runs(tx), limit, _ahead(tx, run_id, row["opened_ms"]))


def _ahead(tx: Transaction, run_id: str, opened_ms: int) -> int:
    before = or_(
        runs.c.opened_ms < opened_ms, and_(runs.c.opened_ms == opened_ms, runs.c.run_id < run_id)
    )
    return tx.count(_QUEUED.where(before))


def _wait(used: int, limit: int, ahead: int) -> QuotaWait:
    # As if the runs that are open now, and those ahead, took no longer than a look each.
    pause = min(SHORTEST_LOOK * (1 + ahead // max(limit, 1)), LONGEST_LOOK)
    return QuotaWait(
        quota=Quota.OPEN_RUNS, used=str(used), limit=str(limit), ahead=ahead, pause=pause
    )
