"""What MCP servers offer, beside what was reviewed; one call of a tool; and writing pins.

A call first looks at what is offered, then calls, once. The order decides what is proven. Before
the request is sent nothing has been applied; from then on only the server's own word that it has
refused the request says so.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal

from surehand.activities.mcp import server_file
from surehand.activities.mcp.server_file import Definition
from surehand.activities.tools import failures
from surehand.activities.tools.call_reports import NeedsAnswer
from surehand.activities.tools.tool import ToolContext
from surehand.process.files import replace_whole
from surehand.process.settings import load_extra
from surehand.workflows.canonical_json import NotCanonical, digest
from surehand.workflows.plain_text import plain

if TYPE_CHECKING:
    from mcp_types import CallToolResult, InputRequiredResult

    from surehand.activities.mcp.connection import McpConnection


#: Our idempotency key in `_meta`, for servers that know it.
KEY_IN_META: Final = "surehand/idempotency-key"
#: Bytes of an output; of a larger one its beginning is kept.
LARGEST_OUTPUT: Final = 4 * 1024 * 1024
_LONGEST_ERROR: Final = 500
_MOST_QUESTIONS: Final = 5
#: Where a human may be sent: they see it whole, in a question that has an end.
_LINK: Final = re.compile(r"https?://[!-~]{1,1000}")
#: JSON-RPC: the request itself was refused, so no tool has run.
_REFUSED: Final = (-32601, -32602)


def sdk() -> ModuleType:
    """Return what connects, which needs the SDK: an extra, imported when it is first used."""
    module, need = "surehand.activities.mcp.connection", "SUREHAND_MCP needs the MCP SDK"
    return load_extra(module, "mcp", need)


def changed(full: str, reviewed: Definition, offered: Definition | None) -> str | None:
    """Return how what a server offers differs from what was reviewed; ``None``: it does not.

    ``offered`` is ``None`` if the server offers nothing under this name.
    """
    if offered is None:
        gone = f"the server does not offer it any more (reviewed: {digest(reviewed)})"
        return f"{full}: {gone}; see `mcp list`"
    unusable = f"{full}: its definition has changed, and cannot be used"
    try:
        now = digest(offered)
    except NotCanonical as error:
        return f"{unusable}: {plain(error, _LONGEST_ERROR)}; see `mcp list`"
    if now == digest(reviewed):
        return None
    if (problem := server_file.definition_problem(offered)) is not None:
        return f"{unusable}: {plain(problem, _LONGEST_ERROR)}; see `mcp list`"
    return (
        f"{full} is not as it was reviewed: {in_words(reviewed, offered)}. See `mcp list`; to take "
        f"it as reviewed, in this order: `mcp pin {full}@{now}`, restart the worker, and `resume` "
        "the runs that wait for it"
    )


class ReportedError(failures.Permanent):
    """The tool itself has reported an error, and nothing was applied."""

    def __init__(self, message: str, said: str) -> None:
        """Keep the tool's own words."""
        super().__init__(message)
        self.said = said


