"""G4: the one question of what is to be undone, over a run and its child runs."""

from __future__ import annotations

from datetime import timedelta

import pytest

from surehand.activities.ledger.core.tables import effects, interventions, runs
from surehand.activities.ledger.effects import claims, outcomes, run_tree
from surehand.activities.ledger.effects.compensations import NothingToUndo, ToUndo, begin_undo
from surehand.activities.ledger.effects.run_tree import Cursor, TakesOverUndone
from surehand.activities.ledger.runs import lifecycle
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.entries import Asked, Barred, Claimed, Committed, Entry
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.runs import CloseRun, Linked, Parent
from surehand.workflows.run.run_records import Saga
from tests.ledger.scene import OTHER_RUN, RUN, STEP, UNDOABLE, Scene, said

pytestmark = pytest.mark.guarantee("G4")

CHILD, BELOW = f"{RUN}~pay", f"{RUN}~pay~inner"


def tree(scene: Scene) -> None:
    """Open a child run of the first run, and one of that; another run is none of them."""
    scene.open_run(CHILD, parent=Parent(run_id=RUN, step_id="pay"))
    scene.open_run(BELOW, parent=Parent(run_id=CHILD, step_id="inner"))
    scene.open_run(OTHER_RUN)


def made(scene: Scene, name: str, run_id: str = RUN, step_id: str | None = None) -> str:
    call = scene.call(run_id=run_id, step_id=step_id or name, key=name)
    return (scene.committed(call)).entry_id


def test_effects_of_a_tree_stand_in_the_order_of_their_commits_last_first(scene: Scene) -> None:
    tree(scene)
    requests = {
        "a": scene.call(key="a", step_id="a"),
        "b": scene.call(key="b", step_id="b", run_id=CHILD),
        "c": scene.call(key="c", step_id="c", run_id=BELOW),
        "d": scene.call(key="d", step_id="d"),
        "other": scene.call(key="other", run_id=OTHER_RUN),
    }
    entries = {name: scene.claimed(request) for name, request in requests.items()}
    for name in ("c", "a", "other", "d", "b"):
        scene.commit(requests[name], entries[name])

    assert scene.remaining() == ["b", "d", "a", "c"]
    assert scene.remaining(CHILD) == ["b", "c"]


def test_what_has_no_commit_yet_comes_first_the_newest_claim_before_the_older(scene: Scene) -> None:
    tree(scene)
    made(scene, "done")
    for n, name in enumerate(("first", "second")):
        request = scene.call(key=name, step_id=name, run_id=CHILD)
        with scene.tx() as tx:
            tx.now_ms += n
            assert isinstance(claims.claim_effect(tx, request), Claimed)

    assert scene.remaining() == ["second", "first", "done"]


def test_what_did_not_happen_is_undone_or_undoes_is_no_part_of_it(scene: Scene) -> None:
    scene.failed(scene.call(key="failed", step_id="failed"))
    scene.answered_no(scene.call(key="no", step_id="no"))
    scene.compensated(scene.call(key="undone", step_id="undone"))
    scene.asked(scene.call(key="partial", step_id="partial"), partial=True)
    scene.in_doubt(scene.call(key="doubt", step_id="doubt"))
    scene.compensating(scene.call(key="undoing", step_id="undoing"))
    scene.claimed(scene.call(key="claimed", step_id="claimed"))

    assert sorted(scene.remaining()) == ["claimed", "doubt", "partial", "undoing"]


@pytest.mark.parametrize("size", [1, 2, 3, 10])
def test_pages_of_any_size_list_each_effect_once_in_the_same_order(scene: Scene, size: int) -> None:
    tree(scene)
    for n in range(4):
        made(scene, f"done-{n}", (RUN, CHILD)[n % 2])
    for n in range(3):
        scene.in_doubt(scene.call(key=f"doubt-{n}", step_id=f"doubt-{n}", run_id=BELOW))
    whole = scene.remaining()

    listed, after = list[str](), None
    while True:
        with scene.tx() as tx:
            page = run_tree.list_remaining(tx, RUN, after=after, limit=size)
        assert len(page.effects) <= size
        listed += [one.entry.key for one in page.effects]
        if page.following is None:
            break
        after = Cursor.read(str(page.following))

    assert (listed, len(listed)) == (whole, 7)


