"""Pins: what servers offer, beside what was reviewed; and writing into the file what is reviewed.

The file is people's: only the digests in it change, its comments and its order stay.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import yaml

from surehand.activities.mcp.calls import innermost, sdk
from surehand.activities.mcp.server_file import (
    Definition,
    McpFileError,
    McpTool,
    Reviewed,
    definition_problem,
    pins_of,
)
from surehand.process.files import Unreadable, parse_yaml, replace_whole
from surehand.workflows.identity import digest
from surehand.workflows.plain_text import plain

#: Seconds that a server may take to say what it offers, to somebody who asks for just that.
LOOK: Final = 30.0
#: The same where a worker starts, or says whether it is well: it goes on without an answer.
LOOK_AT_START: Final = 10.0

State = Literal["pinned", "not pinned", "changed", "gone", "refused", "unusable"]


@dataclass(frozen=True)
class Seen:
    """One tool, as the file and its server have it."""

    server: str
    name: str
    said: McpTool | None
    """What the file says of it; ``None``: nothing, so it is refused."""
    reviewed: Definition | None
    offered: Definition | None

    @property
    def full(self) -> str:
        """Return its name in the toolbox."""
        return f"{self.server}.{self.name}"

    @property
    def problem(self) -> str | None:
        """Return why it could not be called whatever the file says."""
        return None if self.offered is None else definition_problem(self.offered)

    @property
    def digest(self) -> str | None:
        """Return the digest of what is offered."""
        if self.offered is None or self.problem is not None:
            return None
        return digest(self.offered)

    @property
    def state(self) -> State:
        """Return how the two stand to each other."""
        if self.offered is None:
            return "gone"
        if self.problem is not None:
            return "unusable"
        if self.said is None:
            return "refused"
        if self.said.pin is None or (self.said.pin == self.digest and self.reviewed is None):
            return "not pinned"
        return "pinned" if self.said.pin == self.digest else "changed"


@dataclass(frozen=True)
class Offered:
    """What all servers offer, and which of them cannot be asked."""

    tools: tuple[Seen, ...]
    silent: Mapping[str, str]
    """Servers that do not answer, with the reason."""


async def ask_servers(reviewed: Reviewed, *, at_start: bool = False) -> Offered:
    """Ask all servers of the file what they offer.

    Args:
        reviewed: The file.
        at_start: Whether a worker waits for it.

    Raises:
        McpFileError: The SDK is not installed.
    """
    connection = sdk()

    async def ask(name: str) -> dict[str, Definition] | str:
        try:
            async with asyncio.timeout(LOOK_AT_START if at_start else LOOK):
                async with connection.connected(name, reviewed.servers[name]) as opened:
                    found: dict[str, Definition] = await opened.definitions()
                    return found
        except Exception as error:
            first = innermost(error)
            return plain(f"{type(first).__name__}: {first}".rstrip(": "), 300)

    answers = await asyncio.gather(*(ask(name) for name in reviewed.servers))
    tools, silent = list[Seen](), dict[str, str]()
    for (name, server), offered in zip(reviewed.servers.items(), answers, strict=True):
        if isinstance(offered, str):
            silent[name] = offered
            continue
        for one in dict.fromkeys([*server.tools, *sorted(offered)]):
            said = server.tools.get(one)
            before = reviewed.definitions.get(said.pin or "") if said else None
            tools.append(Seen(name, one, said, before, offered.get(one)))
    return Offered(tuple(tools), silent)


def write_pins(reviewed: Reviewed, chosen: list[Seen]) -> None:
    """Write the digests of tools into the file, and their definitions beside it.

    Raises:
        McpFileError: The file is written so that this cannot be done without changing more.
    """
    path = reviewed.path
    text = path.read_text(encoding="utf-8-sig")
    wanted = parse_yaml(text)
    for one in chosen:
        wanted["servers"][one.server]["tools"][one.name]["pin"] = one.digest
    edits = [_edit(text, one) for one in chosen]
    edited = text
    for start, end, new in sorted(edits, reverse=True):
        edited = edited[:start] + new + edited[end:]
    try:
        done = parse_yaml(edited) == wanted
    except Unreadable:
        done = False
    if not done:
        lines = "; ".join(f"{one.full}: pin: {one.digest}" for one in chosen)
        raise McpFileError(f"{path}: cannot be edited here; write into it yourself: {lines}")
    fresh = {str(one.digest): one.offered for one in chosen}
    pins = {
        tool.get("pin")
        for server in wanted["servers"].values()
        for tool in server.get("tools", {}).values()
    }
    kept = {pin: one for pin, one in {**reviewed.definitions, **fresh}.items() if pin in pins}
    # Definitions first: without its digest in the file one counts for nothing.
    beside = pins_of(path)
    text = json.dumps(kept, indent=2, sort_keys=True) + "\n"
    replace_whole(beside, text, mode=None if beside.exists() else 0o644)
    replace_whole(path, edited)


def _edit(text: str, one: Seen) -> tuple[int, int, str]:
    """Return from where to where the text is replaced, and by what."""
    node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    for key in ("servers", one.server, "tools", one.name):
        node = next((value for name, value in node.value if name.value == key), None)
        if not isinstance(node, yaml.MappingNode):
            raise McpFileError(f"{one.full}: is not written out in the file")
    for name, value in node.value:
        if name.value == "pin":
            return value.start_mark.index, value.end_mark.index, str(one.digest)
    if node.flow_style:
        at = node.start_mark.index + 1
        return at, at, f"pin: {one.digest}{', ' if node.value else ''}"
    at = node.start_mark.index
    return at, at, f"pin: {one.digest}\n{' ' * node.start_mark.column}"
