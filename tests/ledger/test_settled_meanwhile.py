"""What a human has settled stays settled: for late attempts, and for runs that are over."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from surehand.activities.effects.compensation import CompensationActivities
from surehand.activities.ledger.core.tables import effects, interventions
from surehand.activities.ledger.effects import compensations, outcomes
from surehand.activities.ledger.effects.interventions import open_intervention
from surehand.activities.ledger.history.audit import (
    verify_chain,
    verify_entries,
    verify_story,
)
from surehand.activities.ledger.history.reads import chain_of
from surehand.activities.ledger.runs import lifecycle
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.entries import Barred, Committed, Entry, Held
from surehand.activities.tools.tool import Undo
from surehand.activities.tools.toolbox import Toolbox
from surehand.activities.worker.attempt import Attempt
from surehand.activities.worker.context import WorkerContext
from surehand.activities.worker.crash_points import Crash
from surehand.workflows.contracts.effects import (
    Compensate,
    CompensationOutcome,
    Resolution,
    ResolutionOutcome,
)
from surehand.workflows.contracts.runs import CloseRun
from surehand.workflows.contracts.states import RunState
from tests.ledger.attempts import Provider
from tests.ledger.scene import LEASE, LEASE_OVER, OTHER_RUN, RUN, STEP, Scene

ANSWERS = [ResolutionOutcome.COMPENSATED, ResolutionOutcome.GIVE_UP]


def answer(intervention_id: str, outcome: ResolutionOutcome) -> Resolution:
    return Resolution(
        intervention_id=intervention_id, outcome=outcome, actor="ann", evidence="bank statement"
    )


def asked_to_undo(scene: Scene) -> tuple[Entry, str]:
    """An effect whose undoing has failed for good, and the question about it."""
    entry = scene.committed(scene.call())
    scene.begin_undo()
    undo = scene.undo(entry)
    claimed = scene.claimed(undo)
    with scene.tx() as tx:
        outcomes.fail(tx, undo, claimed, "permanent", "refused", delay=None)
    with scene.tx() as tx:
        question = compensations.failed(tx, entry, "Undo it by hand?")
    assert question is not None
    return entry, question


def close(scene: Scene, run_id: str = RUN) -> None:
    with scene.tx() as tx:
        closing = CloseRun(tenant=scene.tenant, run_id=run_id, state=RunState.CANCELLED)
        lifecycle.close_run(tx, closing)


async def audited(scene: Scene, run_id: str) -> None:
    events, entries, head = await scene.ledger.transact(scene.tenant, chain_of, run_id)
    assert verify_chain(events, [head]) is None
    assert verify_story(events) is None
    assert verify_entries(events, entries) is None


@pytest.mark.parametrize("outcome", ANSWERS)
def test_a_late_undo_of_what_a_human_has_settled_is_barred(
    scene: Scene, outcome: ResolutionOutcome
) -> None:
    entry, question = asked_to_undo(scene)
    assert (scene.settle(answer(question, outcome)))[0]
    before = scene.rows(effects)

    late = scene.claim(scene.undo(entry, attempt=9))

    assert isinstance(late, Barred)
    assert scene.rows(effects) == before


def test_a_late_undo_is_barred_while_a_human_is_asked_who_may_be_doing_it(
    scene: Scene,
) -> None:
    entry, _ = asked_to_undo(scene)

    assert isinstance(scene.claim(scene.undo(entry, attempt=9)), Barred)


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
    entry, question = asked_to_undo(scene)
    if outcome is not None:
        scene.settle(answer(question, outcome))
    before = scene.rows(interventions)
    context = WorkerContext(
        scene.ledger, Toolbox([loaded, charge]), scene.artifacts, Crash(), LEASE, LEASE / 3
    )
    asked = Compensate(
        tenant=scene.tenant, run_id=RUN, step_id=STEP, entry_id=entry.entry_id, user="ada"
    )
    late = Attempt(number=9, activity_key="undo", holder="undo:9:x")

    report = await CompensationActivities(context)._undo(asked, late, entry)

    assert report.outcome is reported
    assert undone.keys == []
    assert scene.rows(interventions) == before


async def test_what_a_closed_run_has_left_open_is_settled_through_another_run(
    scene: Scene,
) -> None:
    entry, question = scene.asked(scene.call())
    scene.open_run(OTHER_RUN)
    answered = answer(question, ResolutionOutcome.HAPPENED)
    accepted, why = scene.settle(answered, OTHER_RUN)
    assert not accepted and "no intervention" in why  # its own run is there to do it

    close(scene)
    assert (scene.settle(answered, OTHER_RUN, "#r2"))[0]

    row = scene.entry(entry.entry_id)
    assert row.state == "committed"
    assert isinstance(scene.claim(scene.call(run_id=OTHER_RUN)), Committed)
    [event] = scene.events(RUN, "intervention.settled")
    assert event["body"]["action"] == "committed" and row.commit_no is not None
    assert event["body"]["through"] == OTHER_RUN
    for run_id in (RUN, OTHER_RUN):
        await audited(scene, run_id)


def test_the_other_run_may_be_any_of_the_tenant_and_of_no_other(scene: Scene, other: Scene) -> None:
    _, question = scene.asked(scene.call())
    close(scene)
    other.open_run(OTHER_RUN)

    accepted, _ = other.settle(answer(question, ResolutionOutcome.HAPPENED), OTHER_RUN)

    assert not accepted
    assert (scene.row(interventions))["state"] == "open"


def test_a_late_attempt_whose_undo_failed_asks_nobody_about_what_is_undone(
    scene: Scene,
) -> None:
    entry = scene.compensated(scene.call())

    with scene.tx() as tx:
        assert compensations.failed(tx, entry, "refused") is None

    assert scene.rows(interventions) == []


def doubtful_undo(scene: Scene) -> tuple[Entry, Entry]:
    """An effect whose undoing is in doubt, and that undoing."""
    entry = scene.committed(scene.call())
    scene.begin_undo()
    undo = scene.undo(entry)
    claimed = scene.claimed(undo)
    with scene.tx() as tx:
        assert outcomes.leave_in_doubt(tx, undo, claimed, "cut off") is not None
    return scene.entry(entry.entry_id), scene.entry(claimed.entry_id)


def test_nobody_is_asked_to_undo_by_hand_what_may_be_being_undone(scene: Scene) -> None:
    original = scene.compensating(scene.call())

    with scene.tx() as tx:
        assert isinstance(compensations.failed(tx, original, "refused"), Held)

    assert scene.rows(interventions) == []


@pytest.mark.parametrize("how", ["in doubt", "asked", "given up", "lease over"])
def test_of_an_undoing_in_doubt_a_human_is_asked_before_its_effect(scene: Scene, how: str) -> None:
    if how == "lease over":
        original = scene.compensating(scene.call())
        [row] = scene.rows(effects, undoes=original.entry_id)
        undo = Entry.from_row(row)
    else:
        original, undo = doubtful_undo(scene)
    if how in ("asked", "given up"):
        with scene.tx() as tx:
            first = outcomes.ask_human(tx, undo, "Did the undoing happen?")
        assert first is not None
        if how == "given up":
            assert scene.settle(answer(first, ResolutionOutcome.GIVE_UP))[0]

    with scene.tx(LEASE_OVER) as tx:
        asked = compensations.failed(tx, original, "refused")

    [question] = scene.rows(interventions, state="open")
    about = original if how == "given up" else undo
    assert (question["intervention_id"], question["entry_id"]) == (asked, about.entry_id)


async def test_an_effect_that_is_undone_after_a_human_has_left_it_is_on_record_as_undone(
    scene: Scene,
) -> None:
    original, question = asked_to_undo(scene)
    undo = scene.undo(original)
    [late] = scene.rows(effects, undoes=original.entry_id)
    assert scene.settle(answer(question, ResolutionOutcome.GIVE_UP))[0]
    with scene.tx() as tx:
        resumed = Entry.from_row({**late, "state": "in_doubt"})
        tx.execute(
            update(effects)
            .where(effects.c.tenant_id == tx.tenant, effects.c.entry_id == resumed.entry_id)
            .values(state="in_doubt")
        )
        assert outcomes.commit(tx, undo, resumed, Kept({"id": "u-1"})) is not None

    assert scene.entry(original.entry_id).state == "compensated"
    events, entries, _ = await scene.ledger.transact(scene.tenant, chain_of, RUN)
    assert verify_entries(events, entries) is None


@pytest.mark.parametrize("late", ["committed", "failed", "compensated"])
async def test_a_question_about_what_was_settled_meanwhile_can_be_closed(
    scene: Scene, late: str
) -> None:
    made = {"committed": scene.committed, "failed": scene.failed, "compensated": scene.compensated}
    entry = made[late](scene.call())
    with scene.tx() as tx:
        question = open_intervention(tx, entry, "Did it?", rule="unknown")
    agreed = {"committed": "happened", "failed": "not_happened", "compensated": "compensated"}[late]

    for outcome in ResolutionOutcome:
        accepted, _ = scene.settle(answer(question, outcome), resolution_id=outcome)
        assert accepted is (outcome == agreed)
        if accepted:
            break
    assert scene.entry(entry.entry_id) == entry
    await audited(scene, RUN)