def test_a_page_goes_on_behind_its_last_effect_whatever_was_undone_meanwhile(scene: Scene) -> None:
    for name in "abc":
        made(scene, name)
    with scene.tx() as tx:
        page = run_tree.list_remaining(tx, RUN, limit=1)
    scene.undone(page.effects[0].entry)

    with scene.tx() as tx:
        following = run_tree.list_remaining(tx, RUN, after=page.following)

    assert [one.entry.key for one in following.effects] == ["b", "a"]


def test_of_one_step_its_own_effects_and_those_of_its_child_runs_are_listed(scene: Scene) -> None:
    tree(scene)
    made(scene, "own", step_id="pay")
    made(scene, "pay", CHILD)  # a step of that name, and of the child run
    made(scene, "below", BELOW)
    made(scene, "another")

    assert scene.remaining(RUN, "pay") == ["below", "pay", "own"]
    assert scene.remaining(CHILD, "inner") == ["below"]
    assert scene.remaining(RUN, "nothing") == []


def test_an_effect_is_told_with_the_child_run_and_the_step_that_it_comes_from(scene: Scene) -> None:
    tree(scene)
    made(scene, "own")
    made(scene, "below", BELOW)

    with scene.tx() as tx:
        below, own = (run_tree.list_remaining(tx, RUN)).effects

    assert (below.child, below.inside, below.view().run_id) == (CHILD, "pay", BELOW)
    assert (own.child, own.inside, own.view().run_id) == (None, None, None)


def test_both_effects_of_a_step_are_undone_each_by_its_entry(scene: Scene) -> None:
    first = made(scene, "first", step_id=STEP)
    second = made(scene, "second", step_id=STEP)

    for entry_id in (second, first):
        with scene.tx() as tx:
            found = begin_undo(tx, entry_id, RUN, STEP, lambda _: UNDOABLE)
        assert isinstance(found, ToUndo) and found.entry.entry_id == entry_id
        scene.undone(found.entry)

    assert {(row["key"], row["state"]) for row in scene.rows(effects, undoes=None)} == {
        ("first", "compensated"),
        ("second", "compensated"),
    }


def test_an_entry_that_is_another_runs_by_now_is_not_undone(scene: Scene) -> None:
    entry = scene.failed(scene.call())
    scene.open_run(OTHER_RUN)
    scene.committed(scene.call(run_id=OTHER_RUN))

    with scene.tx() as tx:
        assert isinstance(
            begin_undo(tx, entry.entry_id, RUN, STEP, lambda _: UNDOABLE), NothingToUndo
        )


def test_nothing_is_claimed_any_more_in_a_tree_that_is_barred(scene: Scene) -> None:
    tree(scene)
    for _ in range(2):
        with scene.tx() as tx:
            run_tree.bar_tree(tx, RUN)

    for run_id in (RUN, CHILD, BELOW):
        late = scene.call(run_id=run_id, step_id="any", key=run_id)
        assert isinstance(scene.claim(late), Barred)
        assert len(scene.events(run_id, "run.barred")) == 1
    assert isinstance(scene.claim(scene.call(run_id=OTHER_RUN)), Claimed)


@pytest.mark.parametrize("barred", [None, "pay"])
def test_a_late_child_run_is_barred(scene: Scene, barred: str | None) -> None:
    with scene.tx() as tx:
        run_tree.bar_tree(tx, RUN, barred)

    tree(scene)
    scene.open_run("run-1~mail", parent=Parent(run_id=RUN, step_id="mail"))

    for run_id in (CHILD, BELOW):
        assert isinstance(scene.claim(scene.call(run_id=run_id, key=run_id)), Barred)
    late = scene.claim(scene.call(run_id="run-1~mail", key="mail"))
    assert isinstance(late, Barred if barred is None else Claimed)


