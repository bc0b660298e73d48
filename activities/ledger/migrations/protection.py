"""What migrations do alike to their tables, and what the first one has the database refuse.

A run's rows are deleted while it is going by its row in ``deletions``, and at no other time. That
row is written only of a run that has ended and that nobody holds. So on SQLite, too, which has no
roles, there is no other way.

Released migrations rest on it: what it emits never changes. A new way is a new function.
"""

from __future__ import annotations

from typing import Final

from alembic import op

#: The ledger's schema, then temporary tables: otherwise those come first, before all schemas.
SEARCH_PATH: Final = "public, pg_temp"


def on_postgresql() -> bool:
    """Return whether the ledger is PostgreSQL's; otherwise it is SQLite's."""
    return bool(op.get_bind().dialect.name == "postgresql")


def make_function(definition: str) -> None:
    """Make a function of PostgreSQL that reads the ledger's own tables, whoever calls it.

    A definition is ``name() RETURNS trigger AS $$ ... $$``.
    """
    op.execute(f"CREATE FUNCTION {definition} LANGUAGE plpgsql SET search_path = {SEARCH_PATH}")


def keep_tenants_apart(*tables: str) -> None:
    """Have rows seen and written by their own tenant alone; PostgreSQL can."""
    if not on_postgresql():
        return
    for table in tables:
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        # FORCE: the owner of the tables sees one tenant at a time, too.
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(
            f"CREATE POLICY one_tenant ON {table}"
            " USING (tenant_id = current_setting('surehand.tenant', true))"
            " WITH CHECK (tenant_id = current_setting('surehand.tenant', true))"
        )


def make_append_only(table: str) -> None:
    """Have a table's rows written once, and neither changed nor deleted."""
    if on_postgresql():
        refuse(table, "append_only", "UPDATE OR DELETE")
        refuse(table, "no_truncate", "TRUNCATE", each="STATEMENT")
        return
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} BEGIN"
            f" SELECT RAISE(ABORT, '{table} are append-only'); END"
        )


def refuse(table: str, name: str, verbs: str, *, each: str = "ROW") -> None:
    """Have PostgreSQL refuse statements on a table, by the function of the first migration."""
    op.execute(
        f"CREATE TRIGGER {table}_{name} BEFORE {verbs} ON {table}"
        f" FOR EACH {each} EXECUTE FUNCTION refuse_change()"
    )


def refuse_unless(table: str, name: str, verb: str, allowed: str, why: str) -> None:
    """Have a statement on a row refused unless a condition on OLD and NEW holds."""
    trigger = f"{table}_{name}"
    if not on_postgresql():
        op.execute(
            f"CREATE TRIGGER {trigger} BEFORE {verb} ON {table}"
            f" WHEN ({allowed}) IS NOT TRUE BEGIN SELECT RAISE(ABORT, '{why}'); END"
        )
        return
    row = "OLD" if verb == "DELETE" else "NEW"
    make_function(
        f"{trigger}() RETURNS trigger AS $$ BEGIN"
        f" IF {allowed} THEN RETURN {row}; END IF; RAISE EXCEPTION '{why}'; END $$"
    )
    op.execute(
        f"CREATE TRIGGER {trigger} BEFORE {verb} ON {table} FOR EACH ROW"
        f" EXECUTE FUNCTION {trigger}()"
    )


#: Tables whose rows go with their run.
_GO_WITH: Final = (
    "artifacts",
    "checkpoints",
    "decisions",
    "drafts",
    "events",
    "interventions",
    "notifications",
    "plans",
    "replays",
    "steerings",
    "steps",
)
#: Of these, those that are written once.
_WRITTEN_ONCE: Final = ("decisions", "events", "steerings")
#: Effects, runs and fencing tokens rest on these: they stay.
_NEVER: Final = ("bars", "deletions", "effects", "leases", "limit_uses", "runs")
#: By table: columns whose content goes, and is not changed otherwise.
_EMPTIED: Final = {
    "approvals": "params, answers, description, undo, precondition",
    "effects": "content_deleted_ms",
}
#: Milliseconds. A row says since when its run is going by the clock of its transaction's beginning.
_AGO: Final = 60_000

_SQLITE_NOW: Final = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
_POSTGRES_NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"

_RUN: Final = "tenant_id = {row}.tenant_id AND run_id = {row}.run_id"
_GOING: Final = (
    f"EXISTS (SELECT 1 FROM deletions WHERE {_RUN.format(row='OLD')} AND deleted_ms IS NULL)"
)
_MAY_BEGIN: Final = (
    f"NEW.deleted_ms IS NULL AND NEW.begun_ms >= {{now}} - {_AGO}"
    f" AND EXISTS (SELECT 1 FROM runs WHERE {_RUN.format(row='NEW')} AND closed_ms IS NOT NULL)"
    f" AND NOT EXISTS (SELECT 1 FROM holds WHERE {_RUN.format(row='NEW')})"
)
_MAY_FINISH: Final = (
    "{same_tenant} AND NEW.run_id = OLD.run_id AND NEW.begun_ms = OLD.begun_ms"
    " AND NEW.begun_by = OLD.begun_by AND OLD.deleted_ms IS NULL"
)


def guard_deletions() -> None:
    """Have all deletions refused that retention does not do, and halts that are dated back."""
    now = _POSTGRES_NOW if on_postgresql() else _SQLITE_NOW
    for table in _NEVER:
        refuse_unless(table, "no_delete", "DELETE", "1 = 0", f"{table} are never deleted")
    for table in _GO_WITH:
        if table in _WRITTEN_ONCE:
            refuse_unless(table, "no_update", "UPDATE", "1 = 0", f"{table} are append-only")
        kept = "append-only" if table in _WRITTEN_ONCE else "kept"
        why = f"{table} are {kept} until their run is being deleted"
        refuse_unless(table, "no_delete", "DELETE", _GOING, why)
    for table, columns in _EMPTIED.items():
        # A later call under the same key has content of its own.
        new = "NEW.content_deleted_ms IS NULL OR " if table == "effects" else ""
        allowed = f"{new}{_GOING}"
        why = "what was recorded is not changed until its run is being deleted"
        refuse_unless(table, "emptied", f"UPDATE OF {columns}", allowed, why)
    begin = _MAY_BEGIN.format(now=now)
    # On PostgreSQL row-level security sees to the tenant, and says so.
    same_tenant = "1 = 1" if on_postgresql() else "NEW.tenant_id = OLD.tenant_id"
    if on_postgresql():
        begin = f"NEW.tenant_id <> current_setting('surehand.tenant', true) OR ({begin})"
    ended = "only what has ended is deleted, as of now, and nothing that is held"
    refuse_unless("deletions", "begun", "INSERT", begin, ended)
    whole = "a deletion is finished once, and nothing goes back"
    finish = _MAY_FINISH.format(same_tenant=same_tenant)
    refuse_unless("deletions", "finished", "UPDATE", finish, whole)
    # What a halt covers does not run out: dated back, it would prolong what is over.
    dated = f"NEW.halted_ms >= {now} - {_AGO}"
    if on_postgresql():
        dated = f"NEW.tenant_id <> current_setting('surehand.tenant', true) OR {dated}"
    refuse_unless("halts", "as_of_now", "INSERT", dated, "calls are halted as of now")
    if on_postgresql():
        for table in (*_NEVER, *_GO_WITH):
            refuse(table, "no_truncate", "TRUNCATE", each="STATEMENT")
