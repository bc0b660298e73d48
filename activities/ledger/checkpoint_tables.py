"""Checkpoints that somebody has saved under a name: copies to look at, not what a run rests on."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Index,
    Integer,
    String,
    Table,
    text,
)

from activities.ledger.schema import Json, metadata, run_reference, tenant_columns

_KEPT = text("document IS NOT NULL")

checkpoints = Table(
    "checkpoints",
    metadata,
    *tenant_columns(),
    # Counts the run's, from 1.
    Column("number", Integer, primary_key=True),
    Column("name", String(64), nullable=False),
    # The run's newest event when the document was made.
    Column("seq", BigInteger, nullable=False),
    # As `checkpoint RUN` prints it, or a reference to an artifact; NULL: removed, this row is left.
    Column("document", Json),
    Column("bytes", BigInteger, nullable=False),
    Column("saved_by", String(200), nullable=False),
    Column("saved_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
    Column("removed_ms", BigInteger),
    CheckConstraint("number >= 1 AND seq >= 0", name="counts"),
    CheckConstraint("expires_ms > saved_ms", name="lives"),
    CheckConstraint("(document IS NULL) = (removed_ms IS NOT NULL)", name="removed_at_a_time"),
    # A name is free again once its checkpoint is removed.
    Index(
        "uq_checkpoints_name",
        "tenant_id",
        "run_id",
        "name",
        unique=True,
        sqlite_where=_KEPT,
        postgresql_where=_KEPT,
    ),
    Index(
        "ix_checkpoints_expires",
        "tenant_id",
        "expires_ms",
        sqlite_where=_KEPT,
        postgresql_where=_KEPT,
    ),
    run_reference(),
)