def test_a_barred_step_bars_its_child_runs_and_no_other_step(scene: Scene) -> None:
    tree(scene)
    with scene.tx() as tx:
        run_tree.bar_tree(tx, RUN, "pay")

    for run_id, step_id in ((RUN, "pay"), (CHILD, "any"), (BELOW, "any")):
        late = scene.call(run_id=run_id, step_id=step_id, key=f"{run_id}/{step_id}")
        assert isinstance(scene.claim(late), Barred)
    assert isinstance(scene.claim(scene.call()), Claimed)


def test_what_is_left_keeps_its_reason_for_as_long_as_it_stands(scene: Scene) -> None:
    tree(scene)
    kept, undone = made(scene, "kept", CHILD), made(scene, "undone")
    with scene.tx() as tx:
        run_tree.note_left(tx, RUN, [kept, undone], "irreversible")
    scene.undone(scene.entry(undone))

    with scene.tx() as tx:
        every = run_tree.effects_of_tree(tx, RUN, newest=3)
        newest = run_tree.effects_of_tree(tx, RUN, newest=2)

    for told in (every, newest):
        remaining = [one.view() for one in told.remaining]
        assert [(view.key, view.reason, view.inside) for view in remaining] == [
            ("kept", "irreversible", "pay")
        ]
        assert told.more_remaining == 0
    assert ([one.entry.key for one in every.made][:1], every.more) == (["kept"], 0)
    # The newest are listed, the others are counted.
    assert ([one.entry.state for one in newest.made], newest.more) == (
        ["compensated", "committed"],
        1,
    )


def test_of_a_tree_those_child_runs_are_open_that_have_not_ended(scene: Scene) -> None:
    tree(scene)

    def open_(run_id: str, step_id: str | None = None) -> list[str]:
        with scene.tx() as tx:
            return run_tree.open_below(tx, run_id, step_id)

    assert (open_(RUN), open_(CHILD)) == ([CHILD, BELOW], [BELOW])
    assert (open_(RUN, "pay"), open_(RUN, "mail")) == ([CHILD, BELOW], [])
    scene.end(CHILD)
    assert open_(RUN) == [BELOW]


def _begin_from(scene: Scene, run_id: str, *steps: str) -> None:
    linked = Linked(run_id=run_id, outputs=dict.fromkeys(steps))
    scene.open_run("fork", linked=linked)


def _undone_from_above(scene: Scene, effect: Entry, *, done: bool) -> None:
    """Undo what a completed child run has made, as whoever undoes its parent."""
    with scene.tx() as tx:
        run_tree.bar_tree(tx, CHILD)
    undo = scene.undo(effect)
    entry = scene.claimed(undo)
    if done:
        scene.commit(undo, entry)


@pytest.mark.parametrize(
    "how",
    [*("undone", "child run's", "child run's, under way", "another run's", "of a list"), "by hand"],
)
def test_a_run_takes_over_no_step_whose_effect_was_undone(scene: Scene, how: str) -> None:
    tree(scene)
    taken = "pay"
    if how == "child run's":
        effect = scene.committed(scene.call(run_id=BELOW, key="below"))
        scene.end(CHILD)
        _undone_from_above(scene, effect, done=True)
    elif how == "child run's, under way":
        effect = scene.committed(scene.call(run_id=BELOW, key="below"))
        scene.end(CHILD)
        _undone_from_above(scene, effect, done=False)
    elif how == "another run's":
        owned = scene.committed(scene.call(run_id=OTHER_RUN))
        scene.claim(scene.call(step_id="pay"))
        scene.undone(owned)
    elif how == "by hand":
        _, question = scene.asked(scene.call(step_id="pay"))
        scene.settle(said(question, "compensated"))
    else:
        scene.compensated(scene.call(step_id="pay[3]" if how == "of a list" else "pay"))

    with pytest.raises(TakesOverUndone, match=f"what step {taken} of run {RUN}"):
        _begin_from(scene, RUN, taken, "mail")

    _begin_from(scene, RUN, "mail")


