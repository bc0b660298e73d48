"""Bars: what late attempts of a run may not do any more."""

from __future__ import annotations

from typing import Final

from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import bars

#: Bars every step of a run, also those that nobody has heard of yet: items, steps made by code.
EVERY_STEP: Final = "*"


def bar_name(tx: Transaction, run_id: str, name: str) -> bool:
    """Bar a step or a batch of a run, whose lock is held; return whether it was not yet."""
    row = {"run_id": run_id, "step_id": name, "barred_ms": tx.now_ms}
    return tx.insert_new(bars, row) == 1


def is_barred(tx: Transaction, run_id: str, *names: str) -> bool:
    """Return whether one of these steps or batches of a run is barred."""
    barred = rows_of(bars, bars.c.step_id, run_id=run_id).where(bars.c.step_id.in_(names))
    return tx.one(barred.limit(1)) is not None
