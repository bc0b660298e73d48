"""Starts the example help desk and its mail server as a process of their own, and looks inside."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from tests.shop_process import ShopProcess

#: Where workers find the agent, its tools and its script.
SETTINGS: Final = {
    "tool_modules": "surehand.examples.support.tools",
    "agent_modules": "surehand.examples.support.agent",
}


class SupportProcess(ShopProcess):
    """A help desk and a mail server on free ports. Use it in a ``with`` statement."""

    module = "surehand.examples.support"

    def __init__(self, db: Path) -> None:
        super().__init__(db)
        self._smtp_port = 0

    @property
    def variables(self) -> dict[str, str]:
        """By which a worker finds both."""
        return {"SUPPORT_URL": self.url, "SUPPORT_SMTP": f"127.0.0.1:{self._smtp_port}"}

    def start(self) -> None:
        super().start()
        said = re.search(r"takes mail on .*:(\d+)\n", self.output())
        assert said is not None
        self._smtp_port = int(said[1])

    def options(self) -> list[str]:
        return [*super().options(), "--smtp-port", str(self._smtp_port)]

    def open_ticket(self, **ticket: Any) -> str:
        """Have a customer open a ticket and return its id."""
        opened: dict[str, str] = self._ask("POST", "/admin/tickets", json=ticket)
        return opened["ticket_id"]

    def tickets(self) -> set[str]:
        with self.database() as connection:
            return {row["ticket_id"] for row in connection.execute("SELECT * FROM tickets")}

    def ticket(self, ticket_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self._ask("GET", f"/tickets/{ticket_id}")
        return found

    def effects(self, ticket_id: str) -> dict[str, int]:
        """Return what was done about a ticket, each mail included."""
        found: dict[str, int] = self._ask("GET", "/admin/counts", params={"ticket_id": ticket_id})
        return found

    def mails(self) -> list[dict[str, Any]]:
        """Return every mail that the mail server has taken, oldest first."""
        with self.database() as connection:
            return [dict(row) for row in connection.execute("SELECT * FROM mails ORDER BY mail_id")]
