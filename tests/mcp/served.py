"""An MCP server in a process of its own: a shop that writes down each refund it makes.

``python -m tests.mcp.served stdio|PORT FOLDER``. Files in the folder say how it behaves, so that a
test changes it while it runs: ``description``, ``renamed``, ``fails``, ``floods``, ``dies``,
``refuses``, ``denies``, ``asks``, ``crowd``, ``tells``, ``painted``, ``hangs``. A server that hangs
writes down its process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any

from mcp.server.mcpserver import Context, Elicit, MCPServer, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import ToolAnnotations
from pydantic import BaseModel


class Colour(BaseModel):
    colour: str


async def ask(order_id: str) -> Elicit[Colour]:
    file = Path(sys.argv[2]) / "asks"
    asked = file.read_text(encoding="utf-8") if file.exists() else "Which colour for"
    return Elicit(f"{asked} {order_id}?", Colour)


def make(folder: Path) -> MCPServer:
    server = MCPServer("shop")
    made = folder / "made"

    def said(name: str, otherwise: str = "") -> str:
        file = folder / name
        return file.read_text(encoding="utf-8") if file.exists() else otherwise

    def refund(order_id: str, amount: float, ctx: Context) -> dict[str, Any]:
        meta = ctx.request_context.meta or {}
        entry = {
            "order_id": order_id,
            "amount": amount,
            "key": meta.get("surehand/idempotency-key"),
        }
        with (folder / "asked").open("a", encoding="utf-8") as file:
            file.write("once\n")
        if said("denies"):
            raise ToolError(said("denies"))
        if said("refuses"):
            raise MCPError(-32602, "no such order")
        with made.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        if said("dies"):
            os.kill(os.getpid(), signal.SIGKILL)
        if said("hangs"):
            (folder / "process").write_text(str(os.getpid()), encoding="utf-8")
            time.sleep(600)
        if said("floods"):
            return {"id": "ä" * int(said("floods"))}
        if said("fails"):
            raise ToolError("the ledger \x1b[31mis closed")
        return {"id": f"re-{order_id}", "environment": sorted(os.environ)}

    def cancel(refund_id: str, key: str) -> dict[str, Any]:
        with made.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"cancelled": refund_id, "key": key}) + "\n")
        return {}

    def find(order_id: str, key: str = "") -> dict[str, Any]:
        lines = made.read_text(encoding="utf-8").splitlines() if made.exists() else []
        entries = [json.loads(line) for line in lines]
        found = [one for one in entries if one["order_id"] == order_id and key in ("", one["key"])]
        return {"refunds": found, "note": said("tells")}

    def paint(order_id: str, colour: Annotated[Colour, Resolve(ask)]) -> dict[str, Any]:
        with made.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"order_id": order_id, "colour": colour.colour}) + "\n")
        return {"painted": colour.colour}

    server.add_tool(
        refund,
        name=said("renamed", "create_refund"),
        description=said("description", "Refund an order."),
    )
    server.add_tool(
        find,
        name="find_refunds",
        description="Refunds of an order.",
        annotations=ToolAnnotations(read_only_hint=True),
    )
    server.add_tool(cancel, name="cancel_refund", description="Cancel a refund.")
    server.add_tool(paint, name="paint", description=said("painted", "Paint an order."))
    tools = server._tool_manager._tools
    for number in range(int(said("crowd", "0"))):
        name = f"another_{number}"
        tools[name] = tools["cancel_refund"].model_copy(update={"name": name})
    if schema := said("schema"):
        tool = server._tool_manager.get_tool("find_refunds")
        assert tool is not None
        tool.parameters = json.loads(schema)
    return server


def main() -> None:
    how, folder = sys.argv[1], Path(sys.argv[2])
    server = make(folder)
    if how == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", port=int(how))


if __name__ == "__main__":
    main()
