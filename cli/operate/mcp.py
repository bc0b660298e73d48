"""``mcp``: what MCP servers offer, what of it was reviewed, and what has changed since."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from surehand.cli.plans.tool_check import MCP_SETTING
from surehand.cli.verb import options
from surehand.cli.verb.caller import Caller
from surehand.cli.verb.ledger_door import translated
from surehand.cli.verb.printer import Reply, Table, table_or
from surehand.cli.verb.shapes import McpChange, McpDiff, McpList, McpPinned, McpToolSeen
from surehand.process.exits import ExitCode, WrongUse
from surehand.process.program import command
from surehand.workflows.plain_text import plain_line

if TYPE_CHECKING:
    from surehand.activities.mcp.pins import Offered, Seen
    from surehand.activities.mcp.server_file import Reviewed

_DEFAULT: Final = "surehand.mcp.yaml"
_LONGEST: Final = 100

Tools = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TOOL",
        help="As server.tool, or server.tool@DIGEST to pin just that; default those without a pin.",
    ),
]


async def list_mcp(caller: options.Anybody) -> Reply:
    """Show what the servers of the MCP file offer, and what the file says of each tool.

    Example: python starter.py mcp list
    """
    _, offered = await _offered(caller)
    seen = [_shown(one) for one in offered.tools]
    rows = [
        [one.tool, one.state, one.effect or "", one.offered or "", one.problem or one.description]
        for one in seen
    ]
    table = table_or(("tool", "state", "effect", "offered", "says of itself"), rows, "No tools")
    return Reply(
        McpList(tools=seen, silent=dict(offered.silent)),
        [*table, *_silent(offered)],
        ExitCode.NOT_REACHABLE if offered.silent else ExitCode.DONE,
    )


async def pin(caller: options.Anybody, tools: Tools = None) -> Reply:
    """Take what servers offer as reviewed: its digest goes into the MCP file.

    Servers are asked once more. With a digest, as `mcp list` and `mcp diff` print it, nothing is
    pinned that was not shown. A tool that has changed since it was pinned has to be named.

    Example: python starter.py mcp pin shop.create_refund
    """
    from surehand.activities.mcp.pins import write_pins

    reviewed, offered = await _offered(caller)
    known = {one.full: one for one in offered.tools}
    named = dict(_name_and_digest(one) for one in tools or ())
    for name, wanted in named.items():
        state = known[name].state if name in known else "gone"
        if state in ("gone", "refused", "unusable"):
            why = {
                "gone": "no server that answers offers it",
                "refused": "the file does not name it: say there what it does",
                "unusable": known[name].problem if name in known else "",
            }[state]
            raise WrongUse(f"{name}: {why}")
        if wanted and wanted != known[name].digest:
            raise WrongUse(f"{name}: the server offers {known[name].digest} now, not {wanted}")
    chosen = [
        one
        for one in offered.tools
        if (one.full in named if tools else one.state == "not pinned") and one.state != "pinned"
    ]
    if chosen:
        with translated():
            write_pins(reviewed, chosen)
    pinned = {one.full: str(one.digest) for one in chosen}
    lines = [f"Pinned {name}: {digest}" for name, digest in pinned.items()]
    return Reply(
        McpPinned(file=str(reviewed.path), pinned=pinned),
        [*(lines or ["Nothing to pin"]), *_silent(offered)],
        ExitCode.NOT_REACHABLE if offered.silent else ExitCode.DONE,
    )


async def diff(caller: options.Anybody) -> Reply:
    """Show what servers offer otherwise than it was reviewed; its code is 3 if there is any.

    Example: python starter.py mcp diff
    """
    _, offered = await _offered(caller)
    from surehand.activities.mcp.differences import changes, sides

    changed = [
        one
        for one in offered.tools
        if one.said is not None
        and one.said.pin is not None
        and one.state in ("changed", "gone", "unusable")
    ]
    found = [
        McpChange(tool=one.full, part=part, reviewed=before, offered=now)
        for one in changed
        for part, before, now in changes(one.reviewed, one.offered)
    ]
    digests = {one.full: one.digest for one in changed if one.digest is not None}
    pins = [f"{name}@{digest}" for name, digest in digests.items()]
    rows = [[one.tool, one.part, *sides(one.reviewed, one.offered)] for one in found]
    code = ExitCode.BROKEN if found else ExitCode.DONE
    return Reply(
        McpDiff(changes=found, digests=digests, silent=dict(offered.silent)),
        [
            *table_or(("tool", "part", "reviewed", "offered"), rows, "Nothing has changed"),
            *(f"Take it as reviewed: {command('mcp', 'pin', one)}" for one in pins),
            *_silent(offered),
        ],
        ExitCode.NOT_REACHABLE if offered.silent and not found else code,
    )


async def _offered(caller: Caller) -> tuple[Reviewed, Offered]:
    with translated():
        from surehand.activities.mcp.pins import ask_servers
        from surehand.activities.mcp.server_file import read_file

        reviewed = read_file(Path(caller.environment.get(MCP_SETTING) or _DEFAULT))
        return reviewed, await ask_servers(reviewed)


def _shown(one: Seen) -> McpToolSeen:
    description = "" if one.problem else str((one.offered or {}).get("description", ""))
    return McpToolSeen(
        tool=one.full,
        state=one.state,
        effect=one.said.effect if one.said else None,
        pin=one.said.pin if one.said else None,
        offered=one.digest,
        description=_cut(description),
        problem=one.problem,
    )


def _name_and_digest(written: str) -> tuple[str, str]:
    name, _, digest = written.partition("@")
    return name, digest


def _silent(offered: Offered) -> list[str | Table]:
    return [f"{name} cannot be asked: {reason}" for name, reason in offered.silent.items()]


def _cut(value: object) -> str:
    return plain_line("" if value is None else value, _LONGEST)
