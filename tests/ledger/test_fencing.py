"""An attempt that lost its lease changes nothing; one that lost an answer finds its own work."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import effects, interventions, steps
from surehand.activities.ledger.effects import outcomes
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.entries import ClaimRequest, Doubtful, Entry
from surehand.workflows.contracts.tools import Recovery
from tests.ledger.scene import LEASE, LEASE_OVER, NOW, TIMEOUT, WINDOW, Scene

Write = Callable[[Transaction, ClaimRequest, Entry], Any]

#: Every way to write an outcome, and what a fenced attempt is told.
WRITES: dict[str, tuple[Write, Any]] = {
    "renew": (lambda tx, request, entry: outcomes.renew(tx, entry), False),
    "commit": (lambda tx, request, entry: outcomes.commit(tx, request, entry, Kept("late")), None),
    "answer_no": (lambda tx, request, entry: outcomes.answer_no(tx, request, entry, "", ""), None),
    "fail": (
        lambda tx, request, entry: outcomes.fail(tx, request, entry, "x", "", delay=None), None,
    ),
    "leave_in_doubt": (
        lambda tx, request, entry: outcomes.leave_in_doubt(tx, request, entry, ""), None,
    ),
    "ask_human": (lambda tx, request, entry: outcomes.ask_human(tx, entry, "Did it?"), None),
}  # fmt: skip


def _taken_over(scene: Scene, request: ClaimRequest) -> None:
    scene.claimed(scene.call(attempt=2, recovery=Recovery.DEDUPES, window=WINDOW), LEASE_OVER)


def _doubted(scene: Scene, request: ClaimRequest) -> None:
    assert isinstance(scene.claim(scene.call(attempt=2), LEASE_OVER), Doubtful)


def _committed_by_another(scene: Scene, request: ClaimRequest) -> None:
    later = scene.call(attempt=2, recovery=Recovery.DEDUPES, window=WINDOW)
    scene.commit(later, scene.claimed(later, LEASE_OVER), "the other receipt")


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("overtaken", [_taken_over, _doubted, _committed_by_another])
def test_an_attempt_with_an_older_token_can_write_nothing(
    scene: Scene, name: str, overtaken: Callable[[Scene, ClaimRequest], None]
) -> None:
    write, refusal = WRITES[name]
    request = scene.call(recovery=Recovery.LOOKUP, window=WINDOW)
    entry = scene.claimed(request)
    overtaken(scene, request)
    before = [scene.rows(table) for table in (effects, steps, interventions)]
    events = scene.events()

    with scene.tx() as tx:
        told = write(tx, request, entry)

    assert told is refusal
    assert [scene.rows(table) for table in (effects, steps, interventions)] == before
    assert scene.events() == events


@pytest.mark.parametrize("name", ["renew", "fail", "answer_no", "leave_in_doubt", "ask_human"])
def test_what_is_committed_stays_committed_even_for_its_own_token(scene: Scene, name: str) -> None:
    write, refusal = WRITES[name]
    request = scene.call()
    entry = scene.claimed(request)
    scene.commit(request, entry)
    before = scene.rows(effects)

    with scene.tx() as tx:
        assert write(tx, request, entry) is refusal

    assert scene.rows(effects) == before


def test_a_commit_repeated_under_its_token_returns_the_first_one(scene: Scene) -> None:
    request = scene.call()
    entry = scene.claimed(request)
    first = scene.commit(request, entry, "the first receipt")
    events = scene.events()

    second = scene.commit(request, entry, "another receipt")

    assert second == first
    assert (scene.row(effects))["receipt"] == "the first receipt"
    assert scene.events() == events


def test_a_commit_records_the_receipt_its_number_and_the_steps_success(
    scene: Scene,
) -> None:
    request = scene.call()
    number = scene.commit(request, scene.claimed(request), {"refund": "r-1"})

    row = scene.row(effects)
    assert (row["state"], row["receipt"]) == ("committed", {"refund": "r-1"})
    assert row["lease_until_ms"] is None
    assert row["settled_ms"] >= row["claimed_ms"]
    (event,) = scene.events(type_="effect.committed")
    assert row["commit_no"] == number
    assert event["body"]["entry_id"] == row["entry_id"]
    step = scene.row(steps)
    assert (step["state"], step["output"]) == ("succeeded", {"refund": "r-1"})


def test_a_receipt_of_nothing_is_a_receipt(scene: Scene) -> None:
    request = scene.call()

    entry = scene.committed(request, receipt=None)

    assert (entry.state, entry.receipt) == ("committed", None)


def test_a_renewal_extends_the_lease_from_now(scene: Scene) -> None:
    entry = scene.claimed(scene.call())

    with scene.tx(after=timedelta(seconds=2)) as tx:
        assert outcomes.renew(tx, entry)
        now_ms = tx.now_ms

    row = scene.row(effects)
    assert row["lease_until_ms"] == now_ms + 3_000
    assert row["fencing_token"] == entry.fencing_token


@pytest.mark.parametrize("after", [NOW, LEASE_OVER])
def test_an_attempt_whose_claims_answer_was_lost_finds_itself_with_a_whole_lease(
    scene: Scene, after: timedelta
) -> None:
    request = scene.call()
    first = scene.claimed(request)

    again = scene.claimed(request, after)

    assert (again.entry_id, again.fencing_token) == (first.entry_id, first.fencing_token)
    row = scene.row(effects)
    assert row["calls"] == 1
    # It calls the tool from here: what others hold against it counts from here, too.
    assert row["lease_until_ms"] >= (first.lease_until_ms or 0) + after // timedelta(milliseconds=1)
    assert row["deadline_ms"] >= (first.deadline_ms or 0) + after // timedelta(milliseconds=1)


def test_the_receipt_of_a_fenced_attempt_is_kept_as_evidence(scene: Scene) -> None:
    request = scene.call()
    entry = scene.claimed(request)
    _doubted(scene, request)

    with scene.tx() as tx:
        outcomes.note_late_receipt(tx, entry, Kept({"refund": "late"}))

    (event,) = scene.events(type_="effect.late_receipt")
    assert event["body"]["entry_id"] == entry.entry_id
    assert event["body"]["evidence"].startswith("sha256:")
    assert (scene.row(effects))["state"] == "in_doubt"


def test_failures_are_counted_by_class_over_the_attempts_of_their_step(scene: Scene) -> None:
    counts = []
    for attempt, class_ in enumerate(["transient", "transient", "rate_limited"], start=1):
        request = scene.call(attempt=attempt)
        entry = scene.claimed(request)
        with scene.tx() as tx:
            failed = outcomes.fail(tx, request, entry, class_, "again", delay=LEASE)
        assert failed is not None
        counts.append(failed.failures)

    assert counts == [{"transient": 1}, {"transient": 2}, {"transient": 2, "rate_limited": 1}]
    assert (scene.row(effects))["failures"] == counts[-1]
    attempts = scene.rows(steps)
    assert [row["error_class"] for row in attempts] == ["transient", "transient", "rate_limited"]


def test_a_crash_or_a_wait_is_held_against_no_failure_class(scene: Scene) -> None:
    dedupes = {"recovery": Recovery.DEDUPES, "window": WINDOW}
    for attempt in range(1, 6):
        scene.claimed(scene.call(**dedupes, attempt=attempt), after=attempt * LEASE_OVER)

    row = scene.row(effects)
    assert (row["calls"], row["failures"]) == (5, {})


def test_a_call_that_ended_without_an_outcome_is_counted_and_its_deadline_kept(
    scene: Scene,
) -> None:
    request = scene.call()
    entry = scene.claimed(request)
    with scene.tx() as tx:
        assert outcomes.leave_in_doubt(tx, request, entry, "cut off") is not None

    row = scene.row(effects)
    assert (row["state"], row["failures"]) == ("in_doubt", {"in_doubt": 1})
    assert row["deadline_ms"] == entry.deadline_ms
    assert row["deadline_ms"] - row["claimed_ms"] == TIMEOUT // timedelta(milliseconds=1)
