"""A connection to an MCP server, by the SDK: made for one list or call, and closed behind it.

So nothing has to be said about lost connections, and each call sees the tool as it is now.

Programs that speak over their standard input and output are started here. The SDK's own transport
keeps whatever a program writes before a line's end, and gives it variables of the worker's. Here a
line has a largest size, and the environment is what is named.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, cast

import anyio
import httpx2
import mcp_types
from mcp import Client
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from pydantic import TypeAdapter

from surehand.activities.mcp.server_file import (
    DEFINED,
    Definition,
    McpFileError,
    McpServer,
    from_environment,
)
from surehand.process import VERSION
from surehand.process.off_loop import MOST_PARSED, PART, ValueCounter

#: Bytes of one message.
LARGEST_MESSAGE: Final = 10 * 1024 * 1024
#: Seconds that a program has to end by itself once its input is closed, and once it was told to.
_GRACE: Final = 2.0
#: The signal that only looks whether somebody is there.
_NOTHING: Final = 0


class TooLarge(Exception):
    """A server says more than is read."""


@asynccontextmanager
async def program(command: Sequence[str], env: Mapping[str, str]) -> AsyncIterator[Any]:
    """Start a program and yield what is read from it, and what is written to it.

    ``env`` is all of its environment. Raises ``OSError`` or ``TooLarge``.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=sys.__stderr__ or sys.stderr,
        env=dict(env),
        limit=LARGEST_MESSAGE,
        start_new_session=True,  # what it starts ends with it
    )
    try:
        heard, reads = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        writes, said = anyio.create_memory_object_stream[SessionMessage](0)
        async with heard, reads, writes, said, anyio.create_task_group() as tasks:
            tasks.start_soon(_hear, process, heard)
            tasks.start_soon(_say, process, said, heard)
            yield reads, writes
            tasks.cancel_scope.cancel()
    finally:
        # Also where whoever waits for it was cancelled: nobody else would end it.
        with anyio.CancelScope(shield=True):
            await _end(process)


async def _hear(process: asyncio.subprocess.Process, heard: Any) -> None:
    assert process.stdout is not None, "it was asked for"
    gone = (anyio.BrokenResourceError, anyio.ClosedResourceError)  # whoever has listened
    async with heard:
        while line := await _line(process.stdout):
            await _require_few_values(line)
            found: SessionMessage | Exception
            try:
                message = mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                found = SessionMessage(message)
            except ValueError as error:
                found = error
            try:
                await heard.send(found)
            except gone:
                return


async def _line(stdout: asyncio.StreamReader) -> bytes:
    try:
        return await stdout.readline()
    except ValueError as error:  # the reader's way to say that its limit is reached
        raise TooLarge(f"a message has more than {LARGEST_MESSAGE:,} bytes") from error


async def _require_few_values(line: bytes) -> None:
    """Look at a message in parts, between which others have their turn. Raises ``TooLarge``."""
    counter = ValueCounter()
    for start in range(0, len(line), PART):
        if not counter.takes(line[start : start + PART]):
            raise TooLarge(f"a message has more than {MOST_PARSED:,} values")
        await asyncio.sleep(0)


async def _say(process: asyncio.subprocess.Process, said: Any, heard: Any) -> None:
    assert process.stdin is not None, "it was asked for"
    try:
        async for one in said:
            text = one.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.stdin.write(text.encode() + b"\n")
            await process.stdin.drain()
    except OSError:
        await heard.aclose()  # it reads no more: whoever waits for its answer shall not


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a program and what it has started: its input ends, they are told to, they are killed."""
    assert process.stdin is not None, "it was asked for"
    process.stdin.close()
    # Not `wait`: that waits for its output's end, too, which it need not read.
    await _grace(lambda: process.returncode is not None)
    for number in (signal.SIGTERM, signal.SIGKILL):
        # Also where it has ended by itself: what it has left behind has not.
        if _signalled(process.pid, number):
            await _grace(
                lambda: process.returncode is not None and not _signalled(process.pid, _NOTHING)
            )
    # What has left the group of its own accord may hold its output open.
    transport: Any = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()


async def _grace(over: Callable[[], bool]) -> None:
    """Wait until something is over, for as long as a program has for it."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_GRACE):
            while not over():
                await asyncio.sleep(0.01)


def _signalled(group: int, number: int) -> bool:
    """Signal all of a group; ``False``: nobody is left there."""
    try:
        os.killpg(group, number)
    except OSError:
        return False
    return True


#: Bytes of one response over HTTP.
LARGEST_RESPONSE: Final = 16 * 1024 * 1024
_MOST_PAGES: Final = 50
_MOST_TOOLS: Final = 1000
#: Of a message: of each the SDK makes a model, or a field of one. What is below these is any JSON.
_MOST_PARTS: Final = 4000
_NO_PARTS: Final = frozenset({"structuredContent", "inputSchema", "outputSchema"})
_ANSWER: Final[TypeAdapter[mcp_types.CallToolResult | mcp_types.InputRequiredResult]] = TypeAdapter(
    mcp_types.CallToolResult | mcp_types.InputRequiredResult
)


class NotAnswered(Exception):
    """A call came back without an answer of the server's."""


