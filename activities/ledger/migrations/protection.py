"""What migrations do alike to their tables, and what the first one has the database refuse.

A run's rows are deleted while its row in ``retentions`` is going, and at no other time. That row
can go only when its grace is over by the database's clock, and nobody holds the run. So on SQLite,
too, which has no roles, there is no other way.

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
_NEVER: Final = ("bars", "effects", "leases", "limit_uses", "runs")
#: By table: columns whose content goes, and is not changed otherwise.
_EMPTIED: Final = {
    "approvals": "params, answers, description, undo, precondition",
    "effects": "content_deleted_ms",
}
#: Milliseconds. A row says when it was hidden by the clock of its transaction's beginning.
_AGO: Final = 60_000

_SQLITE_NOW: Final = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
_POSTGRES_NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"

_RUN: Final = "tenant_id = {row}.tenant_id AND run_id = {row}.run_id"
_GOING: Final = (
    f"EXISTS (SELECT 1 FROM retentions WHERE {_RUN.format(row='OLD')}"
    " AND going_ms IS NOT NULL AND deleted_ms IS NULL)"
)
_HELD_RUN: Final = f"EXISTS (SELECT 1 FROM holds WHERE {_RUN})"
#: Besides: saved checkpoints, each of which has a time and a grace of its own.
_OVER: Final = {
    "checkpoints": f"(OLD.delete_after_ms <= {{now}} AND NOT {_HELD_RUN.format(row='OLD')})",
    "artifacts": "(substr(OLD.step_id, 1, 11) = 'checkpoint:' AND NOT EXISTS (SELECT 1 FROM"
    f" checkpoints WHERE {_RUN.format(row='OLD')} AND 'checkpoint:' || name = OLD.step_id))",
}
#: A checkpoint is hidden as of now, and shown again; its grace is neither shortened nor dated back.
_MAY_HIDE_CHECKPOINT: Final = (
    "NEW.hidden_ms IS NULL"
    f" OR (OLD.hidden_ms IS NULL AND NEW.hidden_ms >= {{now}} - {_AGO})"
    " OR (NEW.hidden_ms = OLD.hidden_ms AND NEW.delete_after_ms = OLD.delete_after_ms)"
)
_CLOSED: Final = (
    f"EXISTS (SELECT 1 FROM runs WHERE {_RUN.format(row='NEW')} AND closed_ms IS NOT NULL)"
)
_HELD: Final = _HELD_RUN.format(row="NEW")
_MAY_HIDE: Final = (
    "NEW.going_ms IS NULL AND NEW.deleted_ms IS NULL"
    f" AND NEW.hidden_ms >= {{now}} - {_AGO} AND {_CLOSED} AND NOT {_HELD}"
)
_MAY_GO: Final = (
    "{same_tenant} AND NEW.run_id = OLD.run_id"
    " AND NEW.hidden_ms = OLD.hidden_ms AND NEW.hidden_by = OLD.hidden_by"
    " AND NEW.delete_after_ms = OLD.delete_after_ms AND OLD.deleted_ms IS NULL"
    " AND ((OLD.going_ms IS NULL AND NEW.going_ms IS NULL AND NEW.deleted_ms IS NULL)"
    " OR (OLD.going_ms IS NULL AND NEW.deleted_ms IS NULL AND NEW.delete_after_ms <= {now}"
    f" AND {_CLOSED} AND NOT {_HELD})"
    " OR NEW.going_ms = OLD.going_ms)"
)


def guard_deletions() -> None:
    """Have all deletions refused that retention does not do."""
    now = _POSTGRES_NOW if on_postgresql() else _SQLITE_NOW
    for table in _NEVER:
        refuse_unless(table, "no_delete", "DELETE", "1 = 0", f"{table} are never deleted")
    for table in _GO_WITH:
        if table in _WRITTEN_ONCE:
            refuse_unless(table, "no_update", "UPDATE", "1 = 0", f"{table} are append-only")
        kept = "append-only" if table in _WRITTEN_ONCE else "kept"
        over = f" OR {_OVER[table].format(now=now)}" if table in _OVER else ""
        why = f"{table} are {kept} until their run is being deleted"
        refuse_unless(table, "no_delete", "DELETE", f"{_GOING}{over}", why)
    for table, columns in _EMPTIED.items():
        # A later call under the same key has content of its own.
        new = "NEW.content_deleted_ms IS NULL OR " if table == "effects" else ""
        allowed = f"{new}{_GOING}"
        why = "what was recorded is not changed until its run is being deleted"
        refuse_unless(table, "emptied", f"UPDATE OF {columns}", allowed, why)
    grace = "a checkpoint is hidden as of now, and its grace is not shortened"
    may = _MAY_HIDE_CHECKPOINT.format(now=now)
    refuse_unless("checkpoints", "hidden", "UPDATE OF hidden_ms, delete_after_ms", may, grace)
    # On PostgreSQL row-level security sees to the tenant, and says so.
    same_tenant = "1 = 1" if on_postgresql() else "NEW.tenant_id = OLD.tenant_id"
    hide, go = _MAY_HIDE.format(now=now), _MAY_GO.format(now=now, same_tenant=same_tenant)
    if on_postgresql():
        hide = f"NEW.tenant_id <> current_setting('surehand.tenant', true) OR ({hide})"
    ended = "only what has ended is hidden, as of now, and nothing that is held"
    refuse_unless("retentions", "hidden", "INSERT", hide, ended)
    early = "what is hidden goes once its grace is over, unless it is held, and nothing goes back"
    refuse_unless("retentions", "going", "UPDATE", go, early)
    back = "what is going is not taken back"
    refuse_unless("retentions", "no_delete", "DELETE", "OLD.going_ms IS NULL", back)
    if on_postgresql():
        for table in (*_NEVER, *_GO_WITH, "retentions"):
            refuse(table, "no_truncate", "TRUNCATE", each="STATEMENT")
