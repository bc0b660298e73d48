"""G2: a question that only a human can settle is asked once and settled once."""

from __future__ import annotations

from typing import Any

import pytest

from activities.ledger import compensations, outcomes
from activities.ledger.artifacts import Kept
from activities.ledger.compensations import NothingToUndo, ToUndo
from activities.ledger.entries import Barred, Claimed, ClaimResult, Committed, Entry
from activities.ledger.tables import effects, interventions
from tests.ledger.scene import OTHER_RUN, RUN, Scene
from workflows.contracts import Resolution


async def _compensating(scene: Scene) -> tuple[Entry, str]:
    committed = await scene.committed(scene.call())
    async with scene.tx() as tx:
        intervention = await compensations.failed(tx, committed, "the bank says no")
    return await scene.entry(committed.entry_id), intervention


async def _given(scene: Scene, state: str) -> tuple[Entry, str]:
    if state == "compensating":
        return await _compensating(scene)
    return await scene.asked(scene.call(), partial=state == "partial")


def _answer(intervention: str, outcome: str, **changes: Any) -> Resolution:
    values = {"intervention_id": intervention, "outcome": outcome, "actor": "olga"}
    return Resolution.model_validate({**values, "evidence": "bank statement", **changes})


#: The entry's state, the human's answer, and what the entry is in afterwards; ``None``: refused.
TABLE: list[tuple[str, str, str | None]] = [
    ("in_doubt", "happened", "committed"),
    ("in_doubt", "not_happened", "failed"),
    ("in_doubt", "compensated", "compensated"),
    ("in_doubt", "give_up", "in_doubt"),
    ("partial", "happened", "committed"),
    ("partial", "not_happened", "failed"),
    ("partial", "compensated", "compensated"),
    ("partial", "give_up", "partial"),
    ("compensating", "happened", None),
    ("compensating", "not_happened", None),
    ("compensating", "compensated", "compensated"),
    ("compensating", "give_up", "committed"),
]


@pytest.mark.parametrize("state", ["in_doubt", "partial"])
async def test_what_can_be_undone_is_taken_as_happened_when_a_human_wants_it_undone(
    scene: Scene, state: str
) -> None:
    entry, question = await _given(scene, state)

    refused = await scene.settle(_answer(question, "undo"), can_undo=False)
    assert refused[0] is False and "undo" not in refused[1].partition(":")[2]

    assert (await scene.settle(_answer(question, "undo"), can_undo=True))[0]
    assert (await scene.entry(entry.entry_id)).state == "committed"
    assert await scene.begin_undo() == ToUndo(await scene.entry(entry.entry_id))


@pytest.mark.parametrize(("state", "outcome", "then"), TABLE)
async def test_a_humans_answer_makes_this_of_the_entry(
    scene: Scene, state: str, outcome: str, then: str | None
) -> None:
    entry, intervention = await _given(scene, state)
    before = await scene.rows(interventions)

    accepted, message = await scene.settle(_answer(intervention, outcome))

    after = await scene.entry(entry.entry_id)
    if then is None:
        assert not accepted
        assert "compensated, give_up" in message
        assert after == entry
        assert await scene.rows(interventions) == before
        assert [e["body"]["outcome"] for e in await scene.events(type_="resolution.refused")] == [
            outcome
        ]
        return
    assert accepted
    assert after.state == then
    assert after.fencing_token == entry.fencing_token + 1
    row = await scene.row(interventions)
    assert (row["state"], row["outcome"], row["actor"]) == ("settled", outcome, "olga")
    (event,) = await scene.events(type_="intervention.settled")
    assert event["body"]["action"] == then
    evidence = (await scene.row(effects, entry_id=entry.entry_id))["evidence"]
    assert evidence == {"rule": "human", "actor": "olga", "text": "bank statement"}


#: What the step's next attempt finds after each answer.
NEXT: list[tuple[str, type[ClaimResult]]] = [
    ("happened", Committed),
    ("not_happened", Claimed),
    ("compensated", Barred),
    ("give_up", Barred),
]


@pytest.mark.parametrize(("outcome", "found"), NEXT)
@pytest.mark.parametrize("partial", [False, True])
async def test_the_run_goes_on_by_the_humans_answer(
    scene: Scene, outcome: str, found: type[ClaimResult], partial: bool
) -> None:
    entry, intervention = await scene.asked(scene.call(), partial=partial)
    await scene.settle(_answer(intervention, outcome))

    result = await scene.claim(scene.call(attempt=2))

    assert isinstance(result, found)
    if isinstance(result, Committed):
        settled = {"settled_by": "olga", "evidence": "bank statement"}
        assert result.entry.receipt == settled
        assert result.entry.commit_no is not None
    if isinstance(result, Claimed):
        assert result.entry.provider_key == entry.provider_key


