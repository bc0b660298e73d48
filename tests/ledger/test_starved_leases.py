"""G1: whatever else a worker does, a call under way keeps its lease and records its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from surehand.activities.effects.recorder import Done
from surehand.activities.effects.write import EffectCall
from surehand.activities.ledger.core.engine import (
    PATIENCE,
    TRANSACTIONAL,
)
from surehand.activities.ledger.core.store import Places, Turn, Turns
from surehand.activities.ledger.core.tables import effects
from surehand.activities.tools.tool import Tool, ToolContext
from surehand.activities.tools.toolbox import WRITE, tool
from surehand.process import clock
from surehand.workflows.ports import LEDGER_TIMEOUT
from tests.ledger.attempts import Payment, Provider, request_for, worker_of
from tests.ledger.scene import LARGEST_INLINE, Scene

#: What a call may wait for its renewal at most, on a busy machine.
LEASE = timedelta(seconds=5)
SECOND = timedelta(seconds=1)


@tool("notes.write", effect=WRITE, transactional=True, irreversible=True, timeout=SECOND)
async def endless(params: Payment, ctx: ToolContext) -> None:
    """Keep a transaction open for as long as it may."""
    await asyncio.Event().wait()


def attempt(scene: Scene, loaded: Tool, lease: timedelta, **changes: Any) -> EffectCall:
    request = request_for(scene, loaded, tool=loaded.name, lease=lease, **changes)
    return EffectCall(worker_of(scene, loaded, lease=lease), loaded, Payment(), request)


async def note(scene: Scene, number: int) -> str:
    call = attempt(scene, endless, LEASE, key=f"n{number}", step_id=f"s{number}")
    with pytest.raises(ApplicationError) as ended:
        await call.run()
    return str(ended.value.type)


async def test_a_neighbours_transactions_cost_nobody_its_lease(scene: Scene, other: Scene) -> None:
    """There are more of them than connections, and they last longer than a lease."""
    neighbours = 9 if scene.ledger.one_writer else 9 * TRANSACTIONAL
    begun, noted = asyncio.Event(), asyncio.Event()

    @tool("payments.refund", effect=WRITE, recovery="human", irreversible=True)
    async def refund(params: Payment, ctx: ToolContext) -> str:
        """Take longer than all of them."""
        begun.set()
        await noted.wait()
        return "r-1"

    async def crowd() -> list[str]:
        await begun.wait()
        try:
            return await asyncio.gather(*(note(other, number) for number in range(neighbours)))
        finally:
            noted.set()

    result, notes = await asyncio.gather(attempt(scene, refund, LEASE).run(), crowd())

    assert isinstance(result, Done)
    assert notes == ["Transient"] * neighbours
    assert scene.events(type_="effect.in_doubt") == []


async def test_leases_last_until_outcomes(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the artifact store takes a large receipt."""
    until = list[int]()

    async def slow(*_: Any) -> None:
        until.append(scene.row(effects)["lease_until_ms"])
        while until[-1] == until[0]:
            until.append(scene.row(effects)["lease_until_ms"])
            await asyncio.sleep(0)

    monkeypatch.setattr(scene.artifacts.blobs, "put", slow)
    refund = Provider(["r" * 2 * LARGEST_INLINE]).tool(recovery="human")

    result = await attempt(scene, refund, LEASE).run()

    assert isinstance(result, Done)
    assert until[-1] > until[0], "the lease is renewed while the store takes the receipt"
    assert scene.row(effects)["state"] == "committed"


class Crowded(Turns):
    """Turns that are waited for longer than a lease lasts, by this process's own clock."""

    waited = 0

    @asynccontextmanager
    async def turn(self, turn: Turn) -> AsyncIterator[None]:
        async with super().turn(turn):
            self.waited += 1
            assert self.waited < 10, "it claims again and again, and never calls"
            yield


