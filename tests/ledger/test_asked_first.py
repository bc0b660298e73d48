"""G2: who is asked about an effect in doubt, in which order; what was settled stays settled."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update

from surehand.activities.effects.compensation import UndoAttempt
from surehand.activities.effects.reconcile import settle_stale
from surehand.activities.ledger.core.tables import effects, interventions
from surehand.activities.ledger.effects import compensations, outcomes
from surehand.activities.ledger.effects.interventions import open_intervention
from surehand.activities.ledger.history.audit import verify_chain, verify_entries, verify_story
from surehand.activities.ledger.history.reads import chain_of
from surehand.activities.ledger.history.run_display import Doubt, read_doubts
from surehand.activities.ledger.runs import lifecycle
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.entries import Barred, Committed, Entry, Held
from surehand.activities.tools.tool import Found, No, NotFound, ToolContext, Undo
from surehand.activities.tools.toolbox import Toolbox
from surehand.activities.worker.context import Attempt, WorkerContext
from surehand.activities.worker.crash_points import Crash
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.effects import (
    Compensate,
    CompensationOutcome,
    Resolution,
    ResolutionOutcome,
)
from surehand.workflows.contracts.runs import CloseRun
from tests.ledger.attempts import Payment, Provider
from tests.ledger.scene import (
    AT_ONCE,
    LEASE,
    LEASE_OVER,
    NOW,
    OTHER_RUN,
    RUN,
    SETTLED,
    SPEC,
    STEP,
    Scene,
)

#: What a lookup says, and what becomes of the effect.
ANSWERS = [(Found("r-1"), "committed"), (NotFound(), "failed"), (No("closed"), "failed")]


class Asked(Provider):
    """An outside system that is asked what has happened."""

    def __init__(self, said: Any) -> None:
        super().__init__([AssertionError("nothing is called")])
        self.said = said
        self.lookups = 0

    async def look(self, params: Payment, ctx: ToolContext) -> Any:
        """Say what has happened."""
        self.lookups += 1
        return self.said

    def context(self, scene: Scene) -> WorkerContext:
        tools = Toolbox([self.tool(lookup=self.look, settle=AT_ONCE)])
        return WorkerContext(scene.ledger, tools, scene.artifacts, Crash(), LEASE, LEASE / 3)


async def ended(run_id: str) -> bool:
    return False


@pytest.mark.parametrize(("said", "state"), ANSWERS)
async def test_a_round_asks_the_lookup_and_no_human(scene: Scene, said: Any, state: str) -> None:
    provider, quiet = Asked(said), -timedelta(seconds=1)
    scene.in_doubt(scene.call(timeout=NOW, settle=AT_ONCE))

    done = await settle_stale(provider.context(scene), scene.tenant, ended, quiet=quiet, limit=10)

    assert (done.looked_at, done.asked, provider.lookups) == (1, 0, 1)
    assert (scene.row(effects))["state"] == state
    assert scene.rows(interventions) == []


@pytest.mark.parametrize(("said", "state"), ANSWERS)
async def test_an_undoing_asks_the_lookup_and_no_human(scene: Scene, said: Any, state: str) -> None:
    provider = Asked(said)
    entry = scene.in_doubt(scene.call(timeout=NOW, settle=AT_ONCE))
    asked = Compensate(
        tenant=scene.tenant, run_id=RUN, step_id=STEP, entry_id=entry.entry_id, user="ada"
    )

    await UndoAttempt(provider.context(scene), asked, Attempt(1, "undo", "undo:1")).run()

    assert provider.lookups == 1
    assert (scene.row(effects))["state"] == state
    assert scene.rows(interventions) == []


def given(scene: Scene, state: str) -> tuple[Entry, str]:
    """Return an entry in a state that asks a human, and its intervention's id."""
    if state != "compensating":
        return scene.asked(scene.call(), partial=state == "partial")
    committed = scene.committed(scene.call())
    with scene.tx() as tx:
        intervention = compensations.ask_about_undo(tx, committed, "the bank says no")
    assert isinstance(intervention, str)
    return scene.entry(committed.entry_id), intervention


def looked_at(scene: Scene, intervention: str, after: timedelta = NOW, run_id: str = RUN) -> Doubt:
    with scene.tx(after) as tx:
        return read_doubts(tx, run_id, [intervention])[intervention]


@pytest.mark.parametrize("state", ["in_doubt", "partial", "compensating"])
@pytest.mark.parametrize("outcome", list(ResolutionOutcome))
def test_offered_answers_are_taken(scene: Scene, state: str, outcome: ResolutionOutcome) -> None:
    _, intervention = given(scene, state)
    offered = looked_at(scene, intervention, SETTLED)

    said = Resolution(
        intervention_id=intervention, outcome=outcome, evidence="bank statement", actor="olga"
    )
    accepted, _ = scene.settle(said)

    assert (outcome in offered.outcomes, offered.later) == (accepted, ())
    settled = looked_at(scene, intervention, SETTLED)
    assert (settled.outcomes == ()) == accepted