def test_a_run_takes_over_what_stands_also_where_an_earlier_life_was_undone(scene: Scene) -> None:
    scene.compensated(scene.call(key="first life", step_id="pay"))
    made(scene, "second life", step_id="pay")

    _begin_from(scene, RUN, "pay")


def test_a_run_takes_over_a_child_run_that_has_undone_something_of_its_own(scene: Scene) -> None:
    """An orphan, or a step that has failed: the child run has completed without it."""
    tree(scene)
    scene.compensated(scene.call(run_id=CHILD, key="orphan", step_id="orphan"))
    made(scene, "stands", run_id=CHILD)
    scene.end(CHILD)

    _begin_from(scene, RUN, "pay")


@pytest.mark.parametrize("how", ["its own", "of a list", "child run's", "another run's", "forked"])
def test_a_run_is_told_when_what_it_has_taken_over_is_undone(scene: Scene, how: str) -> None:
    tree(scene)
    pay = "pay[3]" if how == "of a list" else "pay"
    maker = {"child run's": CHILD, "another run's": OTHER_RUN}.get(how, RUN)
    effect = scene.committed(scene.call(run_id=maker, step_id=pay))
    if maker == OTHER_RUN:
        assert isinstance(scene.claim(scene.call(step_id="pay")), Committed)
    _begin_from(scene, RUN, "pay", "mail")
    last = "fork"
    if how == "forked":
        linked = Linked(run_id="fork", outputs={"pay": None})
        scene.open_run("again", linked=linked)
        last = "again"

    scene.undone(effect)

    [asked] = scene.rows(interventions, run_id=last)
    assert (asked["rule"], asked["step_id"]) == ("undone", "pay")
    assert asked["entry_id"] == effect.entry_id
    assert isinstance(scene.claim(scene.call(run_id=last, key="new", step_id="new")), Asked)


def test_an_effect_is_told_with_the_child_runs_that_go_on_with_it(scene: Scene) -> None:
    tree(scene)
    made(scene, "mine")
    made(scene, "unused")
    again = scene.call(run_id=BELOW, step_id="again", key="mine")
    assert isinstance(scene.claim(again), Committed)
    assert isinstance(
        scene.claim(scene.call(run_id=OTHER_RUN, step_id="again", key="unused")), Committed
    )

    with scene.tx() as tx:
        page = run_tree.list_remaining(tx, RUN)
        used = run_tree.used_in(tx, RUN, page.effects)
    assert {one.entry.key: used[one.entry.entry_id] for one in page.effects} == {
        "mine": [CHILD],
        "unused": [],
    }


def test_a_completed_child_run_of_which_something_was_undone_later_is_told(scene: Scene) -> None:
    kept, orphaned = f"{RUN}~kept", f"{RUN}~orphaned"
    for step, child in (("pay", CHILD), ("kept", kept), ("orphaned", orphaned)):
        scene.open_run(child, parent=Parent(run_id=RUN, step_id=step))
        made(scene, f"of {step}", child)
    # Its own undoing of what it did not want is no reason.
    scene.compensated(scene.call(run_id=orphaned, step_id="other", key="other"))
    scene.end(CHILD, kept, orphaned)

    with scene.tx(timedelta(seconds=1)) as tx:
        run_tree.bar_tree(tx, RUN)
        assert run_tree.find_unwound(tx, RUN) == {}
        [entry] = [one.entry for one in (run_tree.list_remaining(tx, CHILD)).effects]
    undo = scene.undo(entry)
    claimed = scene.claimed(undo, timedelta(seconds=2))
    with scene.tx(timedelta(seconds=2)) as tx:
        assert outcomes.commit_effect(tx, undo, claimed, Kept("r-1")) is not None

    with scene.tx() as tx:
        assert run_tree.find_unwound(tx, RUN) == {CHILD: "pay"}


