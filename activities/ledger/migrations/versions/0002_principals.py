"""People, what they may do, and the keys they sign with."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from activities.ledger.migrations.protection import keep_tenants_apart, make_append_only

revision = "0002_principals"
down_revision = "0001_ledger"
branch_labels = None
depends_on = None

TABLES = ("principals", "grants", "principal_keys", "principal_changes")


def upgrade() -> None:
    """Make the tables, keep tenants apart, and the changes append-only."""
    _tables()
    keep_tenants_apart(*TABLES)
    make_append_only("principal_changes")


def downgrade() -> None:
    """Migrations only go forward: a ledger never loses what it has recorded."""
    raise NotImplementedError("restore a backup to go back")


def _tables() -> None:
    op.create_table(
        "principals",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("principal", sa.String(length=200), nullable=False),
        sa.Column("added_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "principal", name=op.f("pk_principals")),
    )
    op.create_table(
        "grants",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("principal", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=80), nullable=False),
        sa.Column("granted_ms", sa.BigInteger(), nullable=False),
        sa.Column("revoked_ms", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("kind IN ('role', 'permission')", name=op.f("ck_grants_kind")),
        _principal_reference("grants"),
        sa.PrimaryKeyConstraint("tenant_id", "principal", "kind", "name", name=op.f("pk_grants")),
    )
    op.create_table(
        "principal_keys",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("kid", sa.String(length=80), nullable=False),
        sa.Column("principal", sa.String(length=200), nullable=False),
        sa.Column("public_key", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("added_ms", sa.BigInteger(), nullable=False),
        sa.Column("revoked_ms", sa.BigInteger(), nullable=True),
        _principal_reference("principal_keys"),
        sa.PrimaryKeyConstraint("tenant_id", "kid", name=op.f("pk_principal_keys")),
    )
    op.create_table(
        "principal_changes",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("change_id", sa.String(length=40), nullable=False),
        sa.Column("principal", sa.String(length=200), nullable=False),
        sa.Column("change", sa.String(length=32), nullable=False),
        sa.Column("what", sa.String(length=100), nullable=False),
        sa.Column("actor", sa.String(length=200), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        _principal_reference("principal_changes"),
        sa.PrimaryKeyConstraint("tenant_id", "change_id", name=op.f("pk_principal_changes")),
    )


def _principal_reference(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["tenant_id", "principal"],
        ["principals.tenant_id", "principals.principal"],
        name=op.f(f"fk_{table}_principals"),
    )
