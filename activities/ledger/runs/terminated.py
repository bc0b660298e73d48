"""Runs that were stopped from outside (terminated, timed out): nobody else closes them here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import func

from surehand.activities.ledger.approvals import requests as approval_rows
from surehand.activities.ledger.core.statements import rows_of, update_rows
from surehand.activities.ledger.core.store import RunNotFound, Transaction
from surehand.activities.ledger.core.tables import events, runs
from surehand.activities.ledger.effects import run_tree

_STOPPED: Final = "stopped from outside"


class EndedByItself(Exception):
    """A run was not stopped: it has ended, and has undone what was to be undone."""


def bar(tx: Transaction, run_id: str) -> None:
    """Bar a run and its child runs: an attempt that outlives it must not make what nobody undoes.

    Raises:
        RunNotFound: No such run in this tenant.
        EndedByItself: There is nothing to unwind from outside.
    """
    row = tx.one(rows_of(runs, runs.c.state, runs.c.error, runs.c.closed_ms, run_id=run_id))
    if row is None:
        raise RunNotFound(run_id)
    if row["closed_ms"] is not None and row["error"] != _STOPPED:
        raise EndedByItself(
            f"run {run_id} was not stopped from outside, it is {row['state']}:"
            " what it has left is meant to stay"
        )
    run_tree.bar(tx, run_id)


def close(tx: Transaction, run_id: str) -> bool:
    """Record that a run was stopped, and void what it still asks; ``False`` if it is closed.

    Raises:
        RunNotFound: No such run in this tenant.
    """
    row = tx.one(rows_of(runs, runs.c.closed_ms, run_id=run_id))
    if row is None:
        raise RunNotFound(run_id)
    if row["closed_ms"] is not None:
        return False
    approval_rows.void_all(tx, run_id, approved=True)
    touched = tx.execute(
        update_rows(runs, run_id=run_id, closed_ms=None).values(
            state="failed", error=_STOPPED, closed_ms=tx.now_ms
        )
    )
    if not touched:
        return False
    tx.event(run_id, "run.stopped", rule="closed_at_the_server", action="offer_compensation")
    return True


def times_stopped(tx: Transaction, run_id: str) -> int:
    """Return how often it is on record that a run was stopped."""
    return tx.count(rows_of(events, func.count(), run_id=run_id, type="run.stopped"))


def not_closed(tx: Transaction, run_ids: Sequence[str]) -> list[str]:
    """Return those of the runs that the ledger has as open, in the order in which they came."""
    rows = tx.all(rows_of(runs, runs.c.run_id, closed_ms=None).where(runs.c.run_id.in_(run_ids)))
    found = {row["run_id"] for row in rows}
    return [run_id for run_id in dict.fromkeys(run_ids) if run_id in found]
