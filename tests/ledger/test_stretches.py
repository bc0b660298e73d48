"""Stretches: who is cut off from Temporal claims nothing more, and answers nothing more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

import pytest
from sqlalchemy import update

from activities.ledger import steps, stretches, tables
from activities.ledger.claims import claim_at_once
from activities.ledger.entries import Barred, Claimed
from activities.ledger.steps import StepAttempt, StretchAttempt
from activities.ledger.store import Transaction
from tests.ledger.scene import RUN, Scene

FIRST: Final = StretchAttempt("stretch:1", 1)
LATER: Final = StretchAttempt("stretch:1", 2)
OTHER: Final = StretchAttempt("stretch:2", 1)
PARAMS: Final = {"file": "price"}


def read(holder: str, attempt: int = 1, stretch: StretchAttempt | None = None) -> StepAttempt:
    return StepAttempt(RUN, "price", attempt, "prices.read", PARAMS, holder, stretch)


async def begun(scene: Scene, row: StepAttempt) -> None:
    async with scene.tx() as tx:
        await steps.take_over(tx, row)
        await steps.start(tx, row)


async def answered(scene: Scene, row: StepAttempt, output: str) -> bool:
    async with scene.tx() as tx:
        return await steps.answer(tx, row, "succeeded", output=output)


async def counts(scene: Scene) -> object:
    """Return what the next attempt takes as the answer."""
    async with scene.tx() as tx:
        known = await steps.stored(tx, read("next", attempt=9), after=0)
    return None if known is None else known.output


async def give_up(tx: Transaction) -> None:
    await stretches.give_up(tx, RUN, [FIRST.stretch])


async def overtake(tx: Transaction) -> None:
    await stretches.overtake(tx, RUN, LATER)


ENDS: Final = [
    pytest.param(give_up, OTHER, id="given up"),
    pytest.param(overtake, LATER, id="overtaken"),
]
End = Callable[[Transaction], Awaitable[None]]


@pytest.mark.parametrize(("end", "then"), ENDS)
async def test_nothing_more_is_claimed_in_the_name_of_a_stretch_that_is_over(
    scene: Scene, end: End, then: StretchAttempt
) -> None:
    assert isinstance(await scene.claim(scene.call(stretch=FIRST)), Claimed)
    for _ in range(2):
        async with scene.tx() as tx:
            await end(tx)

    late = scene.call(step_id="next", key="next", stretch=FIRST)
    assert isinstance(await scene.claim(late), Barred)
    async with scene.tx() as tx:
        ahead = scene.call(step_id="ahead", key="ahead", stretch=FIRST)
        assert await claim_at_once(tx, ahead) is None
    assert isinstance(await scene.claim(replace(late, stretch=then)), Claimed)


async def test_a_stretch_is_given_up_with_one_event_and_overtaken_with_none(scene: Scene) -> None:
    for end in (give_up, give_up, overtake):
        async with scene.tx() as tx:
            await end(tx)

    assert len(await scene.events(type_="stretch.given_up")) == 1


@pytest.mark.parametrize(("end", "then"), ENDS)
@pytest.mark.parametrize("began", ["before", "after"])
async def test_what_a_stretch_that_is_over_has_read_is_not_recorded(
    scene: Scene, end: End, then: StretchAttempt, began: str
) -> None:
    late = read("late", stretch=FIRST)
    if began == "before":
        await begun(scene, late)
    async with scene.tx() as tx:
        await end(tx)
    if began == "after":
        await begun(scene, late)

    assert not await answered(scene, late, "old")
    assert await counts(scene) is None
    mine = read("mine", attempt=then.number, stretch=then)
    await begun(scene, mine)
    assert await answered(scene, mine, "new")
    assert await counts(scene) == "new"


@pytest.mark.parametrize("attempt", [1, 2])
async def test_a_read_that_another_worker_has_begun_since_is_not_recorded(
    scene: Scene, attempt: int
) -> None:
    late, mine = read("late"), read("mine", attempt)
    for row in (late, mine):
        await begun(scene, row)

    assert not await answered(scene, late, "old")
    assert await answered(scene, mine, "new")
    assert not await answered(scene, late, "old")
    assert await counts(scene) == "new"


async def test_a_read_that_is_begun_anew_with_other_params_is_recorded_with_them(
    scene: Scene,
) -> None:
    before = replace(read("before"), params={"file": "another"})
    await begun(scene, before)
    mine = read("mine")
    await begun(scene, mine)
    assert await answered(scene, mine, "new")

    assert await counts(scene) == "new"


async def test_the_read_that_began_last_counts_whatever_its_number(scene: Scene) -> None:
    # Attempt 3 of an activity that was given up, and the first one of the next.
    late, mine = read("late", attempt=3), read("mine")
    await begun(scene, late)
    async with scene.tx() as tx:
        mine_only = tables.steps.c.tenant_id == scene.tenant
        earlier = tables.steps.c.started_ms - 1
        await tx.execute(update(tables.steps).where(mine_only).values(started_ms=earlier))
    await begun(scene, mine)
    assert await answered(scene, mine, "new")
    assert await answered(scene, late, "old")

    assert await counts(scene) == "new"
