"""What takes its time by a stranger's value leaves the event loop, or has an end."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import mcp_types
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.message import SessionMessage
from pydantic import BaseModel

from surehand.activities.mcp import connection
from surehand.activities.mcp.connection import LARGEST_MESSAGE, TooLarge
from surehand.activities.tools import output_json
from surehand.activities.tools.output_json import make_json
from surehand.activities.worker.settings import Secrets
from surehand.cli import approvals
from surehand.cli.approvals import diff
from surehand.process import json_schemas, off_loop
from surehand.process.json_schemas import find_schema_problem, schema_problem
from surehand.process.off_loop import (
    MOST_PARSED,
    PART,
    ValueCounter,
    call_off_loop,
    is_large,
    load_json,
    run_in_thread,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inside: st.lists(inside) | st.dictionaries(st.text(), inside),
)
#: Each fills a message of the largest size, in the way that costs a parser most.
ONES = b"[" + b"1," * (LARGEST_MESSAGE // 2 - 2) + b"1]"
OBJECTS = b"[" + b"{}," * (LARGEST_MESSAGE // 3 - 2) + b"{}]"
HIDDEN = b': "\n' + ONES
PROSE = json.dumps({"text": "Dear all, [see: {below}]\n" * (LARGEST_MESSAGE // 30)}).encode()


def counted(text: bytes, part: int = PART) -> int | None:
    """Return the values of a text; ``None``: too many."""
    counter = ValueCounter()
    for start in range(0, len(text), part):
        if not counter.takes(text[start : start + part]):
            return None
    return MOST_PARSED - counter._left


def marks_of(value: Any) -> int:
    """Return the marks of a JSON value that is written in one line."""
    if isinstance(value, dict):
        inside = sum(map(marks_of, value.values()))
        return 1 + len(value) + max(0, len(value) - 1) + inside
    if isinstance(value, list):
        return 1 + max(0, len(value) - 1) + sum(map(marks_of, value))
    return 0


@given(JSON, st.booleans(), st.integers(1, 20))
def test_values_are_counted_outside_texts(value: Any, ascii_only: bool, part: int) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode(errors="replace")
    assert counted(text, part) == marks_of(value)


@pytest.mark.parametrize("text", [ONES, OBJECTS, HIDDEN], ids=["ones", "objects", "hidden"])
def test_a_message_that_takes_long_to_parse_has_too_many_values(text: bytes) -> None:
    assert counted(text) is None


async def test_slow_messages_are_not_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed = list[bytes]()

    class Adapter:
        @staticmethod
        def validate_json(line: bytes, **how: Any) -> Any:
            parsed.append(line)
            raise ValueError

    monkeypatch.setattr(connection.mcp_types, "jsonrpc_message_adapter", Adapter)
    program = ["/bin/sh", "-c", "head -c 4000000 /dev/zero | tr '\\0' ','; echo"]
    with pytest.raises(BaseExceptionGroup) as refused:
        async with connection.program(program, {"PATH": "/usr/bin:/bin"}) as (reads, _):
            await reads.receive()
    assert refused.group_contains(TooLarge, match="values")
    assert parsed == []


def test_a_large_text_is_taken_and_others_have_their_turn_meanwhile() -> None:
    assert len(PROSE) > LARGEST_MESSAGE / 2
    counter, longest = ValueCounter(), 0.0
    for start in range(0, len(PROSE), PART):
        began = time.thread_time()
        assert counter.takes(PROSE[start : start + PART])
        longest = max(longest, time.thread_time() - began)
    assert longest < 0.05


@pytest.mark.parametrize(
    "result",
    [
        {"content": [{}] * 5000},
        {"content": [{"type": "text", "text": ""}] * 2000},
        {"tools": [{"name": "a", "inputSchema": {}}] * 3000},
        {"messages": [[[1] * 100] * 10] * 10},
    ],
    ids=["wrong", "texts", "tools", "nested"],
)
def test_a_message_of_too_many_parts_makes_no_models(result: dict[str, Any]) -> None:
    message = mcp_types.JSONRPCResponse(jsonrpc="2.0", id=1, result=result)
    with pytest.raises(TooLarge, match="parts"):
        connection._require_few_parts(message)


async def test_what_a_tool_returns_as_data_is_no_part() -> None:
    result = {"content": [{"type": "text", "text": ""}], "structuredContent": {"rows": [1] * 9000}}
    message = mcp_types.JSONRPCResponse(jsonrpc="2.0", id=1, result=result)
    sent, transport = list[Any](), asyncio.Event()

    class Transport:
        async def __aenter__(self) -> Any:
            writes = self
            return self._reads(), writes

        async def __aexit__(self, *how: Any) -> None:
            transport.set()

        async def _reads(self) -> Any:
            yield SessionMessage(message)

    async with connection._of_few_parts(Transport()) as (reads, _):  # type: ignore[arg-type]
        sent.append(await reads.receive())
    assert sent[0].message is message and transport.is_set()


class Row(BaseModel):
    values: list[int]


LARGE: list[Any] = [
    "x" * 100_000,
    b"x" * 100_000,
    [1] * 2000,
    {str(n): n for n in range(2000)},
    [[[1] * 50] * 50],
    [Row(values=[1] * 2000)],
    ({"a": ("x" * 100_000,)},),
]


@pytest.mark.parametrize("value", LARGE, ids=range(len(LARGE)))
async def test_what_is_large_is_worked_on_by_a_thread_and_what_is_small_stays(value: Any) -> None:
    async def thread_for(value: Any) -> threading.Thread:
        return await call_off_loop(lambda _: threading.current_thread(), value)

    assert await thread_for(value) is not threading.current_thread()
    assert await thread_for({"id": "o-1", "amount": "12.50"}) is threading.current_thread()


async def test_a_thread_that_runs_out_of_an_iterator_is_not_waited_for_for_ever() -> None:
    with pytest.raises(RuntimeError, match="next raised StopIteration"):
        async with asyncio.timeout(10):
            await run_in_thread(next, iter(()))


def test_a_value_that_is_inside_itself_is_looked_at_with_an_end() -> None:
    value = list[Any]()
    value.append(value)
    assert is_large(value)


async def test_a_large_output_is_made_json_by_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = list[threading.Thread]()
    plain = output_json.canonical_json

    def noted(value: Any) -> bytes:
        threads.append(threading.current_thread())
        return plain(value)

    monkeypatch.setattr(output_json, "canonical_json", noted)
    assert await make_json({"rows": [1] * 5000}) == {"rows": [1] * 5000}
    assert await make_json({"rows": [1]}) == {"rows": [1]}
    assert threads[0] is not threading.current_thread() is threads[1]


@given(JSON)
def test_json_is_read_in_python_as_it_is_read_at_once(value: Any) -> None:
    text = json.dumps(value)
    assert json.dumps(off_loop._IN_PYTHON.decode(text)) == text


async def test_a_thread_reads_json_of_many_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(off_loop.json, "loads", None)
    assert await load_json(json.dumps([0] * MOST_PARSED * 2).encode()) == [0] * MOST_PARSED * 2


async def test_a_thread_looks_at_slow_schemas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = list[threading.Thread]()

    def noted(schema: Any) -> None:
        threads.append(threading.current_thread())

    monkeypatch.setattr(json_schemas, "schema_problem", noted)
    await find_schema_problem({"anyOf": [{}] * 1000})
    await find_schema_problem({"type": "boolean"})
    assert threads[0] is not threading.current_thread() is threads[1]


def test_a_schema_has_a_largest_size() -> None:
    assert "65,536 characters" in str(schema_problem({"anyOf": [{}] * 100_000}))


@pytest.mark.parametrize("secret", ["\\x12345", "\\\\\\x12345", "'\"x12345", "\u00e9x12345"])
def test_a_long_row_of_backslashes_in_a_log_is_gone_through_once(secret: str) -> None:
    began = time.thread_time()
    row = "\\" * 100_000
    assert Secrets(frozenset({secret})).hide(row) == row
    # A pattern without an end took seconds. Of a regular expression nothing else can be counted.
    assert time.thread_time() - began < 0.2
    for quoted in (secret, repr(secret)[1:-1], json.dumps(json.dumps(secret))[3:-3]):
        assert "12345" not in Secrets(frozenset({secret})).hide(f"{row} {quoted}")


def test_changed_lines_are_told_to_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(approvals.difflib, "unified_diff", None)  # takes the square of the lines
    old = {"rows": list(range(3000)), "to": "ann"}
    new = {"rows": [*range(1000), -1, *range(1001, 3000)], "to": "ann"}
    assert diff(old, new) == ["-     1000,", "+     -1,"]
    assert diff(old, {**old, "more": 1})[-1] == '+   "more": 1'
    assert diff(old, old) == []
