"""An assistant beside a run: the SDK's own client, and `mcp serve` in a process of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from mcp import Client, StdioServerParameters

from surehand.process.children import clean_environment
from tests.e2e.runs import EXAMPLES
from tests.e2e.stage import Run, Stage

ROOT: Final = Path(__file__).parents[2]
STARTER: Final = str(ROOT / "starter.py")


#: What an operator lets be started.
PLANS: Final[dict[str, Any]] = {
    "refund": yaml.safe_load((EXAMPLES / "refund.yaml").read_text(encoding="utf-8")),
    "ask": {
        "name": "ask",
        "goal": "Ask why",
        "steps": [
            {
                "id": "reason",
                "ask": {"question": "Why ${input.order_id}?", "answer": {"type": "string"}},
            }
        ],
    },
    "look": {
        "name": "look",
        "steps": [
            {
                "id": "order",
                "tool": "orders.read",
                "params": {"order_id": "${input.order_id}"},
                "interrupt": "before",
            }
        ],
    },
}  # fmt: skip


@dataclass(frozen=True)
class Served:
    """Where the server is started, and with what."""

    stage: Stage
    folder: Path

    @classmethod
    def beside(cls, stage: Stage) -> Served:
        """Write the plans."""
        folder = stage.folder / "served"
        (folder / "plans").mkdir(parents=True)
        for name, plan in PLANS.items():
            file = folder / "plans" / f"{name}.yaml"
            file.write_text(yaml.safe_dump(plan, sort_keys=False), encoding="utf-8")
        return cls(stage, folder)

    def environment(
        self, user: str = "uma", temporal: str | None = None, **settings: str
    ) -> dict[str, str]:
        """Return the environment of a server that acts for a user."""
        elsewhere = {} if temporal is None else {"TEMPORAL_ADDRESS": temporal}
        return clean_environment(
            self.stage.environment(user=user, **settings)
            | {"SECRET_OF_THE_HOST": "sesame"}
            | elsewhere
        )

    def command(self, *options: str) -> list[str]:
        return [sys.executable, STARTER, "mcp", "serve", "--plans", "plans", *options]

    @asynccontextmanager
    async def assistant(
        self, *options: str, user: str = "uma", temporal: str | None = None, **settings: str
    ) -> AsyncIterator[Assistant]:
        """Start a server over stdio as a host does."""
        command, *arguments = self.command(*options)
        server = StdioServerParameters(
            command=command,
            args=arguments,
            env=self.environment(user, temporal, **settings),
            cwd=self.folder,
        )
        async with Client(server) as client:
            yield Assistant(client)

    def taken(self, run_id: str) -> Run:
        """Return a run that was started over MCP; it is audited at the end like all."""
        run = Run(run_id, self.stage.client.get_workflow_handle(run_id))
        self.stage.started.append(run)
        return run


@dataclass(frozen=True)
class Assistant:
    """A host of the server."""

    client: Client

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, result.content
        [shown] = result.content
        assert json.loads(shown.text) == result.structured_content
        found: dict[str, Any] = result.structured_content
        return found

    async def refused(self, tool: str, **arguments: Any) -> str:
        """Call a tool that must not answer, and return the one line that says why."""
        result = await self.client.call_tool(tool, arguments)
        [shown] = result.content
        assert result.is_error, shown.text
        assert "\n" not in shown.text and len(shown.text) < 700
        return str(shown.text)


def kinds(shown: dict[str, Any]) -> Sequence[str]:
    """Return what a run waits for."""
    return [one["kind"] for one in shown.get("waiting_for", [])]
