"""The tables of quotas: what a tenant may use, and what it has used.

Workers only read what may be used. What has been used they count, in rows that grow and are never
taken back.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, CheckConstraint, Column, Double, Integer, String, Table

from surehand.activities.ledger.core.schema import metadata, one_of

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
