"""What was sent to steer a run, and what was made of it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from activities.ledger.migrations.protection import keep_tenants_apart, make_append_only

revision = "0005_steering"
down_revision = "0004_notifications"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table, keep tenants apart, and what happened append-only."""
    _table()
    keep_tenants_apart("steerings")
    make_append_only("steerings")


def downgrade() -> None:
    """Migrations only go forward: a ledger never loses what it has recorded."""
    raise NotImplementedError("restore a backup to go back")


def _table() -> None:
    op.create_table(
        "steerings",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("steering_id", sa.String(length=400), nullable=False),
        sa.Column("run_id", sa.String(length=255), nullable=False),
        sa.Column("workflow_run_id", sa.String(length=80), nullable=False),
        sa.Column("verb", sa.String(length=16), nullable=False),
        sa.Column("actor", sa.String(length=200), nullable=False),
        sa.Column("content", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("code", sa.String(length=32), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("verified", sa.Boolean(), nullable=False),
        sa.Column("signature", sa.Text(), nullable=True),
        sa.Column("kid", sa.String(length=80), nullable=True),
        sa.Column("nonce", sa.String(length=100), nullable=True),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "(kid IS NULL) = (nonce IS NULL)", name=op.f("ck_steerings_signed_whole")
        ),
        sa.CheckConstraint(
            "NOT verified OR nonce IS NOT NULL", name=op.f("ck_steerings_verified_by_a_signature")
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id", "run_id"],
            ["runs.tenant_id", "runs.run_id"],
            name=op.f("fk_steerings_runs"),
        ),
        sa.PrimaryKeyConstraint("tenant_id", "steering_id", name=op.f("pk_steerings")),
    )
    op.create_index(
        "uq_steerings_nonce",
        "steerings",
        ["tenant_id", "run_id", "workflow_run_id", "nonce"],
        unique=True,
        sqlite_where=sa.text("code = 'accepted' AND nonce IS NOT NULL"),
        postgresql_where=sa.text("code = 'accepted' AND nonce IS NOT NULL"),
    )
