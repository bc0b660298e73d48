"""The wrapped keys of runs, and the erasure of a run together with its key.

A row is made before its run, by whoever first encrypts for that. So it refers to no run. What is no
run, such as a round of ``reconcile``, has one key for each tenant.

A key is known to one ledger only. So in a cell no run of a tenant begins unless the ledger names
that cell (``worker/context.py``), whatever the file of cells says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ConfigDict
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
    tenants,
)
from surehand.activities.ledger.people.principals import PrincipalError
from surehand.activities.ledger.runs import deletion
from surehand.activities.ledger.steps.entries import NO_IDENTITY
from surehand.process.ciphers import Wrapped
from surehand.process.exits import WrongUse
from surehand.workflows.identity import root_run_id

#: Keys that one transaction of a rotation looks at.
PAGE: Final = 200


@dataclass(frozen=True)
class KeyRow:
    """The key of a run."""

    run_id: str
    kek_id: str
    wrapped: bytes | None
    """``None``: it was erased."""
    erased_by: str | None = None
    erased_ms: int | None = None


@dataclass(frozen=True)
class KeyCount:
    """How many keys a key-encryption key has wrapped; ``None``: those that were erased."""

    kek_id: str | None
    keys: int


def find_key(tx: Transaction, run_id: str) -> KeyRow | None:
    row = tx.one(rows_of(run_keys, run_id=run_id))
    return None if row is None else _read_key(row)


def add_key(tx: Transaction, run_id: str, new: Wrapped) -> KeyRow:
    """Return the key of a run: the new one, or the one that it has already."""
    row = {"kek_id": new.kek_id, "wrapped": new.key, "created_ms": tx.now_ms}
    tx.insert_new(run_keys, {"run_id": run_id, **row})
    # Of two that make it at once the first one counts, for both.
    found = find_key(tx, run_id)
    assert found is not None
    return found


def count_keys(tx: Transaction) -> list[KeyCount]:
    """Return how many keys each key-encryption key has wrapped."""
    there = run_keys.c.wrapped.is_not(None)
    kek_id = run_keys.c.kek_id
    by_id = rows_of(run_keys, kek_id, func.count().label("keys")).where(there)
    rows = tx.all(by_id.group_by(kek_id).order_by(kek_id))
    found = [KeyCount(row["kek_id"], row["keys"]) for row in rows]
    erased = tx.count(rows_of(run_keys, func.count()).where(~there))
    return [*found, *([KeyCount(None, erased)] if erased else [])]


def list_wrapped_otherwise(tx: Transaction, kek_id: str, after: str | None) -> list[KeyRow]:
    """Return a page of the keys that another key-encryption key has wrapped, by their runs' ids."""
    chosen = rows_of(run_keys).where(run_keys.c.kek_id != kek_id, run_keys.c.wrapped.is_not(None))
    if after is not None:
        chosen = chosen.where(run_keys.c.run_id > after)
    return [_read_key(row) for row in tx.all(chosen.order_by(run_keys.c.run_id).limit(PAGE))]


def rewrap_keys(tx: Transaction, pairs: Sequence[tuple[KeyRow, Wrapped]]) -> int:
    """Replace wrapped keys that nobody has rotated or erased meanwhile; returns how many."""
    changed = 0
    for old, new in pairs:
        same = update_rows(run_keys, run_id=old.run_id, kek_id=old.kek_id, wrapped=old.wrapped)
        changed += tx.execute(same.values(kek_id=new.kek_id, wrapped=new.key))
    return changed


def _read_key(row: dict[str, Any]) -> KeyRow:
    wrapped = None if row["wrapped"] is None else bytes(row["wrapped"])
    return KeyRow(row["run_id"], row["kek_id"], wrapped, row["erased_by"], row["erased_ms"])


def cell_of_tenant(tx: Transaction) -> str | None:
    """Return the cell that the ledger names for the tenant; ``None``: it names none."""
    cell: str | None = tx.value(rows_of(tenants, tenants.c.cell))
    return cell