def test_what_rules_a_call_out_is_offered_later_while_the_call_may_arrive(scene: Scene) -> None:
    _, intervention = given(scene, "in_doubt")
    early = looked_at(scene, intervention)
    assert set(early.later) == {"not_happened", "call_off", "compensated"}
    assert 0 < early.left_ms <= SETTLED.total_seconds() * 1000
    for outcome in early.later:
        said = Resolution.model_validate(
            {"intervention_id": intervention, "outcome": outcome, "actor": "olga"}
        )
        accepted, why = scene.settle(said, after=NOW)
        assert not accepted and "may still arrive" in why
    late = looked_at(scene, intervention, SETTLED)
    assert (late.outcomes, late.later, late.left_ms) == (early.outcomes, (), 0)


def test_an_undo_is_offered_where_the_tool_has_one(scene: Scene) -> None:
    spec = SPEC.model_copy(update={"compensation": "payments.charge", "secret_params": True})
    scene.open_run(OTHER_RUN, spec=spec)
    plain = looked_at(scene, scene.asked(scene.call())[1])
    assert ("undo" in plain.outcomes, plain.key) == (False, "refund:order-1001")
    _, intervention = scene.asked(scene.call(run_id=OTHER_RUN, key="refund:order-7"))

    told = looked_at(scene, intervention, run_id=OTHER_RUN)
    assert "undo" in told.outcomes
    assert told.key is None  # it is made of params, which are secret


def test_it_has_the_keys_the_calls_and_what_was_found_out(scene: Scene) -> None:
    entry = scene.in_doubt(scene.call())
    with scene.tx() as tx:
        intervention = open_intervention(tx, entry, "Did it?", rule="unknown")
    told = looked_at(scene, intervention)
    row = scene.row(effects)
    assert (told.tool, told.calls, told.state) == ("payments.refund", 1, "in_doubt")
    assert (told.entry_id, told.provider_key) == (entry.entry_id, entry.provider_key)
    assert told.error == row["error"] == "cut off"
    assert [one.type for one in told.told] == ["effect.in_doubt"]


def test_of_what_happened_in_part_it_tells_what_is_recorded_of_it(scene: Scene) -> None:
    entry, intervention = given(scene, "partial")
    assert looked_at(scene, intervention).part == scene.entry(entry.entry_id).receipt


def test_a_doubt_of_another_run_that_goes_on_is_that_run_s_to_settle(scene: Scene) -> None:
    scene.open_run(OTHER_RUN)
    _, intervention = scene.asked(scene.call())
    told = looked_at(scene, intervention, SETTLED, OTHER_RUN)
    assert (told.run_id, told.outcomes) == (RUN, ())


def test_another_tenant_s_doubt_is_not_told(scene: Scene, other: Scene) -> None:
    _, intervention = other.asked(other.call())
    with scene.tx() as tx:
        assert read_doubts(tx, RUN, [intervention]) == {}


SETTLED_ANSWERS = [ResolutionOutcome.COMPENSATED, ResolutionOutcome.GIVE_UP]


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
        outcomes.record_failure(tx, undo, claimed, "permanent", "refused", delay=None)
    with scene.tx() as tx:
        question = compensations.ask_about_undo(tx, entry, "Undo it by hand?")
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


@pytest.mark.parametrize("outcome", SETTLED_ANSWERS)
def test_a_late_undo_after_a_human_is_barred(scene: Scene, outcome: ResolutionOutcome) -> None:
    entry, question = asked_to_undo(scene)
    assert (scene.settle(answer(question, outcome)))[0]
    before = scene.rows(effects)

    late = scene.claim(scene.undo(entry, attempt=9))

    assert isinstance(late, Barred)
    assert scene.rows(effects) == before


def test_a_late_undo_is_barred_while_a_human_is_asked_who_may_be_doing_it(scene: Scene) -> None:
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

    report = await UndoAttempt(context, asked, late).undo_effect(entry)

    assert report.outcome is reported
    assert undone.keys == []
    assert scene.rows(interventions) == before


async def test_what_a_closed_run_has_left_open_is_settled_through_another_run(scene: Scene) -> None:
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


def test_a_late_attempt_whose_undo_failed_asks_nobody_about_what_is_undone(scene: Scene) -> None:
    entry = scene.compensated(scene.call())

    with scene.tx() as tx:
        assert compensations.ask_about_undo(tx, entry, "refused") is None

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
        assert isinstance(compensations.ask_about_undo(tx, original, "refused"), Held)

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
        asked = compensations.ask_about_undo(tx, original, "refused")

    [question] = scene.rows(interventions, state="open")
    about = original if how == "given up" else undo
    assert (question["intervention_id"], question["entry_id"]) == (asked, about.entry_id)


async def test_an_effect_undone_after_a_human_left_it_is_on_record(scene: Scene) -> None:
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
        assert outcomes.commit_effect(tx, undo, resumed, Kept({"id": "u-1"})) is not None

    assert scene.entry(original.entry_id).state == "compensated"
    events, entries, _ = await scene.ledger.transact(scene.tenant, chain_of, RUN)
    assert verify_entries(events, entries) is None


@pytest.mark.parametrize("late", ["committed", "failed", "compensated"])
async def test_a_question_settled_meanwhile_can_be_closed(scene: Scene, late: str) -> None:
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
