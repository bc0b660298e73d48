"""Votes given in advance, for calls within a scope, and the uses that were made of them."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from alembic import op

from activities.ledger.migrations.protection import keep_tenants_apart, on_postgresql, refuse

revision = "0003_standing_approvals"
down_revision = "0002_principals"
branch_labels = None
depends_on = None

TABLES: Final = ("standing_approvals", "standing_uses")
#: What a standing approval was granted for; its revocation is all that is ever added.
GRANTED: Final = (
    "standing_id, granter, tool, tool_version, schema_hash, condition, most_uses, total_of,"
    " most_total, until_ms, reason, nonce, signature, kid, granted_ms"
)
USED: Final = "approval_id, standing_id, run_id, step_id, amount, used_ms"


def upgrade() -> None:
    """Make the tables, keep tenants apart, and let what was granted and used stand."""
    _tables()
    op.add_column("decisions", sa.Column("standing_id", sa.String(length=40), nullable=True))
    _votes_index()
    if on_postgresql():
        for table in TABLES:
            keep_tenants_apart(table)
            refuse(table, "no_delete", "DELETE")
            refuse(table, "no_truncate", "TRUNCATE", each="STATEMENT")
        refused = "FOR EACH ROW EXECUTE FUNCTION refuse_change()"
        again = "FOR EACH ROW WHEN ({}) EXECUTE FUNCTION refuse_change()"
    else:
        for table in TABLES:
            op.execute(
                f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} BEGIN"
                f" SELECT RAISE(ABORT, '{table} are kept'); END"
            )
        refused = "BEGIN SELECT RAISE(ABORT, 'what was granted is not changed'); END"
        again = "WHEN {} BEGIN SELECT RAISE(ABORT, 'what has ended has ended'); END"
    for table, columns, end in (
        ("standing_approvals", GRANTED, "revoked_ms"),
        ("standing_uses", USED, "returned_ms"),
    ):
        op.execute(f"CREATE TRIGGER {table}_kept BEFORE UPDATE OF {columns} ON {table} {refused}")
        ended = again.format(f"OLD.{end} IS NOT NULL")
        op.execute(f"CREATE TRIGGER {table}_ended BEFORE UPDATE ON {table} {ended}")


def downgrade() -> None:
    """Migrations only go forward: a ledger never loses what it has recorded."""
    raise NotImplementedError("restore a backup to go back")


def _votes_index() -> None:
    # A person whose standing approval has voted, and was revoked since, may still look and vote.
    counted = sa.text("verdict = 'accepted' AND outcome = 'approve' AND standing_id IS NULL")
    op.drop_index("uq_decisions_vote", "decisions")
    op.create_index(
        "uq_decisions_vote",
        "decisions",
        ["tenant_id", "approval_id", "approver"],
        unique=True,
        sqlite_where=counted,
        postgresql_where=counted,
    )


def _tables() -> None:
    op.create_table(
        "standing_approvals",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("standing_id", sa.String(length=40), nullable=False),
        sa.Column("granter", sa.String(length=200), nullable=False),
        sa.Column("tool", sa.String(length=120), nullable=False),
        sa.Column("tool_version", sa.String(length=40), nullable=False),
        sa.Column("schema_hash", sa.String(length=80), nullable=False),
        sa.Column("condition", sa.String(length=500), nullable=True),
        sa.Column("most_uses", sa.Integer(), nullable=True),
        sa.Column("total_of", sa.String(length=200), nullable=True),
        sa.Column("most_total", sa.String(length=40), nullable=True),
        sa.Column("until_ms", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("nonce", sa.String(length=100), nullable=False),
        sa.Column("signature", sa.Text(), nullable=True),
        sa.Column("kid", sa.String(length=80), nullable=True),
        sa.Column("granted_ms", sa.BigInteger(), nullable=False),
        sa.Column("revoked_ms", sa.BigInteger(), nullable=True),
        sa.Column("revoked_by", sa.String(length=200), nullable=True),
        sa.CheckConstraint(
            "(signature IS NULL) = (kid IS NULL)", name=op.f("ck_standing_approvals_signed_whole")
        ),
        sa.CheckConstraint(
            "(total_of IS NULL) = (most_total IS NULL)",
            name=op.f("ck_standing_approvals_total_whole"),
        ),
        sa.CheckConstraint(
            "(revoked_ms IS NULL) = (revoked_by IS NULL)",
            name=op.f("ck_standing_approvals_revoked_whole"),
        ),
        sa.CheckConstraint("most_uses >= 1", name=op.f("ck_standing_approvals_most_uses")),
        sa.PrimaryKeyConstraint("tenant_id", "standing_id", name=op.f("pk_standing_approvals")),
    )
    op.create_index("ix_standing_approvals_tool", "standing_approvals", ["tenant_id", "tool"])
    op.create_table(
        "standing_uses",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("approval_id", sa.String(length=400), nullable=False),
        sa.Column("standing_id", sa.String(length=40), nullable=False),
        sa.Column("run_id", sa.String(length=255), nullable=False),
        sa.Column("step_id", sa.String(length=80), nullable=False),
        sa.Column("amount", sa.String(length=80), nullable=True),
        sa.Column("used_ms", sa.BigInteger(), nullable=False),
        sa.Column("returned_ms", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id", "standing_id"],
            ["standing_approvals.tenant_id", "standing_approvals.standing_id"],
            name=op.f("fk_standing_uses_standing_approvals"),
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id", "approval_id"],
            ["approvals.tenant_id", "approvals.approval_id"],
            name=op.f("fk_standing_uses_approvals"),
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id", "run_id"],
            ["runs.tenant_id", "runs.run_id"],
            name=op.f("fk_standing_uses_runs"),
        ),
        sa.PrimaryKeyConstraint(
            "tenant_id", "approval_id", "standing_id", name=op.f("pk_standing_uses")
        ),
    )
    op.create_index("ix_standing_uses_standing", "standing_uses", ["tenant_id", "standing_id"])
    op.create_index("ix_standing_uses_run", "standing_uses", ["tenant_id", "run_id", "step_id"])
