"""G4: a step that is undone stays undone, and its effect is undone once."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from activities.ledger import compensations, lookups, outcomes, overdue, run_tree
from activities.ledger.artifacts import Kept
from activities.ledger.compensations import GivenUp, NothingToUndo, ToUndo
from activities.ledger.entries import (
    Asked,
    Barred,
    Claimed,
    Committed,
    Doubtful,
    Held,
    Mismatch,
    entry_id_for,
)
from activities.ledger.tables import bars, effects, interventions
from tests.ledger.scene import AT_ONCE, LEASE, LEASE_OVER, NOW, OTHER_RUN, RUN, STEP, WINDOW, Scene
from workflows.contracts import Recovery, Resolution, ResolutionOutcome
from workflows.identity import forward_key, step_key


async def test_undoing_what_never_happened_is_recorded_and_bars_a_late_attempt(
    scene: Scene,
) -> None:
    assert isinstance(await scene.begin_undo(), NothingToUndo)

    assert isinstance(await scene.claim(scene.call()), Barred)

    assert await scene.rows(effects) == []
    bar = await scene.row(bars)
    assert (bar["run_id"], bar["step_id"]) == (RUN, STEP)
    types = [event["type"] for event in await scene.events()][-2:]
    assert types == ["step.barred", "effect.refused"]


async def test_a_bar_is_written_once_however_often_the_undoing_begins(scene: Scene) -> None:
    first = await scene.begin_undo()
    row = await scene.row(bars)

    assert await scene.begin_undo() == first

    assert await scene.row(bars) == row
    assert len(await scene.events(type_="step.barred")) == 1


async def test_a_bar_binds_its_step_and_not_the_business_key(scene: Scene) -> None:
    await scene.open_run(OTHER_RUN)
    await scene.begin_undo()

    assert isinstance(await scene.claim(scene.call(key="another key")), Barred)
    assert isinstance(await scene.claim(scene.call(run_id=OTHER_RUN)), Claimed)


@pytest.mark.parametrize("recovery", list(Recovery))
async def test_a_bar_keeps_a_failed_or_doubtful_entry_from_being_called_again(
    scene: Scene, recovery: Recovery
) -> None:
    how = {"recovery": recovery, "window": WINDOW}
    await scene.failed(scene.call(**how))
    doubted = scene.call(**how, step_id="doubted", key="doubted")
    await scene.in_doubt(doubted)
    for step in (STEP, "doubted"):
        await scene.begin_undo(step_id=step)

    assert isinstance(await scene.claim(scene.call(**how, attempt=2)), Barred)
    later = await scene.claim(replace(doubted, attempt=2, holder="later"))
    # Where nothing but a question could settle it, the late attempt may ask; it may not call.
    by_calling = recovery in (Recovery.DEDUPES, Recovery.TRANSACTIONAL)
    assert isinstance(later, Barred if by_calling else Doubtful)
    assert [row["calls"] for row in await scene.rows(effects)] == [1, 1]


async def test_a_committed_effect_is_what_there_is_to_undo(scene: Scene) -> None:
    committed = await scene.committed(scene.call())

    assert await scene.begin_undo() == ToUndo(committed)


async def test_the_claim_of_an_undo_marks_its_original_and_keeps_the_key_from_others(
    scene: Scene,
) -> None:
    committed = await scene.committed(scene.call())
    await scene.begin_undo()

    undoing = await scene.claimed(scene.undo(committed))

    assert undoing.undoes == committed.entry_id
    assert (await scene.entry(committed.entry_id)).state == "compensating"
    assert isinstance(await scene.begin_undo(), ToUndo)


async def test_the_commit_of_an_undo_marks_its_original_in_the_same_transaction(
    scene: Scene,
) -> None:
    committed = await scene.committed(scene.call())
    undo = scene.undo(committed)
    undoing = await scene.claimed(undo)

    with pytest.raises(ZeroDivisionError):
        async with scene.tx() as tx:
            assert await outcomes.commit(tx, undo, undoing, Kept("u-1")) is not None
            raise ZeroDivisionError
    states = {row["state"] for row in await scene.rows(effects)}
    assert states == {"compensating", "claimed"}

    await scene.commit(undo, undoing, "u-1")
    original = await scene.row(effects, entry_id=committed.entry_id)
    assert (original["state"], original["receipt"]) == ("compensated", "r-1")
    assert (await scene.entry(undoing.entry_id)).state == "committed"
    compensated, *_ = await scene.events(type_="effect.compensated")
    by = {"tool": undoing.tool, "by": undoing.entry_id}
    assert compensated["body"] == {"entry_id": committed.entry_id, **by}
    _, committed_undo = await scene.events(type_="effect.committed")
    assert compensated["seq"] == committed_undo["seq"] + 1


async def test_an_effect_is_undone_once_however_often_its_undoing_is_asked_for(
    scene: Scene,
) -> None:
    compensated = await scene.compensated(scene.call())

    assert await scene.begin_undo() == NothingToUndo("already undone")
    again = await scene.claim(scene.undo(compensated))

    assert isinstance(again, Committed)
    assert (await scene.row(effects, undoes=compensated.entry_id))["calls"] == 1


async def test_an_undo_needs_no_approval_and_is_not_barred_by_the_bar_of_its_step(
    scene: Scene,
) -> None:
    committed = await scene.committed(await scene.approved(scene.call()))
    await scene.begin_undo()

    assert isinstance(await scene.claim(scene.undo(committed)), Claimed)


async def test_an_attempt_under_way_is_waited_for_before_its_step_is_undone(scene: Scene) -> None:
    entry = await scene.claimed(scene.call())

    found = await scene.begin_undo()

    assert isinstance(found, Held)
    assert timedelta(0) < found.wait <= LEASE
    assert await scene.entry(entry.entry_id) == entry


@pytest.mark.parametrize("made", [Scene.claimed, Scene.in_doubt])
async def test_what_is_in_doubt_is_settled_first_and_an_older_attempt_is_fenced_out(
    scene: Scene, made: object
) -> None:
    request = scene.call()
    entry = await made(scene, request)  # type: ignore[operator]

    found = await scene.begin_undo(after=LEASE_OVER)

    assert isinstance(found, Doubtful)
    assert found.entry.fencing_token == entry.fencing_token + 1
    async with scene.tx() as tx:
        assert await outcomes.commit(tx, request, entry, Kept("late")) is None


@pytest.mark.parametrize("made", [Scene.failed, Scene.answered_no, Scene.compensated])
async def test_what_did_not_happen_or_is_undone_leaves_nothing_to_undo(
    scene: Scene, made: object
) -> None:
    await made(scene, scene.call())  # type: ignore[operator]

    assert isinstance(await scene.begin_undo(), NothingToUndo)


async def test_a_run_that_only_replayed_an_effect_does_not_undo_it(scene: Scene) -> None:
    committed = await scene.committed(scene.call())
    await scene.open_run(OTHER_RUN)
    assert await scene.claim(scene.call(run_id=OTHER_RUN)) == Committed(committed)

    assert isinstance(await scene.begin_undo(OTHER_RUN), NothingToUndo)

    assert await scene.entry(committed.entry_id) == committed


async def test_the_run_that_took_an_entry_over_is_the_one_that_undoes_it(scene: Scene) -> None:
    await scene.failed(scene.call())
    await scene.open_run(OTHER_RUN)
    await scene.committed(scene.call(run_id=OTHER_RUN))

    assert isinstance(await scene.begin_undo(RUN), NothingToUndo)
    assert isinstance(await scene.begin_undo(OTHER_RUN), ToUndo)


async def test_commits_are_numbered_in_the_order_in_which_they_happened(scene: Scene) -> None:
    requests = [scene.call(step_id=f"step-{n}", key=f"key-{n}") for n in range(4)]
    entries = [await scene.claimed(request) for request in requests]

    seqs = {n: await scene.commit(requests[n], entries[n]) for n in (2, 0, 3, 1)}

    assert sorted(seqs, key=lambda n: seqs[n]) == [2, 0, 3, 1]
    stored = {row["step_id"]: row["commit_no"] for row in await scene.rows(effects)}
    assert stored == {f"step-{n}": seq for n, seq in seqs.items()}


async def test_a_failed_undo_is_put_in_front_of_a_human_once_and_keeps_the_key(
    scene: Scene,
) -> None:
    committed = await scene.committed(scene.call())
    async with scene.tx() as tx:
        first = await compensations.failed(tx, committed, "the bank says no")
    async with scene.tx() as tx:
        assert await compensations.failed(tx, committed, "again") == first

    original = await scene.entry(committed.entry_id)
    assert original.state == "compensating"
    assert await scene.begin_undo() == Asked(original, first, "the bank says no")
    assert len(await scene.rows(interventions)) == 1
    assert len(await scene.events(type_="intervention.opened")) == 1


async def test_an_effect_whose_undoing_a_human_gave_up_stands(scene: Scene) -> None:
    committed = await scene.committed(scene.call())
    async with scene.tx() as tx:
        intervention = await compensations.failed(tx, committed, "the bank says no")
    outcome = ResolutionOutcome.GIVE_UP
    resolution = Resolution(
        intervention_id=intervention, outcome=outcome, actor="olga", evidence="too late"
    )
    await scene.settle(resolution)

    assert await scene.begin_undo() == GivenUp("olga left it as it is: too late")

    assert (await scene.entry(committed.entry_id)).state == "committed"


@pytest.mark.parametrize("params", [{"refund": "r-1"}, {"refund": "r-1", "note": "newer code"}])
async def test_an_undo_that_failed_is_claimed_again_also_with_other_params(
    scene: Scene, params: dict[str, str]
) -> None:
    committed = await scene.committed(scene.call())
    await scene.failed(scene.undo(committed))

    again = scene.undo(committed, params=params, attempt=2)
    await scene.commit(again, await scene.claimed(again))

    assert (await scene.entry(committed.entry_id)).state == "compensated"


async def test_a_forward_call_never_meets_an_undo(scene: Scene) -> None:
    """A run called ``undo`` has a step that is called like the entry to come."""
    entry_id = entry_id_for(scene.tenant, "payments.refund", "refund:order-1001", 1)
    await scene.open_run("undo")
    key = forward_key(step_key("undo", entry_id))
    early = scene.call(
        run_id="undo", step_id=entry_id, tool="payments.charge", key=key, params={"refund": "r-1"}
    )
    await scene.committed(early)
    committed = await scene.committed(scene.call())

    undo = scene.undo(committed)
    assert (committed.entry_id, undo.key) == (entry_id, f"undo:{entry_id}")
    await scene.commit(undo, await scene.claimed(undo))

    assert (await scene.entry(entry_id)).state == "compensated"


@pytest.mark.parametrize("settled", [True, False])
async def test_a_claim_that_undoes_something_else_is_a_mismatch(
    scene: Scene, settled: bool
) -> None:
    committed = await scene.committed(scene.call())
    undo = scene.undo(committed)
    entry = await scene.claimed(undo)
    if settled:
        await scene.commit(undo, entry)

    for undoes in (None, "ef-another"):
        found = await scene.claim(scene.undo(committed, undoes=undoes, attempt=2))
        assert isinstance(found, Mismatch), found
    assert (await scene.entry(entry.entry_id)).fencing_token == entry.fencing_token


async def test_an_undo_in_doubt_is_reconciled_like_any_other_write(scene: Scene) -> None:
    committed = await scene.committed(scene.call())
    await scene.in_doubt(scene.undo(committed))

    found = await scene.claim(scene.undo(committed, attempt=2))
    assert isinstance(found, Doubtful)
    async with scene.tx(after=WINDOW) as tx:
        again = await lookups.after_not_found(
            tx, scene.undo(committed, attempt=2), found.entry, forward=True
        )

    assert isinstance(again, Claimed)
    assert again.entry.undoes == committed.entry_id


async def test_a_step_of_a_run_that_is_undone_does_not_wait_for_the_end_of_its_undoing(
    scene: Scene,
) -> None:
    entry = await scene.compensating(scene.call())
    assert isinstance(await scene.claim(scene.call()), Held)

    async with scene.tx() as tx:
        await run_tree.bar(tx, RUN)

    # Its run was reset: nobody else undoes it but this life, once the step has ended.
    assert isinstance(await scene.claim(scene.call()), Barred)
    assert isinstance(await scene.begin_undo(), ToUndo)
    assert (await scene.entry(entry.entry_id)).state == "compensating"


async def test_what_others_have_settled_since_an_undoing_looked_is_not_reported_as_nothing(
    scene: Scene,
) -> None:
    call = scene.call(timeout=NOW, settle=AT_ONCE)
    await scene.in_doubt(call)
    doubted = await scene.begin_undo()
    assert isinstance(doubted, Doubtful)
    # The sweep has looked, too, and has found it.
    async with scene.tx() as tx:
        swept = await overdue.take_over(tx, doubted.entry)
    assert swept is not None
    await scene.commit(call, swept)

    async with scene.tx(LEASE_OVER) as tx:
        found = await lookups.after_not_found(tx, call, doubted.entry, forward=False)

    assert isinstance(found, Held)
    assert isinstance(await scene.begin_undo(), ToUndo)
