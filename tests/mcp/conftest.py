"""A shop behind MCP, and the file that says of it what may be called."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from surehand.activities.mcp.calls import SeenTool, ask_servers, write_pins
from surehand.activities.mcp.server_file import read_file
from surehand.process.children import Child, clean_environment
from tests.e2e.conftest import stage as stage

ROOT: Final = Path(__file__).parents[2]
WARM: Final = Path(__file__).with_name("warm.py")
REFUND: Final[dict[str, Any]] = {"key": "refund:${params.order_id}", "approval": "none"}


@dataclass(frozen=True)
class McpShop:
    """What the server does and has done, and the file beside it."""

    folder: Path
    servers: str
    """The socket of what makes its processes."""

    @property
    def file(self) -> Path:
        """The reviewed file."""
        return self.folder / "surehand.mcp.yaml"

    def say(self, **tools: dict[str, Any]) -> None:
        """Write the file; the server is started for each call."""
        command = [sys.executable, "-IS", str(WARM), self.servers, str(self.folder)]
        server = {"command": command, "env": {"PYTHONPATH": str(ROOT)}, "tools": tools}
        self.file.write_text(yaml.safe_dump({"servers": {"shop": server}}), encoding="utf-8")

    def behave(self, **how: str) -> None:
        """Have the server behave so from its next start on."""
        for name, value in how.items():
            (self.folder / name).write_text(value, encoding="utf-8")

    async def seen(self) -> dict[str, SeenTool]:
        """Return what the server offers, beside what the file says."""
        offered = await ask_servers(read_file(self.file))
        assert not offered.silent
        return {one.full: one for one in offered.tools}

    async def pin(self, **tools: dict[str, Any]) -> None:
        """Pin what the file says, or write it first if there are tools to name."""
        if tools:
            self.say(**tools)
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


@pytest.fixture(scope="session")
def warm_servers() -> Iterator[str]:
    # A socket's path is short.
    with tempfile.TemporaryDirectory(prefix="mcp-") as folder:
        socket = f"{folder}/warm"
        command = [sys.executable, "-m", "tests.mcp.warm", socket]
        environment = clean_environment({"PYTHONPATH": str(ROOT)})
        with Child(command, environment=environment, log=Path(folder, "log")) as child:
            child.wait_said("listening")
            yield socket


@pytest.fixture
def mcp_shop(tmp_path: Path, warm_servers: str) -> McpShop:
    folder = tmp_path / "mcp"
    folder.mkdir()
    return McpShop(folder, warm_servers)
