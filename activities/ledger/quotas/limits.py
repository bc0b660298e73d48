"""What a tenant may use: its row is an administrator's, and workers read it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from sqlalchemy import ScalarSelect, case, literal, or_

from surehand.activities.ledger.core.engine import lock_name
from surehand.activities.ledger.core.statements import insert_row, rows_of, update_rows
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import events, quotas
from surehand.workflows.contracts.values import Quota, QuotaWait

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
        tx: The transaction.
        set_by: Who does.
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
