"""Which execution of a run acts: Temporal's newest, and none that came before it (G1, G4).

A run that is reset, or goes on with a new history, is gone on with by another execution. An attempt
of an earlier one may be frozen meanwhile, and outlive even the end of the run: what it would claim
then, nobody would undo, and nobody would list.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, ScalarSelect

from surehand.activities.ledger.core.statements import rows_of, update_rows
from surehand.activities.ledger.core.store import RunNotFound, Transaction
from surehand.activities.ledger.core.tables import runs
from surehand.activities.ledger.steps.bars import EVERY_STEP, is_barred


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
    return (
        rows_of(runs, runs.c.execution, run_id=run_id)
        .where(runs.c.execution != mine)
        .scalar_subquery()
    )


def require(tx: Transaction, run_id: str, mine: str) -> None:
    """Make sure that an execution acts for its run until the transaction ends.

    Raises:
        ActsElsewhere: Another one does.
        RunNotFound: No such run in this tenant.
    """
    tx.lock_run(run_id)
    compare(tx, run_id, mine, _row(tx, run_id)["execution"])


def compare(tx: Transaction, run_id: str, mine: str, acting: str) -> None:
    """Make sure that an execution acts for its run, whose lock is held, and was when it was read.

    Raises:
        ActsElsewhere: Another one does.
    """
    if acting != mine:
        raise ActsElsewhere(tx.tenant, run_id, mine, acting)


def take_over(tx: Transaction, found: ActsElsewhere) -> None:
    """Let the newest execution act, unless yet another one does meanwhile.

    A run that had ended, and whose effects stand, is open again: whoever stops it now leaves
    something behind.

    Args:
        tx: The transaction.
        found: What that execution was refused with, before Temporal has called it the newest.
    """
    tx.lock_run(found.run_id)
    row = _row(tx, found.run_id)
    if row["execution"] != found.acting:
        return
    values: dict[str, str | None] = {"execution": found.mine}
    if row["closed_ms"] is not None and not is_barred(tx, found.run_id, EVERY_STEP):
        values |= {"state": "running", "error": None, "closed_ms": None}
        tx.event(found.run_id, "run.reopened", was=row["state"], rule="reset")
    tx.execute(update_rows(runs, run_id=found.run_id).values(values))


def _row(tx: Transaction, run_id: str) -> Mapping[str, Any]:
    row = tx.one(rows_of(runs, runs.c.execution, runs.c.state, runs.c.closed_ms, run_id=run_id))
    if row is None:
        raise RunNotFound(run_id)
    return row
