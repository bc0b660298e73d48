"""What a tenant uses by the hour and the day: looked at before a call, and counted.

Windows are fixed, by the database's clock: the clock hour for effects, the day of UTC for tokens
and money. Effects are counted in the transaction of their claim, under a lock: of any number at
once no more are claimed than may be. Tokens and money are known when a call ends: the call that
crosses the line ends, and the next one waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, Decimal
from typing import Any, Final, Literal

from sqlalchemy import BigInteger, BindParameter, Insert, ScalarSelect, bindparam, case
from sqlalchemy.dialects import postgresql, sqlite

from surehand.activities.ledger.core.prepared import PreparedStatement
from surehand.activities.ledger.core.statements import OF_TENANT, rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import quota_usage, quotas
from surehand.activities.ledger.quotas.limits import (
    Limits,
    OverQuota,
    QuotaUsedUp,
    limits_from,
    open_runs,
    pending_requests,
    queued_runs,
    take_turn,
)
from surehand.workflows.contracts.values import Quota, QuotaWait, Usage

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
#: Money is counted in these, rounded up: whole numbers add up exactly in both databases.
BILLIONTHS: Final = 10**9
#: What the column holds at most; there it stays.
_MOST: Final = 2**63 - 1
Kind = Literal["effects", "tokens", "money"]
LIMITED: Final[dict[Kind, Quota]] = {
    "effects": Quota.EFFECTS,
    "tokens": Quota.TOKENS,
    "money": Quota.MONEY,
}

_HOUR: Final[BindParameter[int]] = bindparam("of_hour")
_DAY: Final[BindParameter[int]] = bindparam("of_day")


def _used(kind: Kind, window: BindParameter[int]) -> ScalarSelect[int]:
    return rows_of(
        quota_usage, quota_usage.c.used, kind=kind, window_start_ms=window
    ).scalar_subquery()


_STANDS: Final = PreparedStatement(
    rows_of(
        quotas,
        *quotas.c,
        _used("effects", _HOUR).label("effects"),
        _used("tokens", _DAY).label("tokens"),
        _used("money", _DAY).label("money"),
    )
)


def _add(insert: postgresql.Insert | sqlite.Insert) -> Insert:
    used, more = quota_usage.c.used, insert.excluded.used
    added = insert.values(tenant_id=OF_TENANT).on_conflict_do_update(
        index_elements=list(quota_usage.primary_key),
        set_={"used": case((used > _MOST - more, _MOST), else_=used + more)},
        where=used < bindparam("most", type_=BigInteger),
    )
    return added.returning(used)


_ADD: Final = {
    "postgresql": _add(postgresql.insert(quota_usage)),
    "sqlite": _add(sqlite.insert(quota_usage)),
}


@dataclass(frozen=True)
class TenantUsage:
    """What a tenant may use, and what it has used in this hour and day."""

    limits: Limits
    effects: int
    tokens: int
    money: int
    """In billionths."""

    def used(self, kind: Kind) -> str:
        """Return it as people read it."""
        if kind != "money":
            return str(getattr(self, kind))
        return format((Decimal(self.money) / BILLIONTHS).normalize(), "f")


def standing(tx: Transaction) -> TenantUsage | None:
    """Return how the tenant's quotas stand; ``None``: it has none."""
    row = tx.one(_STANDS, of_hour=_start(tx, HOUR_MS), of_day=_start(tx, DAY_MS))
    if row is None:
        return None
    return TenantUsage(limits_from(row), row["effects"] or 0, row["tokens"] or 0, row["money"] or 0)


def window_end(now_ms: int, kind: Kind) -> datetime:
    """Return when the hour or the day ends in which something is counted."""
    length = _length_ms(kind)
    return datetime.fromtimestamp((now_ms - now_ms % length + length) / 1000, UTC)


@dataclass(frozen=True)
class Room:
    """That one effect more may be claimed; nobody else's is until the transaction ends."""

    limit: int | None

    def take(self, tx: Transaction) -> None:
        """Count the effect that is being claimed."""
        if self.limit is not None:
            counted = _count(tx, "effects", 1, most=self.limit)
            assert counted, "the tenant's turn is this transaction's"


