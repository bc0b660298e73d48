"""Tables of tenants: quotas, cells, what is hidden and deleted; and when a ledger was restored."""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    Index,
    Integer,
    String,
    Table,
    Text,
    text,
)

from surehand.activities.ledger.core.schema import (
    metadata,
    one_of,
    run_reference,
    tenant_columns,
)

#: What is counted by the hour or the day.
USAGES: Final = ("effects", "tokens", "money")

quotas = Table(
    "quotas",
    metadata,
    Column("tenant_id", String(80), primary_key=True),
    # NULL: as much as comes.
    Column("open_runs", Integer),
    Column("effects_per_hour", Integer),
    Column("pending_approvals", Integer),
    Column("tokens_per_day", BigInteger),
    # A decimal as text: numbers of the database would be rounded.
    Column("money_per_day", String(40)),
    # What becomes of what is over: it waits, or it fails.
    Column("over", String(8), nullable=False),
    # Of the tenant's activities where tenants take turns.
    Column("weight", Double, nullable=False),
    Column("set_by", String(200), nullable=False),
    Column("set_ms", BigInteger, nullable=False),
    CheckConstraint(one_of("over", ("queue", "reject")), name="over"),
    CheckConstraint("weight >= 0.001 AND weight <= 1000", name="weight"),
    CheckConstraint(
        "(open_runs IS NULL OR open_runs >= 0)"
        " AND (effects_per_hour IS NULL OR effects_per_hour >= 0)"
        " AND (pending_approvals IS NULL OR pending_approvals >= 0)"
        " AND (tokens_per_day IS NULL OR tokens_per_day >= 0)",
        name="at_least_nothing",
    ),
)

quota_usage = Table(
    "quota_usage",
    metadata,
    Column("tenant_id", String(80), primary_key=True),
    Column("kind", String(16), primary_key=True),
    # The beginning of a clock hour, or of a day of UTC, by the database's clock.
    Column("window_start_ms", BigInteger, primary_key=True),
    # Of money in billionths.
    Column("used", BigInteger, nullable=False),
    CheckConstraint(one_of("kind", USAGES), name="kind"),
    CheckConstraint("used >= 0", name="used"),
)


tenants = Table(
    "tenants",
    metadata,
    Column("tenant_id", String(80), primary_key=True),
    # By its name in the cells file.
    Column("cell", String(64), nullable=False),
    Column("set_by", String(200), nullable=False),
    Column("set_ms", BigInteger, nullable=False),
)


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
