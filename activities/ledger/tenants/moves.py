"""A tenant's move, as the two ledgers see it: leaving and gone in one, here in the other.

The rows rule, not the file of cells. Whoever still has an old file finds a ledger that refuses: a
trigger looks at the tenant's row wherever one of its runs, or what people may do, is changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from sqlalchemy import func

from surehand.activities.ledger.core.engine import lock_name
from surehand.activities.ledger.core.statements import insert_row, rows_of, update_rows
from surehand.activities.ledger.core.store import TenantAway, Transaction
from surehand.activities.ledger.core.tables import (
    OPEN,
    effects,
    interventions,
    leases,
    notifications,
    runs,
    tenants,
)
from surehand.activities.ledger.effects.epochs import current
from surehand.activities.ledger.people.principals import PrincipalError

State = Literal["here", "leaving", "gone", "arriving"]
#: Of an entry whose outcome is missing: its call may be on the wire.
_UNSETTLED: Final = ("claimed", "in_doubt", "compensating")
#: Names that are told of each kind.
_TOLD: Final = 5


@dataclass(frozen=True)
class Residence:
    """What a ledger says of where a tenant is."""

    state: State
    cell: str
    came_from: str | None = None
    """The cell that its rows were copied from."""


def residence_of(tx: Transaction) -> Residence | None:
    """Return where the tenant is; ``None``: nobody has said it in this ledger."""
    row = tx.one(rows_of(tenants, tenants.c.state, tenants.c.cell, tenants.c.came_from))
    return None if row is None else Residence(**row)


def is_known(tx: Transaction) -> bool:
    """Return whether the tenant is of this ledger: somebody has said so, or it has runs in it."""
    found = residence_of(tx)
    return found is not None or tx.one(rows_of(runs, runs.c.run_id).limit(1)) is not None


def settle(tx: Transaction, cell: str, actor: str, *, came_from: str | None = None) -> None:
    """Say that a tenant is of this ledger, which is the cell's.

    Args:
        tx: The transaction.
        cell: Its name.
        actor: Who says it.
        came_from: The cell that its rows were copied from just now.

    Raises:
        PrincipalError: It leaves, or has left.
    """
    found = residence_of(tx)
    if found is not None and found.state not in ("here", "arriving"):
        raise PrincipalError(f"tenant {tx.tenant} goes to cell {found.cell} (it is {found.state})")
    _say(tx, "here", cell, actor, **({} if came_from is None else {"came_from": came_from}))


def arrive(tx: Transaction, cell: str, actor: str) -> None:
    """Say that the tenant's rows are being copied into this ledger; ``settle`` ends that."""
    _say(tx, "arriving", cell, actor)


def require_here(tx: Transaction) -> None:
    """Make sure that this ledger is the tenant's.

    Raises:
        TenantAway: It leaves, or has left.
    """
    found = residence_of(tx)
    if found is not None and found.state != "here":
        raise TenantAway(f"tenant {tx.tenant} goes to cell {found.cell} (it is {found.state})")


def leave(tx: Transaction, cell: str, actor: str) -> None:
    """Let no new run of the tenant begin here; those under way go on.

    Raises:
        PrincipalError: It goes to another cell already.
    """
    hold(tx)
    found = residence_of(tx)
    if found is not None and found.state != "here":
        if found.cell != cell:
            raise PrincipalError(
                f"tenant {tx.tenant} goes to cell {found.cell} already (it is {found.state})"
            )
        return
    _say(tx, "leaving", cell, actor)


def stay(tx: Transaction, cell: str, actor: str) -> bool:
    """Take back that a tenant leaves; returns whether it did.

    Raises:
        PrincipalError: It is gone: its rows are another ledger's by now.
    """
    hold(tx)
    found = residence_of(tx)
    if found is not None and found.state == "gone":
        raise PrincipalError(
            f"tenant {tx.tenant} has left for cell {found.cell}: a tenant does not come back to a"
            " ledger that it has left"
        )
    if found is None or found.state == "here":
        return False
    _say(tx, "here", cell, actor)
    return True


def go(tx: Transaction, actor: str) -> list[str]:
    """Let nothing of a tenant that leaves change any more, if nothing of it is under way.

    Returns what is under way, a line each; nothing: it is gone. Again for one that is gone already.
    """
    hold(tx)
    found = residence_of(tx)
    if found is None or found.state == "here":
        raise PrincipalError(f"tenant {tx.tenant} stays: say first where it goes")
    if found.state == "gone":
        return []
    left = _under_way(tx)
    if not left:
        _say(tx, "gone", found.cell, actor)
    return left


def _under_way(tx: Transaction) -> list[str]:
    open_runs = rows_of(runs, runs.c.run_id, closed_ms=None).order_by(runs.c.run_id)
    unsettled = (
        rows_of(effects, effects.c.tool, effects.c.key, effects.c.state)
        .where(effects.c.state.in_(_UNSETTLED))
        .order_by(effects.c.entry_id)
    )
    asked = rows_of(interventions, interventions.c.intervention_id, state=OPEN)
    held = rows_of(leases, leases.c.resource).where(leases.c.holder.is_not(None))
    told = rows_of(notifications, func.count(), state="pending")
    epoch = current(tx)
    # What this ledger may have forgotten, the other one would not doubt.
    lines = [] if epoch is None else [f"epoch {epoch.number} of a restore is open"]
    lines += [f"run {row['run_id']} is open" for row in tx.all(open_runs.limit(_TOLD))]
    lines += [
        f"effect {row['tool']} {row['key']} is {row['state'].replace('_', ' ')}"
        for row in tx.all(unsettled.limit(_TOLD))
    ]
    lines += [
        f"intervention {row['intervention_id']} is open" for row in tx.all(asked.limit(_TOLD))
    ]
    lines += [f"resource {row['resource']} is held" for row in tx.all(held.limit(_TOLD))]
    waiting = tx.count(told)
    return [*lines, f"{waiting} notifications are not sent yet"] if waiting else lines


def hold(tx: Transaction) -> None:
    """Wait for every transaction that changes something of the tenant, and let none begin.

    The trigger shares this lock: what it has let pass is there to be seen.
    """
    now_ms = lock_name(tx.connection, f"tenant:{tx.tenant}")
    tx.now_ms = max(tx.now_ms, now_ms)


def _say(tx: Transaction, state: State, cell: str, actor: str, **more: str) -> None:
    values = {"state": state, "cell": cell, "set_by": actor, "set_ms": tx.now_ms, **more}
    if not tx.execute(update_rows(tenants).values(values)):
        tx.execute(insert_row(tenants, **values))