def room_for_effect(tx: Transaction, limited: str | None) -> Room | OverQuota:
    """Return the room for one effect more, or the quota that it would be over.

    Args:
        limited: What of the tenant's calls is, as ``limits_calls`` has it.
    """
    if limited is None:
        return Room(None)
    if limited == "effects":
        take_turn(tx, Quota.EFFECTS)
    stands = standing(tx)
    if stands is None:
        return Room(None)
    limit = stands.limits.effects_per_hour
    if limit is not None and stands.effects >= limit:
        return _over(tx, stands, "effects", str(limit))
    # A limit that was set this very moment counts from the next claim on.
    return _spent(tx, stands) or Room(limit if limited == "effects" else None)


def require_unspent(tx: Transaction) -> None:
    """Make sure that a call may spend.

    Raises:
        QuotaUsedUp: The day's tokens or money are.
    """
    stands = standing(tx)
    found = None if stands is None else _spent(tx, stands)
    if found is not None:
        raise QuotaUsedUp(found)


def add_spent(tx: Transaction, usage: Usage) -> None:
    """Add what a call has used to the day's, where that is limited."""
    stands = standing(tx)
    if stands is None:
        return
    if usage.tokens and stands.limits.tokens_per_day is not None:
        _count(tx, "tokens", usage.tokens)
    money = (Decimal(usage.money) * BILLIONTHS).to_integral_value(ROUND_CEILING)
    if money and stands.limits.money_per_day is not None:
        _count(tx, "money", min(int(money), _MOST))


def _spent(tx: Transaction, stands: TenantUsage) -> OverQuota | None:
    limits = stands.limits
    if limits.tokens_per_day is not None and stands.tokens >= limits.tokens_per_day:
        return _over(tx, stands, "tokens", str(limits.tokens_per_day))
    money = limits.money_per_day
    if money is not None and stands.money >= Decimal(money) * BILLIONTHS:
        return _over(tx, stands, "money", money)
    return None


def _over(tx: Transaction, stands: TenantUsage, kind: Kind, limit: str) -> OverQuota:
    until = window_end(tx.now_ms, kind)
    wait = QuotaWait(
        quota=LIMITED[kind],
        used=stands.used(kind),
        limit=limit,
        until=until,
        pause=timedelta(milliseconds=int(until.timestamp() * 1000) - tx.now_ms),
    )
    return OverQuota(wait, stands.limits.over)


def _count(tx: Transaction, kind: Kind, more: int, *, most: int = _MOST) -> bool:
    start = _start(tx, _length_ms(kind))
    values: dict[str, Any] = {"kind": kind, "window_start_ms": start, "used": more}
    return tx.one(_ADD[tx.dialect], **values, most=most) is not None


def _length_ms(kind: Kind) -> int:
    return HOUR_MS if kind == "effects" else DAY_MS


def _start(tx: Transaction, length_ms: int) -> int:
    return tx.now_ms - tx.now_ms % length_ms


@dataclass(frozen=True)
class Use:
    """One quota, and what is used of it."""

    quota: Quota
    limit: str | None
    used: str | None
    """``None``: it is not limited, so nobody counts."""
    until: datetime | None
    """When it begins anew."""


@dataclass(frozen=True)
class Overview:
    """All quotas of a tenant."""

    limits: Limits
    uses: tuple[Use, ...]
    queued_runs: int


def overview(tx: Transaction) -> Overview:
    """Return how a tenant's quotas stand."""
    stands = standing(tx) or TenantUsage(Limits(), 0, 0, 0)
    limits = stands.limits
    now = {Quota.OPEN_RUNS: str(open_runs(tx)), Quota.APPROVALS: str(pending_requests(tx))}
    found = {quota: Use(quota, _limit(limits, quota), used, None) for quota, used in now.items()}
    for kind, quota in LIMITED.items():
        limit = _limit(limits, quota)
        counted = (
            (None, None) if limit is None else (stands.used(kind), window_end(tx.now_ms, kind))
        )
        found[quota] = Use(quota, limit, *counted)
    return Overview(limits, tuple(found[quota] for quota in Quota), queued_runs(tx))


def _limit(limits: Limits, quota: Quota) -> str | None:
    limit = getattr(limits, quota.value)
    return None if limit is None else str(limit)
