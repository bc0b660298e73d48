"""The cell whose runs a ledger may begin for a tenant: an administrator's row says it.

A key is known to one ledger only. So in a cell no run of a tenant begins unless the ledger names
that cell (``worker/context.py``), whatever the file of cells says.
"""

from __future__ import annotations

from surehand.activities.ledger.core.statements import insert_row, rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import runs, tenants
from surehand.activities.ledger.people.principals import PrincipalError


def cell_of_tenant(tx: Transaction) -> str | None:
    """Return the cell that the ledger names for the tenant; ``None``: it names none."""
    row = tx.one(rows_of(tenants, tenants.c.cell))
    return None if row is None else str(row["cell"])


def knows_tenant(tx: Transaction) -> bool:
    """Return whether the ledger names a cell for the tenant, or has runs of it."""
    has_runs = tx.one(rows_of(runs, runs.c.run_id).limit(1)) is not None
    return has_runs or cell_of_tenant(tx) is not None


def add_tenant(tx: Transaction, cell: str, actor: str) -> None:
    """Let the tenant's runs begin in a cell, whose ledger this is.

    Raises:
        PrincipalError: The ledger names another cell: the tenant has moved there.
    """
    named = cell_of_tenant(tx)
    if named is None:
        row = {"cell": cell, "set_by": actor, "set_ms": tx.now_ms}
        tx.execute(insert_row(tenants, **row))
    elif named != cell:
        raise PrincipalError(
            f"the ledger of cell {cell} says: tenant {tx.tenant} is of cell {named}"
        )