@dataclass(frozen=True)
class McpConnection:
    """An open one."""

    session: ClientSession

    async def definitions(self) -> dict[str, Definition]:
        """Return what the server says of its tools, by name."""
        found: dict[str, Definition] = {}
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            wanted = mcp_types.PaginatedRequestParams(cursor=cursor)
            page = await self.session.list_tools(params=wanted)
            for tool in page.tools:
                said = tool.model_dump(mode="json", by_alias=True, exclude_none=True)
                found[tool.name] = {part: said[part] for part in DEFINED if part in said}
            cursor = page.next_cursor
            if cursor is None or len(found) > _MOST_TOOLS:
                break
        if cursor is not None or len(found) > _MOST_TOOLS:
            raise TooLarge(f"it has more than {_MOST_TOOLS} tools, or {_MOST_PAGES} pages of them")
        return found

    async def call(
        self,
        name: str,
        arguments: dict[str, Any],
        meta: dict[str, Any],
        answers: dict[str, Any] | None,
        state: str | None,
    ) -> mcp_types.CallToolResult | mcp_types.InputRequiredResult:
        """Call a tool once.

        Not by the client's own method: that sends again where a header does not fit, and looks at
        the output by a schema of the server's, whose patterns nobody bounds.
        """
        params = mcp_types.CallToolRequestParams(
            name=name,
            arguments=arguments,
            input_responses=answers,
            request_state=state,
            meta=cast(Any, meta),
        )
        return await self.session.send_request(mcp_types.CallToolRequest(params=params), _ANSWER)


@asynccontextmanager
async def connected(name: str, server: McpServer) -> AsyncIterator[McpConnection]:
    """Connect to a server. Raises ``McpFileError``."""
    async with AsyncExitStack() as stack:
        if server.url is not None:
            headers = {"Accept-Encoding": "identity"}  # what is counted is what is kept
            if server.bearer:
                token = from_environment(server.bearer, f"servers.{name}.bearer")
                headers["Authorization"] = f"Bearer {token}"
            http = await stack.enter_async_context(
                httpx2.AsyncClient(
                    headers=headers,
                    timeout=httpx2.Timeout(None, connect=10),
                    event_hooks={"response": [_bounded]},
                )
            )
            transport: Any = streamable_http_client(server.url, http_client=http)
        else:
            transport = _program(name, server)
        client = Client(
            _of_few_parts(transport),
            cache=None,
            elicitation_callback=_not_in_the_middle,
            client_info=mcp_types.Implementation(name="surehand", version=VERSION),
        )
        yield McpConnection((await stack.enter_async_context(client)).session)


def _program(name: str, server: McpServer) -> AbstractAsyncContextManager[Any]:
    """Return the program with nothing in its environment but what is named."""
    assert server.command is not None, "a server has a URL or a command"
    where = f"servers.{name}"
    variables = {
        one: from_environment(value, f"{where}.env.{one}") for one, value in server.env.items()
    }
    found = shutil.which(server.command[0])
    if found is None:
        raise McpFileError(f"{where}.command: there is no program {server.command[0]!r}")
    return program([os.path.abspath(found), *server.command[1:]], variables)


@asynccontextmanager
async def _of_few_parts(transport: AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
    """Pass on what a transport brings, and end the connection where that has too many parts.

    The SDK makes a model of each part, and its error names each wrong one, several times.
    """
    async with transport as (inner, writes):
        heard, reads = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        async with heard, reads, anyio.create_task_group() as tasks:
            tasks.start_soon(_pass_on, inner, heard)
            yield reads, writes
            tasks.cancel_scope.cancel()


async def _pass_on(inner: Any, heard: Any) -> None:
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # nobody listens any more
        async with heard:
            async for one in inner:
                if isinstance(one, SessionMessage):
                    _require_few_parts(one.message)
                    if isinstance(one.message, mcp_types.JSONRPCResponse):
                        # An answer of no kind is complete, says MCP; to the SDK it would be lost.
                        one.message.result.setdefault("resultType", "complete")
                await heard.send(one)


def _require_few_parts(message: mcp_types.JSONRPCMessage) -> None:
    """Raise ``TooLarge`` if the SDK would make too many models of a message."""
    waiting = [getattr(message, name, None) for name in ("params", "result")]
    left = _MOST_PARTS
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            part = [value for name, value in part.items() if name not in _NO_PARTS]
        if isinstance(part, list):
            left -= len(part)
            if left < 0:
                raise TooLarge(f"a message has more than {_MOST_PARTS:,} parts")
            waiting += part


async def _not_in_the_middle(context: Any, params: Any) -> mcp_types.ErrorData:
    """Answer what an older server asks while its tool runs: people take longer than a call may.

    It is also what tells newer ones that they may ask; those end the call first.
    """
    return mcp_types.ErrorData(
        code=mcp_types.INVALID_REQUEST, message="nobody can be asked in the middle of a call"
    )


async def _bounded(response: httpx2.Response) -> None:
    response.stream = _Bounded(response.stream)
    response.encoding = "utf-8"  # in which its values are counted, whatever it says
    if response.status_code >= 400 and b'"tools/call"' in response.request.content:
        # The SDK takes a bare 404 for the server's word that there is no such method. It may be of
        # a gateway that has lost the answer.
        body = await response.aread()
        if not _is_rpc_error(body):
            raise NotAnswered(f"HTTP {response.status_code}, and no answer of the server's")


def _is_rpc_error(body: bytes) -> bool:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(said, dict) and "jsonrpc" in said and "error" in said


class _Bounded(httpx2.AsyncByteStream):
    """A response that ends with an error when it becomes too large."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left, counter = LARGEST_RESPONSE, ValueCounter()
        async for part in self._stream:
            left -= len(part)
            if left < 0:
                raise TooLarge(f"a response has more than {LARGEST_RESPONSE:,} bytes")
            if not counter.takes(part):
                raise TooLarge(f"a response has more than {MOST_PARSED:,} values")
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()
