"""What a human has settled stays settled: for late attempts, and for runs that are over."""

from __future__ import annotations

import pytest

from activities.attempt import Attempt, Resources
from activities.compensation import CompensationActivities
from activities.crashpoints import Crash
from activities.ledger import compensations, outcomes, runs
from activities.ledger.audit import verify_chain, verify_entries, verify_story
from activities.ledger.entries import Barred, Committed, Entry
from activities.ledger.questions import open_intervention
from activities.ledger.reads import chain_of
from activities.ledger.tables import effects, interventions
from activities.toolbox import Toolbox, Undo
from tests.ledger.attempts import Provider
from tests.ledger.scene import LEASE, OTHER_RUN, RUN, STEP, Scene
from workflows.contracts import (
    CloseRun,
    Compensate,
    CompensationOutcome,
    Resolution,
    ResolutionOutcome,
    RunState,
)

ANSWERS = [ResolutionOutcome.COMPENSATED, ResolutionOutcome.GIVE_UP]


def answer(intervention_id: str, outcome: ResolutionOutcome) -> Resolution:
    return Resolution(
        intervention_id=intervention_id, outcome=outcome, actor="ann", evidence="bank statement"
    )


async def asked_to_undo(scene: Scene) -> tuple[Entry, str]:
    """An effect whose undoing has failed for good, and the question about it."""
    entry = await scene.committed(scene.call())
    await scene.begin_undo()
    undo = scene.undo(entry)
    claimed = await scene.claimed(undo)
    async with scene.tx() as tx:
        await outcomes.fail(tx, undo, claimed, "permanent", "refused", delay=None)
    async with scene.tx() as tx:
        question = await compensations.failed(tx, entry, "Undo it by hand?")
    assert question is not None
    return entry, question


async def close(scene: Scene, run_id: str = RUN) -> None:
    async with scene.tx() as tx:
        closing = CloseRun(tenant=scene.tenant, run_id=run_id, state=RunState.CANCELLED)
        await runs.close_run(tx, closing)


async def audited(scene: Scene, run_id: str) -> None:
    events, entries, head = await chain_of(scene.ledger, scene.tenant, run_id)
    assert verify_chain(events, [head]) is None
    assert verify_story(events) is None
    assert verify_entries(events, entries) is None


@pytest.mark.parametrize("outcome", ANSWERS)
async def test_a_late_undo_of_what_a_human_has_settled_is_barred(
    scene: Scene, outcome: ResolutionOutcome
) -> None:
    entry, question = await asked_to_undo(scene)
    assert (await scene.settle(answer(question, outcome)))[0]
    before = await scene.rows(effects)

    late = await scene.claim(scene.undo(entry, attempt=9))

    assert isinstance(late, Barred)
    assert await scene.rows(effects) == before


async def test_a_late_undo_is_barred_while_a_human_is_asked_who_may_be_doing_it(
    scene: Scene,
) -> None:
    entry, _ = await asked_to_undo(scene)

    assert isinstance(await scene.claim(scene.undo(entry, attempt=9)), Barred)


@pytest.mark.parametrize(
    ("outcome", "reported"),
    [
        (ResolutionOutcome.COMPENSATED, CompensationOutcome.NOTHING_TO_UNDO),
        (ResolutionOutcome.GIVE_UP, CompensationOutcome.UNCOMPENSATED),
        (None, CompensationOutcome.HUMAN_NEEDED),
    ],
)
async def test_a_late_undo_asks_nothing_that_is_settled_or_asked_already(
    scene: Scene, outcome: ResolutionOutcome | None, reported: CompensationOutcome
) -> None:
    undone = Provider([{"id": "u-1"}])
    undo = Undo("payments.charge", params=lambda params, receipt: {})
    loaded = Provider([{}]).tool(recovery="human", compensate=undo)
    charge = undone.tool(recovery="human", name="payments.charge")
    entry, question = await asked_to_undo(scene)
    if outcome is not None:
        await scene.settle(answer(question, outcome))
    before = await scene.rows(interventions)
    resources = Resources(
        scene.ledger, Toolbox([loaded, charge]), scene.artifacts, Crash(), LEASE, LEASE / 3
    )
    asked = Compensate(
        tenant=scene.tenant, run_id=RUN, step_id=STEP, entry_id=entry.entry_id, user="ada"
    )
    late = Attempt(number=9, activity_key="undo", holder="undo:9:x")

    report = await CompensationActivities(resources)._undo(asked, late, entry)

    assert report.outcome is reported
    assert undone.keys == []
    assert await scene.rows(interventions) == before


async def test_what_a_closed_run_has_left_open_is_settled_through_another_run(
    scene: Scene,
) -> None:
    entry, question = await scene.asked(scene.call())
    await scene.open_run(OTHER_RUN)
    answered = answer(question, ResolutionOutcome.HAPPENED)
    accepted, why = await scene.settle(answered, OTHER_RUN)
    assert not accepted and "no intervention" in why  # its own run is there to do it

    await close(scene)
    assert (await scene.settle(answered, OTHER_RUN, "#r2"))[0]

    row = await scene.entry(entry.entry_id)
    assert row.state == "committed"
    assert isinstance(await scene.claim(scene.call(run_id=OTHER_RUN)), Committed)
    [event] = await scene.events(RUN, "intervention.settled")
    assert event["body"]["action"] == "committed" and row.commit_no is not None
    assert event["body"]["through"] == OTHER_RUN
    for run_id in (RUN, OTHER_RUN):
        await audited(scene, run_id)


async def test_the_other_run_may_be_any_of_the_tenant_and_of_no_other(
    scene: Scene, other: Scene
) -> None:
    _, question = await scene.asked(scene.call())
    await close(scene)
    await other.open_run(OTHER_RUN)

    accepted, _ = await other.settle(answer(question, ResolutionOutcome.HAPPENED), OTHER_RUN)

    assert not accepted
    assert (await scene.row(interventions))["state"] == "open"


async def test_a_late_attempt_whose_undo_failed_asks_nobody_about_what_is_undone(
    scene: Scene,
) -> None:
    entry = await scene.compensated(scene.call())

    async with scene.tx() as tx:
        assert await compensations.failed(tx, entry, "refused") is None

    assert await scene.rows(interventions) == []


@pytest.mark.parametrize("late", ["committed", "failed", "compensated"])
async def test_a_question_about_what_was_settled_meanwhile_can_be_closed(
    scene: Scene, late: str
) -> None:
    made = {"committed": scene.committed, "failed": scene.failed, "compensated": scene.compensated}
    entry = await made[late](scene.call())
    async with scene.tx() as tx:
        question = await open_intervention(tx, entry, "Did it?", rule="unknown")
    agreed = {"committed": "happened", "failed": "not_happened", "compensated": "compensated"}[late]

    for outcome in ResolutionOutcome:
        accepted, _ = await scene.settle(answer(question, outcome), resolution_id=outcome)
        assert accepted is (outcome == agreed)
        if accepted:
            break
    assert await scene.entry(entry.entry_id) == entry
    await audited(scene, RUN)
