"""Activities: their options, their end, and what they say meanwhile."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pkgutil
import typing
from collections.abc import Callable
from datetime import timedelta
from functools import partial, wraps
from typing import Any, cast
from unittest.mock import Mock

import pytest
from pydantic import BaseModel
from temporalio.activity import ActivityCancellationDetails
from temporalio.testing import ActivityEnvironment
from temporalio.workflow import ActivityConfig

from surehand import activities, worker
from surehand.activities.tools.call_reports import (
    LARGEST_PROGRESS,
    Progress,
    current_progress,
)
from surehand.activities.tools.tool import LookupAnswer, LookupBy, NotFound, ToolContext
from surehand.activities.tools.toolbox import WRITE, lookup_warning, tool
from surehand.activities.worker.context import Doing, NobodyWaits, keep_alive
from surehand.workflows import ports
from surehand.workflows import ports as options
from surehand.workflows.contracts.base import Message
from surehand.workflows.contracts.tools import ToolSpec
from surehand.workflows.names import NON_RETRYABLE
from surehand.workflows.ports import Port
from surehand.workflows.run import run_core
from surehand.workflows.run.run_core import MOST_LOCAL, RunCore

WANTED = 2 * MOST_LOCAL + 50


async def test_a_task_has_as_many_local_calls_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    # The timer stands for the end of the task, and is held.
    timers = list[asyncio.Event]()

    async def sleep(_: object) -> None:
        timers.append(asyncio.Event())
        await timers[-1].wait()

    async def wait_condition(comes_true: Callable[[], bool]) -> None:
        while not comes_true():
            await asyncio.sleep(0)

    monkeypatch.setattr(run_core.workflow, "sleep", sleep)
    monkeypatch.setattr(run_core.workflow, "wait_condition", wait_condition)
    client, begun = RunCore(cast(Any, None)), list[int]()

    async def one(number: int) -> None:
        await client._make_room()
        begun.append(number)

    calls = asyncio.gather(*map(one, range(WANTED)))
    for tasks in (1, 2):
        while len(timers) < tasks:
            await asyncio.sleep(0)
        assert (len(timers), len(begun)) == (tasks, tasks * MOST_LOCAL)
        timers[-1].set()
    await calls
    assert (len(begun), len(timers)) == (WANTED, 2)


CANCELLED = ActivityCancellationDetails(cancel_requested=True)
STOPPED = ActivityCancellationDetails(worker_shutdown=True)


class Work:
    """Asks until it has an answer, and records what has come of it."""

    def __init__(self) -> None:
        self.claimed, self.asked = asyncio.Event(), asyncio.Event()
        self.answered, self.may_record = asyncio.Event(), asyncio.Event()
        self.may_ask = asyncio.Event()
        self.recorded = list[str]()

    async def do(self) -> str:
        self.claimed.set()
        await self.may_ask.wait()
        try:
            with Doing.current().until_cancelled():
                self.asked.set()
                await self.answered.wait()
            said = "answered"
        except NobodyWaits:
            said = "nobody waits"
        await self.may_record.wait()
        self.recorded.append(said)
        return said


def begun(environment: ActivityEnvironment, work: Work) -> asyncio.Task[str]:
    return asyncio.ensure_future(environment.run(keep_alive, work.do()))


async def test_a_question_ends_when_its_activity_is_cancelled_and_its_end_is_recorded() -> None:
    environment, work = ActivityEnvironment(), Work()
    work.may_ask.set()
    running = begun(environment, work)
    await work.asked.wait()
    environment.cancel(CANCELLED)
    work.may_record.set()
    assert await running == "nobody waits"
    assert work.recorded == ["nobody waits"]


async def test_a_question_whose_activity_was_cancelled_before_is_not_asked() -> None:
    environment, work = ActivityEnvironment(), Work()
    running = begun(environment, work)
    await work.claimed.wait()
    environment.cancel(CANCELLED)
    work.may_ask.set()
    work.may_record.set()
    assert await running == "nobody waits"
    assert not work.asked.is_set()


async def test_an_answer_that_is_there_is_recorded_although_its_activity_is_cancelled() -> None:
    environment, work = ActivityEnvironment(), Work()
    work.may_ask.set()
    work.answered.set()
    running = begun(environment, work)
    await work.asked.wait()
    environment.cancel(CANCELLED)
    work.may_record.set()
    assert await running == "answered"


async def test_a_worker_that_stops_ends_no_question() -> None:
    environment, work = ActivityEnvironment(), Work()
    work.may_ask.set()
    running = begun(environment, work)
    await work.asked.wait()
    environment.cancel(STOPPED)
    work.answered.set()
    work.may_record.set()
    assert await running == "answered"


async def test_a_question_that_ends_itself_is_none_that_was_cancelled() -> None:
    async def ends_itself() -> None:
        with Doing.current().until_cancelled():
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await ActivityEnvironment().run(keep_alive, ends_itself())


SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    "given",
    [
        options.ledger_call("open"),
        options.reconcile_call("acme"),
        options.tool_call(SECOND, "pay"),
        options.compensation_call("pay: undo"),
    ],
)
def test_every_activity_is_missed_as_soon_as_a_tool_call_is(given: ActivityConfig) -> None:
    assert given["heartbeat_timeout"] == options.HEARTBEAT_TIMEOUT


class Note(BaseModel):
    """Anything."""


def written(*, by: LookupBy | None) -> ToolSpec:
    """Return the spec of a write that takes a minute and that has such a lookup."""

    async def look(params: Note, ctx: ToolContext) -> LookupAnswer:
        return NotFound()

    finds: dict[str, Any] = {} if by is None else {"lookup": look, "lookup_by": by}
    finds |= {"recovery": "human"} if by is None else {"settle": SECOND}

    @tool("notes.write", effect=WRITE, timeout=MINUTE, irreversible=True, **finds)
    async def write(params: Note, ctx: ToolContext) -> None:
        """Write a note."""

    return write.spec()


@pytest.mark.parametrize(
    ("by", "looks"),
    [
        (None, 0),
        ("key", 2),  # for an earlier call, and for its own
        ("state", 3),  # and right before its own
    ],
)
def test_an_attempt_has_time_for_its_looks_and_call(by: LookupBy | None, looks: int) -> None:
    recorded = ToolSpec.model_validate_json(written(by=by).model_dump_json())

    assert recorded.longest_attempt == MINUTE * (1 + looks)


@pytest.mark.parametrize("tenant", ["acme", "ä" * 60, "a" * 63 + "ä"])
def test_whose_turn_it_is_is_told_in_no_more_than_the_server_takes(tenant: str) -> None:
    key = options.fair(tenant).fairness_key

    assert key and tenant.startswith(key)
    assert len(key.encode()) <= 64


#: Where temporalio's decorator leaves what it knows of an activity.
MARK = "__temporal_activity_definition"


def implementations() -> dict[str, list[Callable[..., Any]]]:
    """Return every activity that is defined anywhere in the other room, by name."""
    found: dict[str, list[Callable[..., Any]]] = {}
    for module_info in pkgutil.walk_packages(activities.__path__, "surehand.activities."):
        if ".migrations" in module_info.name:
            continue
        module = importlib.import_module(module_info.name)
        for owner in vars(module).values():
            members = vars(owner).values() if inspect.isclass(owner) else [owner]
            if getattr(owner, "__module__", None) != module.__name__:
                continue
            for member in members:
                definition = getattr(member, MARK, None)
                if definition is not None:
                    found.setdefault(definition.name, []).append(member)
    return found


IMPLEMENTED = implementations()
PORTS = [value for value in vars(ports).values() if isinstance(value, Port)]


def test_every_port_is_implemented_exactly_once_and_nothing_else_is_an_activity() -> None:
    assert {name: len(found) for name, found in IMPLEMENTED.items()} == {
        port.name: 1 for port in PORTS
    }


def test_no_two_ports_have_one_name() -> None:
    assert len({port.name for port in PORTS}) == len(PORTS)


def test_a_port_says_what_its_implementation_takes_and_returns() -> None:
    for port in PORTS:
        (function,) = IMPLEMENTED[port.name]
        hints = typing.get_type_hints(function)
        [parameter] = [name for name in inspect.signature(function).parameters if name != "self"]

        assert inspect.iscoroutinefunction(function)
        assert (hints[parameter], hints["return"]) == (port.takes, port.returns), port.name


def test_what_crosses_a_boundary_is_frozen_and_tolerates_newer_fields() -> None:
    for message in [message for port in PORTS for message in (port.takes, port.returns)]:
        assert issubclass(message, Message)
        assert message.model_config["frozen"] is True
        assert message.model_config["extra"] == "ignore"


def test_the_worker_registers_every_port_and_nothing_else() -> None:
    registered = worker.list_activities(Mock())

    assert {one.__name__ for one in registered} == {port.name for port in PORTS}


def test_how_often_a_failure_is_tried_again_is_never_counted_by_temporal() -> None:
    for config in (
        options.ledger_call("x"),
        options.compensation_call("x"),
        options.tool_call(options.CALL_MARGIN, "x"),
    ):
        policy = config["retry_policy"]
        assert policy is not None
        assert policy.maximum_attempts == 0
        assert set(policy.non_retryable_error_types or ()) == set(NON_RETRYABLE)
        assert config["cancellation_type"].name == "WAIT_CANCELLATION_COMPLETED"


class Nothing(BaseModel):
    pass


async def ask(key: Any) -> LookupAnswer:
    return NotFound()


async def by_key(params: Nothing, ctx: ToolContext) -> LookupAnswer:
    return await ask(ctx.idempotency_key)


async def by_key_inside(params: Nothing, ctx: ToolContext) -> LookupAnswer:
    return await ask((lambda: ctx.idempotency_key)())


async def hands_on(params: Nothing, ctx: ToolContext) -> LookupAnswer:
    return await ask(ctx)


async def by_state(params: Nothing, ctx: ToolContext) -> LookupAnswer:
    return await ask(params)


async def by_tenant(params: Nothing, context: ToolContext) -> LookupAnswer:
    return await ask((context.tenant, context.run_id))


async def inside_by_state(params: Nothing, ctx: ToolContext) -> LookupAnswer:
    return await ask((lambda: ctx.tenant)())


class Client:
    async def find(self, params: Nothing, ctx: ToolContext) -> LookupAnswer:
        return await ask(ctx.idempotency_key)

    async def look(self, params: Nothing, ctx: ToolContext) -> LookupAnswer:
        return await ask(self)

    async def __call__(self, params: Nothing, ctx: ToolContext) -> LookupAnswer:
        return NotFound()


@wraps(by_state)
async def wrapped(*args: Any) -> LookupAnswer:
    return await by_state(*args)


async def anything(*args: Any) -> LookupAnswer:
    return await by_key(*args)


def warning(lookup: Any, **more: Any) -> str | None:
    declared = tool("a.b", effect=WRITE, lookup=lookup, settle=timedelta(seconds=1), **more)

    async def called(params: Nothing, ctx: ToolContext) -> None:
        """Do it."""

    return lookup_warning(declared(called))


@pytest.mark.parametrize("lookup", [by_state, by_tenant, inside_by_state, Client().look, wrapped])
def test_a_lookup_that_never_takes_the_key_is_told_of(lookup: Any) -> None:
    told = warning(lookup)

    assert told is not None
    assert told.startswith("a.b: its lookup does not use ctx.idempotency_key")
    assert warning(lookup, lookup_by="state") is None


@pytest.mark.parametrize(
    "lookup",
    [by_key, by_key_inside, hands_on, Client().find, Client(), anything, partial(by_state)],
)
def test_of_a_lookup_that_takes_the_key_or_may_nothing_is_said(lookup: Any) -> None:
    assert warning(lookup) is None


@pytest.mark.parametrize("odd", ["x" * LARGEST_PROGRESS, {"a": "x" * LARGEST_PROGRESS}])
def test_what_is_too_large_is_left_out_and_what_was_said_before_stays(odd: object) -> None:
    progress = Progress("it")
    progress.note("page 3")
    progress.note(odd)

    assert progress.told() == {"step_id": "it", "progress": "page 3"}


def test_what_the_attempt_before_has_told_is_told_on_until_there_is_news() -> None:
    before = {"step_id": "it", "progress": "page 3"}
    doing = Doing(told_before=before)
    assert doing.details() == ["", before]

    doing.progress = Progress("it", "page 3")
    assert doing.details() == ["", before]
    doing.progress.note("page 4")
    assert doing.details() == ["", {"step_id": "it", "progress": "page 4"}]


def test_outside_of_a_call_nobody_is_told() -> None:
    current_progress().note("page 3")

    assert current_progress().earlier is None
