"""What a tenant may use, and what it uses: looked at before a call, and counted.

The quotas' row is an administrator's, and workers read it. Windows are fixed, by the database's
clock: the clock hour for effects, the day of UTC for tokens and money. Effects are counted in the
transaction of their claim, under a lock: of any number at once no more are claimed than may be.
Tokens and money are known when a call ends: the call that crosses the line ends, and the next one
waits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, Decimal
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict
from sqlalchemy import (
    BigInteger,
    BindParameter,
    ScalarSelect,
    and_,
    bindparam,
    case,
    func,
    literal,
    or_,
)

from surehand.activities.ledger.core.statements import (
    OfRow,
    PreparedStatement,
    rows_of,
    update_rows,
    upsert_row,
)
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import approvals, quota_usage, quotas, runs
from surehand.workflows.contracts.base import LONGEST_LOOK, SHORTEST_LOOK, Quota, QuotaWait, Usage

Over = Literal["queue", "reject"]


@dataclass(frozen=True)
class Limits(OfRow):
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
        told = tx.list_told(run_id, step_id, "quota.exceeded")
        earlier = [(body["quota"], body["over"], body.get("until")) for body in told]
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


def read_limits(tx: Transaction) -> Limits:
    row = tx.one(rows_of(quotas))
    return Limits() if row is None else Limits.from_row(row)


def select_limited() -> ScalarSelect[str]:
    """Return the query of what of the tenant's calls is limited.

    ``effects``: how many begin, and maybe what they spend; ``spending``: that alone; NULL: nothing.
    """
    spending = or_(quotas.c.tokens_per_day.is_not(None), quotas.c.money_per_day.is_not(None))
    effects = quotas.c.effects_per_hour.is_not(None)
    return rows_of(
        quotas, case((effects, literal("effects")), (spending, literal("spending")))
    ).scalar_subquery()


def change_limits(tx: Transaction, set_by: str, **changes: Any) -> None:
    """Change some of what the tenant may use; only the role that owns the tables may."""
    # Before it is read: of two changes at once none is lost.
    tx.take_turn("quotas")
    limits = replace(read_limits(tx), **changes, set_by=set_by, set_ms=tx.now_ms)
    if not tx.execute(update_rows(quotas).values(vars(limits))):
        tx.insert_row(quotas, **vars(limits))


def take_turn(tx: Transaction, quota: Quota) -> None:
    """Let uses of one quota follow one another, and read the clock once it is our turn.

    It is not a row's lock: workers may not change the tenant's row, and PostgreSQL lets nobody
    lock what they may not change. Taken after a call's own locks, and before any chain.
    """
    tx.take_turn("quota", quota)


_PENDING: Final = rows_of(approvals, func.count(), state="pending")


def count_pending_requests(tx: Transaction) -> int:
    """Return how many requests of the tenant wait."""
    return tx.count(_PENDING)


def require_place(tx: Transaction) -> None:
    """Make sure that a request which was just written may wait beside the others.

    Of several at once the last one to get the tenant's turn sees all others. If it may not
    (``QuotaUsedUp``), nothing of the request is to be left.
    """
    limits = read_limits(tx)
    limit = limits.pending_approvals
    if limit is None:
        return
    take_turn(tx, Quota.APPROVALS)
    others = count_pending_requests(tx) - 1
    if others < limit:
        return
    wait = QuotaWait(quota=Quota.APPROVALS, used=str(others), limit=str(limit), pause=LONGEST_LOOK)
    raise QuotaUsedUp(OverQuota(wait, limits.over))


_OPEN: Final = rows_of(runs, func.count(), closed_ms=None, parent_run_id=None)
_ADMITTED: Final = _OPEN.where(runs.c.admitted_ms.is_not(None))
_QUEUED: Final = _OPEN.where(runs.c.admitted_ms.is_(None))


def count_open_runs(tx: Transaction) -> int:
    """Return how many runs of the tenant are open and admitted, without child runs."""
    return tx.count(_ADMITTED)


def count_queued_runs(tx: Transaction) -> int:
    return tx.count(_QUEUED)


def admit_at_opening(tx: Transaction, limits: Limits) -> int | None:
    """Return since when a run that is opened now is admitted; ``None``: it waits.

    It raises ``QuotaUsedUp`` if what is over the quota does not wait.
    """
    if limits.open_runs is None:
        return tx.now_ms
    take_turn(tx, Quota.OPEN_RUNS)
    used, ahead = count_open_runs(tx), count_queued_runs(tx)
    if used + ahead < limits.open_runs:
        return tx.now_ms
    if limits.over == "reject":
        raise QuotaUsedUp(OverQuota(_wait_for_place(used, limits.open_runs, ahead), limits.over))
    return None


def admit_run(tx: Transaction, run_id: str) -> QuotaWait | None:
    """Admit a run if it is its turn; returns what it waits for, if it is not."""
    limits = read_limits(tx)
    if limits.open_runs is not None:
        take_turn(tx, Quota.OPEN_RUNS)
    row = tx.read_run(run_id, "opened_ms", "admitted_ms")
    if row["admitted_ms"] is not None:
        return None
    if limits.open_runs is not None:
        used, ahead = count_open_runs(tx), _count_ahead(tx, run_id, row["opened_ms"])
        if used + ahead >= limits.open_runs:
            return _wait_for_place(used, limits.open_runs, ahead)
    tx.execute(update_rows(runs, run_id=run_id, admitted_ms=None).values(admitted_ms=tx.now_ms))
    tx.event(run_id, "run.admitted", waited_ms=tx.now_ms - row["opened_ms"])
    return None


def find_queue_wait(tx: Transaction, run_id: str) -> QuotaWait | None:
    """Return what a run waits for; ``None``: it is admitted."""
    row = tx.one(rows_of(runs, "opened_ms", "admitted_ms", run_id=run_id))
    if row is None or row["admitted_ms"] is not None:
        return None
    limit = read_limits(tx).open_runs or 0
    return _wait_for_place(count_open_runs(tx), limit, _count_ahead(tx, run_id, row["opened_ms"]))


def _count_ahead(tx: Transaction, run_id: str, opened_ms: int) -> int:
    before = or_(
        runs.c.opened_ms < opened_ms, and_(runs.c.opened_ms == opened_ms, runs.c.run_id < run_id)
    )
    return tx.count(_QUEUED.where(before))


def _wait_for_place(used: int, limit: int, ahead: int) -> QuotaWait:
    # As if the runs that are open now, and those ahead, took no longer than a look each.
    pause = min(SHORTEST_LOOK * (1 + ahead // max(limit, 1)), LONGEST_LOOK)
    return QuotaWait(
        quota=Quota.OPEN_RUNS, used=str(used), limit=str(limit), ahead=ahead, pause=pause
    )


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


def _select_used(kind: Kind, window: BindParameter[int]) -> ScalarSelect[int]:
    return rows_of(quota_usage, "used", kind=kind, window_start_ms=window).scalar_subquery()


_STANDS: Final = PreparedStatement(
    rows_of(
        quotas,
        *quotas.c,
        _select_used("effects", _HOUR).label("effects"),
        _select_used("tokens", _DAY).label("tokens"),
        _select_used("money", _DAY).label("money"),
    )
)


def _add_used(more: Any) -> dict[str, Any]:
    used = quota_usage.c.used
    return {"used": case((used > _MOST - more.used, _MOST), else_=used + more.used)}


_ROOM_LEFT: Final = quota_usage.c.used < bindparam("most", type_=BigInteger)
_COUNTED: Final = ("kind", "window_start_ms", "used")
_ADD: Final = upsert_row(quota_usage, _add_used, _COUNTED, where=_ROOM_LEFT)


@dataclass(frozen=True)
class TenantUsage:
    """What a tenant may use, and what it has used in this hour and day."""

    limits: Limits
    effects: int
    tokens: int
    money: int
    """In billionths."""

    def used(self, kind: Kind) -> str:
        if kind != "money":
            return str(getattr(self, kind))
        return format((Decimal(self.money) / BILLIONTHS).normalize(), "f")


def read_usage(tx: Transaction) -> TenantUsage | None:
    """Return how the tenant's quotas stand; ``None``: it has none."""
    row = tx.one(_STANDS, of_hour=_window_start(tx, HOUR_MS), of_day=_window_start(tx, DAY_MS))
    if row is None:
        return None
    return TenantUsage(Limits.from_row(row), *(row[kind] or 0 for kind in LIMITED))


