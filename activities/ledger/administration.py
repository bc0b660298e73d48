"""Transactions that change who may decide; the workers' role of the database may not make any.

That is principals, and what they approve in advance.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from sqlalchemy.exc import DBAPIError

from activities.ledger.principals import PrincipalError
from activities.ledger.store import Ledger, Transaction

#: PostgreSQL's SQLSTATE insufficient_privilege.
_DENIED: Final = "42501"


@asynccontextmanager
async def administration(ledger: Ledger, tenant: str) -> AsyncIterator[Transaction]:
    """Open a transaction that changes who may decide: all of it is written, or nothing.

    Raises:
        PrincipalError: A change cannot be made, or not with this role of the database.
        LedgerUnavailable: The database is away.
    """
    try:
        async with ledger.transaction(tenant) as tx:
            yield tx
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != _DENIED:
            raise
        raise PrincipalError(
            f"permission denied: database role {ledger.engine.url.username!r} may not change"
            " principals or standing approvals; name the role that owns the ledger's tables in"
            " SUREHAND_DATABASE_URL"
        ) from error