def knows_tenant(tx: Transaction) -> bool:
    """Return whether the ledger names a cell for the tenant, or has runs of it."""
    return tx.has(rows_of(runs, runs.c.run_id).limit(1)) or cell_of_tenant(tx) is not None


def add_tenant(tx: Transaction, cell: str, actor: str) -> None:
    """Let the tenant's runs begin in a cell, whose ledger this is.

    Raises ``PrincipalError`` if the ledger names another cell: the tenant has moved there.
    """
    named = cell_of_tenant(tx)
    if named is None:
        row = {"cell": cell, "set_by": actor, "set_ms": tx.now_ms}
        tx.insert_row(tenants, **row)
    elif named != cell:
        raise PrincipalError(
            f"the ledger of cell {cell} says: tenant {tx.tenant} is of cell {named}"
        )


class NotErasable(WrongUse):
    """A run cannot be erased now, or at all; the message says why, and what to do."""


class Erasure(BaseModel):
    """What was erased."""

    model_config = ConfigDict(frozen=True)

    run_id: str
    runs: list[str]
    """The run, and its child runs."""
    erased_by: str
    reason: str
    artifacts: int
    effects: int
    """Those whose business keys are kept."""


def erase_run(tx: Transaction, run_id: str, *, by: str, because: str) -> Erasure:
    """Destroy the key of a run that has ended, and of its child runs; raises ``NotErasable``."""
    root = root_run_id(run_id)
    if root != run_id:
        raise NotErasable(f"run {run_id} is a part of run {root}, and has its key: erase {root}")
    # Nothing of it is claimed or opened anew meanwhile.
    tx.lock_run(run_id)
    going = deletion.read_deletion(tx, run_id)
    if going is not None:
        raise NotErasable(going.told())
    found = tuple(deletion.list_tree(tx, run_id))
    deletion.lock_effects(tx, found)
    questions = rows_of(interventions, interventions.c.intervention_id, state=OPEN)
    asked = tx.value(questions.where(interventions.c.run_id.in_(found)))
    if asked is not None:
        raise NotErasable(f"intervention {asked} is open: resolve it first")
    needed = deletion.why_needed(tx, found) or deletion.who_rests_on(
        tx, found, runs.c.closed_ms.is_(None)
    )
    if needed is not None:
        raise NotErasable(f"run {found[0]} is still needed: {needed}")
    key = tx.one(rows_of(run_keys, run_id=run_id).with_for_update())
    if key is None:
        raise NotErasable(
            f"run {run_id} has no key: it was not encrypted: there is nothing to destroy. What it"
            " has left is in plain in Temporal's history, in the ledger and in the artifact store:"
            " remove it there"
        )
    if key["wrapped"] is None:
        raise NotErasable(f"run {run_id} was erased before, by {key['erased_by']}")
    gone = {"wrapped": null(), "erased_ms": tx.now_ms, "erased_by": by}
    tx.execute(update_rows(run_keys, run_id=run_id).values(gone))
    # Nobody is told any more of what nobody can read, and no copy of a state is kept.
    change = deletion.change_rows
    change(tx, checkpoints, found, {"document": null()}, checkpoints.c.document.is_not(None))
    # First, because it waits for messages that are just being reopened: those are pending then.
    change(tx, notifications, found, {"message": null()}, notifications.c.message.is_not(None))
    change(tx, notifications, found, {"state": "void"}, state="pending")
    # What a notifier has raised may repeat what it was to tell.
    change(tx, notifications, found, {"error": null()}, notifications.c.error.is_not(None))
    # It was made by a key of the tenant's, which stays.
    change(tx, effects, found, {"identity_hash": NO_IDENTITY})
    for one in found:
        tx.event(one, "run.erased", actor=by, because=because or None)
    return Erasure(
        run_id=run_id,
        runs=list(found),
        erased_by=by,
        reason=because,
        artifacts=tx.count(rows_of(artifacts, func.count()).where(artifacts.c.run_id.in_(found))),
        effects=tx.count(rows_of(effects, func.count()).where(effects.c.run_id.in_(found))),
    )
