"""The file that says of MCP servers which of their tools may be called, and as what.

What a tool is stands beside it, in the pins: its definition as it was reviewed. So the worker knows
its tools without asking a server, and a server cannot change them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, JsonValue, ValidationError, model_validator

from surehand.activities.expressions import condition_problem
from surehand.activities.tools.toolbox import ToolboxError
from surehand.process.files import BadDocument, read_document
from surehand.process.json_schemas import schema_problem
from surehand.workflows.canonical_json import NotCanonical, canonical_json
from surehand.workflows.plain_text import reasons
from surehand.workflows.plan.policy import ROLE_FORM, ApprovalPolicy, Duration, WrittenByPeople
from surehand.workflows.plan.references import references, unclosed

#: What a definition consists of: all that a person or a model reads of a tool.
DEFINED: Final = ("name", "description", "inputSchema", "outputSchema", "annotations")
#: Bytes of one definition.
LARGEST_DEFINITION: Final = 64 * 1024
_VARIABLE: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_FROM_ENVIRONMENT: Final = re.compile(rf"env:({_VARIABLE})")
_SERVER: Final = r"^[A-Za-z0-9_-]{1,40}$"
_TOOL: Final = r"^[A-Za-z0-9_./-]{1,79}$"

Definition = dict[str, Any]


def _template(*roots: str) -> BeforeValidator:
    def checked(value: Any) -> Any:
        if any(unclosed(value)):
            raise ValueError("a ${ begins no reference")
        for _, reference in references(value):
            if reference.partition(".")[0] not in roots:
                allowed = " or ".join(f"${{{root}}}" for root in roots)
                raise ValueError(f"${{{reference}}}: begin it with {allowed}")
        return value

    return BeforeValidator(checked)


def _expression(value: Any) -> Any:
    if isinstance(value, str) and (problem := condition_problem(value)) is not None:
        raise ValueError(problem)
    return value


def _approval(value: Any) -> Any:
    if value is False:
        return "none"
    return ApprovalPolicy() if value is True or value == "required" else value


Expression = Annotated[str, Field(min_length=1, max_length=500), BeforeValidator(_expression)]
Key = Annotated[str, Field(min_length=1, max_length=400), _template("params")]
LookupParams = Annotated[dict[str, JsonValue], _template("params", "key")]
UndoParams = Annotated[dict[str, JsonValue], _template("params", "receipt")]
ToolName = Annotated[str, Field(pattern=_TOOL)]


class McpDedupes(WrittenByPeople):
    """The server makes one effect of calls with the same key."""

    window: Duration
    """How long after the first call the server recognises the key."""
    argument: str | None = None
    """The argument that carries the key; without one the key is only in ``_meta``."""


class McpLookup(WrittenByPeople):
    """Another tool of the same server, a read, that tells whether the effect happened."""

    tool: ToolName
    """Its name, without the server's."""
    params: LookupParams = {}
    """Its params, with ``${params.x}`` of the call and ``${key}``, the key that was sent. Without
    ``${key}`` it asks for the state of the world, which may have other causes than our call."""
    found: Expression
    """An expression over ``output``, ``params`` and ``key``: true if the effect happened."""
    not_found: Expression | None = None
    """True if it did not happen. If neither is true, a human is asked. Left out: true whenever
    ``found`` is false."""
    not_found_error: str | None = Field(default=None, min_length=1, max_length=200)
    """The beginning of the error that says that it did not happen, such as ``ENOENT``."""
    settle: Duration | None = None
    """How long after a call's deadline, or the error it reports, its effect may still appear.
    Without it, a lookup that finds nothing proves nothing."""


class McpUndo(WrittenByPeople):
    """Another tool of the same server that undoes the effect."""

    tool: ToolName
    """Its name, without the server's."""
    params: UndoParams = {}
    """Its params, with ``${params.x}`` of the call and ``${receipt.x}`` of its output."""


class McpTool(WrittenByPeople):
    """One tool that may be called. Fields that are left out take the safest value."""

    effect: Literal["read", "write"] = "write"
    """Whether a call changes something."""
    key: Key | None = None
    """Business key, such as ``refund:${params.order_id}``. Left out: the run and its step."""
    dedupes: McpDedupes | None = None
    """How long the server recognises a call that is repeated. Left out: it does not."""
    lookup: McpLookup | None = None
    """How to find the effect after a crash. Without ``dedupes`` and ``lookup``, a human decides."""
    compensate: McpUndo | None = None
    """How the effect is undone."""
    irreversible: bool = False
    """Says that nothing undoes the effect. Without ``compensate`` a write counts as irreversible,
    unless its definition says ``destructiveHint: false``."""
    approval: Annotated[Literal["none"] | ApprovalPolicy | None, BeforeValidator(_approval)] = None
    """``none``, ``required`` or a policy. Left out: required for a write, and nobody can approve it
    in advance, unless its definition says ``destructiveHint: false``."""
    permission: Annotated[str, Field(pattern=ROLE_FORM)] | None = None
    """What the acting user must be allowed (``principal grant --permission``)."""
    errors: Literal["in-doubt", "not-applied"] = "in-doubt"
    """What an error that the tool reports says about a write. ``not-applied``: nothing happened."""
    foreign: bool | None = None
    """Whether strangers may have written its output. Left out: for a read yes, unless its
    definition says ``openWorldHint: false``."""
    timeout: Duration | None = None
    """Deadline of one call."""


