"""The outbox of notifications, and when people are reminded of an approval request."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from activities.ledger.migrations.protection import keep_tenants_apart

revision = "0004_notifications"
down_revision = "0003_standing_approvals"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the outbox, keep tenants apart in it, and let requests know their next reminder."""
    _outbox()
    op.add_column("approvals", sa.Column("remind_ms", sa.BigInteger(), nullable=True))
    _partial_index(
        "ix_approvals_remind",
        "approvals",
        ["tenant_id", "remind_ms"],
        "state = 'pending' AND remind_ms IS NOT NULL",
    )
    keep_tenants_apart("notifications")


def downgrade() -> None:
    """Migrations only go forward: a ledger never loses what it has recorded."""
    raise NotImplementedError("restore a backup to go back")


def _outbox() -> None:
    op.create_table(
        "notifications",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("notification_id", sa.String(length=80), nullable=False),
        sa.Column("run_id", sa.String(length=255), nullable=False),
        sa.Column("step_id", sa.String(length=80), nullable=True),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("subject", sa.String(length=400), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("channel", sa.String(length=200), nullable=False),
        sa.Column("facts", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("due_ms", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("written_ms", sa.BigInteger(), nullable=False),
        sa.Column("sent_ms", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "state IN ('pending', 'sent', 'failed', 'void')", name=op.f("ck_notifications_state")
        ),
        sa.CheckConstraint(
            "(state = 'sent') = (sent_ms IS NOT NULL)", name=op.f("ck_notifications_sent_at_a_time")
        ),
        sa.CheckConstraint("number >= 0 AND attempts >= 0", name=op.f("ck_notifications_counts")),
        sa.ForeignKeyConstraint(
            ["tenant_id", "run_id"],
            ["runs.tenant_id", "runs.run_id"],
            name=op.f("fk_notifications_runs"),
        ),
        sa.PrimaryKeyConstraint("tenant_id", "notification_id", name=op.f("pk_notifications")),
        sa.UniqueConstraint(
            "tenant_id",
            "kind",
            "subject",
            "number",
            "channel",
            name=op.f("uq_notifications_tenant_id_kind_subject_number_channel"),
        ),
    )
    _partial_index(
        "ix_notifications_due",
        "notifications",
        ["tenant_id", "channel", "due_ms"],
        "state = 'pending'",
    )
    op.create_index("ix_notifications_written", "notifications", ["tenant_id", "written_ms"])


def _partial_index(name: str, table: str, columns: list[str], where: str) -> None:
    op.create_index(
        name, table, columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where)
    )
