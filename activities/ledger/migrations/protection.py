"""What migrations do alike to their tables.

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