class McpServer(WrittenByPeople):
    """One server, with the tools that may be called. No other tool of it is called."""

    url: Annotated[str, Field(pattern=r"^https?://\S+$")] | None = None
    """Its address, for a server with streamable HTTP."""
    bearer: Annotated[str, Field(pattern=rf"^env:{_VARIABLE}$")] | None = None
    """The variable with the token for the address, as ``env:NAME``."""
    command: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Instead of an address: the program to start, with its arguments."""
    env: dict[Annotated[str, Field(pattern=rf"^{_VARIABLE}$")], str] = {}
    """All environment variables of the program: values, or ``env:NAME`` for one of the worker's."""
    tools: dict[ToolName, McpTool] = {}
    """The tools that may be called, by name; ``create_issue: {}`` is enough to begin with."""

    @model_validator(mode="after")
    def _one_way(self) -> McpServer:
        if (self.url is None) == (self.command is None):
            raise ValueError("has either url or command")
        if self.command is None and self.env:
            raise ValueError("env is for command")
        if self.url is None and self.bearer:
            raise ValueError("bearer is for url")
        return self


class McpFile(WrittenByPeople):
    """``surehand.mcp.yaml``."""

    servers: dict[Annotated[str, Field(pattern=_SERVER)], McpServer]
    """The servers, by the names that come before the dot of their tools: ``desk.add_note``."""


@dataclass(frozen=True)
class Reviewed:
    """The file, and the definitions of its tools beside it."""

    path: Path
    servers: Mapping[str, McpServer]
    definitions: Mapping[str, Definition]
    """As they were reviewed, by the tools' names in the toolbox."""


class McpFileError(ToolboxError):
    """The file cannot be used; the message says what is wrong, and where."""


def pins_of(path: Path) -> Path:
    """Return the file with the definitions, which ``mcp pin`` writes."""
    return path.with_suffix(".pins.json")


def read_file(path: Path) -> Reviewed:
    """Read the file, and the definitions beside it. Raises ``McpFileError``."""
    try:
        parsed = McpFile.model_validate(read_document(path))
    except BadDocument as error:
        raise McpFileError(f"{path} (SUREHAND_MCP): {error}") from error
    except ValidationError as error:
        models = (McpFile, McpServer, McpTool, McpLookup, McpDedupes, ApprovalPolicy)
        raise McpFileError(f"{path}: {next(reasons(error, 'file', *models))}") from error
    return Reviewed(path, parsed.servers, _definitions(pins_of(path)))


def _definitions(path: Path) -> dict[str, Definition]:
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise McpFileError(f"{path}: cannot be read: {error}; remove it, and pin again") from error
    try:
        definitions = {name: {**one} for name, one in found.items()}
        canonical_json(definitions)  # Each is compared by its digest.
    except (NotCanonical, AttributeError, TypeError) as error:
        raise McpFileError(f"{path}: holds no definitions; remove it, and pin again") from error
    return definitions


def definition_problem(definition: Definition) -> str | None:
    """Return why a tool of this definition cannot be called; ``None``: it can."""
    try:
        size = len(canonical_json(definition))
    except NotCanonical as error:
        return str(error)
    if size > LARGEST_DEFINITION:
        return f"its definition has {size:,} bytes; {LARGEST_DEFINITION:,} are read"
    schema = definition.get("inputSchema")
    if not isinstance(schema, dict) or not isinstance(schema.get("properties", {}), dict):
        return "its params have no schema"
    problem = schema_problem(schema)
    return None if problem is None else f"the schema of its params: {problem}"


def from_environment(value: str, where: str) -> str:
    """Return a value as it is written, or that of the variable that it names."""
    named = _FROM_ENVIRONMENT.fullmatch(value)
    if named is None:
        return value
    found = os.environ.get(named[1])
    if not found:
        raise McpFileError(f"{where}: the variable {named[1]} is not set")
    found = found.strip()
    if not found.isprintable():
        # What sends it would refuse it, and show it.
        raise McpFileError(f"{where}: the variable {named[1]} has a line break or the like in it")
    return found
