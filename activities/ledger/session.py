"""What a transactional tool gets of the ledger: its transaction, without its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import CursorResult, Executable
from sqlalchemy.ext.asyncio import AsyncConnection


class Session:
    """The ledger's SQL session of one call of a ``transactional`` tool.

    What is written here commits together with the outcome of the call, or not at all. There is no
    ``commit`` and no ``rollback``: to give up, raise; a ``No`` gives up, too.
    """

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def execute(
        self,
        statement: Executable,
        parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    ) -> CursorResult[Any]:
        """Run an SQL statement (SQLAlchemy Core, or ``sqlalchemy.text``)."""
        return await self._connection.execute(statement, parameters)
