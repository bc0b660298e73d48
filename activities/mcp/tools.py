"""The file's tools in the form of every other tool, with params as their server's schema says."""

from __future__ import annotations

import asyncio
import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict, create_model, model_serializer, model_validator

from surehand.activities.expressions import RuleBroken, condition_holds, find_paths
from surehand.activities.mcp import server_file
from surehand.activities.mcp.calls import CutOutput, McpCall, ReportedError, ask_servers, changed
from surehand.activities.mcp.server_file import Definition, McpFileError, McpTool, Reviewed
from surehand.activities.tools import tool, toolbox
from surehand.process.json_schemas import problems
from surehand.workflows.canonical_json import digest
from surehand.workflows.plain_text import plain, suggest_name
from surehand.workflows.plan.policy import ApprovalPolicy
from surehand.workflows.plan.references import look_up, references, resolve

#: Params that rules can name; all others can be passed, too.
_NAME: Final = re.compile(r"[a-z][A-Za-z0-9_]*")


class McpParams(BaseModel):
    """What fits the schema, and nothing else: as it was given."""

    model_config = ConfigDict(extra="allow", frozen=True, protected_namespaces=())
    schema_: ClassVar[Mapping[str, Any]] = {}

    @model_validator(mode="before")
    @classmethod
    def _fits(cls, value: Any) -> Any:
        known = cls.schema_.get("properties", {})
        # Also where the schema allows more: nobody has reviewed what a server makes of that.
        wrong = [f"{name}: unknown field" for name in value if name not in known]
        if wrong := wrong or problems(cls.schema_, value):
            raise ValueError("; ".join(wrong))
        return value

    @model_serializer(mode="plain")
    def _as_given(self) -> dict[str, Any]:
        given = {**self.__dict__, **(self.__pydantic_extra__ or {})}
        return {name: given[name] for name in given if name in self.__pydantic_fields_set__}

    @classmethod
    def model_json_schema(cls, *_: Any, **__: Any) -> dict[str, Any]:
        return copy.deepcopy(dict(cls.schema_))


def params_model(schema: Mapping[str, Any], without: str | None) -> type[McpParams]:
    """Return the model of params of a schema.

    ``without`` is the argument that carries our own key.
    """
    left = {key: value for key, value in schema.items() if key != "required"}
    properties = schema.get("properties", {})
    left["properties"] = {name: part for name, part in properties.items() if name != without}
    if required := [name for name in schema.get("required", []) if name != without]:
        left["required"] = required
    fields: dict[str, Any] = {
        name: (Any, None)
        for name in left["properties"]
        if _NAME.fullmatch(name) and not hasattr(McpParams, name)
    }
    model = create_model("Params", __base__=McpParams, **fields)
    model.schema_ = left
    return model


_LONGEST_DESCRIPTION: Final = 300


def mcp_tools(path: str) -> list[tool.Tool]:
    """Return the tools of the file at a path; none where it is empty. Raises ``McpFileError``."""
    if not path:
        return []
    reviewed = server_file.read_file(Path(path))
    return [
        _tool(reviewed, server, name)
        for server, said in reviewed.servers.items()
        for name in said.tools
    ]


async def look_for_changes(path: str) -> list[str]:
    """Return what servers offer otherwise than it was reviewed, or that they cannot be asked."""
    offered = await ask_servers(server_file.read_file(Path(path)), at_start=True)
    found = [
        await asyncio.to_thread(changed, seen.full, seen.reviewed, seen.offered)
        for seen in offered.tools
        if seen.reviewed is not None
    ]
    silent = [f"{name}: cannot be asked: {reason}" for name, reason in offered.silent.items()]
    return [*silent, *(problem for problem in found if problem is not None)]


def _tool(reviewed: Reviewed, server_name: str, name: str) -> tool.Tool:
    server = reviewed.servers[server_name]
    said = server.tools[name]
    full, where = f"{server_name}.{name}", f"{reviewed.path}: servers.{server_name}.tools.{name}"
    definition = reviewed.definitions.get(full)
    if definition is None:
        how = "review it with `surehand mcp list`, then run `surehand mcp pin`"
        raise McpFileError(f"{where}: has no pin: {how}")
    if (problem := server_file.definition_problem(definition)) is not None:
        raise McpFileError(f"{where}: {problem}")
    call = McpCall(server_name, server, name, said, definition)
    timeout = said.timeout or toolbox.DEFAULT_TIMEOUT
    limit = timeout.total_seconds() / 2
    argument = said.dedupes.argument if said.dedupes else None
    if argument is not None and argument not in definition["inputSchema"].get("properties", {}):
        raise McpFileError(f"{where}.dedupes.argument: it has no argument {argument!r}")
    model = params_model(definition["inputSchema"], argument)
    lookup = _lookup(reviewed, server_name, said, where)
    found_by = reviewed.definitions.get(f"{server_name}.{said.lookup and said.lookup.tool}", {})
    facts = {"params": model.schema_, "key": None, "output": found_by.get("outputSchema")}
    _require_paths(where, said, facts)
    write = said.effect == "write"

    async def run(params: Any, ctx: tool.ToolContext) -> Any:
        return await call.make(params.model_dump(mode="json"), ctx, limit)

    run.__doc__ = _description(definition, full)
    run.__annotations__ = {"params": model, "ctx": tool.ToolContext, "return": Any}
    hints = definition.get("annotations", {})
    destructive = write and hints.get("destructiveHint", True) is not False
    try:
        return toolbox.tool(
            full,
            effect=toolbox.WRITE if write else toolbox.READ,
            version=digest(definition).removeprefix("sha256:")[: toolbox.LONGEST_VERSION],
            timeout=timeout,
            key=None if said.key is None else partial(_key, said.key),
            dedupes=None if said.dedupes is None else tool.Dedupes(said.dedupes.window),
            lookup=lookup.function if lookup else None,
            lookup_by=lookup.by if lookup else "key",
            settle=said.lookup.settle if said.lookup else None,
            recovery="human" if write and not (said.dedupes or lookup) else None,
            compensate=_undo(server_name, said),
            describe=_headline(full, said),
            irreversible=said.irreversible or (destructive and said.compensate is None),
            approval=_approval(said, destructive),
            permission=said.permission,
            foreign=_foreign(said, hints) or ("lookup" if lookup and lookup.foreign else False),
        )(run)
    except toolbox.ToolboxError as error:
        raise McpFileError(f"{where}: {error}") from error