@dataclass(frozen=True)
class McpCall:
    """A tool that can be called."""

    server_name: str
    server: server_file.McpServer
    tool_name: str
    tool: server_file.McpTool
    reviewed: Definition

    @property
    def full(self) -> str:
        return f"{self.server_name}.{self.tool_name}"

    async def make(self, params: dict[str, Any], ctx: ToolContext, limit: float) -> Any:
        """Call it, and ask a human where the server wants to know more. Raises ``ToolFault``."""
        sent = False
        said: CallToolResult | NeedsAnswer | None = None
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(limit):
                    opened = sdk().connected(self.server_name, self.server)
                    connection = await stack.enter_async_context(opened)
                    offered = (await connection.definitions()).get(self.tool_name)
                # In a thread: how long it takes is the server's to say.
                problem = await asyncio.to_thread(changed, self.full, self.reviewed, offered)
                if problem is not None:
                    raise failures.NotAsReviewed(problem)
                sent = True
                said = await self._sent(connection, params, ctx)
        except Exception as error:
            # Closing may fail, too: an answer in hand counts all the same.
            if said is None:
                raise self._fault(innermost(error), sent) from error
        if isinstance(said, NeedsAnswer):
            raise said
        assert said is not None, "it was answered, or has raised"
        return self._output(said)

    async def _sent(
        self, connection: McpConnection, params: dict[str, Any], ctx: ToolContext
    ) -> CallToolResult | NeedsAnswer:
        """Send the request, and again with what humans have answered to the server's questions.

        Where one is not answered yet, the call has ended without an effect. What says so is
        returned: raised, it would become part of a group on its way out of the connection.
        """
        arguments = dict(params)
        meta = {KEY_IN_META: ctx.idempotency_key} if ctx.idempotency_key else {}
        if self.tool.dedupes is not None and self.tool.dedupes.argument is not None:
            arguments[self.tool.dedupes.argument] = ctx.idempotency_key
        answers: dict[str, Any] | None = None
        state: str | None = None
        for _ in range(_MOST_QUESTIONS):
            said: Any = await connection.call(self.tool_name, arguments, meta, answers, state)
            if said.result_type != "input_required":
                answered: CallToolResult = said
                return answered
            try:
                # A server takes its state back from the connection that it gave it to.
                answers, state = await self._answered(said, ctx), said.request_state
            except NeedsAnswer as unanswered:
                return unanswered
        raise failures.Permanent(f"{self.full} asks more than {_MOST_QUESTIONS} times")

    def _fault(self, error: BaseException, sent: bool) -> failures.ToolFault:
        if isinstance(error, failures.ToolFault):
            return error
        what = plain(f"{type(error).__name__}: {error}", _LONGEST_ERROR)
        if not sent:
            return failures.DependencyDown(f"{self.full}: the server cannot be reached: {what}")
        if getattr(error, "code", None) in _REFUSED:
            return failures.Permanent(f"{self.full}: the server refuses the call: {what}")
        unknown = failures.Transient if self.tool.effect == "read" else failures.OutcomeUnknown
        return unknown(f"{self.full}: its answer is lost: {what}")

    def _output(self, said: CallToolResult) -> Any:
        if said.is_error:
            texts = [getattr(part, "text", "") for part in said.content]
            what = plain(" ".join(filter(None, texts)), _LONGEST_ERROR)
            message = f"{self.full} says: {what or 'an error'}"
            proven = self.tool.effect == "read" or self.tool.errors == "not-applied"
            raise ReportedError(message, what) if proven else failures.ReportedFailure(message)
        if said.structured_content is not None:
            return _bounded(said.structured_content)
        parts = [
            part.model_dump(mode="json", by_alias=True, exclude_none=True) for part in said.content
        ]
        if all(part["type"] == "text" for part in parts):
            return _bounded({"text": "\n".join(part["text"] for part in parts)})
        return _bounded({"content": parts})

    async def _answered(self, said: InputRequiredResult, ctx: ToolContext) -> dict[str, Any]:
        """Return what humans answer to the server's questions; the call starts again for each."""
        answers: dict[str, Any] = {}
        for name, asked in (said.input_requests or {}).items():
            params: Any = getattr(asked, "params", None)
            schema, link = getattr(params, "requested_schema", None), getattr(params, "url", None)
            if link is not None:
                answers[name] = {"action": await self._followed(link, params.message, ctx)}
            elif schema is not None:
                question = f"{self.full} asks: {params.message}"
                content = await self._asked(question, dict(schema), ctx)
                answers[name] = {"action": "accept", "content": content}
            else:
                raise failures.Permanent(
                    f"{self.full} asks for what no form can answer: {asked.method}"
                )
        return answers

    async def _followed(self, link: str, message: str, ctx: ToolContext) -> Any:
        """Return whether a human has done what the server wants at a link, which only they open."""
        if not _LINK.fullmatch(link):
            raise failures.Permanent(
                f"{self.full} asks to open what is no link: {plain(link, 200)}"
            )
        question = (
            f"{self.full} asks to open {link} in a browser. Answer accept once that is done there,"
            f" or decline. It says: {message}"
        )
        return await self._asked(question, {"enum": ["accept", "decline"]}, ctx)

    async def _asked(self, question: str, schema: dict[str, Any], ctx: ToolContext) -> Any:
        try:
            return await ctx.ask(question, schema)
        except (ValueError, RuntimeError) as error:
            raise failures.Permanent(f"{self.full} asks what cannot be asked: {error}") from error


def innermost(error: BaseException) -> BaseException:
    """Return what went wrong first, out of the groups that task groups make of it."""
    while isinstance(error, BaseExceptionGroup):
        first: list[BaseException] = [*error.exceptions]
        error = next((one for one in first if isinstance(one, failures.ToolFault)), first[0])
    return error


class CutOutput(dict[str, Any]):
    """What is left of an output that was too large: what is not in it may have been said."""


