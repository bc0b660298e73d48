"""Checkpoints saved under a name."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006_checkpoints"
down_revision = "0005_steering"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table, and keep tenants apart in it."""
    _table()
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE checkpoints ENABLE ROW LEVEL SECURITY")
        op.execute("ALTER TABLE checkpoints FORCE ROW LEVEL SECURITY")
        op.execute(
            "CREATE POLICY one_tenant ON checkpoints"
            " USING (tenant_id = current_setting('surehand.tenant', true))"
            " WITH CHECK (tenant_id = current_setting('surehand.tenant', true))"
        )


def downgrade() -> None:
    """Migrations only go forward: a ledger never loses what it has recorded."""
    raise NotImplementedError("restore a backup to go back")


def _table() -> None:
    op.create_table(
        "checkpoints",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("run_id", sa.String(length=255), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("document", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("saved_by", sa.String(length=200), nullable=False),
        sa.Column("saved_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.Column("removed_ms", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("number >= 1 AND seq >= 0", name=op.f("ck_checkpoints_counts")),
        sa.CheckConstraint("expires_ms > saved_ms", name=op.f("ck_checkpoints_lives")),
        sa.CheckConstraint(
            "(document IS NULL) = (removed_ms IS NOT NULL)",
            name=op.f("ck_checkpoints_removed_at_a_time"),
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id", "run_id"],
            ["runs.tenant_id", "runs.run_id"],
            name=op.f("fk_checkpoints_runs"),
        ),
        sa.PrimaryKeyConstraint("tenant_id", "run_id", "number", name=op.f("pk_checkpoints")),
    )
    kept = sa.text("document IS NOT NULL")
    op.create_index(
        "uq_checkpoints_name",
        "checkpoints",
        ["tenant_id", "run_id", "name"],
        unique=True,
        sqlite_where=kept,
        postgresql_where=kept,
    )
    op.create_index(
        "ix_checkpoints_expires",
        "checkpoints",
        ["tenant_id", "expires_ms"],
        sqlite_where=kept,
        postgresql_where=kept,
    )
