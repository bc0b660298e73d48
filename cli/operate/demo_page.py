"""The approvers' pages of the demo: whoever is at its terminal may approve in a browser instead."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from surehand.cli.approvals_server.links import Server
from surehand.process.children import Child, python
from surehand.process.exits import SurehandError

#: Seconds between looks at the ledger, which knows what was decided on the page.
_LOOK: Final = 0.5


@dataclass(frozen=True)
class DemoPage:
    """An approvals server that runs beside the demo."""

    state: Path
    database_url: str

    def link(self, principal: str) -> str:
        """Return a link that signs somebody in once."""
        return Server.read(self.state).link(principal, time.time())

    async def decided(self, approval_id: str) -> str:
        """Wait until a request waits no more, and return its state."""
        from surehand.activities.ledger.core.store import open_ledger
        from surehand.activities.ledger.history.one_approval import one_approval

        async with open_ledger(self.database_url) as ledger:
            while True:
                found = await ledger.transact("default", one_approval, approval_id)
                if found is not None and found.row["state"] != "pending":
                    return str(found.row["state"])
                await asyncio.sleep(_LOOK)


@contextmanager
def served(
    folder: Path, database_url: str, variables: Mapping[str, str]
) -> Iterator[DemoPage | None]:
    """Serve the approvers' pages for as long as the block lasts.

    Args:
        folder: Of the demo.
        database_url: Of its ledger.
        variables: By which the server finds ledger and runs.

    Yields:
        The page; ``None`` where what it needs is not installed.
    """
    state = folder / "approvals"
    # By a name: passkeys are made for names only.
    options = ("--http", "localhost:0", "--state", str(state))
    command = python("surehand.starter", "approvals", "serve", *options)
    with Child(command, environment=variables, log=folder / "approvals.log") as server:
        try:
            server.wait_said("approvals at")
        except SurehandError:
            page = None
        else:
            page = DemoPage(state, database_url)
        yield page
