"""The outbox: what people are to be told, one row for each of the ways in which they are told.

A row is written in the transaction of the change that it tells of, and sent later, outside of any
transaction. It holds ids, references and lines that people read anyway: no params and no secrets.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from activities.ledger.schema import Json, metadata, one_of, run_reference

notifications = Table(
    "notifications",
    metadata,
    Column("tenant_id", String(80), primary_key=True),
    # Made of what makes the row unique: the receiver drops a second delivery by it.
    Column("notification_id", String(80), primary_key=True),
    Column("run_id", String(255), nullable=False),
    Column("step_id", String(80)),
    Column("kind", String(32), nullable=False),
    # The approval, the intervention, the entry, the step or the run that it is about.
    Column("subject", String(400), nullable=False),
    # Of a reminder: how many intervals after the request; 0 for what is told once.
    Column("number", Integer, nullable=False),
    # The notifier, by the name that the settings have for it.
    Column("channel", String(200), nullable=False),
    Column("facts", Json, nullable=False),
    Column("state", String(16), nullable=False),
    # When it is tried next. Whoever tries it moves that ahead, so that nobody else does meanwhile.
    Column("due_ms", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("error", Text),
    Column("written_ms", BigInteger, nullable=False),
    Column("sent_ms", BigInteger),
    CheckConstraint(one_of("state", ("pending", "sent", "failed", "void")), name="state"),
    CheckConstraint("(state = 'sent') = (sent_ms IS NOT NULL)", name="sent_at_a_time"),
    CheckConstraint("number >= 0 AND attempts >= 0", name="counts"),
    # An activity that is tried again tells nobody twice.
    UniqueConstraint("tenant_id", "kind", "subject", "number", "channel"),
    Index(
        "ix_notifications_due",
        "tenant_id",
        "channel",
        "due_ms",
        sqlite_where=text("state = 'pending'"),
        postgresql_where=text("state = 'pending'"),
    ),
    Index("ix_notifications_written", "tenant_id", "written_ms"),
    run_reference(),
)
