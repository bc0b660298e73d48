"""G2: who is asked about an effect in doubt, and when; what a human says is settled once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from surehand.activities.ledger.core.tables import effects, interventions
from surehand.activities.ledger.effects import compensations, outcomes
from surehand.activities.ledger.effects.compensations import GivenUp, NothingToUndo, ToUndo
from surehand.activities.ledger.effects.interventions import open_intervention
from surehand.activities.ledger.history.run_display import Doubt, read_doubts
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.entries import (
    Asked,
    Barred,
    Claimed,
    ClaimResult,
    Committed,
    Entry,
    Held,
)
from surehand.activities.tools.tool import Found, No, NotFound, ToolContext, Undo
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.effects import (
    CompensationOutcome,
    ResolutionOutcome,
)
from tests.ledger.attempts import Payment, Provider, reconciled, undo_attempt, worker_of
from tests.ledger.rows import change
from tests.ledger.scene import (
    AT_ONCE,
    LEASE_OVER,
    NOW,
    OTHER_RUN,
    RUN,
    SETTLED,
    SPEC,
    TIMEOUT,
    Scene,
    said,
)

#: The entry's state, the human's answer, and what the entry is in afterwards; ``None``: refused.
TABLE: list[tuple[str, str, str | None]] = [
    ("in_doubt", "happened", "committed"),
    ("in_doubt", "not_happened", "failed"),
    ("in_doubt", "call_off", "failed"),
    ("in_doubt", "compensated", "compensated"),
    ("in_doubt", "give_up", "in_doubt"),
    ("partial", "happened", "committed"),
    ("partial", "not_happened", "failed"),
    ("partial", "call_off", "failed"),
    ("partial", "compensated", "compensated"),
    ("partial", "give_up", "partial"),
    ("compensating", "happened", None),
    ("compensating", "not_happened", None),
    ("compensating", "call_off", None),
    ("compensating", "compensated", "compensated"),
    ("compensating", "give_up", "committed"),
]


def given(scene: Scene, state: str) -> tuple[Entry, str]:
    """Return an entry in a state that asks a human, and its intervention's id."""
    if state != "compensating":
        return scene.asked(scene.call(), partial=state == "partial")
    committed = scene.committed(scene.call())
    question = scene.asked_to_undo(committed)
    return scene.entry(committed.entry_id), question


def looked_at(scene: Scene, intervention: str, after: timedelta = NOW, run_id: str = RUN) -> Doubt:
    with scene.tx(after) as tx:
        return read_doubts(tx, run_id, [intervention])[intervention]


@pytest.mark.parametrize("state", ["in_doubt", "partial"])
def test_wanted_undone_means_that_it_has_happened(scene: Scene, state: str) -> None:
    entry, question = given(scene, state)
    assert "undo" not in looked_at(scene, question, SETTLED).outcomes

    refused = scene.settle(said(question, "undo"), can_undo=False)
    assert refused[0] is False and "undo" not in refused[1].partition(":")[2]

    assert (scene.settle(said(question, "undo"), can_undo=True))[0]
    assert (scene.entry(entry.entry_id)).state == "committed"
    assert scene.begin_undo() == ToUndo(scene.entry(entry.entry_id))


@pytest.mark.in_turns
@pytest.mark.parametrize(("state", "outcome", "then"), TABLE)
def test_a_humans_answer_makes_this_of_the_entry(
    scene: Scene, state: str, outcome: str, then: str | None
) -> None:
    entry, intervention = given(scene, state)
    before = scene.rows(interventions)
    offered = looked_at(scene, intervention, SETTLED)

    accepted, message = scene.settle(said(intervention, outcome))

    assert (outcome in offered.outcomes, offered.later) == (accepted, ())
    assert (looked_at(scene, intervention, SETTLED).outcomes == ()) == accepted
    after = scene.entry(entry.entry_id)
    if then is None:
        assert not accepted
        assert "compensated, give_up" in message
        assert after == entry
        assert scene.rows(interventions) == before
        assert [e["body"]["outcome"] for e in scene.events(type_="resolution.refused")] == [outcome]
        return
    assert accepted
    assert after.state == then
    assert after.fencing_token == entry.fencing_token + 1
    row = scene.row(interventions)
    assert (row["state"], row["outcome"], row["actor"]) == ("settled", outcome, "olga")
    (event,) = scene.events(type_="intervention.settled")
    assert event["body"]["action"] == then
    evidence = (scene.row(effects, entry_id=entry.entry_id))["evidence"]
    assert evidence == {"rule": "human", "actor": "olga", "text": "bank statement"}


