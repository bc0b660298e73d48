"""Bringing a ledger database to its newest shape: ``surehand migrate``."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from sqlalchemy import Engine, create_engine, inspect, make_url, text
from sqlalchemy.pool import NullPool

from surehand.activities.ledger.core.engine import (
    SCHEMA,
    as_url,
    explain_database_error,
    require_fit,
    without_passwords,
)
from surehand.process.exits import NotReachable, WrongUse
from surehand.process.program import command as our_command

_MIGRATIONS: Final = Path(__file__).resolve().parents[1] / "migrations"
#: Beside a checkout's files: what `make clean` leaves, and the README's first start asks for.
OWN_FOLDER: Final = ".surehand"


class DatabaseBehind(NotReachable):
    """The database is not at the newest migration that this version knows."""


def _known_revisions() -> list[str]:
    """Return the migrations that this code has, the newest last."""
    return sorted(file.stem for file in (_MIGRATIONS / "versions").glob("[0-9]*.py"))


def newest_revision() -> str:
    """Return the newest migration that this code knows."""
    return _known_revisions()[-1]


def current_revision(engine: Engine) -> str | None:
    """Return the migration that a database is at; ``None`` for an empty one."""
    with explain_database_error(engine.url), engine.connect() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        found: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
        return found


def shown(database_url: str) -> str:
    """Return what a person looks for: a file by its absolute path, a server by its URL."""
    url = make_url(database_url)
    if url.drivername.startswith("sqlite") and url.database:
        return f"sqlite file {Path(url.database).absolute()}"
    return f"ledger database {without_passwords(url)}"


def require_head(engine: Engine) -> None:
    """Check that a database is at the newest migration."""
    current, newest = current_revision(engine), newest_revision()
    _refuse_unknown(engine, current)
    if current != newest:
        where = without_passwords(engine.url)
        raise DatabaseBehind(
            f"the ledger database {where} is at migration {current or 'none'}, this version needs"
            f" {newest}: run `{our_command('migrate')}`"
        )


def _refuse_unknown(engine: Engine, current: str | None) -> None:
    if current is not None and current not in _known_revisions():
        where = without_passwords(engine.url)
        raise DatabaseBehind(
            f"the ledger database {where} is at migration {current}, which this version"
            f" ({newest_revision()}) does not know: use the newer version that has made it"
        )


def migrate(database_url: str) -> tuple[str | None, str]:
    """Bring a database to the newest migration; returns where it was and where it is now.

    A SQLite file that is not there is made: here, and nowhere else.
    """
    # Not with a worker and the verbs that read the ledger, for which it is a hundred modules.
    from alembic import command
    from alembic.config import Config

    url = make_url(database_url)
    if url.drivername.startswith("sqlite") and url.database:
        with explain_database_error(url):
            _make_own_folder(Path(url.database).parent)
            sqlite3.connect(url.database).close()
    engine = create_engine(as_url(database_url), poolclass=NullPool)
    try:
        require_fit(engine, fsync_off=True)
        before = current_revision(engine)
        _refuse_unknown(engine, before)
        config = Config()
        config.set_main_option("script_location", str(_MIGRATIONS))
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    finally:
        engine.dispose()
    return before, newest_revision()


def _make_own_folder(folder: Path) -> None:
    """Make ``.surehand``, which is ours, where it is missing; others may be mistyped."""
    if folder.name == OWN_FOLDER and folder.absolute().parent.is_dir():
        folder.mkdir(exist_ok=True)
    if not folder.is_dir():
        raise WrongUse(
            f"there is no folder {folder.absolute()} (SUREHAND_DATABASE_URL): make it, or mend the"
            " path"
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
    """Return, a line each, what lets other tables pass for the ledger's; nothing does on SQLite."""
    if engine.dialect.name == "sqlite":
        return []
    with explain_database_error(engine.url), engine.connect() as connection:
        found = connection.execute(_LOOK).mappings().one()
    role, grants = found["role"], "run deploy/postgres/grants.sql as the ledger's owner"
    weak = list[str]()
    if found["temporary"]:
        weak.append(f"role {role} may make temporary tables, which can hide the ledger's: {grants}")
    if found["lasting"]:
        weak.append(f"role {role} may make tables and functions beside the ledger's: {grants}")
    if found["unguarded"]:
        weak.append(
            f"functions of the ledger without a search_path: {', '.join(found['unguarded'])}: say"
            f" ALTER FUNCTION ... SET search_path = {SCHEMA}, pg_temp as its owner"
        )
    return weak
