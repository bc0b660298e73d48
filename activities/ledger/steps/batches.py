"""Who may claim and read in a batch: the attempt that began last, unless it is revoked.

A run has one batch at a time. Whoever runs it makes it its own first, so that a worker that is
cut off from Temporal, and goes on with it or with an earlier one, does nothing more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from sqlalchemy import ColumnElement, Exists

from surehand.activities.ledger.core.statements import rows_of, update_rows
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import runs
from surehand.activities.ledger.steps.bars import bar_name, is_barred
from surehand.workflows.contracts.batches import batch_name


@dataclass(frozen=True)
class Holding:
    """One attempt of the activity that runs a batch."""

    scheduled_ms: int
    """When Temporal scheduled the attempt, by its own clock."""
    execution: str
    """Temporal's Run Id of the workflow."""
    number: int
    """The batch's, counted by that execution from 1."""
    holder: str

    @property
    def name(self) -> str:
        """The batch's name."""
        return batch_name(self.execution, self.number)

    @property
    def token(self) -> str:
        """What claims and reads are made with."""
        return f"{self.scheduled_ms}:{self.name}:{self.holder}"

    @classmethod
    def of(cls, token: str) -> Self:
        """Return what a token was made of."""
        scheduled_ms, _, execution, number, holder = token.split(":", 4)
        return cls(int(scheduled_ms), execution, int(number), holder)


class Revoked(Exception):
    """Nobody waits for a batch any more."""


class Overtaken(Exception):
    """An attempt that was scheduled later has begun a batch already."""


def overtaken(run_id: ColumnElement[str] | str, token: ColumnElement[str]) -> Exists:
    """Return the condition that a run's batch is not that of a token (any more).

    Without a token, it is never met: what is no part of a batch is overtaken by none.
    """
    return rows_of(runs, run_id=run_id).where(runs.c.batch != token).exists()


def begin(tx: Transaction, run_id: str, mine: Holding) -> bool:
    """Make a batch this attempt's own.

    Returns:
        Whether another attempt may have begun it, so that what that has read counts.

    Raises:
        Revoked: It was revoked.
        Overtaken: It is too late, by Temporal's clock.
    """
    tx.lock_run(run_id)
    if is_barred(tx, run_id, mine.name):
        raise Revoked(f"{mine.name} was revoked: this attempt is late")
    before = _holding(tx, run_id)
    if before is not None and before.scheduled_ms > mine.scheduled_ms:
        raise Overtaken(f"{mine.name}: another worker has begun this batch, or a later one")
    _set(tx, run_id, mine)
    return before is not None and before.name == mine.name


def revoke(tx: Transaction, run_id: str, batches: Iterable[str]) -> None:
    """Refuse what is claimed in batches from now on: their worker may be cut off."""
    for name in sorted(batches):
        tx.lock_run(run_id)
        if bar_name(tx, run_id, name):
            tx.event(run_id, "batch.revoked", batch=name, action="refuse_late_attempts")
        held = _holding(tx, run_id)
        if held is not None and held.name == name:
            _set(tx, run_id, replace(held, holder=""))


def _holding(tx: Transaction, run_id: str) -> Holding | None:
    row = tx.one(rows_of(runs, runs.c.batch, run_id=run_id))
    return None if row is None or row["batch"] is None else Holding.of(row["batch"])


def _set(tx: Transaction, run_id: str, holding: Holding) -> None:
    tx.execute(update_rows(runs, run_id=run_id).values(batch=holding.token))