def window_end(now_ms: int, kind: Kind) -> datetime:
    """Return when the hour or the day ends in which something is counted."""
    length = _length_ms(kind)
    return datetime.fromtimestamp((now_ms - now_ms % length + length) / 1000, UTC)


@dataclass(frozen=True)
class EffectRoom:
    """That one effect more may be claimed; nobody else's is until the transaction ends."""

    limit: int | None

    def take(self, tx: Transaction) -> None:
        """Count the effect that is being claimed."""
        if self.limit is not None:
            counted = _count(tx, "effects", 1, most=self.limit)
            assert counted, "the tenant's turn is this transaction's"


def find_room(tx: Transaction, limited: str | None) -> EffectRoom | OverQuota:
    """Return the room for one effect more, or the quota that it would be over."""
    if limited is None:
        return EffectRoom(None)
    if limited == "effects":
        take_turn(tx, Quota.EFFECTS)
    stands = read_usage(tx)
    if stands is None:
        return EffectRoom(None)
    limit = stands.limits.effects_per_hour
    if limit is not None and stands.effects >= limit:
        return _tell_over(tx, stands, "effects", str(limit))
    # A limit that was set this very moment counts from the next claim on.
    return _find_spent(tx, stands) or EffectRoom(limit if limited == "effects" else None)


