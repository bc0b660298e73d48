"""G4: the one question of what is to be undone, over a run and its child runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from activities.ledger import claims, outcomes, run_tree, runs
from activities.ledger.artifacts import Kept
from activities.ledger.compensations import NothingToUndo, ToUndo, begin
from activities.ledger.entries import Barred, Claimed, Committed
from activities.ledger.facts import TakesOverUndone
from activities.ledger.run_tree import Cursor
from activities.ledger.starts import StartRefused
from activities.ledger.tables import effects
from tests.ledger.scene import OTHER_RUN, RUN, STEP, Scene
from workflows.contracts import CloseRun, Linked, Parent, Resolution, ResolutionOutcome, RunState

CHILD, BELOW = f"{RUN}~pay", f"{RUN}~pay~inner"


async def tree(scene: Scene) -> None:
    """Open a child run of the first run, and one of that; another run is none of them."""
    await scene.open_run(CHILD, parent=Parent(run_id=RUN, step_id="pay"))
    await scene.open_run(BELOW, parent=Parent(run_id=CHILD, step_id="inner"))
    await scene.open_run(OTHER_RUN)


async def made(scene: Scene, name: str, run_id: str = RUN, step_id: str | None = None) -> str:
    call = scene.call(run_id=run_id, step_id=step_id or name, key=name)
    return (await scene.committed(call)).entry_id


async def test_effects_of_a_tree_stand_in_the_order_of_their_commits_last_first(
    scene: Scene,
) -> None:
    await tree(scene)
    requests = {
        "a": scene.call(key="a", step_id="a"),
        "b": scene.call(key="b", step_id="b", run_id=CHILD),
        "c": scene.call(key="c", step_id="c", run_id=BELOW),
        "d": scene.call(key="d", step_id="d"),
        "other": scene.call(key="other", run_id=OTHER_RUN),
    }
    entries = {name: await scene.claimed(request) for name, request in requests.items()}
    for name in ("c", "a", "other", "d", "b"):
        await scene.commit(requests[name], entries[name])

    assert await scene.standing() == ["b", "d", "a", "c"]
    assert await scene.standing(CHILD) == ["b", "c"]


async def test_what_has_no_commit_yet_comes_first_the_newest_claim_before_the_older(
    scene: Scene,
) -> None:
    await tree(scene)
    await made(scene, "done")
    for n, name in enumerate(("first", "second")):
        request = scene.call(key=name, step_id=name, run_id=CHILD)
        async with scene.tx() as tx:
            tx.now_ms += n
            assert isinstance(await claims.claim(tx, request), Claimed)

    assert await scene.standing() == ["second", "first", "done"]


async def test_what_did_not_happen_is_undone_or_undoes_is_no_part_of_it(scene: Scene) -> None:
    await scene.failed(scene.call(key="failed", step_id="failed"))
    await scene.answered_no(scene.call(key="no", step_id="no"))
    await scene.compensated(scene.call(key="undone", step_id="undone"))
    await scene.asked(scene.call(key="partial", step_id="partial"), partial=True)
    await scene.in_doubt(scene.call(key="doubt", step_id="doubt"))
    await scene.compensating(scene.call(key="undoing", step_id="undoing"))
    await scene.claimed(scene.call(key="claimed", step_id="claimed"))

    assert sorted(await scene.standing()) == ["claimed", "doubt", "partial", "undoing"]


@pytest.mark.parametrize("size", [1, 2, 3, 10])
async def test_pages_of_any_size_list_each_effect_once_in_the_same_order(
    scene: Scene, size: int
) -> None:
    await tree(scene)
    for n in range(4):
        await made(scene, f"done-{n}", (RUN, CHILD)[n % 2])
    for n in range(3):
        await scene.in_doubt(scene.call(key=f"doubt-{n}", step_id=f"doubt-{n}", run_id=BELOW))
    whole = await scene.standing()

    listed, after = list[str](), None
    while True:
        async with scene.tx() as tx:
            page = await run_tree.standing(tx, RUN, after=after, limit=size)
        assert len(page.effects) <= size
        listed += [one.entry.key for one in page.effects]
        if page.following is None:
            break
        after = Cursor.read(str(page.following))

    assert (listed, len(listed)) == (whole, 7)


async def test_a_page_goes_on_behind_its_last_effect_whatever_was_undone_meanwhile(
    scene: Scene,
) -> None:
    for name in "abc":
        await made(scene, name)
    async with scene.tx() as tx:
        page = await run_tree.standing(tx, RUN, limit=1)
    undo = scene.undo(page.effects[0].entry)
    await scene.commit(undo, await scene.claimed(undo))

    async with scene.tx() as tx:
        following = await run_tree.standing(tx, RUN, after=page.following)

    assert [one.entry.key for one in following.effects] == ["b", "a"]


async def test_of_one_step_its_own_effects_and_those_of_its_child_runs_are_listed(
    scene: Scene,
) -> None:
    await tree(scene)
    await made(scene, "own", step_id="pay")
    await made(scene, "pay", CHILD)  # a step of that name, and of the child run
    await made(scene, "below", BELOW)
    await made(scene, "another")

    assert await scene.standing(RUN, "pay") == ["below", "pay", "own"]
    assert await scene.standing(CHILD, "inner") == ["below"]
    assert await scene.standing(RUN, "nothing") == []


async def test_an_effect_is_told_with_the_child_run_and_the_step_that_it_comes_from(
    scene: Scene,
) -> None:
    await tree(scene)
    await made(scene, "own")
    await made(scene, "below", BELOW)

    async with scene.tx() as tx:
        below, own = (await run_tree.standing(tx, RUN)).effects

    assert (below.child, below.inside, below.view().run_id) == (CHILD, "pay", BELOW)
    assert (own.child, own.inside, own.view().run_id) == (None, None, None)


async def test_both_effects_of_a_step_are_undone_each_by_its_entry(scene: Scene) -> None:
    first = await made(scene, "first", step_id=STEP)
    second = await made(scene, "second", step_id=STEP)

    for entry_id in (second, first):
        async with scene.tx() as tx:
            found = await begin(tx, entry_id, RUN, STEP)
        assert isinstance(found, ToUndo) and found.entry.entry_id == entry_id
        undo = scene.undo(found.entry)
        await scene.commit(undo, await scene.claimed(undo))

    assert {(row["key"], row["state"]) for row in await scene.rows(effects, undoes=None)} == {
        ("first", "compensated"),
        ("second", "compensated"),
    }


async def test_an_entry_that_is_another_runs_by_now_is_not_undone(scene: Scene) -> None:
    entry = await scene.failed(scene.call())
    await scene.open_run(OTHER_RUN)
    await scene.committed(scene.call(run_id=OTHER_RUN))

    async with scene.tx() as tx:
        assert isinstance(await begin(tx, entry.entry_id, RUN, STEP), NothingToUndo)


async def test_nothing_is_claimed_any_more_in_a_tree_that_is_barred(scene: Scene) -> None:
    await tree(scene)
    for _ in range(2):
        async with scene.tx() as tx:
            await run_tree.bar(tx, RUN)

    for run_id in (RUN, CHILD, BELOW):
        late = scene.call(run_id=run_id, step_id="any", key=run_id)
        assert isinstance(await scene.claim(late), Barred)
        assert len(await scene.events(run_id, "run.barred")) == 1
    assert isinstance(await scene.claim(scene.call(run_id=OTHER_RUN)), Claimed)


@pytest.mark.parametrize("barred", [None, "pay"])
async def test_a_child_run_that_is_opened_late_is_barred_with_its_parent(
    scene: Scene, barred: str | None
) -> None:
    async with scene.tx() as tx:
        await run_tree.bar(tx, RUN, barred)

    await tree(scene)
    await scene.open_run("run-1~mail", parent=Parent(run_id=RUN, step_id="mail"))

    for run_id in (CHILD, BELOW):
        assert isinstance(await scene.claim(scene.call(run_id=run_id, key=run_id)), Barred)
    late = await scene.claim(scene.call(run_id="run-1~mail", key="mail"))
    assert isinstance(late, Barred if barred is None else Claimed)


async def test_a_barred_step_bars_its_child_runs_and_no_other_step(scene: Scene) -> None:
    await tree(scene)
    async with scene.tx() as tx:
        await run_tree.bar(tx, RUN, "pay")

    for run_id, step_id in ((RUN, "pay"), (CHILD, "any"), (BELOW, "any")):
        late = scene.call(run_id=run_id, step_id=step_id, key=f"{run_id}/{step_id}")
        assert isinstance(await scene.claim(late), Barred)
    assert isinstance(await scene.claim(scene.call()), Claimed)


async def test_a_child_run_of_a_run_that_nobody_knows_is_not_opened(scene: Scene) -> None:
    with pytest.raises(StartRefused, match="run nobody has not started it"):
        await scene.open_run("nobody~pay", parent=Parent(run_id="nobody", step_id="pay"))


async def test_what_is_left_keeps_its_reason_for_as_long_as_it_stands(scene: Scene) -> None:
    await tree(scene)
    kept, undone = await made(scene, "kept", CHILD), await made(scene, "undone")
    async with scene.tx() as tx:
        await run_tree.leave(tx, [kept, undone], "irreversible")
    undo = scene.undo(await scene.entry(undone))
    await scene.commit(undo, await scene.claimed(undo))

    async with scene.tx() as tx:
        views, standing, more = await runs.effect_views(tx, RUN, newest=2)

    assert [(view.key, view.reason, view.inside) for view in standing] == [
        ("kept", "irreversible", "pay")
    ]
    # The newest are listed, the others are counted.
    assert ([view.state for view in views], more) == (["compensated", "committed"], 1)


async def _close(scene: Scene, run_id: str) -> None:
    async with scene.tx() as tx:
        end = CloseRun(tenant=scene.tenant, run_id=run_id, state=RunState.COMPLETED)
        await runs.close_run(tx, end)


async def _begin_from(scene: Scene, run_id: str, *steps: str) -> None:
    linked = Linked(run_id=run_id, outputs=dict.fromkeys(steps))
    await scene.open_run("fork", linked=linked)


@pytest.mark.parametrize("how", ["undone", "child run's", "another run's", "of a list", "by hand"])
async def test_a_run_takes_over_no_step_whose_effect_was_undone(scene: Scene, how: str) -> None:
    await tree(scene)
    taken = "pay"
    if how == "child run's":
        await scene.compensated(scene.call(run_id=BELOW, key="below"))
        await _close(scene, CHILD)
    elif how == "another run's":
        owned = await scene.committed(scene.call(run_id=OTHER_RUN))
        await scene.claim(scene.call(step_id="pay"))
        undo = scene.undo(owned)
        await scene.commit(undo, await scene.claimed(undo))
    elif how == "by hand":
        _, question = await scene.asked(scene.call(step_id="pay"))
        by_hand: dict[str, Any] = {"outcome": ResolutionOutcome.COMPENSATED, "actor": "olga"}
        await scene.settle(Resolution(intervention_id=question, **by_hand))
    else:
        await scene.compensated(scene.call(step_id="pay[3]" if how == "of a list" else "pay"))

    with pytest.raises(TakesOverUndone, match=f"what step {taken} of run {RUN}"):
        await _begin_from(scene, RUN, taken, "mail")

    await _begin_from(scene, RUN, "mail")


async def test_a_run_takes_over_what_stands_also_where_an_earlier_life_was_undone(
    scene: Scene,
) -> None:
    await scene.compensated(scene.call(key="first life", step_id="pay"))
    await made(scene, "second life", step_id="pay")

    await _begin_from(scene, RUN, "pay")


async def test_an_effect_is_told_with_the_child_runs_that_go_on_with_it(scene: Scene) -> None:
    await tree(scene)
    await made(scene, "mine")
    await made(scene, "unused")
    again = scene.call(run_id=BELOW, step_id="again", key="mine")
    assert isinstance(await scene.claim(again), Committed)
    assert isinstance(
        await scene.claim(scene.call(run_id=OTHER_RUN, step_id="again", key="unused")), Committed
    )

    async with scene.tx() as tx:
        page = await run_tree.standing(tx, RUN)
        used = await run_tree.used_in(tx, RUN, page.effects)
    assert {one.entry.key: used[one.entry.entry_id] for one in page.effects} == {
        "mine": [CHILD],
        "unused": [],
    }


async def test_a_completed_child_run_of_which_something_was_undone_later_is_told(
    scene: Scene,
) -> None:
    kept, orphaned = f"{RUN}~kept", f"{RUN}~orphaned"
    for step, child in (("pay", CHILD), ("kept", kept), ("orphaned", orphaned)):
        await scene.open_run(child, parent=Parent(run_id=RUN, step_id=step))
        await made(scene, f"of {step}", child)
    # Its own undoing of what it did not want is no reason.
    await scene.compensated(scene.call(run_id=orphaned, step_id="other", key="other"))
    for child in (CHILD, kept, orphaned):
        async with scene.tx() as tx:
            closing = CloseRun(tenant=tx.tenant, run_id=child, state=RunState.COMPLETED)
            await runs.close_run(tx, closing)

    async with scene.tx(timedelta(seconds=1)) as tx:
        await run_tree.bar(tx, RUN)
        assert await run_tree.unwound(tx, RUN) == []
        [entry] = [one.entry for one in (await run_tree.standing(tx, CHILD)).effects]
    undo = scene.undo(entry)
    claimed = await scene.claimed(undo, timedelta(seconds=2))
    async with scene.tx(timedelta(seconds=2)) as tx:
        assert await outcomes.commit(tx, undo, claimed, Kept("r-1")) is not None

    async with scene.tx() as tx:
        assert await run_tree.unwound(tx, RUN) == [CHILD]
