"""G2: a question that only a human can settle is asked once and settled once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from surehand.activities.ledger.core.tables import effects, interventions
from surehand.activities.ledger.effects import compensations, outcomes
from surehand.activities.ledger.effects.compensations import GivenUp, NothingToUndo, ToUndo
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.entries import (
    Asked,
    Barred,
    Claimed,
    ClaimResult,
    Committed,
    Entry,
)
from surehand.workflows.contracts.effects import Resolution
from tests.ledger.scene import NOW, OTHER_RUN, RUN, TIMEOUT, Scene


def _compensating(scene: Scene) -> tuple[Entry, str]:
    committed = scene.committed(scene.call())
    with scene.tx() as tx:
        intervention = compensations.ask_about_undo(tx, committed, "the bank says no")
    return scene.entry(committed.entry_id), intervention


def _given(scene: Scene, state: str) -> tuple[Entry, str]:
    if state == "compensating":
        return _compensating(scene)
    return scene.asked(scene.call(), partial=state == "partial")


def _answer(intervention: str, outcome: str, **changes: Any) -> Resolution:
    values = {"intervention_id": intervention, "outcome": outcome, "actor": "olga"}
    return Resolution.model_validate({**values, "evidence": "bank statement", **changes})


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


@pytest.mark.parametrize("state", ["in_doubt", "partial"])
def test_wanted_undone_means_that_it_has_happened(scene: Scene, state: str) -> None:
    entry, question = _given(scene, state)

    refused = scene.settle(_answer(question, "undo"), can_undo=False)
    assert refused[0] is False and "undo" not in refused[1].partition(":")[2]

    assert (scene.settle(_answer(question, "undo"), can_undo=True))[0]
    assert (scene.entry(entry.entry_id)).state == "committed"
    assert scene.begin_undo() == ToUndo(scene.entry(entry.entry_id))


@pytest.mark.parametrize(("state", "outcome", "then"), TABLE)
def test_a_humans_answer_makes_this_of_the_entry(
    scene: Scene, state: str, outcome: str, then: str | None
) -> None:
    entry, intervention = _given(scene, state)
    before = scene.rows(interventions)

    accepted, message = scene.settle(_answer(intervention, outcome))

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


@pytest.mark.parametrize(("outcome", "found"), NEXT)
@pytest.mark.parametrize("partial", [False, True])
def test_the_run_goes_on_by_the_humans_answer(
    scene: Scene, outcome: str, found: type[ClaimResult], partial: bool
) -> None:
    entry, intervention = scene.asked(scene.call(), partial=partial)
    scene.settle(_answer(intervention, outcome))

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

    accepted, message = scene.settle(_answer(intervention, "happened", evidence=""))

    assert not accepted
    assert "evidence" in message
    assert scene.entry(entry.entry_id) == entry


def test_an_answer_that_is_delivered_again_counts_once(scene: Scene) -> None:
    _, intervention = scene.asked(scene.call())
    answer = _answer(intervention, "not_happened")
    first = scene.settle(answer)
    rows, events = scene.rows(effects), scene.events()

    assert scene.settle(answer) == first == (True, "settled: not_happened")

    assert scene.rows(effects) == rows
    assert scene.events() == events


def test_a_second_answer_is_refused_and_told_who_was_first(scene: Scene) -> None:
    entry, intervention = scene.asked(scene.call())
    scene.settle(_answer(intervention, "not_happened"))

    accepted, message = scene.settle(
        _answer(intervention, "happened", actor="bob"), resolution_id="#r2"
    )

    assert not accepted
    assert "olga" in message
    assert (scene.entry(entry.entry_id)).state == "failed"
    assert (scene.row(interventions))["actor"] == "olga"


def test_an_answer_to_another_runs_question_or_to_none_is_not_taken(scene: Scene) -> None:
    entry, intervention = scene.asked(scene.call())
    scene.open_run(OTHER_RUN)

    for run_id, asked in [(OTHER_RUN, intervention), (RUN, "iv-unknown")]:
        accepted, message = scene.settle(_answer(asked, "not_happened"), run_id)
        assert not accepted
        assert asked in message

    assert scene.entry(entry.entry_id) == entry


def test_an_attempt_that_comes_back_after_a_human_settled_it_is_fenced_out(scene: Scene) -> None:
    request = scene.call()
    entry, intervention = scene.asked(request)
    scene.settle(_answer(intervention, "not_happened"))

    with scene.tx() as tx:
        assert outcomes.commit_effect(tx, request, entry, Kept("late")) is None


def test_an_entry_that_is_in_doubt_again_gets_a_question_of_its_own(scene: Scene) -> None:
    _, first = scene.asked(scene.call())
    scene.settle(_answer(first, "not_happened"))
    _, second = scene.asked(scene.call(attempt=2))

    assert second != first
    states = {row["intervention_id"]: row["state"] for row in scene.rows(interventions)}
    assert states == {first: "settled", second: "open"}


def test_an_undo_that_a_human_saw_happen_has_undone_its_original(scene: Scene) -> None:
    committed = scene.committed(scene.call())
    undoing, intervention = scene.asked(scene.undo(committed))

    accepted, _ = scene.settle(_answer(intervention, "happened"))

    assert accepted
    assert (scene.entry(undoing.entry_id)).state == "committed"
    assert (scene.entry(committed.entry_id)).state == "compensated"
    (event,) = scene.events(type_="effect.compensated")
    by = {"tool": undoing.tool, "by": undoing.entry_id}
    assert event["body"] == {"entry_id": committed.entry_id, **by}
    assert isinstance(scene.begin_undo(), NothingToUndo)
    scene.open_run(OTHER_RUN)
    assert isinstance(scene.claim(scene.call(run_id=OTHER_RUN)), Claimed)


def test_an_undo_that_a_human_saw_not_happen_may_be_tried_again(scene: Scene) -> None:
    committed = scene.committed(scene.call())
    _, intervention = scene.asked(scene.undo(committed))

    scene.settle(_answer(intervention, "not_happened"))

    again = scene.undo(committed, attempt=2)
    scene.commit(again, scene.claimed(again))
    assert (scene.entry(committed.entry_id)).state == "compensated"


def test_a_call_off_binds_its_own_step(scene: Scene) -> None:
    _, intervention = scene.asked(scene.call())
    scene.settle(_answer(intervention, "call_off"))

    for params in ({}, {"amount": "1.00"}):
        again = scene.claim(scene.call(attempt=2, params=params or scene.call().params))
        assert again == Barred("it did not happen, and olga has called it off", called_off=True)
    scene.open_run(OTHER_RUN)
    assert isinstance(scene.claim(scene.call(run_id=OTHER_RUN)), Claimed)


@pytest.mark.parametrize("outcome", ["compensated", "call_off"])
def test_that_an_undo_was_undone_or_called_off_is_no_answer(scene: Scene, outcome: str) -> None:
    committed = scene.committed(scene.call())
    undoing, intervention = scene.asked(scene.undo(committed))

    accepted, message = scene.settle(_answer(intervention, outcome))

    assert not accepted
    assert "give_up, happened, not_happened" in message
    assert scene.entry(undoing.entry_id) == undoing


def test_an_answer_may_bring_the_receipt_that_the_call_would_have_returned(scene: Scene) -> None:
    entry, intervention = scene.asked(scene.call())

    scene.settle(_answer(intervention, "happened", receipt={"refund": "r-9"}))

    assert (scene.entry(entry.entry_id)).receipt == {"refund": "r-9"}


def _asked_after_the_clock_was_set_back(scene: Scene) -> tuple[Entry, str]:
    """An effect that a human has said to stand, and about whose undoing one is asked now."""
    made, first = scene.asked(scene.call())
    assert scene.settle(_answer(first, "happened"))[0]
    scene.begin_undo()
    entry = scene.entry(made.entry_id)
    with scene.tx(-timedelta(hours=1)) as tx:
        second = compensations.ask_about_undo(tx, entry, "the bank says no")
    assert second is not None
    return entry, second


@pytest.mark.guarantee("G4")
def test_a_set_back_clock_undoes_nothing_that_a_human_is_asked_about(scene: Scene) -> None:
    entry, question = _asked_after_the_clock_was_set_back(scene)

    begun = scene.begin_undo()

    assert isinstance(begun, Asked) and begun.intervention_id == question
    assert isinstance(scene.claim(scene.undo(entry)), Barred)


@pytest.mark.guarantee("G4")
def test_what_a_human_has_left_stays_left_after_the_clock_was_set_back(scene: Scene) -> None:
    entry, question = _asked_after_the_clock_was_set_back(scene)
    assert scene.settle(_answer(question, "give_up"), resolution_id="#r2")[0]

    assert isinstance(scene.begin_undo(), GivenUp)
    assert isinstance(scene.claim(scene.undo(entry)), Barred)


@pytest.mark.parametrize("outcome", ["not_happened", "call_off", "compensated"])
def test_not_happened_waits_for_the_calls_end(scene: Scene, outcome: str) -> None:
    entry, intervention = scene.asked(scene.call())

    # A worker that hangs may still make the call.
    accepted, message = scene.settle(_answer(intervention, outcome), after=TIMEOUT)

    assert not accepted
    assert "its call may still arrive until" in message
    assert scene.entry(entry.entry_id) == entry
    assert (scene.row(interventions))["state"] == "open"
    assert (scene.settle(_answer(intervention, outcome), resolution_id="#r2"))[0]


@pytest.mark.parametrize("outcome", ["happened", "give_up"])
def test_what_holds_even_if_the_call_arrives_is_taken_at_once(scene: Scene, outcome: str) -> None:
    _, intervention = scene.asked(scene.call())

    assert (scene.settle(_answer(intervention, outcome), after=NOW))[0]