def _bounded(output: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(output, ensure_ascii=False).encode(errors="replace")
    if len(text) <= LARGEST_OUTPUT:
        return output
    return CutOutput(too_large=len(text), begins=text[:2000].decode(errors="ignore"))


#: Characters of each side of a difference: all parts of a definition together fit into an error.
_LONGEST: Final = 120
#: Of these, characters that both sides have before they part.
_COMMON: Final = 24


def changes(reviewed: Definition | None, offered: Definition | None) -> list[tuple[str, Any, Any]]:
    """Return each part that differs, as it was reviewed and as it is offered."""
    before, now = reviewed or {}, offered or {}
    return [
        (part, before.get(part), now.get(part))
        for part in server_file.DEFINED
        # As text: in Python `true` is 1.
        if _text(before.get(part)) != _text(now.get(part))
    ]


def sides(before: Any, now: Any) -> tuple[str, str]:
    """Return two values as text in one short line each: from where they part, if they are long."""
    one, other = _text(before), _text(now)
    at = 0
    if max(len(one), len(other)) > _LONGEST:
        pairs = enumerate(zip(one, other, strict=False))
        part = next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))
        at = max(0, part - _COMMON)
    return _cut(one, at), _cut(other, at)


def in_words(reviewed: Definition | None, offered: Definition | None) -> str:
    """Return what differs as one line: a change far into a long text is seen, too."""
    parts = ((part, *sides(*both)) for part, *both in changes(reviewed, offered))
    return "; ".join(f"{part} was {was} and is {is_}" for part, was, is_ in parts)


def _text(value: Any) -> str:
    # In JSON, so that no text ends where its own quotes say.
    return "nothing" if value is None else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _cut(text: str, at: int) -> str:
    seen = plain(text[at : at + _LONGEST + 1], _LONGEST + 1)
    begun = "..." if at else ""
    room = _LONGEST - len(begun)
    return begun + (seen if len(seen) <= room else f"{seen[: room - 3]}...")


#: Seconds that a server may take to say what it offers, to somebody who asks for just that.
LOOK: Final = 30.0
#: The same where a worker starts, or says whether it is well: it goes on without an answer.
LOOK_AT_START: Final = 10.0

State = Literal["pinned", "not pinned", "changed", "gone", "refused", "unusable"]


@dataclass(frozen=True)
class SeenTool:
    """One tool, as the file and its server have it."""

    server: str
    name: str
    said: server_file.McpTool | None
    """What the file says of it; ``None``: nothing, so it is refused."""
    reviewed: Definition | None
    offered: Definition | None

    @property
    def full(self) -> str:
        return f"{self.server}.{self.name}"

    @property
    def problem(self) -> str | None:
        """Return why it could not be called whatever the file says."""
        return None if self.offered is None else server_file.definition_problem(self.offered)

    @property
    def digest(self) -> str | None:
        if self.offered is None or self.problem is not None:
            return None
        return digest(self.offered)

    @property
    def pin(self) -> str | None:
        """Return the digest of what was reviewed."""
        return None if self.reviewed is None else digest(self.reviewed)

    @property
    def state(self) -> State:
        """Return how the two stand to each other."""
        if self.offered is None:
            return "gone"
        if self.problem is not None:
            return "unusable"
        if self.said is None:
            return "refused"
        if self.pin is None:
            return "not pinned"
        return "pinned" if self.pin == self.digest else "changed"


@dataclass(frozen=True)
class Offered:
    """What all servers offer, and which of them cannot be asked."""

    tools: tuple[SeenTool, ...]
    silent: Mapping[str, str]
    """Servers that do not answer, with the reason."""


async def ask_servers(reviewed: server_file.Reviewed, *, at_start: bool = False) -> Offered:
    """Ask all servers of the file what they offer. Raises ``McpFileError``."""
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
    tools, silent = list[SeenTool](), dict[str, str]()
    for (name, server), offered in zip(reviewed.servers.items(), answers, strict=True):
        if isinstance(offered, str):
            silent[name] = offered
            continue
        for one in dict.fromkeys([*server.tools, *sorted(offered)]):
            said = server.tools.get(one)
            before = reviewed.definitions.get(f"{name}.{one}") if said else None
            tools.append(SeenTool(name, one, said, before, offered.get(one)))
    return Offered(tuple(tools), silent)


def write_pins(reviewed: server_file.Reviewed, chosen: list[SeenTool]) -> None:
    """Write the definitions of tools beside the file; those that it names no more are left out."""
    fresh = {one.full: one.offered for one in chosen}
    named = {f"{name}.{tool}" for name, server in reviewed.servers.items() for tool in server.tools}
    kept = {name: one for name, one in {**reviewed.definitions, **fresh}.items() if name in named}
    beside = server_file.pins_of(reviewed.path)
    text = json.dumps(kept, indent=2, sort_keys=True) + "\n"
    replace_whole(beside, text, mode=None if beside.exists() else 0o644)
