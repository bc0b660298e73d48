"""What a server says of its own tools loosens nothing, unless the file says that it may."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from surehand.activities.mcp.server_file import pins_of
from surehand.activities.mcp.tools import mcp_tools
from surehand.workflows.identity import digest


def effects(folder: Path, hints: dict[str, Any], said: dict[str, Any], **server: Any) -> str:
    """Return what a tool of such hints is, where the file says that of it and of its server."""
    definition = {"name": "find", "inputSchema": {"type": "object"}, "annotations": hints}
    pin, file = digest(definition), folder / "surehand.mcp.yaml"
    tools = {"find": {"pin": pin, **said}}
    written = {"servers": {"shop": {"command": ["shop"], "tools": tools, **server}}}
    file.write_text(yaml.safe_dump(written), encoding="utf-8")
    pins_of(file).write_text(json.dumps({pin: definition}), encoding="utf-8")
    [tool] = mcp_tools(str(file))
    return f"{tool.effect}, {'asks' if tool.approval else 'asks nobody'}"


@pytest.mark.parametrize(
    ("hints", "said", "server", "effect"),
    [
        ({"readOnlyHint": True}, {}, {}, "WRITE, asks"),
        ({"readOnlyHint": True}, {}, {"trust": "annotations"}, "READ, asks nobody"),
        ({"readOnlyHint": False}, {}, {"trust": "annotations"}, "WRITE, asks"),
        ({}, {}, {"trust": "annotations"}, "WRITE, asks"),
        ({"readOnlyHint": True}, {"effect": "write"}, {"trust": "annotations"}, "WRITE, asks"),
        ({"readOnlyHint": True}, {"approval": True}, {"trust": "annotations"}, "READ, asks"),
    ],
)
def test_a_hint_makes_a_read_only_of_a_trusted_servers_tool_whose_effect_nobody_has_said(
    tmp_path: Path, hints: dict[str, Any], said: dict[str, Any], server: dict[str, Any], effect: str
) -> None:
    assert effects(tmp_path, hints, said, **server) == effect
