"""Who may do what in a case: given and taken away in its own ledger, if that is its own."""

from __future__ import annotations

from collections.abc import Collection

from surehand.activities.ledger.core.store import open_ledger
from surehand.activities.ledger.history.evidence import Evidence, evidence_of
from surehand.activities.ledger.people import principals

#: In whose name the drill gives and takes.
ACTOR = "drill"


class Office:
    """Changes the principals of one ledger; one that is not the case's own is left alone."""

    def __init__(self, database_url: str, tenant: str, *, own: bool) -> None:
        self._url = database_url
        self._tenant = tenant
        self.own = own
        self._given: dict[str, set[tuple[principals.Kind, str]]] = {}

    async def evidence(self, run_id: str) -> Evidence:
        """Return what the ledger holds about a run.

        Raises:
            RunNotFound: Nothing.
        """
        async with open_ledger(self._url) as ledger:
            return await ledger.transact(self._tenant, evidence_of, run_id)

    async def give(self, name: str, kind: principals.Kind, what: Collection[str]) -> bool:
        """Give roles or permissions; returns whether that changed anything."""
        given = self._given.get(name)
        new = {(kind, one) for one in what} - (given or set())
        if not self.own or not new:
            return False
        async with open_ledger(self._url) as ledger:
            with ledger.transaction(self._tenant) as tx:
                if given is None:
                    principals.add(tx, name, ACTOR)
                for _, one in sorted(new):
                    principals.grant(tx, name, kind, one, ACTOR)
        self._given.setdefault(name, set()).update(new)
        return True

    async def take(self, name: str, permission: str) -> None:
        """Take a permission away."""
        async with open_ledger(self._url) as ledger:
            with ledger.transaction(self._tenant) as tx:
                principals.revoke(tx, name, "permission", permission, ACTOR)
        self._given[name].discard(("permission", permission))
