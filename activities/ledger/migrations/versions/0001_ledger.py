"""The first shape of the ledger: that of ``core/tables.py``, until a release freezes it here."""

from __future__ import annotations

from typing import Final

from alembic import op

from surehand.activities.ledger.core.tables import ALL, metadata
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
    metadata.create_all(op.get_bind())
    if on_postgresql():
        op.execute("CREATE SEQUENCE effects_commit_no")
        make_function(
            "refuse_change() RETURNS trigger AS"
            " $$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$"
        )
    keep_tenants_apart(*ALL)
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