async def test_turns_count_for_no_lease(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under load each claim waits, and is as fresh as ever once its transaction has begun."""
    turns, real_now = Crowded.of(scene.ledger.engine), clock.now
    assert isinstance(turns, Crowded)
    monkeypatch.setattr(scene.ledger, "_turns", turns)
    monkeypatch.setattr(clock, "now", lambda: real_now() + turns.waited * 2 * LEASE.total_seconds())
    refund = Provider([{"id": "r-1"}]).tool(recovery="human")

    result = await attempt(scene, refund, LEASE).run()

    assert isinstance(result, Done)
    assert turns.waited == 2, "its claim and its outcome"


async def test_tenants_take_turns_in_making_transactional_calls(scene: Scene, other: Scene) -> None:
    """However many one of them has waiting; one that has given up is passed over."""
    called = list[str]()

    @tool("notes.write", effect=WRITE, transactional=True, irreversible=True)
    async def write(params: Payment, ctx: ToolContext) -> None:
        """Note whose call it is."""
        called.append(ctx.tenant)

    def begin(whose: Scene, number: int) -> asyncio.Task[Any]:
        call = attempt(whose, write, LEASE, key=f"n{number}", step_id=f"s{number}")
        return asyncio.create_task(call.run())

    places = scene.ledger.transactional
    async with AsyncExitStack() as held:
        # Given that all places but one are taken, and that one is, too, for now
        for _ in range(0 if scene.ledger.one_writer else TRANSACTIONAL - 1):
            await held.enter_async_context(places.place("others"))
        async with places.place("others"):
            calls = [begin(scene, number) for number in range(4)]
            calls += [begin(other, number) for number in range(2)]
            await settle()
            calls.pop(0).cancel()
            await settle()
        await asyncio.gather(*calls)

    assert called == [scene.tenant, other.tenant, scene.tenant, other.tenant, scene.tenant]


class Work:
    """Transactions that say when they have their turn, and end when they are told."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.has: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.afterwards: Callable[[], object] = lambda: None
        """What is done as soon as one has ended, before the next one knows that it is called."""

    def begin(self, name: str, turn: Turn = Turn.OTHER) -> asyncio.Task[None]:
        """Begin one; it has its turn, or waits, once everything else has run."""
        self.ends[name] = asyncio.Event()
        return asyncio.create_task(self._work(name, turn))

    async def _work(self, name: str, turn: Turn) -> None:
        async with self.turns.turn(turn):
            self.has.append(name)
            await self.ends[name].wait()
        self.afterwards()

    async def end(self, name: str) -> None:
        self.ends[name].set()
        await settle()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_where_there_is_one_connection_renewals_and_outcomes_come_next() -> None:
    work = Work(Turns(1))
    tasks = [work.begin(name) for name in ("a", "b", "c")]
    await settle()
    tasks.append(work.begin("outcome", Turn.OUTCOME))
    tasks.append(work.begin("renewal", Turn.RENEWAL))
    await settle()

    for name in ("a", "renewal", "outcome", "b", "c"):
        assert work.has[-1] == name
        await work.end(name)
    await asyncio.gather(*tasks)


async def test_waiting_for_a_turn_ends_before_its_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in hand waits on: nothing else would record it."""
    work, loop = Work(Turns(1)), asyncio.get_running_loop()
    running, late = work.begin("running"), work.begin("late")
    outcome = work.begin("outcome", Turn.OUTCOME)
    await settle()

    # When Temporal is about to give the attempt up, and a statement could still be made in time.
    over = loop.time() + (LEDGER_TIMEOUT - PATIENCE).total_seconds()
    monkeypatch.setattr(loop, "time", lambda: over)
    await settle()

    assert isinstance(late.exception(), TimeoutError)
    await work.end("running")
    assert work.has == ["running", "outcome"]
    await work.end("outcome")
    await asyncio.gather(running, outcome)


@pytest.mark.parametrize("when", ["before", "just before", "when called"])
async def test_who_gives_up_waiting_for_a_place_leaves_it_to_the_next(when: str) -> None:
    places, has = Places(1), list[str]()

    async def call(name: str) -> None:
        async with places.place("theirs"):
            has.append(name)

    async with places.place("ours"):
        leaves, stays = (asyncio.create_task(call(name)) for name in ("leaves", "stays"))
        await settle()
        if when != "when called":
            leaves.cancel()
        if when == "before":
            await settle()
    if when == "when called":
        leaves.cancel()
    await stays

    assert has == ["stays"]
    assert places._free == 1


@pytest.mark.parametrize("called", [False, True])
async def test_who_gives_up_waiting_keeps_nobody_from_its_turn(called: bool) -> None:
    """Also at the very moment at which it would have been its own."""
    work = Work(Turns(1))
    running, leaves, stays = (work.begin(name) for name in ("a", "leaves", "stays"))
    await settle()

    if called:
        work.afterwards = leaves.cancel
    else:
        leaves.cancel()
    await work.end("a")

    assert work.has == ["a", "stays"]
    await work.end("stays")
    await asyncio.gather(running, stays)
    assert work.turns._taken == 0
