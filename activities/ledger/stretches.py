"""Who may claim and read in a stretch: the attempt that began last, unless it is given up.

A run has one stretch at a time. Whoever runs it makes it its own first, so that a worker that is
cut off from Temporal, and goes on with it or with an earlier one, does nothing more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from sqlalchemy import ColumnElement, Exists, exists, select, update

from activities.ledger.barring import bar_name
from activities.ledger.store import Transaction
from activities.ledger.tables import bars, runs
from workflows.contracts import stretch_name


@dataclass(frozen=True)
class Holding:
    """One attempt of the activity that runs a stretch."""

    scheduled_ms: int
    """When Temporal scheduled the attempt, by its own clock."""
    execution: str
    """Temporal's Run Id of the workflow."""
    number: int
    """The stretch's, counted by that execution from 1."""
    holder: str

    @property
    def name(self) -> str:
        """The stretch's name."""
        return stretch_name(self.execution, self.number)

    @property
    def token(self) -> str:
        """What claims and reads are made with."""
        return f"{self.scheduled_ms}:{self.name}:{self.holder}"

    @classmethod
    def of(cls, token: str) -> Self:
        """Return what a token was made of."""
        scheduled_ms, _, execution, number, holder = token.split(":", 4)
        return cls(int(scheduled_ms), execution, int(number), holder)


class GivenUp(Exception):
    """Nobody waits for a stretch any more."""


class Overtaken(Exception):
    """An attempt that was scheduled later has begun a stretch already."""


def overtaken(
    tenant: ColumnElement[str] | str, run_id: ColumnElement[str] | str, token: ColumnElement[str]
) -> Exists:
    """Return the condition that a run's stretch is not that of a token (any more).

    Without a token, it is never met: what is no part of a stretch is overtaken by none.
    """
    return exists().where(
        runs.c.tenant_id == tenant, runs.c.run_id == run_id, runs.c.stretch != token
    )


async def begin(tx: Transaction, run_id: str, mine: Holding) -> bool:
    """Make a stretch this attempt's own.

    Returns:
        Whether another attempt may have begun it, so that what that has read counts.

    Raises:
        GivenUp: It was given up.
        Overtaken: It is too late, by Temporal's clock.
    """
    await tx.lock_run(run_id)
    given_up = select(bars.c.step_id).where(
        bars.c.tenant_id == tx.tenant, bars.c.run_id == run_id, bars.c.step_id == mine.name
    )
    if await tx.one(given_up) is not None:
        raise GivenUp(f"{mine.name} was given up: this attempt is late")
    before = await _holding(tx, run_id)
    if before is not None and before.scheduled_ms > mine.scheduled_ms:
        raise Overtaken(f"{mine.name}: another worker has begun this stretch, or a later one")
    await _set(tx, run_id, mine)
    return before is not None and before.name == mine.name


async def give_up(tx: Transaction, run_id: str, stretches: Iterable[str]) -> None:
    """Refuse what is claimed in stretches from now on: their worker may be cut off."""
    for name in sorted(stretches):
        await tx.lock_run(run_id)
        if await bar_name(tx, run_id, name):
            tx.event(run_id, "stretch.given_up", stretch=name, action="refuse_late_attempts")
        held = await _holding(tx, run_id)
        if held is not None and held.name == name:
            await _set(tx, run_id, replace(held, holder=""))


async def _holding(tx: Transaction, run_id: str) -> Holding | None:
    row = await tx.one(
        select(runs.c.stretch).where(runs.c.tenant_id == tx.tenant, runs.c.run_id == run_id)
    )
    return None if row is None or row["stretch"] is None else Holding.of(row["stretch"])


async def _set(tx: Transaction, run_id: str, holding: Holding) -> None:
    await tx.execute(
        update(runs)
        .where(runs.c.tenant_id == tx.tenant, runs.c.run_id == run_id)
        .values(stretch=holding.token)
    )