#: What the step's next attempt finds after each answer.
NEXT: list[tuple[str, type[ClaimResult]]] = [
    ("happened", Committed),
    ("not_happened", Claimed),
    ("call_off", Barred),
    ("compensated", Barred),
    ("give_up", Barred),
]


@pytest.mark.in_turns
@pytest.mark.parametrize(("outcome", "found"), NEXT)
@pytest.mark.parametrize("partial", [False, True])
def test_the_run_goes_on_by_the_humanssaid(
    scene: Scene, outcome: str, found: type[ClaimResult], partial: bool
) -> None:
    entry, intervention = scene.asked(scene.call(), partial=partial)
    scene.settle(said(intervention, outcome))

    result = scene.claim(scene.call(attempt=2))

    assert isinstance(result, found)
    if isinstance(result, Committed):
        settled = {"settled_by": "olga", "evidence": "bank statement"}
        assert result.entry.receipt == settled
        assert result.entry.commit_no is not None
    if isinstance(result, Claimed):
        assert result.entry.provider_key == entry.provider_key


def test_that_it_happened_has_to_be_proven(scene: Scene) -> None:
    entry, intervention = scene.asked(scene.call())

    accepted, message = scene.settle(said(intervention, "happened", evidence=""))

    assert not accepted
    assert "evidence" in message
    assert scene.entry(entry.entry_id) == entry


def test_an_answer_that_is_delivered_again_counts_once(scene: Scene) -> None:
    _, intervention = scene.asked(scene.call())
    answer = said(intervention, "not_happened")
    first = scene.settle(answer)
    rows, events = scene.rows(effects), scene.events()

    assert scene.settle(answer) == first == (True, "settled: not_happened")

    assert scene.rows(effects) == rows
    assert scene.events() == events


def test_a_second_answer_is_refused_and_told_who_was_first(scene: Scene) -> None:
    entry, intervention = scene.asked(scene.call())
    scene.settle(said(intervention, "not_happened"))

    accepted, message = scene.settle(
        said(intervention, "happened", actor="bob"), resolution_id="#r2"
    )

    assert not accepted
    assert "olga" in message
    assert (scene.entry(entry.entry_id)).state == "failed"
    assert (scene.row(interventions))["actor"] == "olga"


def test_an_undo_that_a_human_saw_happen_has_undone_its_original(scene: Scene) -> None:
    committed = scene.committed(scene.call())
    undoing, intervention = scene.asked(scene.undo(committed))

    accepted, _ = scene.settle(said(intervention, "happened"))

    assert accepted
    assert (scene.entry(undoing.entry_id)).state == "committed"
    assert (scene.entry(committed.entry_id)).state == "compensated"
    (event,) = scene.events(type_="effect.compensated")
    by = {"tool": undoing.tool, "by": undoing.entry_id}
    assert event["body"] == {"entry_id": committed.entry_id, **by}
    assert isinstance(scene.begin_undo(), NothingToUndo)
    scene.open_run(OTHER_RUN)
    assert isinstance(scene.claim(scene.call(run_id=OTHER_RUN)), Claimed)


def test_a_call_off_binds_its_own_step(scene: Scene) -> None:
    _, intervention = scene.asked(scene.call())
    scene.settle(said(intervention, "call_off"))

    for params in ({}, {"amount": "1.00"}):
        again = scene.claim(scene.call(attempt=2, params=params or scene.call().params))
        assert again == Barred("it did not happen, and olga has called it off", called_off=True)
    scene.open_run(OTHER_RUN)
    assert isinstance(scene.claim(scene.call(run_id=OTHER_RUN)), Claimed)


@pytest.mark.parametrize("outcome", ["compensated", "call_off"])
def test_that_an_undo_was_undone_or_called_off_is_nosaid(scene: Scene, outcome: str) -> None:
    committed = scene.committed(scene.call())
    undoing, intervention = scene.asked(scene.undo(committed))

    accepted, message = scene.settle(said(intervention, outcome))

    assert not accepted
    assert "give_up, happened, not_happened" in message
    assert scene.entry(undoing.entry_id) == undoing


