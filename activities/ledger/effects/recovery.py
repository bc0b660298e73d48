"""The end of a recovery: an entry that a crash left without an outcome is settled, and checked.

A recovery begins when an attempt finds an entry that another one has left
(``effects.recovering_ms``), and each branch it takes writes an event with rule, evidence and
action: ``effect.in_doubt``, ``effect.reconciled``, ``intervention.opened``. It ends here, in the
transaction that settles it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import func

from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import approvals, effects
from surehand.activities.ledger.steps.entries import Entry


def since(tx: Transaction) -> Any:
    """Return the value that begins a recovery, or keeps the beginning of the one under way."""
    return func.coalesce(effects.c.recovering_ms, tx.now_ms)


def verified(tx: Transaction, before: Entry, outcome: str, *, action: str) -> None:
    """Check what must hold of an entry that is settled now, and record the end of its recovery.

    Does nothing for an entry that was not being recovered.

    Args:
        tx: The transaction that has settled it.
        before: The entry as it was.
        outcome: Its state now.
        action: What follows: ``resume``, ``call_again``, ``bar``, ``fail`` or ``human``.
    """
    if before.recovering_ms is None:
        return
    now = tx.one(
        rows_of(
            effects,
            effects.c.approval_id,
            effects.c.params_hash,
            effects.c.generation,
            effects.c.calls,
            entry_id=before.entry_id,
        )
    )
    assert now is not None, "entries are never deleted"
    before.tell(
        tx,
        "recovery.verified",
        outcome=outcome,
        action=action,
        calls=now["calls"],
        took_ms=tx.now_ms - before.recovering_ms,
        broken=_broken(tx, before, now) or None,
    )


def _broken(tx: Transaction, entry: Entry, now: Mapping[str, Any]) -> list[str]:
    """Return the invariants that do not hold: an empty list, unless somebody wrote past us."""
    broken = []
    live = tx.count(
        rows_of(effects, func.count(), tool=entry.tool, key=entry.key).where(
            effects.c.state.not_in(("failed", "compensated"))
        )
    )
    if live > 1:
        broken.append("one_live_entry_for_each_key")
    if now["approval_id"] is not None:
        found = tx.one(
            rows_of(
                approvals,
                approvals.c.approval_id,
                approval_id=now["approval_id"],
                params_hash=now["params_hash"],
                consumed_entry=entry.entry_id,
                consumed_generation=now["generation"],
            )
        )
        if found is None:
            broken.append("runs_what_was_approved")
    return broken
