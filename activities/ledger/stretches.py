"""Who may claim in the name of a stretch: not one that is given up, nor an overtaken attempt."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import select

from activities.ledger.compensations import bar_names
from activities.ledger.steps import StretchAttempt
from activities.ledger.store import Transaction
from activities.ledger.tables import bars


async def give_up(tx: Transaction, run_id: str, stretches: Iterable[str]) -> None:
    """Refuse what is claimed in the name of stretches from now on: their worker may be cut off."""
    for stretch in sorted(stretches):
        await tx.lock_step(run_id, stretch)
        if await bar_names(tx, run_id, [stretch]):
            tx.event(run_id, "stretch.given_up", stretch=stretch, action="refuse_late_attempts")


async def is_over(tx: Transaction, run_id: str, attempt: StretchAttempt) -> bool:
    """Return whether a stretch is given up, or this attempt of it overtaken."""
    row = await tx.one(
        select(bars.c.step_id).where(
            bars.c.tenant_id == tx.tenant,
            bars.c.run_id == run_id,
            bars.c.step_id.in_((attempt.stretch, attempt.name)),
        )
    )
    return row is not None


async def overtake(tx: Transaction, run_id: str, attempt: StretchAttempt) -> None:
    """Refuse what earlier attempts claim from now on: their worker may be cut off from Temporal.

    Claims hold the stretch's lock, so a late one is either seen by this attempt or refused.
    """
    await tx.lock_step(run_id, attempt.stretch)
    earlier = (StretchAttempt(attempt.stretch, number) for number in range(1, attempt.number))
    await bar_names(tx, run_id, [one.name for one in earlier])