def completes(scene: Scene, saga: Saga, newest: int = 10) -> bool:
    """Have a run complete that knows this of what it has done; returns whether it has."""
    before = scene.rows(runs), scene.events(RUN)
    with scene.tx(timedelta(seconds=5)) as tx:
        state, standing = RunState.COMPLETED, saga.standing_digest()
        asked = CloseRun(tenant=tx.tenant, run_id=RUN, state=state, standing=standing)
        closed = lifecycle.close_run(tx, asked, "first", newest=newest)
    if closed is None:
        assert (scene.rows(runs), scene.events(RUN)) == before
    return closed is not None


def knowing(*effects_: tuple[str, str], children: tuple[str, ...] = ()) -> Saga:
    saga = Saga()
    for step_id, entry_id in effects_:
        saga.note_commit(step_id, entry_id)
    for child in children:
        saga.note_child_end("pay", child, completed=True)
    return saga


@pytest.mark.parametrize("newest", [10, 1], ids=["all told", "one told"])
def test_a_run_completes_on_what_it_knows_and_on_nothing_else(scene: Scene, newest: int) -> None:
    one, two = (("one", made(scene, "one")), ("two", made(scene, "two")))
    kept = ("kept", made(scene, "kept"))
    begun = scene.compensating(scene.call(key="kept-too", step_id="kept-too"))
    with scene.tx() as tx:
        run_tree.note_left(tx, RUN, [kept[1], begun.entry_id], "irreversible")
    scene.compensated(scene.call(key="undone", step_id="undone"))
    given_up = (kept, ("kept-too", begun.entry_id))

    assert not completes(scene, knowing(one, *given_up), newest)
    assert not completes(scene, knowing(one, two, ("x", "ef-x"), *given_up), newest)
    reused = knowing(one, *given_up)
    reused.note_reliance("three", two[1], own=True)
    assert completes(scene, reused, newest)


@pytest.mark.parametrize("newest", [10, 1], ids=["all told", "one told"])
def test_a_run_does_not_complete_on_undone_work(scene: Scene, newest: int) -> None:
    stands = ("stands", made(scene, "stands"))
    undone = scene.compensated(scene.call(key="undone", step_id="undone"))
    assert not completes(scene, knowing(stands, ("undone", undone.entry_id)), newest)

    undoing = scene.compensating(scene.call(key="undoing", step_id="undoing"))
    assert not completes(scene, knowing(stands), newest)
    assert not completes(scene, knowing(stands, ("undoing", undoing.entry_id)), newest)


def test_a_run_completes_after_child_runs_and_beside_known_ones(scene: Scene) -> None:
    tree(scene)
    for name, run_id in (("a", CHILD), ("b", BELOW)):
        made(scene, name, run_id)
    own = ("own", made(scene, "own"))

    assert not completes(scene, knowing(own, children=(CHILD,)))
    scene.end(CHILD)
    assert not completes(scene, knowing(own, children=(CHILD,)))
    scene.end(BELOW)
    assert not completes(scene, knowing(own))
    assert completes(scene, knowing(own, children=(CHILD,)))


def test_a_child_run_undone_later_stops_completion(scene: Scene) -> None:
    scene.open_run(CHILD, parent=Parent(run_id=RUN, step_id="pay"))
    entry = scene.committed(scene.call(run_id=CHILD, key="a", step_id="a"))
    scene.end(CHILD)
    with scene.tx(timedelta(seconds=1)) as tx:
        run_tree.bar_tree(tx, CHILD)
    undo = scene.undo(entry)
    scene.commit(undo, scene.claimed(undo, timedelta(seconds=2)))

    assert not completes(scene, knowing(children=(CHILD,)))
