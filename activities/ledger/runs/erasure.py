"""Erasing a run: its key is destroyed, and with it all that the run has sent and kept.

What stays is what was never readable by the key alone: that there was the run, its events as they
were chained, and the business keys that keep an effect from being made twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, null

from surehand.activities.ledger.core.statements import rows_of, update_rows
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import (
    OPEN,
    artifacts,
    checkpoints,
    effects,
    interventions,
    notifications,
    run_keys,
    runs,
)
from surehand.activities.ledger.retention.hiding import (
    UNSETTLED,
    list_tree,
    lock_effects,
    who_rests_on,
    why_needed,
)
from surehand.activities.ledger.steps.entries import NO_IDENTITY
from surehand.workflows.identity import root_run_id


class NotErasable(Exception):
    """A run cannot be erased now, or at all; the message says why, and what to do."""


@dataclass(frozen=True)
class Erasure:
    """What was erased."""

    runs: tuple[str, ...]
    """The run, and its child runs."""
    artifacts: int
    effects: int
    """Those of them, whose business keys are kept."""


def erase(tx: Transaction, run_id: str, *, by: str, because: str) -> Erasure:
    """Destroy the key of a run that has ended, and of its child runs.

    Args:
        run_id: The run at the top of the tree.

    Raises:
        RunNotFound: No such run in this tenant.
        NotErasable: It is open, or something of it is, or there is nothing to destroy.
    """
    root = root_run_id(run_id)
    if root != run_id:
        raise NotErasable(f"run {run_id} is a part of run {root}, and has its key: erase {root}")
    # Nothing of it is claimed or opened anew meanwhile.
    tx.lock_run(run_id)
    found = tuple(list_tree(tx, run_id))
    lock_effects(tx, found)
    going = rows_of(runs, runs.c.run_id, closed_ms=None).where(runs.c.run_id.in_(found))
    opened = tx.one(going.order_by(runs.c.run_id).limit(1))
    if opened is not None:
        raise NotErasable(f"run {opened['run_id']} is open: `cancel` ends it first")
    _require_settled(tx, found)
    key = tx.one(rows_of(run_keys, run_id=run_id).with_for_update())
    if key is None:
        raise NotErasable(
            f"run {run_id} has no key: it was not encrypted: there is nothing to destroy. What it"
            " has left is in plain in Temporal's history, in the ledger and in the artifact store:"
            " remove it there"
        )
    if key["wrapped"] is None:
        raise NotErasable(f"run {run_id} was erased before, by {key['erased_by']}")
    tx.execute(
        update_rows(run_keys, run_id=run_id).values(
            wrapped=null(), erased_ms=tx.now_ms, erased_by=by
        )
    )
    _drop_copies(tx, found)
    # It was made by a key of the tenant's, which stays.
    tx.execute(
        update_rows(effects).where(effects.c.run_id.in_(found)).values(identity_hash=NO_IDENTITY)
    )
    for one in found:
        tx.event(one, "run.erased", actor=by, because=because or None)
    return Erasure(
        runs=found,
        artifacts=tx.count(rows_of(artifacts, func.count()).where(artifacts.c.run_id.in_(found))),
        effects=tx.count(rows_of(effects, func.count()).where(effects.c.run_id.in_(found))),
    )


def _require_settled(tx: Transaction, found: tuple[str, ...]) -> None:
    entry = tx.one(
        rows_of(effects, effects.c.entry_id, effects.c.run_id, effects.c.state).where(
            effects.c.run_id.in_(found), effects.c.state.in_(UNSETTLED)
        )
    )
    if entry is not None:
        raise NotErasable(
            f"entry {entry['entry_id']} of run {entry['run_id']} is {entry['state']}: whoever"
            " settles it needs its params; settle it first"
        )
    asked = tx.one(
        rows_of(interventions, interventions.c.intervention_id, state=OPEN).where(
            interventions.c.run_id.in_(found)
        )
    )
    if asked is not None:
        raise NotErasable(f"intervention {asked['intervention_id']} is open: resolve it first")
    needed = why_needed(tx, found) or who_rests_on(tx, found, runs.c.closed_ms.is_(None))
    if needed is not None:
        raise NotErasable(f"run {found[0]} is still needed: {needed}")


def _drop_copies(tx: Transaction, found: tuple[str, ...]) -> None:
    """Tell nobody any more of what nobody can read, and keep no copy of a run's state."""
    tx.execute(
        update_rows(checkpoints)
        .where(checkpoints.c.run_id.in_(found), checkpoints.c.document.is_not(None))
        .values(
            document=null(),
            hidden_ms=func.coalesce(checkpoints.c.hidden_ms, tx.now_ms),
            delete_after_ms=func.coalesce(checkpoints.c.delete_after_ms, tx.now_ms),
        )
    )
    tx.execute(
        update_rows(notifications, state="pending")
        .where(notifications.c.run_id.in_(found))
        .values(state="void")
    )
    # What a notifier has raised may repeat what it was to tell.
    tx.execute(
        update_rows(notifications)
        .where(notifications.c.run_id.in_(found), notifications.c.error.is_not(None))
        .values(error=null())
    )
