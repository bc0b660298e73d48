"""Standbys of the ledger's PostgreSQL: whether a failover may lose what was acknowledged."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from surehand.activities.ledger.core.engine import (
    LedgerUnavailable,
    first_line,
    without_passwords,
)

#: Of a role that may not read statistics, a sender's state is hidden; that it is there is not.
#: A backup under way is no standby.
_STANDBYS: Final = text(
    "SELECT coalesce(application_name, '') AS name, coalesce(sync_state, '') AS sync,"
    " current_setting('synchronous_standby_names') <> '' AS waits"
    " FROM pg_stat_replication WHERE state IS NULL OR state <> 'backup' ORDER BY 1"
)
#: Standbys that no commit waits for. A potential one takes the place of a synchronous one that has
#: gone, and follows asynchronously until then.
_BEHIND: Final = ("async", "potential")


def losing_standbys(engine: Engine) -> str | None:
    """Return in one line what a failover may lose, or ``None``: nothing that was acknowledged.

    Each transaction of ours waits for a synchronous standby, if the server has one.

    Raises:
        LedgerUnavailable: The database cannot be reached.
    """
    if engine.dialect.name == "sqlite":
        return None
    try:
        with engine.connect() as connection:
            found = connection.execute(_STANDBYS).mappings().all()
    except (DBAPIError, OSError) as error:
        raise LedgerUnavailable(
            f"{without_passwords(engine.url)} (SUREHAND_DATABASE_URL): {first_line(error)}"
        ) from error
    behind = [row for row in found if not row["waits"] or row["sync"] in _BEHIND]
    if not behind:
        return None
    names = ", ".join(sorted({row["name"] for row in behind} - {""}))
    return (
        f"standbys of the ledger's PostgreSQL that follow asynchronously: {len(behind)}"
        f"{f' ({names})' if names else ''}: a failover to it can lose entries that were"
        " acknowledged, and their effects would be made again; have commits wait for it"
        " (synchronous_standby_names), or say `ledger restored` after each failover to it"
    )
