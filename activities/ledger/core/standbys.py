"""Standbys of the ledger's PostgreSQL: whether a failover may lose what was acknowledged."""

from __future__ import annotations

from dataclasses import dataclass
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
_FOLLOWING: Final = text(
    "SELECT coalesce(application_name, '') AS name, coalesce(sync_state, '') AS sync,"
    " pg_wal_lsn_diff(pg_current_wal_flush_lsn(), flush_lsn)::bigint AS behind"
    " FROM pg_stat_replication WHERE state IS NULL OR state <> 'backup' ORDER BY 1"
)
#: For how many standbys commits wait, and for how many log is kept that they do not fetch.
_EXPECTED: Final = text(
    "SELECT CASE names WHEN '' THEN 0 ELSE coalesce(substring(names"
    " FROM '^\\s*[A-Za-z]*\\s*(\\d+)\\s*[(]'), '1')::int END AS awaited,"
    " (SELECT count(*) FROM pg_replication_slots WHERE slot_type = 'physical' AND NOT active)"
    " AS unused FROM current_setting('synchronous_standby_names') AS names"
)
#: Standbys that no commit waits for. A potential one takes the place of a synchronous one that has
#: gone, and follows asynchronously until then.
_BEHIND: Final = ("async", "potential")


@dataclass(frozen=True)
class Standbys:
    """Those of a server, by how they follow it."""

    synchronous: int = 0
    asynchronous: tuple[str, ...] = ()
    """Their names; empty of one that has none."""
    missing: int = 0
    """How many are expected and not there: commits wait for them, or log is kept for them.

    A standby that commits wait for and that has a slot counts twice.
    """
    behind_bytes: int | None = None
    """How much of the log the slowest one has not on its disk; ``None``: nobody follows, or this
    role may not see it."""

    def losing(self) -> str | None:
        """Return in one line what a failover may lose, or ``None``: nothing that was acknowledged.

        Each transaction of ours waits for a synchronous standby, if the server has one.
        """
        if not self.asynchronous:
            return None
        names = ", ".join(sorted({*self.asynchronous} - {""}))
        return (
            "standbys of the ledger's PostgreSQL that follow asynchronously:"
            f" {len(self.asynchronous)}{f' ({names})' if names else ''}: a failover to it can lose"
            " entries that were acknowledged, and their effects would be made again; have commits"
            " wait for it (synchronous_standby_names), or say `ledger restored` after each failover"
            " to it"
        )


def standbys_of(engine: Engine) -> Standbys:
    """Return the standbys of a ledger's server; SQLite has none.

    Raises:
        LedgerUnavailable: The database cannot be reached.
    """
    if engine.dialect.name == "sqlite":
        return Standbys()
    try:
        with engine.connect() as connection:
            following = connection.execute(_FOLLOWING).mappings().all()
            expected = connection.execute(_EXPECTED).mappings().one()
    except (DBAPIError, OSError) as error:
        raise LedgerUnavailable(
            f"{without_passwords(engine.url)} (SUREHAND_DATABASE_URL): {first_line(error)}"
        ) from error
    awaited = expected["awaited"]
    behind = [row["name"] for row in following if not awaited or row["sync"] in _BEHIND]
    synchronous = len(following) - len(behind)
    return Standbys(
        synchronous=synchronous,
        asynchronous=tuple(behind),
        missing=expected["unused"] + max(awaited - synchronous, 0),
        behind_bytes=max(
            # It may have fetched more since the server's own place in the log was read.
            (max(row["behind"], 0) for row in following if row["behind"] is not None),
            default=None,
        ),
    )
