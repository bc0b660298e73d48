"""G1: what is believed of a call reckons with requests that arrive as late as they may."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import update
from temporalio.exceptions import ApplicationError

from activities import clock as own_clock
from activities.ledger.entries import Asked, Claimed, Doubtful
from activities.ledger.tables import effects
from activities.recorder import Done
from activities.toolbox import Dedupes, NotFound
from tests.ledger.attempts import Payment, Provider, effect_call, request_for
from tests.ledger.scene import LEASE_OVER, SETTLE, TIMEOUT, Scene
from workflows.errors import ErrorType

#: Longer than a test takes.
MOMENT = timedelta(seconds=20)


@pytest.mark.parametrize(
    ("window", "repeated"),
    [(TIMEOUT + SETTLE + MOMENT, True), (TIMEOUT + SETTLE, False), (LEASE_OVER + MOMENT, False)],
    ids=["within", "after it, if it is late", "after it, if its call lasts"],
)
async def test_a_call_is_repeated_only_if_its_request_arrives_within_the_window(
    scene: Scene, window: timedelta, repeated: bool
) -> None:
    async def lookup(params: Payment, ctx: Any) -> NotFound:
        return NotFound()

    provider = Provider([{"id": "r-1"}])
    options = {"dedupes": Dedupes(window), "lookup": lookup, "settle": SETTLE}
    refund = provider.tool(timeout=TIMEOUT, **options)
    await scene.in_doubt(request_for(scene, refund))

    result = await scene.claim(request_for(scene, refund, attempt=2), after=LEASE_OVER)

    assert isinstance(result, Claimed if repeated else Doubtful)


async def test_a_window_shorter_than_a_call_leaves_its_doubt_to_a_human(scene: Scene) -> None:
    provider = Provider([{"id": "r-1"}])
    refund = provider.tool(timeout=TIMEOUT, dedupes=Dedupes(TIMEOUT / 2))
    await scene.in_doubt(request_for(scene, refund))

    result = await effect_call(scene, refund, request_for(scene, refund, attempt=2)).run()

    assert isinstance(result, Asked)
    assert provider.keys == []


@pytest.mark.parametrize("held_up", [False, True])
async def test_a_lookup_that_found_nothing_proves_what_was_so_when_it_looked(
    scene: Scene, held_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr(own_clock, "now", lambda: clock.seconds)

    async def lookup(params: Payment, ctx: Any) -> NotFound:
        # A frozen process: its answer is in hand, and the world goes on.
        clock.seconds += 60 if held_up else 0
        return NotFound()

    provider = Provider([{"id": "r-1"}])
    refund = provider.tool(timeout=TIMEOUT, lookup=lookup, settle=SETTLE)
    await scene.in_doubt(request_for(scene, refund))
    async with scene.tx() as tx:
        over = tx.now_ms - int(SETTLE.total_seconds() * 1000) - 1
        await tx.execute(update(effects).values(deadline_ms=over))
    attempt = effect_call(scene, refund, request_for(scene, refund, attempt=2))

    if held_up:
        with pytest.raises(ApplicationError) as caught:
            await attempt.run()
        assert caught.value.type == ErrorType.SETTLING
        assert provider.keys == []
    else:
        assert isinstance(await attempt.run(), Done)
        assert len(provider.keys) == 1