def require_unspent(tx: Transaction) -> None:
    """Make sure that a call may spend."""
    stands = read_usage(tx)
    found = None if stands is None else _find_spent(tx, stands)
    if found is not None:
        raise QuotaUsedUp(found)


def add_spent(tx: Transaction, usage: Usage) -> None:
    """Add what a call has used to the day's, where that is limited."""
    stands = read_usage(tx)
    if stands is None:
        return
    if usage.tokens and stands.limits.tokens_per_day is not None:
        _count(tx, "tokens", usage.tokens)
    money = (Decimal(usage.money) * BILLIONTHS).to_integral_value(ROUND_CEILING)
    if money and stands.limits.money_per_day is not None:
        _count(tx, "money", min(int(money), _MOST))


def _find_spent(tx: Transaction, stands: TenantUsage) -> OverQuota | None:
    limits = stands.limits
    if limits.tokens_per_day is not None and stands.tokens >= limits.tokens_per_day:
        return _tell_over(tx, stands, "tokens", str(limits.tokens_per_day))
    money = limits.money_per_day
    if money is not None and stands.money >= Decimal(money) * BILLIONTHS:
        return _tell_over(tx, stands, "money", money)
    return None


def _tell_over(tx: Transaction, stands: TenantUsage, kind: Kind, limit: str) -> OverQuota:
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
    start = _window_start(tx, _length_ms(kind))
    values: dict[str, Any] = {"kind": kind, "window_start_ms": start, "used": more}
    return tx.execute(_ADD, **values, most=most) == 1


def _length_ms(kind: Kind) -> int:
    return HOUR_MS if kind == "effects" else DAY_MS


def _window_start(tx: Transaction, length_ms: int) -> int:
    return tx.now_ms - tx.now_ms % length_ms


@dataclass(frozen=True)
class QuotaUse:
    """One quota, and what is used of it."""

    quota: Quota
    limit: str | None
    used: str | None
    """``None``: it is not limited, so nobody counts."""
    until: datetime | None
    """When it starts again."""


class TenantQuotas(BaseModel):
    """What a tenant may use, and has used."""

    model_config = ConfigDict(frozen=True)

    tenant: str
    limits: Limits
    uses: list[QuotaUse]
    queued_runs: int
    """How many runs wait for the quota of open runs."""


def read_quotas(tx: Transaction) -> TenantQuotas:
    stands = read_usage(tx) or TenantUsage(Limits(), 0, 0, 0)
    limits = stands.limits
    limit = {
        quota: None if (most := getattr(limits, quota.value)) is None else str(most)
        for quota in Quota
    }
    counted: dict[Quota, tuple[str, datetime | None]] = {
        Quota.OPEN_RUNS: (str(count_open_runs(tx)), None),
        Quota.APPROVALS: (str(count_pending_requests(tx)), None),
    }
    counted |= {
        quota: (stands.used(kind), window_end(tx.now_ms, kind))
        for kind, quota in LIMITED.items()
        if limit[quota] is not None
    }
    return TenantQuotas(
        tenant=tx.tenant,
        limits=limits,
        uses=[QuotaUse(one, limit[one], *counted.get(one, (None, None))) for one in Quota],
        queued_runs=count_queued_runs(tx),
    )
