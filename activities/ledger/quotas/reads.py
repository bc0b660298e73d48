"""A tenant's quotas as people look at them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.quotas.admission import open_runs, queued_runs
from surehand.activities.ledger.quotas.limits import Limits
from surehand.activities.ledger.quotas.requests import pending_requests
from surehand.activities.ledger.quotas.usage import LIMITED, Standing, standing, window_end
from surehand.workflows.contracts.values import Quota


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
    stands = standing(tx) or Standing(Limits(), 0, 0, 0)
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
