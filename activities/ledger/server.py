"""What the ledger's server must be in truth: PostgreSQL, whose locks lock and whose disk keeps.

Guarantees rest on advisory locks and on commits that outlast a power cut. A server that speaks
PostgreSQL's protocol may answer without doing either.
"""

from __future__ import annotations

import secrets

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from activities.ledger.engine import LedgerUnavailable, first_line

_LOCK = text("SELECT pg_advisory_xact_lock(:name)")
_TRY = text("SELECT pg_try_advisory_xact_lock(:name)")
#: What others that speak the protocol say of themselves beside PostgreSQL's own words.
_OTHERS = ("cockroach", "yugabyte", "-yb-", "redshift", "materialize", "cratedb", "questdb")


class LedgerUnfit(LedgerUnavailable):
    """The server answers, but a ledger on it would promise what it does not keep."""


async def require_fit(engine: AsyncEngine, *, fsync_off: bool = False) -> None:
    """Check that the ledger's server can keep what the ledger promises; SQLite can.

    Args:
        engine: The ledger's.
        fsync_off: Whether a server that does not wait for its disk is meant: for tests.

    Raises:
        LedgerUnfit: It cannot; the message says what to do.
        LedgerUnavailable: The database cannot be reached.
    """
    if engine.dialect.name == "sqlite":
        return
    where = engine.url.render_as_string(hide_password=True)
    try:
        async with engine.connect() as one, engine.connect() as other:
            wrong = await _wrong(one, other, fsync_off=fsync_off)
    except (DBAPIError, OSError) as error:
        raise LedgerUnavailable(
            f"the ledger database cannot be reached at {where} (SUREHAND_DATABASE_URL):"
            f" {first_line(error)}"
        ) from error
    except AssertionError as error:
        # The driver has not found PostgreSQL's version in what the server says of itself.
        raise LedgerUnfit(_unfit(where, f"it says: {error}")) from error
    if wrong is not None:
        raise LedgerUnfit(_unfit(where, wrong))


def _unfit(where: str, wrong: str) -> str:
    return f"the ledger cannot lie at {where} (SUREHAND_DATABASE_URL): {wrong}"


async def _wrong(one: AsyncConnection, other: AsyncConnection, *, fsync_off: bool) -> str | None:
    version = str((await one.execute(text("SELECT version()"))).scalar_one())
    lowered = version.lower()
    if not lowered.startswith("postgresql") or any(name in lowered for name in _OTHERS):
        return f"it is no PostgreSQL, it says: {version.splitlines()[0]}. Use PostgreSQL"
    # Nobody else has this name, so it is free unless `one` holds it.
    name = {"name": secrets.randbits(62)}
    await one.execute(_LOCK, name)
    if (await other.execute(_TRY, name)).scalar_one():
        return (
            "its advisory locks do not lock: a second connection has got one that the first"
            " holds, so an effect could be made twice. Use PostgreSQL itself"
        )
    fsync = str((await one.execute(text("SELECT current_setting('fsync')"))).scalar_one())
    if fsync != "on" and not fsync_off:
        return (
            "it runs with fsync=off: a power cut would lose effects that were recorded, and they"
            " would be made again. Set fsync = on (ALTER SYSTEM SET fsync = on, then"
            " pg_reload_conf()); for tests alone, SUREHAND_FSYNC_OFF=allow"
        )
    return None