#: Where a schema has one of these, its properties may not be all that there is.
_SAYS_MORE: Final = {
    *("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if"),
    *("patternProperties", "dependentSchemas"),
}


def _require_paths(where: str, said: McpTool, facts: Mapping[str, Any]) -> None:
    """Refuse a path that the reviewed schemas do not have, as far as they say what there is."""
    rule = said.lookup
    written = {"key": said.key, "lookup.params": rule and rule.params}
    named = [(field, path) for field in written for _, path in references(written[field])]
    if rule is not None:
        named += [("lookup.found", path) for path in find_paths(rule.found)]
        named += [("lookup.not_found", path) for path in find_paths(rule.not_found or "key")]
    for field, path in named:
        schema: Any = {"properties": facts}
        for part in path.split("."):
            known = schema.get("properties") if isinstance(schema, Mapping) else None
            if not isinstance(known, Mapping) or _SAYS_MORE & schema.keys():
                break
            if schema.get("additionalProperties", False) is not False:
                break
            if part not in known:
                hint = suggest_name(part, known) or f"; there are: {', '.join(known) or 'none'}"
                raise McpFileError(f"{where}.{field}: {path}: there is no {part!r}{hint}")
            schema = known[part]


def _description(definition: Definition, full: str) -> str:
    lines = str(definition.get("description", "")).strip().splitlines()
    return plain(lines[0], _LONGEST_DESCRIPTION) if lines else full


def _foreign(said: McpTool, hints: Mapping[str, Any]) -> bool:
    """Return whether its output is content from outside; by the protocol all is that says nothing.

    What it says of itself lies in the definition that people have reviewed.
    """
    if said.foreign is not None:
        return said.foreign
    return said.effect == "read" and hints.get("openWorldHint", True) is not False


def _approval(said: McpTool, destructive: bool) -> ApprovalPolicy | None:
    """Return who has to say yes; where nobody has said it, a person looks at what may destroy."""
    if said.approval == "none":
        return None
    if said.approval is None:
        return ApprovalPolicy(standing=not destructive) if said.effect == "write" else None
    return said.approval


def _key(template: str, params: BaseModel) -> str:
    return str(resolve(template, {"params": params.model_dump(mode="json")}))


def _headline(full: str, said: McpTool) -> Callable[[BaseModel], str] | None:
    """Return what names the params that the business key is made of; ``None``: all are named."""
    named = [reference.partition(".")[2] for _, reference in references(said.key)]
    paths = [path for path in named if path]
    if not paths:
        return None

    def described(params: BaseModel) -> str:
        given = {"params": params.model_dump(mode="json")}
        return tool.name_values(full, {path: look_up(f"params.{path}", given) for path in paths})

    return described


def _undo(server_name: str, said: McpTool) -> tool.Undo | None:
    if said.compensate is None:
        return None
    written = said.compensate.params

    def params(params: dict[str, Any], receipt: Any) -> Mapping[str, Any]:
        resolved: Mapping[str, Any] = resolve(written, {"params": params, "receipt": receipt})
        return resolved

    # The pin is of the server's definition alone, and the template is not in it.
    return tool.Undo(f"{server_name}.{said.compensate.tool}", params, digest(written))


@dataclass(frozen=True)
class _Lookup:
    """A read as the lookup of a write."""

    function: tool.LookupFunction
    by: tool.LookupBy
    """Only what was asked by our key finds our own call."""
    foreign: bool
    """Whether what the read returns is content from outside."""


def _lookup(reviewed: Reviewed, server_name: str, said: McpTool, where: str) -> _Lookup | None:
    rule = said.lookup
    if rule is None:
        return None
    server = reviewed.servers[server_name]
    other = server.tools.get(rule.tool)
    if other is None or other.effect != "read":
        raise McpFileError(f"{where}.lookup.tool: {rule.tool!r} is no read of this server, in here")
    looking = _tool(reviewed, server_name, rule.tool)

    async def look(params: Any, ctx: tool.ToolContext) -> tool.LookupAnswer:
        values = {"params": params.model_dump(mode="json"), "key": ctx.idempotency_key}
        try:
            output = await looking.fn(looking.validate(resolve(rule.params, values)), ctx)
        except ReportedError as error:
            if rule.not_found_error is not None and error.said.startswith(rule.not_found_error):
                return tool.NotFound()
            raise
        if isinstance(output, CutOutput):
            return tool.Unknown(f"{rule.tool} has said more than an output may have")
        values["output"] = output
        try:
            found = condition_holds(rule.found, values)
            absent = condition_holds(rule.not_found, values) if rule.not_found else not found
        except RuleBroken as error:
            return tool.Unknown(str(error))
        if found == absent:
            return tool.Unknown(f"neither or both of found and not_found are true of {rule.tool}")
        return tool.Found(output) if found else tool.NotFound()

    by_key = any(reference == "key" for _, reference in references(rule.params))
    return _Lookup(look, "key" if by_key else "state", looking.foreign)
