"""The tables of retention: what of a run is hidden, deleted, or kept by somebody's word.

Only the role that deletes writes here. Triggers let a row go on in one direction: hidden, going
once its grace is over by the database's clock, deleted. Rows of other tables are deleted only while
theirs is going.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, String, Table, Text, text

from surehand.activities.ledger.core.schema import (
    metadata,
    one_of,
    run_reference,
    tenant_columns,
)

#: What has a time of its own; ``runs`` is all of a run, but for its tombstone.
KINDS: Final = ("runs", "steps", "outputs", "artifacts", "messages")

_NOT_GONE: Final = text("deleted_ms IS NULL")

retentions = Table(
    "retentions",
    metadata,
    *tenant_columns(),
    Column("kind", String(16), primary_key=True),
    Column("hidden_ms", BigInteger, nullable=False),
    Column("hidden_by", String(200), nullable=False),
    # The end of the grace, in which it may be taken back.
    Column("delete_after_ms", BigInteger, nullable=False),
    # From then on it cannot be: files may be gone.
    Column("going_ms", BigInteger),
    Column("deleted_ms", BigInteger),
    Column("deleted_by", String(200)),
    # Where the run's events were exported to before they were deleted; NULL: nowhere.
    Column("export", Text),
    CheckConstraint(one_of("kind", KINDS), name="kind"),
    CheckConstraint("delete_after_ms >= hidden_ms", name="grace"),
    CheckConstraint("deleted_ms IS NULL OR going_ms IS NOT NULL", name="going_before_deleted"),
    CheckConstraint("(deleted_ms IS NULL) = (deleted_by IS NULL)", name="deleted_by_somebody"),
    Index(
        "ix_retentions_hidden",
        "tenant_id",
        "delete_after_ms",
        sqlite_where=_NOT_GONE,
        postgresql_where=_NOT_GONE,
    ),
    run_reference(),
)

# What retention leaves alone, until it is released.
holds = Table(
    "holds",
    metadata,
    *tenant_columns(),
    Column("kept_by", String(200), nullable=False),
    Column("reason", Text, nullable=False),
    Column("kept_ms", BigInteger, nullable=False),
    run_reference(),
)

# One row for a tenant, so that somebody notices if rounds come no more.
retention_rounds = Table(
    "retention_rounds",
    metadata,
    Column("tenant_id", String(80), primary_key=True),
    # When a round has last done all that was to be done, and when one has last failed in part.
    Column("whole_ms", BigInteger),
    Column("failed_ms", BigInteger),
    CheckConstraint("whole_ms IS NOT NULL OR failed_ms IS NOT NULL", name="ended"),
)
