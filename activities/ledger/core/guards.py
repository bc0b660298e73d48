"""What on a ledger's PostgreSQL its guards rest on: no table stands before the ledger's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from surehand.activities.ledger.core.engine import (
    SCHEMA,
    LedgerUnavailable,
    first_line,
    without_passwords,
)

#: Of the ledger's owner nothing is asked: that role may take the guards away. Functions of
#: extensions read no tables of the ledger.
_LOOK: Final = text(
    "SELECT current_user AS role,"
    " NOT pg_has_role(datdba, 'USAGE') AND has_database_privilege(d.oid, 'TEMPORARY') AS temporary,"
    " NOT pg_has_role(nspowner, 'USAGE') AND has_schema_privilege(n.oid, 'CREATE') AS lasting,"
    " ARRAY(SELECT proname::text FROM pg_proc WHERE pronamespace = n.oid"
    " AND proowner = (SELECT relowner FROM pg_class WHERE relnamespace = n.oid"
    " AND relname = 'runs')"
    " AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_proc'::regclass"
    " AND objid = pg_proc.oid AND deptype = 'e')"
    f" AND NOT coalesce(proconfig, '{{}}') @> ARRAY['search_path={SCHEMA}, pg_temp']"
    " ORDER BY 1) AS unguarded"
    " FROM pg_database AS d, pg_namespace AS n WHERE datname = current_database()"
    f" AND nspname = '{SCHEMA}'"
)


def weak_guards(engine: Engine) -> list[str]:
    """Return what lets other tables pass for the ledger's, a line each; SQLite has no such thing.

    Raises:
        LedgerUnavailable: The database cannot be reached.
    """
    if engine.dialect.name == "sqlite":
        return []
    try:
        with engine.connect() as connection:
            found = connection.execute(_LOOK).mappings().one()
    except (DBAPIError, OSError) as error:
        raise LedgerUnavailable(
            f"{without_passwords(engine.url)} (SUREHAND_DATABASE_URL): {first_line(error)}"
        ) from error
    return list(_told(found["role"], found["temporary"], found["lasting"], found["unguarded"]))


def _told(role: str, temporary: bool, lasting: bool, unguarded: list[str]) -> Iterator[str]:
    grants = "run deploy/postgres/grants.sql as the ledger's owner"
    if temporary:
        yield f"role {role} may make temporary tables, which can hide the ledger's: {grants}"
    if lasting:
        yield f"role {role} may make tables and functions beside the ledger's: {grants}"
    if unguarded:
        yield (
            f"functions of the ledger without a search_path: {', '.join(unguarded)}: say ALTER"
            f" FUNCTION ... SET search_path = {SCHEMA}, pg_temp as its owner"
        )
