"""Who may act for a run: its newest execution, its newest batch, and no step that is barred."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Self

from sqlalchemy import ColumnElement, Exists, ScalarSelect

from surehand.activities.ledger.core.statements import rows_of, update_rows
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import bars, runs
from surehand.workflows.contracts.tools import batch_name

#: Bars every step of a run, also those that nobody has heard of yet: items, steps made by code.
EVERY_STEP: Final = "*"


def bar_name(tx: Transaction, run_id: str, name: str) -> bool:
    """Bar a step or a batch of a run, whose lock is held; return whether it was not yet."""
    row = {"run_id": run_id, "step_id": name, "barred_ms": tx.now_ms}
    return tx.insert_new(bars, row) == 1


def is_barred(tx: Transaction, run_id: str, *names: str) -> bool:
    """Return whether one of these steps or batches of a run is barred."""
    barred = rows_of(bars, bars.c.step_id, run_id=run_id).where(bars.c.step_id.in_(names))
    return tx.has(barred.limit(1))


class ActsElsewhere(Exception):
    """Another execution acts for a run than the one that would: one of the two is over."""

    def __init__(self, tenant: str, run_id: str, mine: str, acting: str) -> None:
        super().__init__(f"run {run_id}: execution {acting} acts for it, and not {mine}")
        self.tenant = tenant
        self.run_id = run_id
        self.mine = mine
        self.acting = acting


def acting_instead(run_id: ColumnElement[str], mine: ColumnElement[str]) -> ScalarSelect[str]:
    """Return the query of the execution that acts for a run where that is another one.

    Nothing is found for ``NULL``: what is done for a run from outside is no execution of it.
    """
    acting = rows_of(runs, runs.c.execution, run_id=run_id)
    return acting.where(runs.c.execution != mine).scalar_subquery()


def require_acting(tx: Transaction, run_id: str, mine: str) -> None:
    """Make sure that an execution acts for its run until the transaction ends.

    Raises ``ActsElsewhere`` or ``RunNotFound``.
    """
    tx.lock_run(run_id)
    acting = tx.read_run(run_id, runs.c.execution)["execution"]
    if acting != mine:
        raise ActsElsewhere(tx.tenant, run_id, mine, acting)


def take_over_run(tx: Transaction, found: ActsElsewhere) -> None:
    """Let the newest execution act, unless yet another one does meanwhile.

    A run that had ended, and whose effects stand, is open again: whoever stops it now leaves
    something behind. ``found`` is what that execution was refused with, before Temporal has called
    it the newest.
    """
    tx.lock_run(found.run_id)
    row = tx.read_run(found.run_id, runs.c.execution, runs.c.state, runs.c.closed_ms)
    if row["execution"] != found.acting:
        return
    values: dict[str, str | None] = {"execution": found.mine}
    if row["closed_ms"] is not None and not is_barred(tx, found.run_id, EVERY_STEP):
        values |= {"state": "running", "error": None, "closed_ms": None}
        tx.event(found.run_id, "run.reopened", was=row["state"], rule="reset")
    tx.execute(update_rows(runs, run_id=found.run_id).values(values))


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
        return batch_name(self.execution, self.number)

    @property
    def token(self) -> str:
        """What claims and reads are made with."""
        return f"{self.scheduled_ms}:{self.name}:{self.holder}"

    @classmethod
    def of(cls, token: str) -> Self:
        scheduled_ms, _, execution, number, holder = token.split(":", 4)
        return cls(int(scheduled_ms), execution, int(number), holder)


class Revoked(Exception):
    """Nobody waits for a batch any more."""


class Overtaken(Exception):
    """An attempt that was scheduled later has begun a batch already."""


def is_overtaken(run_id: ColumnElement[str] | str, token: ColumnElement[str]) -> Exists:
    """Return the condition that a run's batch is not that of a token (any more).

    Without a token, it is never met: what is no part of a batch is overtaken by none.
    """
    return rows_of(runs, run_id=run_id).where(runs.c.batch != token).exists()


def begin_batch(tx: Transaction, run_id: str, mine: Holding) -> bool:
    """Make a batch this attempt's own; raises ``Revoked`` or ``Overtaken``.

    Returns whether another attempt may have begun it, so that what that has read counts.
    """
    tx.lock_run(run_id)
    if is_barred(tx, run_id, mine.name):
        raise Revoked(f"{mine.name} was revoked: this attempt is late")
    before = _read_holding(tx, run_id)
    if before is not None and before.scheduled_ms > mine.scheduled_ms:
        raise Overtaken(f"{mine.name}: another worker has begun this batch, or a later one")
    tx.execute(update_rows(runs, run_id=run_id).values(batch=mine.token))
    return before is not None and before.name == mine.name


def revoke_batches(tx: Transaction, run_id: str, batches: Iterable[str]) -> None:
    """Refuse what is claimed in batches from now on: their worker may be cut off."""
    for name in sorted(batches):
        tx.lock_run(run_id)
        if bar_name(tx, run_id, name):
            tx.event(run_id, "batch.revoked", batch=name, action="refuse_late_attempts")
        held = _read_holding(tx, run_id)
        if held is not None and held.name == name:
            revoked = replace(held, holder="")
            tx.execute(update_rows(runs, run_id=run_id).values(batch=revoked.token))


def _read_holding(tx: Transaction, run_id: str) -> Holding | None:
    token = tx.value(rows_of(runs, runs.c.batch, run_id=run_id))
    return None if token is None else Holding.of(token)
