"""Rows of the keys of runs, as they were wrapped by a key-encryption key.

A row is made before its run, by whoever first encrypts for that. So it refers to no run. What is no
run, such as a round of ``reconcile``, has one key for each tenant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import func

from surehand.activities.ledger.core.statements import rows_of, update_rows
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import run_keys
from surehand.process.ciphers import Wrapped

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


def find(tx: Transaction, run_id: str) -> KeyRow | None:
    """Return the key of a run, if it has one."""
    row = tx.one(rows_of(run_keys, run_id=run_id))
    return None if row is None else _of(row)


def add(tx: Transaction, run_id: str, new: Wrapped) -> KeyRow:
    """Return the key of a run: the new one, or the one that it has already."""
    tx.insert_new(
        run_keys,
        {
            "run_id": run_id,
            "kek_id": new.kek_id,
            "wrapped": new.key,
            "created_ms": tx.now_ms,
        },
    )
    # Of two that make it at once the first one counts, for both.
    found = find(tx, run_id)
    assert found is not None
    return found


def counts(tx: Transaction) -> list[KeyCount]:
    """Return how many keys each key-encryption key has wrapped."""
    there = run_keys.c.wrapped.is_not(None)
    by_id = (
        rows_of(run_keys, run_keys.c.kek_id, func.count().label("keys"))
        .where(there)
        .group_by(run_keys.c.kek_id)
        .order_by(run_keys.c.kek_id)
    )
    found = [KeyCount(row["kek_id"], row["keys"]) for row in tx.all(by_id)]
    erased = tx.count(rows_of(run_keys, func.count()).where(~there))
    return [*found, *([KeyCount(None, erased)] if erased else [])]


def wrapped_otherwise(tx: Transaction, kek_id: str, after: str | None) -> list[KeyRow]:
    """Return a page of the keys that another key-encryption key has wrapped, by their runs' ids.

    Args:
        kek_id: The one that should have.
        after: The last run of the page before; ``None``: from the first one on.
    """
    chosen = rows_of(run_keys).where(run_keys.c.kek_id != kek_id, run_keys.c.wrapped.is_not(None))
    if after is not None:
        chosen = chosen.where(run_keys.c.run_id > after)
    return [_of(row) for row in tx.all(chosen.order_by(run_keys.c.run_id).limit(PAGE))]


def wrap_all_anew(tx: Transaction, pairs: Sequence[tuple[KeyRow, Wrapped]]) -> int:
    """Replace wrapped keys that nobody has rotated or erased meanwhile; returns how many."""
    changed = 0
    for old, new in pairs:
        same = update_rows(run_keys, run_id=old.run_id, kek_id=old.kek_id, wrapped=old.wrapped)
        changed += tx.execute(same.values(kek_id=new.kek_id, wrapped=new.key))
    return changed


def _of(row: dict[str, Any]) -> KeyRow:
    wrapped = row["wrapped"]
    return KeyRow(
        row["run_id"],
        row["kek_id"],
        None if wrapped is None else bytes(wrapped),
        row["erased_by"],
        row["erased_ms"],
    )
