"""A shop behind MCP, and the file that says of it what may be called."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from surehand.activities.mcp.calls import Seen, ask_servers, write_pins
from surehand.activities.mcp.server_file import read_file
from tests.e2e.conftest import stage as stage

ROOT: Final = Path(__file__).parents[2]
REFUND: Final[dict[str, Any]] = {"key": "refund:${params.order_id}", "approval": "none"}


@dataclass(frozen=True)
class McpShop:
    """What the server does and has done, and the file beside it."""

    folder: Path

    @property
    def file(self) -> Path:
        """The reviewed file."""
        return self.folder / "surehand.mcp.yaml"

    def say(self, **tools: dict[str, Any]) -> None:
        """Write the file; the server is started for each call."""
        command = [sys.executable, "-m", "tests.mcp.served", "stdio", str(self.folder)]
        server = {"command": command, "env": {"PYTHONPATH": str(ROOT)}, "tools": tools}
        self.file.write_text(yaml.safe_dump({"servers": {"shop": server}}), encoding="utf-8")

    def behave(self, **how: str) -> None:
        """Have the server behave so from its next start on."""
        for name, value in how.items():
            (self.folder / name).write_text(value, encoding="utf-8")

    async def seen(self) -> dict[str, Seen]:
        """Return what the server offers, beside what the file says."""
        offered = await ask_servers(read_file(self.file))
        assert not offered.silent
        return {one.full: one for one in offered.tools}

    async def pin(self) -> None:
        """Take what is offered as reviewed."""
        named = [one for one in (await self.seen()).values() if one.said is not None]
        await asyncio.to_thread(write_pins, read_file(self.file), named)

    def times_asked(self) -> int:
        """Return how often the server was asked for a refund, whatever came of it."""
        file = self.folder / "asked"
        return len(file.read_text(encoding="utf-8").splitlines()) if file.exists() else 0

    def made(self) -> list[dict[str, Any]]:
        """Return the effects, as the server has written them down."""
        file = self.folder / "made"
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        return [json.loads(line) for line in lines]


@pytest.fixture
def mcp_shop(tmp_path: Path) -> McpShop:
    folder = tmp_path / "mcp"
    folder.mkdir()
    return McpShop(folder)
