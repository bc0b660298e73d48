"""What bounds a call: its lease, and its place beside the event loop."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import mcp_types
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.message import SessionMessage
from pydantic import BaseModel
from sqlalchemy.exc import DBAPIError

from surehand.activities.effects.leases import DeadlineOver, LeaseLost, call_within, keeping
from surehand.activities.ledger.core.engine import LedgerUnavailable
from surehand.activities.mcp import connection
from surehand.activities.mcp.connection import LARGEST_MESSAGE, TooLarge
from surehand.activities.tools import call_reports
from surehand.activities.tools.call_reports import make_json
from surehand.activities.worker.settings import Secrets
from surehand.cli import approvals
from surehand.cli.approvals import diff
from surehand.process import clock, json_schemas, off_loop
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

LONG = timedelta(hours=1)
#: Short enough that a test need not wait, long enough that the loop turns.
TINY = timedelta(milliseconds=5)


class Call:
    """A call that lasts until it is told to end, and remembers being stopped."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.stopped = False

    async def __call__(self) -> str:
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.stopped = True
            raise
        return "receipt"


@pytest.fixture
async def call() -> Call:
    return Call()


async def held(
    call: Callable[[], Awaitable[Any]],
    renew: Callable[[], Awaitable[float | None]],
    *,
    lease: timedelta = LONG,
    timeout: timedelta = LONG,
) -> Any:
    async with keeping(renew, lease=lease, every=TINY, since=clock.now()) as its_lease:
        return await call_within(call(), [its_lease], timeout=timeout)


async def kept() -> float:
    return clock.now()


async def test_the_lease_is_renewed_for_as_long_as_the_call_lasts(call: Call) -> None:
    renewals = 0

    async def renew() -> float | None:
        nonlocal renewals
        renewals += 1
        if renewals == 3:
            call.may_end.set()
        return clock.now()

    assert await held(call, renew) == "receipt"
    assert renewals == 3
    assert not call.stopped


async def test_a_lease_that_was_taken_over_stops_the_call(call: Call) -> None:
    async def renew() -> float | None:
        return None

    with pytest.raises(LeaseLost, match="taken over"):
        await held(call, renew)
    assert call.stopped


async def test_a_lease_that_may_be_over_stops_the_call(call: Call) -> None:
    async def renew() -> float | None:
        raise LedgerUnavailable("away")

    with pytest.raises(LeaseLost, match="the ledger is away"):
        await held(call, renew, lease=4 * TINY)
    assert call.stopped


async def test_a_ledger_that_comes_back_in_time_keeps_the_lease(call: Call) -> None:
    """Whatever it says meanwhile."""
    answers = iter([LedgerUnavailable("away"), DBAPIError("", {}, Exception("odd")), True])

    async def renew() -> float | None:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        call.may_end.set()
        return clock.now()

    assert await held(call, renew) == "receipt"


async def test_a_lease_counts_from_when_its_renewal_began() -> None:
    """In between it has waited for its turn."""
    renewed, began = asyncio.Event(), clock.now() + 60

    async def renew() -> float:
        renewed.set()
        return began

    async with keeping(renew, lease=LONG, every=TINY, since=clock.now()) as resource:
        await renewed.wait()
    assert resource.over_at() == began + LONG.total_seconds()


async def test_a_call_that_does_not_answer_by_its_deadline_is_stopped(call: Call) -> None:
    with pytest.raises(DeadlineOver, match=r"0\.005 s"):
        await held(call, kept, timeout=TINY)
    assert call.stopped


async def test_a_call_whose_answer_arrives_with_the_loss_of_its_lease_is_answered() -> None:
    async def renew() -> float | None:
        return None

    async def at_once() -> str:
        return "receipt"

    async with keeping(renew, lease=LONG, every=timedelta(0), since=clock.now()) as lease:
        assert await call_within(at_once(), [lease], timeout=LONG) == "receipt"


async def test_what_the_call_raises_is_raised_and_the_renewing_has_ended(call: Call) -> None:
    renewing = asyncio.Event()

    async def renew() -> float | None:
        renewing.set()
        return clock.now()

    async def failing() -> str:
        await renewing.wait()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await held(failing, renew)
    assert len(asyncio.all_tasks()) == 1


async def test_a_call_under_several_leases_is_stopped_when_one_of_them_is_lost(call: Call) -> None:
    async def taken_over() -> float | None:
        return None

    limits: dict[str, Any] = {"lease": LONG, "every": TINY, "since": clock.now()}
    async with keeping(kept, **limits) as ours, keeping(taken_over, **limits) as lost:
        with pytest.raises(LeaseLost, match="taken over"):
            await call_within(call(), [ours, lost], timeout=LONG)
        assert ours.lost() is None
    assert call.stopped


async def test_a_call_is_stopped_by_a_margin_before_others_may_have_its_lease(call: Call) -> None:
    async with keeping(kept, lease=LONG, every=LONG, since=clock.now(), margin=LONG) as resource:
        with pytest.raises(LeaseLost):
            await call_within(call(), [resource], timeout=LONG)
        assert clock.now() < resource.over_at()


async def test_a_call_that_goes_on_although_it_is_stopped_is_waited_for_under_its_leases() -> None:
    may_end = asyncio.Event()
    renewals = 0

    async def stubborn() -> str:
        try:
            await may_end.wait()
        except asyncio.CancelledError:
            await may_end.wait()
        return "late"

    async def renew() -> float | None:
        nonlocal renewals
        renewals += 1
        if renewals == 3:
            may_end.set()
        return clock.now()

    async with keeping(renew, lease=LONG, every=2 * TINY, since=clock.now()) as resource:
        with pytest.raises(DeadlineOver):
            await call_within(stubborn(), [resource], timeout=TINY, stopped_within=None)
        assert renewals == 3


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


async def test_slow_messages_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert sent[0].message.result["resultType"] == "complete"  # as it says nothing else


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
    plain = call_reports.canonical_json

    def noted(value: Any) -> bytes:
        threads.append(threading.current_thread())
        return plain(value)

    monkeypatch.setattr(call_reports, "canonical_json", noted)
    assert await make_json({"rows": [1] * 5000}) == {"rows": [1] * 5000}
    assert await make_json({"rows": [1]}) == {"rows": [1]}
    assert threads[0] is not threading.current_thread() is threads[1]


@given(JSON)
def test_json_is_read_in_python_as_it_is_read_at_once(value: Any) -> None:
    text = json.dumps(value)
    assert json.dumps(off_loop._IN_PYTHON.decode(text)) == text


async def test_a_thread_reads_json_of_many_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(off_loop.json, "loads", None)
    assert await load_json(json.dumps([0] * MOST_PARSED * 2).encode()) == [0] * MOST_PARSED * 2


async def test_a_thread_looks_at_slow_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_changed_lines_are_told_to_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals.difflib, "unified_diff", None)  # takes the square of the lines
    old = {"rows": list(range(3000)), "to": "ann"}
    new = {"rows": [*range(1000), -1, *range(1001, 3000)], "to": "ann"}
    assert diff(old, new) == ["-     1000,", "+     -1,"]
    assert diff(old, {**old, "more": 1})[-1] == '+   "more": 1'
    assert diff(old, old) == []
