"""A program that speaks MCP over its standard input and output, for as long as one connection.

The SDK's own transport keeps whatever a program writes before a line's end, and gives it variables
of the worker's. Here a line has a largest size, and the environment is what is named.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import anyio
import mcp_types
from mcp.shared.message import SessionMessage

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

    Args:
        command: The program and its arguments.
        env: All of its environment.

    Raises:
        OSError: It cannot be started.
        TooLarge: One of its messages is; in a group, as whatever ends a connection.
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
    """Look at a message in parts, between which others have their turn.

    Raises:
        TooLarge: To parse it would hold up all of them.
    """
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
