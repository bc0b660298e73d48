"""The table of epochs: what is known of each restore of the ledger from a backup.

It is the one table without tenants: a database is restored as a whole. Workers only read it.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, Integer, String, Table

from surehand.activities.ledger.core.schema import metadata

epochs = Table(
    "epochs",
    metadata,
    # Counts from 1; entries name the newest one under which they were claimed or put in doubt.
    Column("number", Integer, primary_key=True, autoincrement=False),
    # What the ledger was restored to, as whoever restored it says: what came after is forgotten.
    Column("restored_to_ms", BigInteger, nullable=False),
    Column("opened_ms", BigInteger, nullable=False),
    Column("opened_by", String(200), nullable=False),
    Column("closed_ms", BigInteger),
    Column("closed_by", String(200)),
    CheckConstraint("number >= 1", name="number"),
    CheckConstraint("restored_to_ms <= opened_ms", name="opened_later"),
    CheckConstraint("(closed_ms IS NULL) = (closed_by IS NULL)", name="closed_whole"),
)
