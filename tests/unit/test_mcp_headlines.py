"""Approvers of an MCP server's call read what it would change, not what the server says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from surehand.activities.mcp.server_file import pins_of
from surehand.activities.mcp.tools import mcp_tools
from surehand.workflows.identity import digest

TEXT: Final = {"type": "string"}
SCHEMA: Final = {
    "type": "object",
    "properties": {"path": TEXT, "content": TEXT, "mode": TEXT, "size": {"type": "integer"}},
    "required": ["path", "content", "size"],
}
PARAMS: Final = {"path": "/srv/a.txt", "content": "x" * 200, "mode": "a", "size": 3}


def headline(
    folder: Path, params: dict[str, Any], schema: dict[str, Any] = SCHEMA, **said: Any
) -> str:
    definition = {"name": "write", "description": "Harmless.", "inputSchema": schema}
    pin, file = digest(definition), folder / "surehand.mcp.yaml"
    tools = {"write": {"pin": pin, **said}}
    server = {"command": ["files"], "tools": tools}
    file.write_text(yaml.safe_dump({"servers": {"files": server}}), encoding="utf-8")
    pins_of(file).write_text(json.dumps({pin: definition}), encoding="utf-8")
    [tool] = mcp_tools(str(file))
    return tool.describe_call(tool.validate(params))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({}, 'path="/srv/a.txt", content="' + "x" * 100 + '"…'),
        ({"key": "write:${params.path}:${params.size}"}, 'path="/srv/a.txt", size=3'),
        ({"key": "${params.mode}"}, 'mode="a"'),
    ],
    ids=["required texts", "what the key is made of", "an optional one"],
)
def test_it_names_the_params_of_the_key_or_else_the_texts_that_the_call_requires(
    tmp_path: Path, said: dict[str, Any], told: str
) -> None:
    assert headline(tmp_path, PARAMS, **said) == f"files.write: {told}"


def test_a_value_cannot_pass_for_another_param(tmp_path: Path) -> None:
    params = {**PARAMS, "path": '/etc/passwd", content="', "content": "\n"}
    told = 'files.write: path="/etc/passwd\\", content=\\"", content="\\n"'
    assert headline(tmp_path, params) == told


def test_without_params_that_say_it_it_is_the_reviewed_description(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"size": True}, "required": ["size"]}
    assert headline(tmp_path, {"size": 3}, schema) == "files.write: Harmless."
