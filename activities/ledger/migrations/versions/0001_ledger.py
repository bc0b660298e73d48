"""The ledger of 0.1.0. It is released: what it makes does not change any more."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from alembic import op

from surehand.activities.ledger.migrations.protection import (
    guard_deletions,
    keep_tenants_apart,
    make_append_only,
    make_function,
    on_postgresql,
    refuse,
    refuse_unless,
)

revision = "0001_ledger"
down_revision = None
branch_labels = None
depends_on = None

#: Tables whose rows each belong to a tenant.
OF_TENANTS: Final = (
    "halt_votes",
    "halts",
    "limit_uses",
    "principals",
    "quota_usage",
    "quotas",
    "retention_rounds",
    "run_keys",
    "runs",
    "standing_approvals",
    "tenants",
    "approvals",
    "artifacts",
    "bars",
    "checkpoints",
    "decisions",
    "deletions",
    "deputies",
    "drafts",
    "effects",
    "events",
    "grants",
    "holds",
    "interventions",
    "leases",
    "notifications",
    "plans",
    "principal_changes",
    "principal_keys",
    "replays",
    "steerings",
    "steps",
    "standing_uses",
)
#: Tables whose rows are written once.
APPEND_ONLY: Final = ("halt_votes", "principal_changes")
#: By table: what was asked, granted or used, which stands, and the end, which is set once.
KEPT: Final = {
    "approvals": (
        "approval_id, run_id, step_id, tool, tool_version, key, params_hash, user_id, editors,"
        " needs, asked_of, assurance, secret, requested_ms, expires_ms",
        "consumed_entry, consumed_generation",
    ),
    "deputies": (
        "deputy_id, principal, deputy, tool, amount_of, most, until_ms, named_ms, named_by",
        "revoked_ms, revoked_by",
    ),
    "epochs": ("number, restored_to_ms, opened_ms, opened_by", "closed_ms, closed_by"),
    "halts": (
        "halt_id, tool, run_id, undo_too, reason, halted_by, halted_ms, needs",
        "lifted_ms, lifted_by",
    ),
    "run_keys": ("run_id, created_ms", "erased_ms, erased_by"),
    "standing_approvals": (
        "standing_id, granter, tool, tool_version, schema_hash, condition, most_uses, total_of,"
        " most_total, foreign_too, until_ms, reason, nonce, signature, kid, granted_ms",
        "revoked_ms, revoked_by",
    ),
    "standing_uses": ("approval_id, standing_id, run_id, step_id, amount, used_ms", "returned_ms"),
}
#: From which states a request goes on, and where to. A yes that nothing has used ends with its time
#: or its run, or once its votes do not carry it any more; one that was used stays.
APPROVAL_MOVES: Final = (
    "OLD.state = 'pending' OR (OLD.state = 'approved' AND NEW.state <> 'pending'"
    " AND OLD.consumed_entry IS NULL)"
)


def upgrade() -> None:
    """Make the tables, then what keeps tenants apart and what was recorded unchanged."""
    _make_tables()
    if on_postgresql():
        op.execute("CREATE SEQUENCE effects_commit_no")
        make_function(
            "refuse_change() RETURNS trigger AS"
            " $$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$"
        )
    keep_tenants_apart(*OF_TENANTS)
    for table in APPEND_ONLY:
        make_append_only(table)
    for table, (columns, end) in KEPT.items():
        _keep(table, columns, end)
    _keep_columns("runs", "parent_run_id, parent_step_id, linked_run_id")
    refuse_unless(
        *("approvals", "moves", "UPDATE OF state, decided_by, verified", APPROVAL_MOVES),
        "a request that was answered or closed is not answered again",
    )
    guard_deletions()


def downgrade() -> None:
    """Migrations only go forward: a ledger never loses what it has recorded."""
    raise NotImplementedError("restore a backup to go back")


def _make_tables() -> None:
    op.create_table(
        "epochs",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("restored_to_ms", sa.BigInteger(), nullable=False),
        sa.Column("opened_ms", sa.BigInteger(), nullable=False),
        sa.Column("opened_by", sa.String(length=200), nullable=False),
        sa.Column("closed_ms", sa.BigInteger()),
        sa.Column("closed_by", sa.String(length=200)),
        sa.CheckConstraint(
            "(closed_ms IS NULL) = (closed_by IS NULL)", name=op.f("ck_epochs_closed_whole")
        ),
        sa.CheckConstraint("number >= 1", name=op.f("ck_epochs_number")),
        sa.CheckConstraint("restored_to_ms <= opened_ms", name=op.f("ck_epochs_opened_later")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_epochs")),
    )
    op.create_table(
        "halt_votes",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("vote_id", sa.String(length=40), nullable=False),
        sa.Column("halt_id", sa.String(length=40), nullable=False),
        sa.Column("approver", sa.String(length=200), nullable=False),
        sa.Column("params_hash", sa.String(length=200), nullable=False),
        sa.Column("signature", sa.Text()),
        sa.Column("kid", sa.String(length=80)),
        sa.Column("nonce", sa.String(length=100)),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "vote_id", name=op.f("pk_halt_votes")),
    )
    op.create_index("ix_halt_votes_halt", "halt_votes", ["tenant_id", "halt_id"])
    op.create_index(
        "uq_halt_votes_nonce",
        "halt_votes",
        ["tenant_id", "approver", "nonce"],
        unique=True,
        sqlite_where=sa.text("nonce IS NOT NULL"),
        postgresql_where=sa.text("nonce IS NOT NULL"),
    )
    op.create_table(
        "halts",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("halt_id", sa.String(length=40), nullable=False),
        sa.Column("tool", sa.String(length=120)),
        sa.Column("run_id", sa.String(length=255)),
        sa.Column("undo_too", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("halted_by", sa.String(length=200), nullable=False),
        sa.Column("halted_ms", sa.BigInteger(), nullable=False),
        sa.Column("needs", sa.JSON(none_as_null=True)),
        sa.Column("lifted_by", sa.String(length=200)),
        sa.Column("lifted_ms", sa.BigInteger()),
        sa.CheckConstraint(
            "(lifted_ms IS NULL) = (lifted_by IS NULL)", name=op.f("ck_halts_lifted_whole")
        ),
        sa.PrimaryKeyConstraint("tenant_id", "halt_id", name=op.f("pk_halts")),
    )
    op.create_index(
        "ix_halts_standing",
        "halts",
        ["tenant_id", "halted_ms", "halt_id"],
        sqlite_where=sa.text("lifted_ms IS NULL"),
        postgresql_where=sa.text("lifted_ms IS NULL"),
    )
    op.create_table(
        "in_hand",
        sa.Column("worker", sa.String(length=200), nullable=False),
        sa.Column("workflow_id", sa.String(length=255), nullable=False),
        sa.Column("namespace", sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint("worker", "workflow_id", name=op.f("pk_in_hand")),
    )
    op.create_table(
        "limit_uses",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("entry_id", sa.String(length=80), nullable=False),
        sa.Column("limit_name", sa.String(length=60), nullable=False),
        sa.Column("group_hash", sa.String(length=80), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("counted_ms", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("amount >= 0", name=op.f("ck_limit_uses_amount")),
        sa.PrimaryKeyConstraint("tenant_id", "entry_id", "limit_name", name=op.f("pk_limit_uses")),
    )
    op.create_index("ix_limit_uses_group", "limit_uses", ["tenant_id", "group_hash", "counted_ms"])
    op.create_table(
        "principals",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("principal", sa.String(length=200), nullable=False),
        sa.Column("added_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "principal", name=op.f("pk_principals")),
    )
    op.create_table(
        "quota_usage",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("window_start_ms", sa.BigInteger(), nullable=False),
        sa.Column("used", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "kind IN ('effects', 'tokens', 'money')", name=op.f("ck_quota_usage_kind")
        ),
        sa.CheckConstraint("used >= 0", name=op.f("ck_quota_usage_used")),
        sa.PrimaryKeyConstraint(
            "tenant_id", "kind", "window_start_ms", name=op.f("pk_quota_usage")
        ),
    )
    op.create_table(
        "quotas",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("open_runs", sa.Integer()),
        sa.Column("effects_per_hour", sa.Integer()),
        sa.Column("pending_approvals", sa.Integer()),
        sa.Column("tokens_per_day", sa.BigInteger()),
        sa.Column("money_per_day", sa.String(length=40)),
        sa.Column("over", sa.String(length=8), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("set_by", sa.String(length=200), nullable=False),
        sa.Column("set_ms", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("over IN ('queue', 'reject')", name=op.f("ck_quotas_over")),
        sa.CheckConstraint(
            "(open_runs IS NULL OR open_runs >= 0)"
            " AND (effects_per_hour IS NULL OR effects_per_hour >= 0)"
            " AND (pending_approvals IS NULL OR pending_approvals >= 0)"
            " AND (tokens_per_day IS NULL OR tokens_per_day >= 0)",
            name=op.f("ck_quotas_at_least_nothing"),
        ),
        sa.CheckConstraint("weight >= 0.001 AND weight <= 1000", name=op.f("ck_quotas_weight")),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_quotas")),
    )
    op.create_table(
        "retention_rounds",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("whole_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_retention_rounds")),
    )
    op.create_table(
        "run_keys",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("run_id", sa.String(length=255), nullable=False),
        sa.Column("kek_id", sa.String(length=80), nullable=False),
        sa.Column("wrapped", sa.LargeBinary()),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("erased_ms", sa.BigInteger()),
        sa.Column("erased_by", sa.String(length=200)),
        sa.CheckConstraint(
            "(erased_ms IS NULL) = (erased_by IS NULL)", name=op.f("ck_run_keys_erased_by_somebody")
        ),
        sa.CheckConstraint(
            "(wrapped IS NULL) = (erased_ms IS NOT NULL)", name=op.f("ck_run_keys_erased_at_a_time")
        ),
        sa.PrimaryKeyConstraint("tenant_id", "run_id", name=op.f("pk_run_keys")),
    )
    op.create_table(
        "runs",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("run_id", sa.String(length=255), nullable=False),
        sa.Column("first_execution", sa.String(length=80), nullable=False),
        sa.Column("execution", sa.String(length=80), nullable=False),
        sa.Column("parent_run_id", sa.String(length=255)),
        sa.Column("parent_step_id", sa.String(length=80)),
        sa.Column("linked_run_id", sa.String(length=255)),
        sa.Column("user_id", sa.String(length=200), nullable=False),
        sa.Column("started_by", sa.String(length=200), nullable=False),
        sa.Column("start_signature", sa.Text()),
        sa.Column("start_kid", sa.String(length=80)),
        sa.Column("start_nonce", sa.String(length=100)),
        sa.Column("start_ms", sa.BigInteger(), nullable=False),
        sa.Column("plan_name", sa.String(length=80), nullable=False),
        sa.Column("input", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("head", sa.String(length=80), nullable=False),
        sa.Column("opened_ms", sa.BigInteger(), nullable=False),
        sa.Column("admitted_ms", sa.BigInteger()),
        sa.Column("closed_ms", sa.BigInteger()),
        sa.Column("batch", sa.String(length=400)),
        sa.CheckConstraint(
            "(closed_ms IS NOT NULL) = (state IN ('completed', 'failed', 'cancelled'))",
            name=op.f("ck_runs_closed_when_ended"),
        ),
        sa.CheckConstraint(
            "(parent_run_id IS NULL) = (parent_step_id IS NULL)",
            name=op.f("ck_runs_parent_run_and_step"),
        ),
        sa.CheckConstraint(
            "(start_signature IS NULL) = (start_kid IS NULL)"
            " AND (start_nonce IS NULL OR start_kid IS NOT NULL)",
            name=op.f("ck_runs_start_signed_whole"),
        ),
        sa.PrimaryKeyConstraint("tenant_id", "run_id", name=op.f("pk_runs")),
    )
    op.create_index(
        "ix_runs_closed",
        "runs",
        ["tenant_id", "closed_ms"],
        sqlite_where=sa.text("closed_ms IS NOT NULL AND parent_run_id IS NULL"),
        postgresql_where=sa.text("closed_ms IS NOT NULL AND parent_run_id IS NULL"),
    )
    op.create_index(
        "ix_runs_linked",
        "runs",
        ["tenant_id", "linked_run_id"],
        sqlite_where=sa.text("linked_run_id IS NOT NULL"),
        postgresql_where=sa.text("linked_run_id IS NOT NULL"),
    )
    op.create_index(
        "ix_runs_open",
        "runs",
        ["tenant_id", "opened_ms"],
        sqlite_where=sa.text("closed_ms IS NULL AND parent_run_id IS NULL"),
        postgresql_where=sa.text("closed_ms IS NULL AND parent_run_id IS NULL"),
    )
    op.create_index(
        "ix_runs_parent",
        "runs",
        ["tenant_id", "parent_run_id", "parent_step_id"],
        sqlite_where=sa.text("parent_run_id IS NOT NULL"),
        postgresql_where=sa.text("parent_run_id IS NOT NULL"),
    )
    op.create_index(
        "uq_runs_start_nonce",
        "runs",
        ["tenant_id", "started_by", "start_nonce"],
        unique=True,
        sqlite_where=sa.text("start_nonce IS NOT NULL"),
        postgresql_where=sa.text("start_nonce IS NOT NULL"),
    )
    op.create_table(
        "standing_approvals",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("standing_id", sa.String(length=40), nullable=False),
        sa.Column("granter", sa.String(length=200), nullable=False),
        sa.Column("tool", sa.String(length=120), nullable=False),
        sa.Column("tool_version", sa.String(length=40), nullable=False),
        sa.Column("schema_hash", sa.String(length=80), nullable=False),
        sa.Column("condition", sa.String(length=500)),
        sa.Column("most_uses", sa.Integer()),
        sa.Column("total_of", sa.String(length=200)),
        sa.Column("most_total", sa.String(length=40)),
        sa.Column("foreign_too", sa.Boolean(), nullable=False),
        sa.Column("until_ms", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("nonce", sa.String(length=100), nullable=False),
        sa.Column("signature", sa.Text()),
        sa.Column("kid", sa.String(length=80)),
        sa.Column("granted_ms", sa.BigInteger(), nullable=False),
        sa.Column("revoked_ms", sa.BigInteger()),
        sa.Column("revoked_by", sa.String(length=200)),
        sa.CheckConstraint(
            "(revoked_ms IS NULL) = (revoked_by IS NULL)",
            name=op.f("ck_standing_approvals_revoked_whole"),
        ),
        sa.CheckConstraint(
            "(signature IS NULL) = (kid IS NULL)", name=op.f("ck_standing_approvals_signed_whole")
        ),
        sa.CheckConstraint(
            "(total_of IS NULL) = (most_total IS NULL)",
            name=op.f("ck_standing_approvals_total_whole"),
        ),
        sa.CheckConstraint("most_uses >= 1", name=op.f("ck_standing_approvals_most_uses")),
        sa.PrimaryKeyConstraint("tenant_id", "standing_id", name=op.f("pk_standing_approvals")),
    )
    op.create_index("ix_standing_approvals_tool", "standing_approvals", ["tenant_id", "tool"])
    op.create_table(
        "tenants",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("cell", sa.String(length=64), nullable=False),
        sa.Column("set_by", sa.String(length=200), nullable=False),
        sa.Column("set_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_tenants")),
    )
    op.create_table(
        "approvals",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("approval_id", sa.String(length=400), nullable=False),
        sa.Column("run_id", sa.String(length=255), nullable=False),
        sa.Column("step_id", sa.String(length=80), nullable=False),
        sa.Column("tool", sa.String(length=120), nullable=False),
        sa.Column("tool_version", sa.String(length=40), nullable=False),
        sa.Column("key", sa.String(length=400), nullable=False),
        sa.Column("params_hash", sa.String(length=80), nullable=False),
        sa.Column("params", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("answers", sa.JSON(none_as_null=True)),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("undo", sa.Text(), nullable=False),
        sa.Column("user_id", sa.String(length=200), nullable=False),
        sa.Column("editors", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("needs", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("asked_of", sa.String(length=1000), nullable=False),
        sa.Column("assurance", sa.String(length=16), nullable=False),
        sa.Column("precondition", sa.Text()),
        sa.Column("secret", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("requested_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.Column("decided_by", sa.String(length=200)),
        sa.Column("verified", sa.Boolean()),
        sa.Column("consumed_entry", sa.String(length=80)),
        sa.Column("consumed_generation", sa.Integer()),
        sa.Column("remind_ms", sa.BigInteger()),
        sa.CheckConstraint(
            "(state IN ('approved', 'rejected', 'superseded')) = (decided_by IS NOT NULL)",
            name=op.f("ck_approvals_decided_by_someone"),
        ),
        sa.CheckConstraint(
            "assurance IN ('open', 'chat', 'signed', 'passkey', 'device_passkey')",
            name=op.f("ck_approvals_assurance"),
        ),
        sa.CheckConstraint(
            "consumed_entry IS NULL OR state = 'approved'",
            name=op.f("ck_approvals_only_approved_is_consumed"),
        ),
        sa.CheckConstraint(
            "state IN ('pending', 'approved', 'rejected', 'expired', 'superseded', 'void')",
            name=op.f("ck_approvals_state"),
        ),
        sa.CheckConstraint(
            "(consumed_entry IS NULL) = (consumed_generation IS NULL)",
            name=op.f("ck_approvals_consumed_whole"),
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id", "run_id"],
            ["runs.tenant_id", "runs.run_id"],
            name=op.f("fk_approvals_runs"),
        ),
        sa.PrimaryKeyConstraint("tenant_id", "approval_id", name=op.f("pk_approvals")),
    )
    op.create_index(
        "ix_approvals_asked",
        "approvals",
        ["tenant_id", "asked_of", "tool", "expires_ms", "approval_id"],
        sqlite_where=sa.text("state = 'pending'"),
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_index(
        "ix_approvals_pending",
        "approvals",
        ["tenant_id", "expires_ms", "approval_id"],
        sqlite_where=sa.text("state = 'pending'"),
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_index(
        "ix_approvals_remind",
        "approvals",
        ["tenant_id", "remind_ms"],
        sqlite_where=sa.text("state = 'pending' AND remind_ms IS NOT NULL"),
        postgresql_where=sa.text("state = 'pending' AND remind_ms IS NOT NULL"),
    )
    op.create_index("ix_approvals_run", "approvals", ["tenant_id", "run_id"])
    op.create_table(
        "artifacts",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("artifact_id", sa.String(length=80), nullable=False),
        sa.Column("run_id", sa.String(length=255), nullable=False),
        sa.Column("step_id", sa.String(length=80), nullable=False),
        sa.Column("type", sa.String(length=80), nullable=False),
        sa.Column("uri", sa.String(length=400), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("sealed_for", sa.String(length=255)),
        sa.Column("content", sa.LargeBinary()),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "run_id"],
            ["runs.tenant_id", "runs.run_id"],
            name=op.f("fk_artifacts_runs"),
        ),
        sa.PrimaryKeyConstraint("tenant_id", "artifact_id", name=op.f("pk_artifacts")),
        sa.UniqueConstraint(
            "tenant_id",
            "run_id",
            "step_id",
            "sha256",
            name=op.f("uq_artifacts_tenant_id_run_id_step_id_sha256"),
        ),
    )
    op.create_index("ix_artifacts_sha256", "artifacts", ["tenant_id", "sha256"])
    op.create_table(
        "bars",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("run_id", sa.String(length=255), nullable=False),
        sa.Column("step_id", sa.String(length=80), nullable=False),
        sa.Column("barred_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "run_id"], ["runs.tenant_id", "runs.run_id"], name=op.f("fk_bars_runs")
        ),
        sa.PrimaryKeyConstraint("tenant_id", "run_id", "step_id", name=op.f("pk_bars")),
    )
    op.create_table(
        "checkpoints",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("run_id", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("document", sa.JSON(none_as_null=True)),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("saved_by", sa.String(length=200), nullable=False),
        sa.Column("saved_ms", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("seq >= 0", name=op.f("ck_checkpoints_counts")),
        sa.ForeignKeyConstraint(
            ["tenant_id", "run_id"],
            ["runs.tenant_id", "runs.run_id"],
            name=op.f("fk_checkpoints_runs"),
        ),
        sa.PrimaryKeyConstraint("tenant_id", "run_id", "name", name=op.f("pk_checkpoints")),
    )
    op.create_table(
        "decisions",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("decision_id", sa.String(length=400), nullable=False),
        sa.Column("run_id", sa.String(length=255), nullable=False),
        sa.Column("approval_id", sa.String(length=400), nullable=False),
        sa.Column("approver", sa.String(length=200), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("params_hash", sa.String(length=200), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("verdict", sa.String(length=32), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("verified", sa.Boolean(), nullable=False),
        sa.Column("edited", sa.JSON(none_as_null=True)),
        sa.Column("signature", sa.Text()),
        sa.Column("kid", sa.String(length=80)),
        sa.Column("nonce", sa.String(length=100)),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("standing_id", sa.String(length=40)),
        sa.Column("deputy_for", sa.String(length=200)),
        sa.CheckConstraint(
            "verified = (kid IS NOT NULL AND nonce IS NOT NULL)",
            name=op.f("ck_decisions_verified_by_a_signature"),
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id", "run_id"],
            ["runs.tenant_id", "runs.run_id"],
            name=op.f("fk_decisions_runs"),
        ),
        sa.PrimaryKeyConstraint("tenant_id", "decision_id", name=op.f("pk_decisions")),
    )
    op.create_index("ix_decisions_approval", "decisions", ["tenant_id", "approval_id"])
    op.create_index(
        "ix_decisions_approver",
        "decisions",
        ["tenant_id", "approver", "at_ms", "decision_id"],
        sqlite_where=sa.text("standing_id IS NULL"),
        postgresql_where=sa.text("standing_id IS NULL"),
    )
    op.create_index("ix_decisions_run", "decisions", ["tenant_id", "run_id"])
    op.create_index(
        "uq_decisions_nonce",
        "decisions",
        ["tenant_id", "approver", "nonce"],
        unique=True,
        sqlite_where=sa.text("nonce IS NOT NULL"),
        postgresql_where=sa.text("nonce IS NOT NULL"),
    )
    op.create_index(
        "uq_decisions_vote",
        "decisions",
        ["tenant_id", "approval_id", "approver"],
        unique=True,
        sqlite_where=sa.text(
            "verdict = 'accepted' AND outcome = 'approve' AND standing_id IS NULL"
        ),
        postgresql_where=sa.text(
            "verdict = 'accepted' AND outcome = 'approve' AND standing_id IS NULL"
        ),
    )
    op.create_table(
        "deletions",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("run_id", sa.String(length=255), nullable=False),
        sa.Column("begun_ms", sa.BigInteger(), nullable=False),
        sa.Column("begun_by", sa.String(length=200), nullable=False),
        sa.Column("deleted_ms", sa.BigInteger()),
        sa.ForeignKeyConstraint(
            ["tenant_id", "run_id"],
            ["runs.tenant_id", "runs.run_id"],
            name=op.f("fk_deletions_runs"),
        ),
        sa.PrimaryKeyConstraint("tenant_id", "run_id", name=op.f("pk_deletions")),
    )
    op.create_index(
        "ix_deletions_going",
        "deletions",
        ["tenant_id", "run_id"],
        sqlite_where=sa.text("deleted_ms IS NULL"),
        postgresql_where=sa.text("deleted_ms IS NULL"),
    )
    op.create_table(
        "deputies",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("deputy_id", sa.String(length=40), nullable=False),
        sa.Column("principal", sa.String(length=200), nullable=False),
        sa.Column("deputy", sa.String(length=200), nullable=False),
        sa.Column("tool", sa.String(length=120)),
        sa.Column("amount_of", sa.String(length=200)),
        sa.Column("most", sa.String(length=40)),
        sa.Column("until_ms", sa.BigInteger(), nullable=False),
        sa.Column("named_ms", sa.BigInteger(), nullable=False),
        sa.Column("named_by", sa.String(length=200), nullable=False),
        sa.Column("revoked_ms", sa.BigInteger()),
        sa.Column("revoked_by", sa.String(length=200)),
        sa.CheckConstraint(
            "(amount_of IS NULL) = (most IS NULL)", name=op.f("ck_deputies_amount_whole")
        ),
        sa.CheckConstraint(
            "(revoked_ms IS NULL) = (revoked_by IS NULL)", name=op.f("ck_deputies_revoked_whole")
        ),
        sa.CheckConstraint("deputy <> principal", name=op.f("ck_deputies_somebody_else")),
        sa.ForeignKeyConstraint(
            ["tenant_id", "principal"],
            ["principals.tenant_id", "principals.principal"],
            name=op.f("fk_deputies_principals"),
        ),
        sa.PrimaryKeyConstraint("tenant_id", "deputy_id", name=op.f("pk_deputies")),
    )
    op.create_index("ix_deputies_deputy", "deputies", ["tenant_id", "deputy"])
    op.create_table(
        "drafts",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("run_id", sa.String(length=255), nullable=False),
        sa.Column("step_id", sa.String(length=80), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("params_hash", sa.String(length=80), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("parts", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("tail", sa.LargeBinary()),
        sa.Column("begun_ms", sa.BigInteger(), nullable=False),
        sa.Column("ended_ms", sa.BigInteger()),
        sa.Column("removed_ms", sa.BigInteger()),
        sa.CheckConstraint(
            "(tail IS NULL) = (removed_ms IS NOT NULL)", name=op.f("ck_drafts_removed_at_a_time")
        ),
        sa.CheckConstraint("number >= 1 AND bytes >= 0", name=op.f("ck_drafts_counts")),
        sa.CheckConstraint(
            "removed_ms IS NULL OR ended_ms IS NOT NULL", name=op.f("ck_drafts_ended_when_removed")
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id", "run_id"], ["runs.tenant_id", "runs.run_id"], name=op.f("fk_drafts_runs")
        ),
        sa.PrimaryKeyConstraint("tenant_id", "run_id", "step_id", "number", name=op.f("pk_drafts")),
    )
    op.create_index(
        "ix_drafts_kept",
        "drafts",
        ["tenant_id"],
        sqlite_where=sa.text("removed_ms IS NULL"),
        postgresql_where=sa.text("removed_ms IS NULL"),
    )
    op.create_index(
        "uq_drafts_under_way",
        "drafts",
        ["tenant_id", "run_id", "step_id"],
        unique=True,
        sqlite_where=sa.text("ended_ms IS NULL"),
        postgresql_where=sa.text("ended_ms IS NULL"),
    )
    op.create_table(
        "effects",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("entry_id", sa.String(length=80), nullable=False),
        sa.Column("tool", sa.String(length=120), nullable=False),
        sa.Column("tool_version", sa.String(length=40), nullable=False),
        sa.Column("key", sa.String(length=400), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("identity_hash", sa.String(length=80), nullable=False),
        sa.Column("params_hash", sa.String(length=80), nullable=False),
        sa.Column("params", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("run_id", sa.String(length=255), nullable=False),
        sa.Column("step_id", sa.String(length=80), nullable=False),
        sa.Column("undo", sa.JSON(none_as_null=True)),
        sa.Column("undoes", sa.String(length=80)),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("fencing_token", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.String(length=400)),
        sa.Column("activity_key", sa.String(length=400)),
        sa.Column("lease_until_ms", sa.BigInteger()),
        sa.Column("lease_ms", sa.BigInteger(), nullable=False),
        sa.Column("deadline_ms", sa.BigInteger()),
        sa.Column("timeout_ms", sa.BigInteger(), nullable=False),
        sa.Column("settle_ms", sa.BigInteger()),
        sa.Column("window_ms", sa.BigInteger()),
        sa.Column("first_call_ms", sa.BigInteger()),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("recovering_ms", sa.BigInteger()),
        sa.Column("unproven", sa.Boolean(), nullable=False),
        sa.Column("calls", sa.Integer(), nullable=False),
        sa.Column("failures", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("approval_id", sa.String(length=400)),
        sa.Column("observed", sa.JSON(none_as_null=True)),
        sa.Column("receipt", sa.JSON(none_as_null=True)),
        sa.Column("foreign_receipt", sa.Boolean(), nullable=False),
        sa.Column("answer", sa.JSON(none_as_null=True)),
        sa.Column("evidence", sa.JSON(none_as_null=True)),
        sa.Column("error", sa.Text()),
        sa.Column("commit_no", sa.BigInteger()),
        sa.Column("left_because", sa.Text()),
        sa.Column("claimed_ms", sa.BigInteger(), nullable=False),
        sa.Column("settled_ms", sa.BigInteger()),
        sa.Column("content_deleted_ms", sa.BigInteger()),
        sa.CheckConstraint(
            "(commit_no IS NOT NULL) OR state NOT IN ('committed', 'compensating', 'compensated')",
            name=op.f("ck_effects_committed_has_number"),
        ),
        sa.CheckConstraint(
            "(state = 'claimed') = (lease_until_ms IS NOT NULL)",
            name=op.f("ck_effects_leased_while_claimed"),
        ),
        sa.CheckConstraint(
            "(undoes IS NOT NULL) = (substr(key, 1, 5) = 'undo:')",
            name=op.f("ck_effects_undos_have_their_own_keys"),
        ),
        sa.CheckConstraint(
            "recovering_ms IS NULL OR state IN ('claimed', 'in_doubt', 'partial')",
            name=op.f("ck_effects_recovering_until_settled"),
        ),
        sa.CheckConstraint(
            "state IN ('claimed', 'committed', 'failed', 'in_doubt', 'partial', 'compensating',"
            " 'compensated')",
            name=op.f("ck_effects_state"),
        ),
        sa.CheckConstraint(
            "generation >= 1 AND fencing_token >= 1 AND calls >= 1", name=op.f("ck_effects_counts")
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id", "run_id"], ["runs.tenant_id", "runs.run_id"], name=op.f("fk_effects_runs")
        ),
        sa.PrimaryKeyConstraint("tenant_id", "entry_id", name=op.f("pk_effects")),
        sa.UniqueConstraint(
            "tenant_id",
            "tool",
            "key",
            "generation",
            name=op.f("uq_effects_tenant_id_tool_key_generation"),
        ),
    )
    op.create_index("ix_effects_run", "effects", ["tenant_id", "run_id", "step_id"])
    op.create_index(
        "ix_effects_undoes",
        "effects",
        ["tenant_id", "undoes"],
        sqlite_where=sa.text("undoes IS NOT NULL"),
        postgresql_where=sa.text("undoes IS NOT NULL"),
    )
    op.create_index(
        "ix_effects_unsettled",
        "effects",
        ["tenant_id", "claimed_ms", "entry_id"],
        sqlite_where=sa.text("state IN ('claimed', 'in_doubt', 'partial')"),
        postgresql_where=sa.text("state IN ('claimed', 'in_doubt', 'partial')"),
    )
    op.create_index("uq_effects_commit_no", "effects", ["tenant_id", "commit_no"], unique=True)
    op.create_index(
        "uq_effects_live_key",
        "effects",
        ["tenant_id", "tool", "key"],
        unique=True,
        sqlite_where=sa.text("state NOT IN ('failed', 'compensated')"),
        postgresql_where=sa.text("state NOT IN ('failed', 'compensated')"),
    )
    op.create_index(
        "uq_effects_undoes",
        "effects",
        ["tenant_id", "undoes"],
        unique=True,
        sqlite_where=sa.text("undoes IS NOT NULL AND state != 'failed'"),
        postgresql_where=sa.text("undoes IS NOT NULL AND state != 'failed'"),
    )
    op.create_table(
        "events",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("run_id", sa.String(length=255), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("type", sa.String(length=64), nullable=False),
        sa.Column("step_id", sa.String(length=80)),
        sa.Column("body", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("previous", sa.String(length=80), nullable=False),
        sa.Column("hash", sa.String(length=80), nullable=False),
        sa.CheckConstraint("seq >= 1", name=op.f("ck_events_seq")),
        sa.ForeignKeyConstraint(
            ["tenant_id", "run_id"], ["runs.tenant_id", "runs.run_id"], name=op.f("fk_events_runs")
        ),
        sa.PrimaryKeyConstraint("tenant_id", "run_id", "seq", name=op.f("pk_events")),
    )
    op.create_index("ix_events_at", "events", ["tenant_id", "at_ms"])
    op.create_index(
        "ix_events_foreign",
        "events",
        ["tenant_id", "run_id"],
        sqlite_where=sa.text("type = 'run.marked_foreign'"),
        postgresql_where=sa.text("type = 'run.marked_foreign'"),
    )
    op.create_index(
        "ix_events_replayed",
        "events",
        ["tenant_id", "run_id"],
        sqlite_where=sa.text("type = 'effect.replayed'"),
        postgresql_where=sa.text("type = 'effect.replayed'"),
    )
    op.create_table(
        "grants",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("principal", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=80), nullable=False),
        sa.Column("granted_ms", sa.BigInteger(), nullable=False),
        sa.Column("revoked_ms", sa.BigInteger()),
        sa.CheckConstraint("kind IN ('role', 'permission')", name=op.f("ck_grants_kind")),
        sa.ForeignKeyConstraint(
            ["tenant_id", "principal"],
            ["principals.tenant_id", "principals.principal"],
            name=op.f("fk_grants_principals"),
        ),
        sa.PrimaryKeyConstraint("tenant_id", "principal", "kind", "name", name=op.f("pk_grants")),
    )
    op.create_table(
        "holds",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("run_id", sa.String(length=255), nullable=False),
        sa.Column("kept_by", sa.String(length=200), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("kept_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "run_id"], ["runs.tenant_id", "runs.run_id"], name=op.f("fk_holds_runs")
        ),
        sa.PrimaryKeyConstraint("tenant_id", "run_id", name=op.f("pk_holds")),
    )
    op.create_table(
        "interventions",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("intervention_id", sa.String(length=80), nullable=False),
        sa.Column("run_id", sa.String(length=255), nullable=False),
        sa.Column("step_id", sa.String(length=80), nullable=False),
        sa.Column("entry_id", sa.String(length=80), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("rule", sa.String(length=32), nullable=False),
        sa.Column("question", sa.Text(), nullable=False),
        sa.Column("undo", sa.JSON(none_as_null=True)),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("outcome", sa.String(length=16)),
        sa.Column("actor", sa.String(length=200)),
        sa.Column("evidence", sa.Text()),
        sa.Column("resolution_id", sa.String(length=400)),
        sa.Column("opened_ms", sa.BigInteger(), nullable=False),
        sa.Column("settled_ms", sa.BigInteger()),
        sa.CheckConstraint(
            "(state = 'settled') = (outcome IS NOT NULL AND actor IS NOT NULL)",
            name=op.f("ck_interventions_settled_whole"),
        ),
        sa.CheckConstraint("state IN ('open', 'settled')", name=op.f("ck_interventions_state")),
        sa.ForeignKeyConstraint(
            ["tenant_id", "run_id"],
            ["runs.tenant_id", "runs.run_id"],
            name=op.f("fk_interventions_runs"),
        ),
        sa.PrimaryKeyConstraint("tenant_id", "intervention_id", name=op.f("pk_interventions")),
    )
    op.create_index("ix_interventions_entry", "interventions", ["tenant_id", "entry_id", "number"])
    op.create_index("ix_interventions_run", "interventions", ["tenant_id", "run_id", "step_id"])
    op.create_index(
        "uq_interventions_open",
        "interventions",
        ["tenant_id", "entry_id", "run_id"],
        unique=True,
        sqlite_where=sa.text("state = 'open'"),
        postgresql_where=sa.text("state = 'open'"),
    )
    op.create_table(
        "leases",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("resource", sa.String(length=400), nullable=False),
        sa.Column("fencing_token", sa.BigInteger(), nullable=False),
        sa.Column("run_id", sa.String(length=255), nullable=False),
        sa.Column("step_id", sa.String(length=80), nullable=False),
        sa.Column("tool", sa.String(length=120), nullable=False),
        sa.Column("holder", sa.String(length=400)),
        sa.Column("lease_until_ms", sa.BigInteger()),
        sa.Column("lease_ms", sa.BigInteger(), nullable=False),
        sa.Column("others_after_ms", sa.BigInteger(), nullable=False),
        sa.Column("acquired_ms", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "(holder IS NULL) = (lease_until_ms IS NULL)", name=op.f("ck_leases_held_until")
        ),
        sa.CheckConstraint("fencing_token >= 1", name=op.f("ck_leases_fencing_token")),
        sa.ForeignKeyConstraint(
            ["tenant_id", "run_id"], ["runs.tenant_id", "runs.run_id"], name=op.f("fk_leases_runs")
        ),
        sa.PrimaryKeyConstraint("tenant_id", "resource", name=op.f("pk_leases")),
    )
    op.create_index(
        "ix_leases_held",
        "leases",
        ["tenant_id", "lease_until_ms"],
        sqlite_where=sa.text("holder IS NOT NULL"),
        postgresql_where=sa.text("holder IS NOT NULL"),
    )
    op.create_table(
        "notifications",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("notification_id", sa.String(length=80), nullable=False),
        sa.Column("run_id", sa.String(length=255), nullable=False),
        sa.Column("step_id", sa.String(length=80)),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("subject", sa.String(length=400), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("channel", sa.String(length=200), nullable=False),
        sa.Column("facts", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("due_ms", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("written_ms", sa.BigInteger(), nullable=False),
        sa.Column("sent_ms", sa.BigInteger()),
        sa.Column("message", sa.String(length=200)),
        sa.CheckConstraint(
            "(state = 'sent') = (sent_ms IS NOT NULL)", name=op.f("ck_notifications_sent_at_a_time")
        ),
        sa.CheckConstraint(
            "state IN ('pending', 'sent', 'failed', 'void')", name=op.f("ck_notifications_state")
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
    op.create_index(
        "ix_notifications_due",
        "notifications",
        ["tenant_id", "channel", "due_ms"],
        sqlite_where=sa.text("state = 'pending'"),
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_index(
        "ix_notifications_message",
        "notifications",
        ["tenant_id", "channel"],
        sqlite_where=sa.text("message IS NOT NULL"),
        postgresql_where=sa.text("message IS NOT NULL"),
    )
    op.create_index("ix_notifications_run", "notifications", ["tenant_id", "run_id"])
    op.create_index("ix_notifications_written", "notifications", ["tenant_id", "written_ms"])
    op.create_table(
        "plans",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("run_id", sa.String(length=255), nullable=False),
        sa.Column("plan_version", sa.Integer(), nullable=False),
        sa.Column("plan", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("tools", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("stored_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "run_id"], ["runs.tenant_id", "runs.run_id"], name=op.f("fk_plans_runs")
        ),
        sa.PrimaryKeyConstraint("tenant_id", "run_id", "plan_version", name=op.f("pk_plans")),
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
        sa.ForeignKeyConstraint(
            ["tenant_id", "principal"],
            ["principals.tenant_id", "principals.principal"],
            name=op.f("fk_principal_changes_principals"),
        ),
        sa.PrimaryKeyConstraint("tenant_id", "change_id", name=op.f("pk_principal_changes")),
    )
    op.create_table(
        "principal_keys",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("kid", sa.String(length=80), nullable=False),
        sa.Column("principal", sa.String(length=200), nullable=False),
        sa.Column("public_key", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("passkey", sa.JSON(none_as_null=True)),
        sa.Column("added_ms", sa.BigInteger(), nullable=False),
        sa.Column("revoked_ms", sa.BigInteger()),
        sa.ForeignKeyConstraint(
            ["tenant_id", "principal"],
            ["principals.tenant_id", "principals.principal"],
            name=op.f("fk_principal_keys_principals"),
        ),
        sa.PrimaryKeyConstraint("tenant_id", "kid", name=op.f("pk_principal_keys")),
    )
    op.create_table(
        "replays",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("run_id", sa.String(length=255), nullable=False),
        sa.Column("step_id", sa.String(length=80), nullable=False),
        sa.Column("entry_id", sa.String(length=80), nullable=False),
        sa.Column("replayed_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "run_id"], ["runs.tenant_id", "runs.run_id"], name=op.f("fk_replays_runs")
        ),
        sa.PrimaryKeyConstraint(
            "tenant_id", "run_id", "step_id", "entry_id", name=op.f("pk_replays")
        ),
    )
    op.create_index("ix_replays_entry", "replays", ["tenant_id", "entry_id"])
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
        sa.Column("signature", sa.Text()),
        sa.Column("kid", sa.String(length=80)),
        sa.Column("nonce", sa.String(length=100)),
        sa.Column("forwarded_as", sa.String(length=400)),
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
        "ix_steerings_actor",
        "steerings",
        ["tenant_id", "actor", "at_ms", "steering_id"],
        sqlite_where=sa.text("forwarded_as IS NULL AND verb IN ('answer', 'resolve')"),
        postgresql_where=sa.text("forwarded_as IS NULL AND verb IN ('answer', 'resolve')"),
    )
    op.create_index(
        "uq_steerings_nonce",
        "steerings",
        ["tenant_id", "run_id", "workflow_run_id", "nonce"],
        unique=True,
        sqlite_where=sa.text("nonce IS NOT NULL"),
        postgresql_where=sa.text("nonce IS NOT NULL"),
    )
    op.create_table(
        "steps",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("run_id", sa.String(length=255), nullable=False),
        sa.Column("step_id", sa.String(length=80), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("tool", sa.String(length=120), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("input", sa.JSON(none_as_null=True)),
        sa.Column("output", sa.JSON(none_as_null=True)),
        sa.Column("error", sa.Text()),
        sa.Column("error_class", sa.String(length=32)),
        sa.Column("started_ms", sa.BigInteger()),
        sa.Column("ended_ms", sa.BigInteger()),
        sa.Column("holder", sa.String(length=400)),
        sa.CheckConstraint(
            "state IN ('pending', 'running', 'succeeded', 'failed', 'skipped')",
            name=op.f("ck_steps_state"),
        ),
        sa.CheckConstraint("attempt >= 0", name=op.f("ck_steps_attempt")),
        sa.ForeignKeyConstraint(
            ["tenant_id", "run_id"], ["runs.tenant_id", "runs.run_id"], name=op.f("fk_steps_runs")
        ),
        sa.PrimaryKeyConstraint("tenant_id", "run_id", "step_id", "attempt", name=op.f("pk_steps")),
    )
    op.create_table(
        "standing_uses",
        sa.Column("tenant_id", sa.String(length=80), nullable=False),
        sa.Column("approval_id", sa.String(length=400), nullable=False),
        sa.Column("standing_id", sa.String(length=40), nullable=False),
        sa.Column("run_id", sa.String(length=255), nullable=False),
        sa.Column("step_id", sa.String(length=80), nullable=False),
        sa.Column("amount", sa.String(length=80)),
        sa.Column("used_ms", sa.BigInteger(), nullable=False),
        sa.Column("returned_ms", sa.BigInteger()),
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
        sa.ForeignKeyConstraint(
            ["tenant_id", "standing_id"],
            ["standing_approvals.tenant_id", "standing_approvals.standing_id"],
            name=op.f("fk_standing_uses_standing_approvals"),
        ),
        sa.PrimaryKeyConstraint(
            "tenant_id", "approval_id", "standing_id", name=op.f("pk_standing_uses")
        ),
    )
    op.create_index("ix_standing_uses_run", "standing_uses", ["tenant_id", "run_id", "step_id"])
    op.create_index("ix_standing_uses_standing", "standing_uses", ["tenant_id", "standing_id"])


def _keep(table: str, columns: str, end: str) -> None:
    if on_postgresql():
        refuse(table, "no_delete", "DELETE")
        refuse(table, "no_truncate", "TRUNCATE", each="STATEMENT")
    else:
        op.execute(
            f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} BEGIN"
            f" SELECT RAISE(ABORT, '{table} are kept'); END"
        )
    _keep_columns(table, columns)
    has_ended = f"OLD.{end.partition(',')[0]} IS NOT NULL"
    if on_postgresql():
        again = f"FOR EACH ROW WHEN ({has_ended}) EXECUTE FUNCTION refuse_change()"
    else:
        again = f"WHEN {has_ended} BEGIN SELECT RAISE(ABORT, 'what has ended has ended'); END"
    op.execute(f"CREATE TRIGGER {table}_ended BEFORE UPDATE OF {end} ON {table} {again}")


def _keep_columns(table: str, columns: str) -> None:
    if on_postgresql():
        refused = "FOR EACH ROW EXECUTE FUNCTION refuse_change()"
    else:
        refused = "BEGIN SELECT RAISE(ABORT, 'what was recorded is not changed'); END"
    op.execute(f"CREATE TRIGGER {table}_kept BEFORE UPDATE OF {columns} ON {table} {refused}")
