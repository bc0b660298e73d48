"""The table of cells: the cell of each tenant. Its rows are an administrator's."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, String, Table

from surehand.activities.ledger.core.schema import metadata

tenants = Table(
    "tenants",
    metadata,
    Column("tenant_id", String(80), primary_key=True),
    # By its name in the cells file.
    Column("cell", String(64), nullable=False),
    Column("set_by", String(200), nullable=False),
    Column("set_ms", BigInteger, nullable=False),
)
