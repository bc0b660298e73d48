"""Stretches: who is cut off from Temporal claims nothing more, and answers nothing more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

import pytest
from sqlalchemy import update

from activities.ledger import steps, stretches, tables
from activities.ledger.claims import claim_at_once
from activities.ledger.entries import Claimed, Held
from activities.ledger.steps import StepAttempt, Stored
from activities.ledger.store import Transaction
from activities.ledger.stretches import GivenUp, Holding, Overtaken
from tests.ledger.scene import RUN, Scene

FIRST: Final = Holding(1, "life", 1, "a")
AGAIN: Final = Holding(2, "life", 1, "b")
NEXT: Final = Holding(3, "life", 2, "c")
OTHER_LIFE: Final = Holding(4, "another life", 1, "d")
PARAMS: Final = {"file": "price"}

End = Callable[[Transaction], Awaitable[object]]


async def give_up(tx: Transaction) -> None:
    await stretches.give_up(tx, RUN, [FIRST.name])


async def overtake(tx: Transaction) -> None:
    await stretches.begin(tx, RUN, AGAIN)


async def go_on(tx: Transaction) -> None:
    await stretches.begin(tx, RUN, NEXT)


#: What ends a stretch for those who still make it.
ENDS: Final = [give_up, overtake, go_on]


def read(holder: str, attempt: int = 1, stretch: Holding | None = None) -> StepAttempt:
    token = None if stretch is None else stretch.token
    return StepAttempt(RUN, "price", attempt, "prices.read", PARAMS, holder, token)


async def begin(scene: Scene, holding: Holding) -> bool:
    async with scene.tx() as tx:
        return await stretches.begin(tx, RUN, holding)


async def begun(scene: Scene, row: StepAttempt, *, holders: str | None = None) -> Stored | None:
    async with scene.tx() as tx:
        return await steps.begin_read(tx, row, after=0, holders=holders)


async def answered(scene: Scene, row: StepAttempt, output: str) -> bool:
    async with scene.tx() as tx:
        return await steps.finish(tx, row, "succeeded", output=output)


async def counts(scene: Scene) -> object:
    """Return what the next attempt takes as the answer."""
    async with scene.tx() as tx:
        known = await steps.stored(tx, read("next", attempt=9), after=0)
    return None if known is None else known.output


async def test_a_stretch_that_others_may_have_begun_says_so_and_one_that_is_over_is_refused(
    scene: Scene,
) -> None:
    assert await begin(scene, FIRST) is False
    assert await begin(scene, AGAIN) is True
    assert await begin(scene, NEXT) is False
    # Whoever was frozen before it could begin: of this stretch, of an earlier one or life.
    with pytest.raises(Overtaken):
        await begin(scene, FIRST)
    with pytest.raises(Overtaken):
        await begin(scene, AGAIN)
    assert await begin(scene, OTHER_LIFE) is False
    with pytest.raises(Overtaken):
        await begin(scene, NEXT)
    async with scene.tx() as tx:
        await stretches.give_up(tx, RUN, [OTHER_LIFE.name])
    with pytest.raises(GivenUp):
        await begin(scene, replace(OTHER_LIFE, scheduled_ms=5, holder="late"))
    assert await begin(scene, replace(OTHER_LIFE, number=2)) is False


@pytest.mark.parametrize("end", ENDS)
async def test_nothing_more_is_claimed_in_a_stretch_that_is_over(scene: Scene, end: End) -> None:
    await begin(scene, FIRST)
    assert isinstance(await scene.claim(scene.call(stretch=FIRST.token)), Claimed)
    for _ in range(2):
        async with scene.tx() as tx:
            await end(tx)

    late = scene.call(step_id="next", key="next", stretch=FIRST.token)
    assert isinstance(await scene.claim(late), Held)
    async with scene.tx() as tx:
        ahead = scene.call(step_id="ahead", key="ahead", stretch=FIRST.token)
        assert await claim_at_once(tx, ahead) is None
    new = replace(NEXT, scheduled_ms=5, holder="new")
    await begin(scene, new)  # raises where it is refused
    assert isinstance(await scene.claim(replace(late, stretch=new.token)), Claimed)


async def test_a_stretch_is_given_up_with_one_event(scene: Scene) -> None:
    for _ in range(2):
        async with scene.tx() as tx:
            await give_up(tx)

    assert len(await scene.events(type_="stretch.given_up")) == 1


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("began", ["before", "after"])
async def test_what_is_read_in_a_stretch_that_is_over_is_not_recorded(
    scene: Scene, end: End, began: str
) -> None:
    await begin(scene, FIRST)
    late = read("late", stretch=FIRST)
    if began == "before":
        await begun(scene, late)
    async with scene.tx() as tx:
        await end(tx)
    if began == "after":
        await begun(scene, late)

    assert not await answered(scene, late, "old")
    assert await counts(scene) is None
    new = replace(NEXT, scheduled_ms=5, holder="new")
    await begin(scene, new)
    mine = read("mine", stretch=new)
    await begun(scene, mine)
    assert await answered(scene, mine, "new")
    assert await counts(scene) == "new"


@pytest.mark.parametrize("holders", [None, ""])
async def test_an_answer_that_counts_is_wiped_by_nobody_who_is_late(
    scene: Scene, holders: str | None
) -> None:
    await begin(scene, FIRST)
    await begin(scene, NEXT)
    mine = read("mine", stretch=NEXT)
    await begun(scene, mine)
    assert await answered(scene, mine, "new")

    # The same attempt number: it counts the attempts of another activity.
    known = await begun(scene, read("late", stretch=FIRST), holders=holders)
    assert (known.output if known else None) == (None if holders is None else "new")
    assert await counts(scene) == "new"


async def test_a_run_that_is_reset_reads_anew_what_was_answered(scene: Scene) -> None:
    await begun(scene, read("before"))
    assert await answered(scene, read("before"), "old")

    assert await begun(scene, read("mine")) is None
    assert await answered(scene, read("mine"), "new")
    assert await counts(scene) == "new"


async def test_a_read_that_is_tried_again_takes_what_the_same_activity_has_recorded(
    scene: Scene,
) -> None:
    await begun(scene, read("life:7:1"))
    assert await answered(scene, read("life:7:1"), "recorded")

    known = await begun(scene, read("life:7:2", attempt=2), holders="life:7:")
    assert (known.output if known else None) == "recorded"
    assert await counts(scene) == "recorded"


@pytest.mark.parametrize("before", ["another:7:1", "life:70:1"], ids=["reset", "another activity"])
async def test_a_read_that_is_tried_again_takes_nothing_that_another_activity_has_recorded(
    scene: Scene, before: str
) -> None:
    await begun(scene, read(before))
    assert await answered(scene, read(before), "old")

    mine = read("life:7:2", attempt=2)
    assert await begun(scene, mine, holders="life:7:") is None
    assert await answered(scene, mine, "new")


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