async def test_that_it_happened_has_to_be_proven(scene: Scene) -> None:
    entry, intervention = await scene.asked(scene.call())

    accepted, message = await scene.settle(_answer(intervention, "happened", evidence=""))

    assert not accepted
    assert "evidence" in message
    assert await scene.entry(entry.entry_id) == entry


async def test_an_answer_that_is_delivered_again_counts_once(scene: Scene) -> None:
    _, intervention = await scene.asked(scene.call())
    answer = _answer(intervention, "not_happened")
    first = await scene.settle(answer)
    rows, events = await scene.rows(effects), await scene.events()

    assert await scene.settle(answer) == first == (True, "settled: not_happened")

    assert await scene.rows(effects) == rows
    assert await scene.events() == events


async def test_a_second_answer_is_refused_and_told_who_was_first(scene: Scene) -> None:
    entry, intervention = await scene.asked(scene.call())
    await scene.settle(_answer(intervention, "not_happened"))

    accepted, message = await scene.settle(
        _answer(intervention, "happened", actor="bob"), resolution_id="#r2"
    )

    assert not accepted
    assert "olga" in message
    assert (await scene.entry(entry.entry_id)).state == "failed"
    assert (await scene.row(interventions))["actor"] == "olga"


async def test_an_answer_to_another_runs_question_or_to_none_is_not_taken(scene: Scene) -> None:
    entry, intervention = await scene.asked(scene.call())
    await scene.open_run(OTHER_RUN)

    for run_id, asked in [(OTHER_RUN, intervention), (RUN, "iv-unknown")]:
        accepted, message = await scene.settle(_answer(asked, "not_happened"), run_id)
        assert not accepted
        assert asked in message

    assert await scene.entry(entry.entry_id) == entry


async def test_an_attempt_that_comes_back_after_a_human_settled_it_is_fenced_out(
    scene: Scene,
) -> None:
    request = scene.call()
    entry, intervention = await scene.asked(request)
    await scene.settle(_answer(intervention, "not_happened"))

    async with scene.tx() as tx:
        assert await outcomes.commit(tx, request, entry, Kept("late")) is None


async def test_an_entry_that_is_in_doubt_again_gets_a_question_of_its_own(scene: Scene) -> None:
    _, first = await scene.asked(scene.call())
    await scene.settle(_answer(first, "not_happened"))
    _, second = await scene.asked(scene.call(attempt=2))

    assert second != first
    states = {row["intervention_id"]: row["state"] for row in await scene.rows(interventions)}
    assert states == {first: "settled", second: "open"}


async def test_an_undo_that_a_human_saw_happen_has_undone_its_original(scene: Scene) -> None:
    committed = await scene.committed(scene.call())
    undoing, intervention = await scene.asked(scene.undo(committed))

    accepted, _ = await scene.settle(_answer(intervention, "happened"))

    assert accepted
    assert (await scene.entry(undoing.entry_id)).state == "committed"
    assert (await scene.entry(committed.entry_id)).state == "compensated"
    (event,) = await scene.events(type_="effect.compensated")
    by = {"tool": undoing.tool, "by": undoing.entry_id}
    assert event["body"] == {"entry_id": committed.entry_id, **by}
    assert isinstance(await scene.begin_undo(), NothingToUndo)
    await scene.open_run(OTHER_RUN)
    assert isinstance(await scene.claim(scene.call(run_id=OTHER_RUN)), Claimed)


async def test_an_undo_that_a_human_saw_not_happen_may_be_tried_again(scene: Scene) -> None:
    committed = await scene.committed(scene.call())
    _, intervention = await scene.asked(scene.undo(committed))

    await scene.settle(_answer(intervention, "not_happened"))

    again = scene.undo(committed, attempt=2)
    await scene.commit(again, await scene.claimed(again))
    assert (await scene.entry(committed.entry_id)).state == "compensated"


async def test_that_an_undo_was_undone_is_no_answer(scene: Scene) -> None:
    committed = await scene.committed(scene.call())
    undoing, intervention = await scene.asked(scene.undo(committed))

    accepted, message = await scene.settle(_answer(intervention, "compensated"))

    assert not accepted
    assert "give_up, happened, not_happened" in message
    assert await scene.entry(undoing.entry_id) == undoing


async def test_an_answer_may_bring_the_receipt_that_the_call_would_have_returned(
    scene: Scene,
) -> None:
    entry, intervention = await scene.asked(scene.call())

    await scene.settle(_answer(intervention, "happened", receipt={"refund": "r-9"}))

    assert (await scene.entry(entry.entry_id)).receipt == {"refund": "r-9"}
