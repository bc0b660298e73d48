"""Both of our sides, as programs that the MCP conformance suite calls, or is called by.

``python -m tests.proof.sides PORT``: ``mcp serve``, over HTTP, which the suite needs, instead of
stdio. ``python -m tests.proof.sides URL``: calls each tool of the suite's server as a step does.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from mcp.server.mcpserver import MCPServer

from surehand.activities.mcp.calls import McpCall, NeedsAnswer
from surehand.activities.mcp.connection import connected
from surehand.activities.mcp.server_file import McpServer, McpTool
from surehand.activities.tools.call_reports import Answers
from surehand.activities.tools.failures import Permanent
from surehand.activities.tools.tool import ToolContext
from surehand.cli.app import run
from surehand.process.exits import leave

#: Params of one call, by the JSON type.
SAMPLES: dict[str, Any] = {"number": 2, "integer": 2, "boolean": True, "string": "word"}


def serve(port: int) -> None:
    async def serve_http(server: MCPServer[Any]) -> None:
        await server.run_streamable_http_async(port=port)

    MCPServer.run_stdio_async = serve_http  # type: ignore[method-assign]
    leave(run(["mcp", "serve"]))


def fill(schema: dict[str, Any]) -> dict[str, Any]:
    """Return params, or an answer, that fit a schema."""
    parts = schema.get("properties", {})
    return {name: SAMPLES.get(part.get("type"), {}) for name, part in parts.items()}


async def call_all(url: str) -> None:
    """Call all tools; an answer that is lost, or not understood, ends the program with an error."""
    server = McpServer(url=url)
    async with connected("suite", server) as opened:
        offered = await opened.definitions()
    # What the suite wants called with certain params.
    told = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}")).get("toolCalls", [])
    wanted = [(one["name"], one["arguments"]) for one in told]
    for name, params in wanted or [(one, fill(offered[one]["inputSchema"])) for one in offered]:
        if name == "json_schema_echo":
            params = {"schema": offered["json_schema_2020_12_tool"]["inputSchema"]}
        call = McpCall("suite", server, name, McpTool(), offered[name])
        answers: list[tuple[str, Any]] = []
        while len(answers) < 5:
            ctx = ToolContext("t", "r", "s", "ann", 1, "key-1", answers=Answers(answers))
            try:
                await call.make(params, ctx, limit=60)
                break
            except NeedsAnswer as asked:
                answers.append((asked.digest, fill(asked.schema)))
            except Permanent as refused:  # the server's own word
                print(refused)
                break


if __name__ == "__main__":
    if sys.argv[1].isdecimal():
        serve(int(sys.argv[1]))
    asyncio.run(call_all(sys.argv[1]))
