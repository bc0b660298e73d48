"""G1: whatever else a worker does, a call under way keeps its lease and records its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities.attempt import Resources
from activities.crashpoints import Crash
from activities.effects import EffectCall
from activities.ledger.engine import CONNECTIONS, KEPT_BACK, TRANSACTIONAL
from activities.ledger.turns import Turns
from activities.recorder import Done
from activities.toolbox import WRITE, Tool, Toolbox, ToolContext, tool
from tests.ledger.attempts import Payment, request_for
from tests.ledger.scene import Scene

#: What a call may wait for its renewal at most, on a busy machine.
LEASE = timedelta(seconds=5)
SECOND = timedelta(seconds=1)


@tool("notes.write", effect=WRITE, transactional=True, irreversible=True, timeout=SECOND)
async def endless(params: Payment, ctx: ToolContext) -> None:
    """Keep a transaction open for as long as it may."""
    await asyncio.Event().wait()


def attempt(scene: Scene, loaded: Tool, lease: timedelta, **changes: Any) -> EffectCall:
    request = request_for(scene, loaded, tool=loaded.name, lease=lease, **changes)
    resources = Resources(
        scene.ledger, Toolbox([loaded]), scene.artifacts, Crash(), lease, renew_every=SECOND
    )
    return EffectCall(resources, loaded, Payment(), request)


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
    assert await scene.events(type_="effect.in_doubt") == []


class Work:
    """Transactions that say when they have their turn, and end when they are told."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.has: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.afterwards: Callable[[], object] = lambda: None
        """What is done as soon as one has ended, before the next one knows that it is called."""

    def begin(self, name: str, *, first: bool = False) -> asyncio.Task[None]:
        """Begin one; it has its turn, or waits, once everything else has run."""
        self.ends[name] = asyncio.Event()
        return asyncio.create_task(self._work(name, first))

    async def _work(self, name: str, first: bool) -> None:
        async with self.turns.turn(first=first):
            self.has.append(name)
            await self.ends[name].wait()
        self.afterwards()

    async def end(self, name: str) -> None:
        """End one, and let everything else run."""
        self.ends[name].set()
        await settle()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_renewals_and_outcomes_have_connections_that_nothing_else_can_take() -> None:
    work = Work(Turns(CONNECTIONS, KEPT_BACK))
    tasks = [work.begin(f"w{number}") for number in range(CONNECTIONS * 3)]
    await settle()
    assert len(work.has) == CONNECTIONS - KEPT_BACK > TRANSACTIONAL

    tasks += [work.begin(f"f{number}", first=True) for number in range(KEPT_BACK + 1)]
    await settle()
    assert work.has[-KEPT_BACK:] == [f"f{number}" for number in range(KEPT_BACK)]

    for name in work.ends:
        await work.end(name)
    await asyncio.gather(*tasks)
    assert len(work.has) == len(tasks)


async def test_where_there_is_one_connection_renewals_and_outcomes_come_next() -> None:
    work = Work(Turns(1, 0))
    tasks = [work.begin(name) for name in ("a", "b", "c")]
    await settle()
    tasks.append(work.begin("renewal", first=True))
    await settle()

    for name in ("a", "renewal", "b", "c"):
        assert work.has[-1] == name
        await work.end(name)
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("called", [False, True])
async def test_who_gives_up_waiting_keeps_nobody_from_its_turn(called: bool) -> None:
    """Also at the very moment at which it would have been its own."""
    work = Work(Turns(1, 0))
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
