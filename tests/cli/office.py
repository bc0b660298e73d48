"""An administrator at a ledger of their own: a group of verbs that write to the ledger."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
from sqlalchemy import Table, make_url

from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import open_ledger
from surehand.workflows.identity import DEFAULT_TENANT
from tests.cli.starter import Ended, Verbs
from tests.ledger_databases import OWNER


@dataclass(frozen=True)
class LedgerOffice:
    """Calls the verbs of one group, as whoever owns the ledger."""

    group: ClassVar[str]
    tables: ClassVar[tuple[Table, ...]] = ()
    """What the group's verbs write."""

    url: str
    verbs: Verbs
    folder: Path

    @classmethod
    def opened(
        cls, ledger_url: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: str
    ) -> Self:
        url = make_url(ledger_url)
        if url.get_backend_name() == "postgresql":
            url = url.set(username=OWNER)
        text = url.render_as_string(hide_password=False)
        environment = {"SUREHAND_DATABASE_URL": text, **settings}
        return cls(text, Verbs(environment, folder, monkeypatch), folder)

    def __call__(self, verb: str, *arguments: str, **settings: str) -> Ended:
        return self.verbs(self.group, verb, *arguments, **settings)

    def done(self, verb: str, *arguments: str, **settings: str) -> Ended:
        ended = self(verb, *arguments, **settings)
        assert ended.code == 0, ended
        return ended

    def refused(self, verb: str, *arguments: str, **settings: str) -> str:
        """The one line of a command that is refused and has written nothing."""
        before = self.rows()
        ended = self(verb, *arguments, **settings)
        assert ended.code == 2, ended
        assert self.rows() == before
        return ended.line()

    def rows(self, tenant: str = DEFAULT_TENANT) -> dict[str, list[dict[str, Any]]]:
        async def read() -> dict[str, list[dict[str, Any]]]:
            async with open_ledger(self.url) as ledger:
                with ledger.transaction(tenant) as tx:
                    return {table.name: tx.all(rows_of(table)) for table in self.tables}

        return asyncio.run(read())
