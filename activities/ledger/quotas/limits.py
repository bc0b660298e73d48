"""What a tenant may use: its row is an administrator's, and workers read it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal

from sqlalchemy import ScalarSelect, and_, case, func, literal, or_

from surehand.activities.ledger.core.engine import lock_name
from surehand.activities.ledger.core.statements import insert_row, rows_of, update_rows
from surehand.activities.ledger.core.store import RunNotFound, Transaction
from surehand.activities.ledger.core.tables import approvals, events, quotas, runs
from surehand.workflows.contracts.values import (
    LONGEST_LOOK,
    SHORTEST_LOOK,
    Quota,
    QuotaWait,
)

Over = Literal["queue", "reject"]


@dataclass(frozen=True)
class Limits:
    """The quotas of a tenant; without a row it has none."""

    open_runs: int | None = None
    effects_per_hour: int | None = None
    pending_approvals: int | None = None
    tokens_per_day: int | None = None
    money_per_day: str | None = None
    """A decimal as text."""
    over: Over = "queue"
    weight: float = 1.0
    set_by: str | None = None
    """``None``: nobody has set any."""
    set_ms: int | None = None


@dataclass(frozen=True)
class OverQuota:
    """A quota of the tenant is used up; nothing was done."""

    wait: QuotaWait
    over: Over

    def note(self, tx: Transaction, run_id: str, step_id: str | None) -> None:
        """Write that a quota holds up a step, or a run: once for each hour or day.

        It is looked at often, and a chain that grew with each look would tell nothing more.
        """
        wait, over = self.wait, self.over
        quota = wait.quota.value
        until = None if wait.until is None else wait.until.isoformat()
        told = tx.all(
            rows_of(events, events.c.body, run_id=run_id, step_id=step_id, type="quota.exceeded")
        )
        earlier = [(e["body"]["quota"], e["body"]["over"], e["body"].get("until")) for e in told]
        if (quota, over, until) in earlier:
            return
        tx.event(
            run_id,
            "quota.exceeded",
            step_id=step_id,
            quota=quota,
            used=wait.used,
            limit=wait.limit,
            until=until,
            over=over,
        )


class QuotaUsedUp(Exception):
    """What was to be written is over a quota: its transaction is rolled back."""

    def __init__(self, found: OverQuota) -> None:
        super().__init__(found.wait.text)
        self.found = found


def limits_of(tx: Transaction) -> Limits:
    """Return what the tenant may use now."""
    row = tx.one(rows_of(quotas))
    return Limits() if row is None else limits_from(row)


def limits_from(row: dict[str, Any]) -> Limits:
    """Return what a row says."""
    return Limits(**{field.name: row[field.name] for field in fields(Limits)})


def limits_calls() -> ScalarSelect[str]:
    """Return the query of what of the tenant's calls is limited.

    ``effects``: how many begin, and maybe what they spend; ``spending``: that alone; NULL: nothing.
    """
    spending = or_(quotas.c.tokens_per_day.is_not(None), quotas.c.money_per_day.is_not(None))
    effects = quotas.c.effects_per_hour.is_not(None)
    return rows_of(
        quotas, case((effects, literal("effects")), (spending, literal("spending")))
    ).scalar_subquery()


def change_limits(tx: Transaction, set_by: str, **changes: Any) -> None:
    """Change some of what the tenant may use; only the role that owns the tables may.

    Args:
        changes: By the names of ``Limits``.
    """
    # Before it is read: of two changes at once none is lost.
    now_ms = lock_name(tx.connection, f"quotas:{tx.tenant}")
    limits = replace(limits_of(tx), **changes, set_by=set_by, set_ms=max(tx.now_ms, now_ms))
    values = {field.name: getattr(limits, field.name) for field in fields(Limits)}
    if not tx.execute(update_rows(quotas).values(values)):
        tx.execute(insert_row(quotas, **values))


def take_turn(tx: Transaction, quota: Quota) -> None:
    """Let uses of one quota follow one another, and read the clock once it is our turn.

    It is not a row's lock: workers may not change the tenant's row, and PostgreSQL lets nobody
    lock what they may not change. Taken after a call's own locks, and before any chain.
    """
    now_ms = lock_name(tx.connection, f"quota:{tx.tenant}:{quota}")
    tx.now_ms = max(tx.now_ms, now_ms)


_PENDING: Final = rows_of(approvals, func.count(), state="pending")


def pending_requests(tx: Transaction) -> int:
    """Return how many requests of the tenant wait."""
    return tx.count(_PENDING)


def require_place(tx: Transaction) -> None:
    """Make sure that a request which was just written may wait beside the others.

    Of several at once the last one to get the tenant's turn sees all others.

    Raises:
        QuotaUsedUp: It may not; nothing of the request is to be left.
    """
    limits = limits_of(tx)
    limit = limits.pending_approvals
    if limit is None:
        return
    take_turn(tx, Quota.APPROVALS)
    others = pending_requests(tx) - 1
    if others < limit:
        return
    wait = QuotaWait(quota=Quota.APPROVALS, used=str(others), limit=str(limit), pause=LONGEST_LOOK)
    raise QuotaUsedUp(OverQuota(wait, limits.over))


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