def test_an_answer_may_bring_the_receipt_that_the_call_would_have_returned(scene: Scene) -> None:
    entry, intervention = scene.asked(scene.call())

    scene.settle(said(intervention, "happened", receipt={"refund": "r-9"}))

    assert (scene.entry(entry.entry_id)).receipt == {"refund": "r-9"}


def _asked_after_the_clock_was_set_back(scene: Scene) -> tuple[Entry, str]:
    """An effect that a human has said to stand, and about whose undoing one is asked now."""
    made, first = scene.asked(scene.call())
    assert scene.settle(said(first, "happened"))[0]
    scene.begin_undo()
    entry = scene.entry(made.entry_id)
    with scene.tx(-timedelta(hours=1)) as tx:
        second = compensations.ask_about_undo(tx, entry, "the bank says no")
    assert isinstance(second, Asked)
    return entry, second.intervention_id


@pytest.mark.guarantee("G4")
def test_a_set_back_clock_undoes_nothing_that_a_human_is_asked_about(scene: Scene) -> None:
    entry, question = _asked_after_the_clock_was_set_back(scene)

    begun = scene.begin_undo()

    assert isinstance(begun, Asked) and begun.intervention_id == question
    assert isinstance(scene.claim(scene.undo(entry)), Barred)


@pytest.mark.guarantee("G4")
def test_what_a_human_has_left_stays_left_after_the_clock_was_set_back(scene: Scene) -> None:
    entry, question = _asked_after_the_clock_was_set_back(scene)
    assert scene.settle(said(question, "give_up"), resolution_id="#r2")[0]

    assert isinstance(scene.begin_undo(), GivenUp)
    assert isinstance(scene.claim(scene.undo(entry)), Barred)


@pytest.mark.parametrize("outcome", ["happened", "give_up"])
def test_what_holds_even_if_the_call_arrives_is_taken_at_once(scene: Scene, outcome: str) -> None:
    _, intervention = scene.asked(scene.call())

    assert (scene.settle(said(intervention, outcome), after=NOW))[0]


def test_what_rules_a_call_out_is_offered_later_while_the_call_may_arrive(scene: Scene) -> None:
    _, intervention = given(scene, "in_doubt")
    early = looked_at(scene, intervention)
    assert set(early.later) == {"not_happened", "call_off", "compensated"}
    assert 0 < early.left_ms <= SETTLED.total_seconds() * 1000
    for outcome in early.later:
        # A worker that hangs may still make the call.
        accepted, why = scene.settle(said(intervention, outcome), after=TIMEOUT)
        assert not accepted and "its call may still arrive until" in why
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


#: What a lookup says, and what becomes of the effect.
ANSWERS = [(Found("r-1"), "committed"), (NotFound(), "failed"), (No("closed"), "failed")]


class LookedUp(Provider):
    """An outside system that is asked what has happened."""

    def __init__(self, said: Any) -> None:
        super().__init__([AssertionError("nothing is called")])
        self.said = said
        self.lookups = 0

    async def look(self, params: Payment, ctx: ToolContext) -> Any:
        """Say what has happened."""
        self.lookups += 1
        return self.said


@pytest.mark.in_turns
@pytest.mark.parametrize(("answer", "state"), ANSWERS)
@pytest.mark.parametrize("by", ["a round", "an undoing"])
async def test_a_lookup_is_asked_before_a_human(
    scene: Scene, answer: Any, state: str, by: str
) -> None:
    provider = LookedUp(answer)
    loaded = provider.tool(lookup=provider.look, settle=AT_ONCE)
    entry = scene.in_doubt(scene.call(timeout=NOW, settle=AT_ONCE))

    if by == "a round":
        done = await reconciled(scene, loaded)
        assert (done.looked_at, done.asked) == (1, 0)
    else:
        await undo_attempt(worker_of(scene, loaded), scene.tenant, entry).run()

    assert provider.lookups == 1
    assert scene.row(effects)["state"] == state
    assert scene.rows(interventions) == []


