"""G4: a run that relies on another one's effect is told when that is undone."""

from __future__ import annotations

import pytest

from activities.ledger import compensations, runs
from activities.ledger.entries import Asked, Claimed, Committed, Entry
from activities.ledger.tables import interventions
from tests.ledger.scene import OTHER_RUN, RUN, Scene
from workflows.contracts import CloseRun, Resolution, ResolutionOutcome, RunState


@pytest.fixture
async def relying(scene: Scene) -> Scene:
    """Run 1 has committed an effect, run 2 has replayed it."""
    await scene.open_run(OTHER_RUN)
    await scene.committed(scene.call())
    assert isinstance(await scene.claim(scene.call(run_id=OTHER_RUN)), Committed)
    return scene


async def undo(scene: Scene) -> None:
    begun = await scene.begin_undo()
    request = scene.undo(begun.entry)  # type: ignore[union-attr]
    await scene.commit(request, await scene.claimed(request))


async def undo_failed(scene: Scene, original: Entry) -> str:
    async with scene.tx() as tx:
        question = await compensations.failed(tx, original, "undoing it failed")
    assert question is not None
    return question


async def end(scene: Scene, run_id: str) -> None:
    async with scene.tx() as tx:
        ended = CloseRun(tenant=scene.tenant, run_id=run_id, state=RunState.COMPLETED)
        await runs.close_run(tx, ended)


def noted(intervention_id: str, outcome: ResolutionOutcome) -> Resolution:
    return Resolution(intervention_id=intervention_id, outcome=outcome, actor="ann")


async def test_undoing_opens_an_intervention_in_the_run_that_has_replayed_it(
    relying: Scene,
) -> None:
    await undo(relying)

    row = await relying.row(interventions)
    assert (row["run_id"], row["rule"], row["state"]) == (OTHER_RUN, "undone", "open")
    assert f"run {RUN} has undone the effect" in row["question"]
    [event] = await relying.events(OTHER_RUN, "intervention.opened")
    assert event["body"]["rule"] == "undone"


async def test_a_run_that_was_told_makes_no_effect_before_a_human_has_taken_note(
    relying: Scene,
) -> None:
    await undo(relying)
    mail = relying.call(run_id=OTHER_RUN, step_id="mail", key="mail")

    asked = await relying.claim(mail)

    assert isinstance(asked, Asked)
    note = noted(asked.intervention_id, ResolutionOutcome.COMPENSATED)
    assert await relying.settle(note, OTHER_RUN) == (True, "settled: compensated")
    assert isinstance(await relying.claim(mail), Claimed)


@pytest.mark.parametrize(
    "outcome", [one for one in ResolutionOutcome if one is not ResolutionOutcome.COMPENSATED]
)
async def test_nothing_but_taking_note_settles_it(
    relying: Scene, outcome: ResolutionOutcome
) -> None:
    await undo(relying)
    [row] = await relying.rows(interventions)
    told = noted(row["intervention_id"], outcome).model_copy(update={"evidence": "x"})

    accepted, message = await relying.settle(told, OTHER_RUN)

    assert not accepted and "compensated" in message


async def test_what_a_human_has_undone_by_hand_is_told_too(relying: Scene) -> None:
    begun = await relying.begin_undo()
    request = relying.undo(begun.entry)  # type: ignore[union-attr]
    await relying.claimed(request)
    original = await relying.entry(request.undoes or "")
    question = await undo_failed(relying, original)

    done = noted(question, ResolutionOutcome.COMPENSATED)
    assert (await relying.settle(done))[0]

    told = await relying.rows(interventions, run_id=OTHER_RUN)
    assert [row["rule"] for row in told] == ["undone"]


async def test_a_run_that_has_ended_is_told_nothing(relying: Scene) -> None:
    await end(relying, OTHER_RUN)

    await undo(relying)

    assert await relying.rows(interventions) == []


async def test_the_owner_is_told_nothing_of_its_own_undoing(scene: Scene) -> None:
    await scene.committed(scene.call())
    assert isinstance(await scene.claim(scene.call(attempt=2)), Committed)

    await undo(scene)

    assert await scene.rows(interventions) == []
