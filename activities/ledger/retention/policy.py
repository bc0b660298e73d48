"""What a tenant keeps and for how long, and the newest round that looked after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from surehand.activities.ledger.core.statements import rows_of, update_rows
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import retention_rounds
from surehand.activities.ledger.core.tenant_tables import KINDS
from surehand.workflows.plan.policy import parse_duration

#: In the place of a kind: how long what is hidden may be taken back.
GRACE: Final = "grace"
#: Where the setting does not say.
DEFAULT_GRACE: Final = timedelta(days=7)


@dataclass(frozen=True)
class Policy:
    """How long each kind is kept after its run has ended; what is not named stays."""

    kept: Mapping[str, timedelta] = field(default_factory=dict)
    grace: timedelta = DEFAULT_GRACE


def parse(text: str) -> Policy:
    """Return a setting such as ``runs=365d,outputs=90d,grace=7d`` as a policy.

    Raises:
        ValueError: It is none; the message says what is wrong, and with which part.
    """
    found = dict[str, timedelta]()
    for part in filter(None, map(str.strip, text.split(","))):
        kind, equals, value = (piece.strip() for piece in part.partition("="))
        if kind not in (*KINDS, GRACE) or not equals:
            raise ValueError(
                f"{part!r}: write KIND=DURATION, KIND one of {', '.join((*KINDS, GRACE))}"
            )
        if kind in found:
            raise ValueError(f"{kind} is there twice")
        duration = parse_duration(value)
        if not isinstance(duration, timedelta):
            raise ValueError(f"{part!r}: {value!r} is no duration such as 12h or 365d")
        found[kind] = duration
    grace = found.pop(GRACE, DEFAULT_GRACE)
    whole = found.get("runs")
    for kind, duration in found.items():
        if whole is not None and duration > whole:
            raise ValueError(f"{kind} cannot be kept for longer than runs, with which it goes")
    return Policy(found, grace)


@dataclass(frozen=True)
class LastRound:
    """What is known of a tenant's rounds."""

    age: timedelta | None
    """Since a round has done all that was to be done; ``None``: none has."""
    failed: bool
    """Whether the newest one has failed in part."""


def record_round(tx: Transaction, *, failed: bool) -> None:
    """Record that a round has come to its end, and whether something of it has failed."""
    ended = {"failed_ms" if failed else "whole_ms": tx.now_ms}
    if not tx.insert_new(retention_rounds, ended):
        tx.execute(update_rows(retention_rounds).values(ended))


def last_round(tx: Transaction) -> LastRound | None:
    """Return what is known of the tenant's rounds; ``None``: there was none."""
    row = tx.one(rows_of(retention_rounds))
    if row is None:
        return None
    whole_ms, failed_ms = row["whole_ms"], row["failed_ms"]
    return LastRound(
        age=None if whole_ms is None else timedelta(milliseconds=tx.now_ms - whole_ms),
        failed=failed_ms is not None and (whole_ms is None or failed_ms > whole_ms),
    )