def asked_to_undo(scene: Scene) -> tuple[Entry, str]:
    """An effect whose undoing has failed for good, and the question about it."""
    entry = scene.committed(scene.call())
    scene.begin_undo()
    undo = scene.undo(entry)
    claimed = scene.claimed(undo)
    with scene.tx() as tx:
        outcomes.record_failure(tx, undo, claimed, "permanent", "refused", delay=None)
    return entry, scene.asked_to_undo(entry)


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("outcome", "reported"),
    [
        ("compensated", CompensationOutcome.NOTHING_TO_UNDO),
        ("give_up", CompensationOutcome.UNCOMPENSATED),
        (None, CompensationOutcome.HUMAN_NEEDED),
    ],
)
async def test_a_late_undo_is_barred_and_asks_nothing_that_is_settled_or_asked_already(
    scene: Scene, outcome: str | None, reported: CompensationOutcome
) -> None:
    undone = Provider([{"id": "u-1"}])
    undo = Undo("payments.charge", params=lambda params, receipt: {})
    loaded = Provider([{}]).tool(recovery="human", compensate=undo)
    charge = undone.tool(recovery="human", name="payments.charge")
    entry, question = asked_to_undo(scene)
    if outcome is not None:
        assert scene.settle(said(question, outcome))[0]
    before = scene.rows(interventions)

    late = undo_attempt(worker_of(scene, loaded, charge), scene.tenant, entry, 9)
    report = await late.undo_effect(entry, None)

    assert report.outcome is reported
    assert undone.keys == []
    assert scene.rows(interventions) == before
    entries = scene.rows(effects)
    assert isinstance(scene.claim(scene.undo(entry, attempt=9)), Barred)
    assert scene.rows(effects) == entries


async def test_what_a_closed_run_has_left_open_is_settled_through_another_run(scene: Scene) -> None:
    entry, question = scene.asked(scene.call())
    scene.open_run(OTHER_RUN)
    answered = said(question, "happened")
    accepted, why = scene.settle(answered, OTHER_RUN)
    assert not accepted and "no intervention" in why  # its own run is there to do it

    scene.end(state=RunState.CANCELLED)
    assert (scene.settle(answered, OTHER_RUN, "#r2"))[0]

    row = scene.entry(entry.entry_id)
    assert row.state == "committed"
    assert isinstance(scene.claim(scene.call(run_id=OTHER_RUN)), Committed)
    [event] = scene.events(RUN, "intervention.settled")
    assert event["body"]["action"] == "committed" and row.commit_no is not None
    assert event["body"]["through"] == OTHER_RUN
    await scene.audited(RUN, OTHER_RUN)


def test_the_other_run_may_be_any_of_the_tenant_and_of_no_other(scene: Scene, other: Scene) -> None:
    _, question = scene.asked(scene.call())
    scene.end(state=RunState.CANCELLED)
    other.open_run(OTHER_RUN)

    accepted, _ = other.settle(said(question, "happened"), OTHER_RUN)

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
            assert scene.settle(said(first, "give_up"))[0]

    with scene.tx(LEASE_OVER) as tx:
        asked = compensations.ask_about_undo(tx, original, "refused")

    assert isinstance(asked, Asked)
    [question] = scene.rows(interventions, state="open")
    about = original if how == "given up" else undo
    assert (question["intervention_id"], question["entry_id"]) == (
        asked.intervention_id,
        about.entry_id,
    )


async def test_an_effect_undone_after_a_human_left_it_is_on_record(scene: Scene) -> None:
    original, question = asked_to_undo(scene)
    undo = scene.undo(original)
    [late] = scene.rows(effects, undoes=original.entry_id)
    assert scene.settle(said(question, "give_up"))[0]
    change(scene, effects, {"entry_id": late["entry_id"]}, state="in_doubt")
    with scene.tx() as tx:
        resumed = Entry.from_row({**late, "state": "in_doubt"})
        assert outcomes.commit_effect(tx, undo, resumed, Kept({"id": "u-1"})) is not None

    assert scene.entry(original.entry_id).state == "compensated"
    await scene.audited()


@pytest.mark.in_turns
@pytest.mark.parametrize("late", ["committed", "failed", "compensated"])
async def test_a_question_settled_meanwhile_can_be_closed(scene: Scene, late: str) -> None:
    made = {"committed": scene.committed, "failed": scene.failed, "compensated": scene.compensated}
    entry = made[late](scene.call())
    with scene.tx() as tx:
        question = open_intervention(tx, entry, "Did it?", rule="unknown")
    agreed = {"committed": "happened", "failed": "not_happened", "compensated": "compensated"}[late]

    for outcome in ResolutionOutcome:
        accepted, _ = scene.settle(said(question, outcome), resolution_id=outcome)
        assert accepted is (outcome == agreed)
        if accepted:
            break
    assert scene.entry(entry.entry_id) == entry
    await scene.audited()
