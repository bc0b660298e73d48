"""The table of cells: whether a tenant's runs are of this ledger.

Its row is an administrator's. Without one a tenant is of every ledger that it works in, as where
there are no cells.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, CheckConstraint, Column, String, Table

from surehand.activities.ledger.core.schema import metadata, one_of

#: Here: its runs are of this ledger. Leaving: none begins. Gone: nothing of it changes any more.
#: Arriving: its rows are being copied into this ledger, in one transaction: nobody else sees it.
STATES: Final = ("here", "leaving", "gone", "arriving")

tenants = Table(
    "tenants",
    metadata,
    Column("tenant_id", String(80), primary_key=True),
    Column("state", String(8), nullable=False),
    # The cell that it is of, or goes to; by its name in the cells file.
    Column("cell", String(64), nullable=False),
    # The cell that its rows were copied from.
    Column("came_from", String(64)),
    Column("set_by", String(200), nullable=False),
    Column("set_ms", BigInteger, nullable=False),
    CheckConstraint(one_of("state", STATES), name="state"),
)
