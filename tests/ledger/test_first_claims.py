"""G1: the row is written before the call, its result wins, an overtaken attempt writes nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import effects, interventions, steps
from surehand.activities.ledger.effects import outcomes
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.entries import (
    Answered,
    Claimed,
    ClaimRequest,
    Committed,
    Doubtful,
    Drifted,
    Entry,
    Held,
    Mismatch,
)
from surehand.workflows.contracts.tools import Recovery
from tests.ledger.scene import LEASE, LEASE_OVER, NOW, OTHER_RUN, RUN, STEP, TIMEOUT, WINDOW, Scene

pytestmark = pytest.mark.guarantee("G1")


MADE_IN = {
    "claimed": Scene.claimed,
    "committed": Scene.committed,
    "in_doubt": Scene.in_doubt,
    "compensating": Scene.compensating,
}
OTHER_PARAMS = {"order": "1001", "amount": "999.00"}


def test_a_first_claim_writes_the_entry_and_its_attempt_before_any_call(scene: Scene) -> None:
    request = scene.call(attempt=3)

    entry = scene.claimed(request)

    row = scene.row(effects)
    assert (row["state"], row["generation"], row["fencing_token"]) == ("claimed", 1, 1)
    assert (row["run_id"], row["step_id"], row["holder"]) == (RUN, STEP, request.holder)
    assert (row["params"], row["params_hash"]) == (request.params, request.params_hash)
    assert row["lease_until_ms"] - row["claimed_ms"] == 3_000
    assert row["deadline_ms"] - row["claimed_ms"] == 30_000
    assert row["first_call_ms"] == row["claimed_ms"]
    step = scene.row(steps)
    assert (step["state"], step["attempt"], step["input"]) == ("running", 3, request.params)
    claimed = (scene.events(type_="effect.claimed"))[0]
    assert claimed["body"]["entry_id"] == entry.entry_id
    assert claimed["body"]["fencing_token"] == 1


def test_a_committed_effect_is_returned_to_its_own_step_and_not_claimed_again(scene: Scene) -> None:
    committed = scene.committed(scene.call(), receipt={"id": "r-1"})

    result = scene.claim(scene.call(attempt=2))

    assert result == Committed(committed)
    assert committed.receipt == {"id": "r-1"}
    assert scene.entry(committed.entry_id) == committed


def test_another_run_gets_the_committed_effect_and_its_maker(scene: Scene) -> None:
    committed = scene.committed(scene.call())
    scene.open_run(OTHER_RUN)

    result = scene.claim(scene.call(run_id=OTHER_RUN))

    assert result == Committed(committed)
    assert len(scene.rows(effects)) == 1
    (replayed,) = scene.events(OTHER_RUN, "effect.replayed")
    made = {"tool": committed.tool, "made_by": RUN}
    assert replayed["body"] == {"entry_id": committed.entry_id, **made}


def test_a_deploy_does_not_turn_a_committed_effect_into_a_mismatch(scene: Scene) -> None:
    committed = scene.committed(scene.call(tool_version="1"))

    assert scene.claim(scene.call(tool_version="2")) == Committed(committed)


def test_a_committed_effect_is_returned_although_its_tool_has_changed(scene: Scene) -> None:
    committed = scene.committed(scene.call())

    result = scene.claim(scene.call(drift="it is version 2 now"))

    assert result == Committed(committed)


def test_a_changed_tool_claims_nothing(scene: Scene) -> None:
    result = scene.claim(scene.call(drift="it is version 2 now"))

    assert result == Drifted("it is version 2 now")
    assert scene.rows(effects) == []
    (refused,) = scene.events(type_="effect.refused")
    assert refused["body"]["rule"] == "Drifted"


@pytest.mark.parametrize("state", [*MADE_IN, "partial"])
@pytest.mark.parametrize("run_id", [RUN, OTHER_RUN])
def test_other_params_of_a_live_key_change_nothing(scene: Scene, state: str, run_id: str) -> None:
    if state == "partial":
        entry, _ = scene.asked(scene.call(), partial=True)
    else:
        entry = MADE_IN[state](scene, scene.call())
    scene.open_run(OTHER_RUN)
    before = scene.rows(effects)

    result = scene.claim(scene.call(run_id=run_id, params=OTHER_PARAMS))

    assert isinstance(result, Mismatch)
    assert entry.entry_id in result.reason
    assert scene.rows(effects) == before
    (refused,) = scene.events(run_id, "effect.refused")
    assert refused["body"]["rule"] == "Mismatch"


@pytest.mark.parametrize("change", [{"tool": "mail.send"}, {"key": "refund:order-1002"}])
def test_a_key_counts_within_its_tool_only(scene: Scene, change: dict[str, str]) -> None:
    first = scene.committed(scene.call())

    second = scene.claimed(scene.call(step_id="second", **change))

    assert second.entry_id != first.entry_id
    assert second.provider_key != first.provider_key


def test_a_proven_failure_is_claimed_again_under_its_key(scene: Scene) -> None:
    failed = scene.failed(scene.call())

    again = scene.claimed(scene.call(attempt=2))

    assert (again.entry_id, again.generation) == (failed.entry_id, 1)
    assert again.provider_key == failed.provider_key
    assert again.fencing_token == failed.fencing_token + 1
    assert again.failures == {"transient": 1}
    assert (scene.row(effects))["calls"] == 2


def test_another_run_takes_a_failed_effect_and_counts_anew(scene: Scene) -> None:
    scene.failed(scene.call())
    scene.open_run(OTHER_RUN)

    taken = scene.claimed(scene.call(run_id=OTHER_RUN))

    assert taken.owned_by(OTHER_RUN, STEP)
    assert taken.failures == {}


def test_a_failed_key_with_other_params_starts_the_next_generation(scene: Scene) -> None:
    failed = scene.failed(scene.call())

    second = scene.claimed(scene.call(params=OTHER_PARAMS))

    assert (second.generation, second.fencing_token) == (2, 1)
    assert second.provider_key != failed.provider_key
    assert scene.entry(failed.entry_id) == failed


def test_a_step_that_was_told_no_is_told_so_again(scene: Scene) -> None:
    answered = scene.answered_no(scene.call())

    result = scene.claim(scene.call(attempt=2))

    assert result == Answered(answered)
    assert answered.answer == {"reason": "already shipped", "code": "shipped"}


@pytest.mark.parametrize("change", [{"run_id": OTHER_RUN}, {"step_id": "later"}])
def test_a_no_keeps_no_other_step_from_asking(scene: Scene, change: dict[str, str]) -> None:
    answered = scene.answered_no(scene.call())
    scene.open_run(OTHER_RUN)

    result = scene.claim(scene.call(**change))

    assert isinstance(result, Claimed)
    assert result.entry.entry_id == answered.entry_id
    assert result.entry.answer is None


def test_an_effect_that_is_being_undone_is_waited_for(scene: Scene) -> None:
    scene.compensating(scene.call())
    scene.open_run(OTHER_RUN)

    for run_id in (RUN, OTHER_RUN):
        result = scene.claim(scene.call(run_id=run_id))
        assert isinstance(result, Held)
        assert result.wait > timedelta(0)


@pytest.mark.parametrize("change", [{"run_id": OTHER_RUN}, {"step_id": "later"}])
def test_an_undone_key_begins_another_generation(scene: Scene, change: dict[str, str]) -> None:
    undone = scene.compensated(scene.call())
    scene.open_run(OTHER_RUN)

    second = scene.claimed(scene.call(**change))

    assert second.generation == 2
    assert second.provider_key != undone.provider_key
    assert (scene.entry(undone.entry_id)).state == "compensated"


def test_the_step_that_undid_its_effect_may_not_make_it_again(scene: Scene) -> None:
    undone = scene.compensated(scene.call())

    result = scene.claim(scene.call(attempt=2))

    assert type(result).__name__ == "Barred"
    assert len(scene.rows(effects, tool=undone.tool)) == 1


Write = Callable[[Transaction, ClaimRequest, Entry], Any]
#: Every way to write an outcome, and what a fenced attempt is told.
WRITES: dict[str, tuple[Write, Any]] = {
    "renew": (lambda tx, request, entry: outcomes.renew_lease(tx, entry), False),
    "commit": (lambda tx, call, own: outcomes.commit_effect(tx, call, own, Kept("late")), None),
    "answer_no": (lambda tx, request, entry: outcomes.record_no(tx, request, entry, "", ""), None),
    "fail": (
        lambda tx, request, own: outcomes.record_failure(tx, request, own, "x", "", delay=None),
        None,
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


def test_a_commit_records_the_receipt_its_number_and_the_steps_success(scene: Scene) -> None:
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
        assert outcomes.renew_lease(tx, entry)
        now_ms = tx.now_ms

    row = scene.row(effects)
    assert row["lease_until_ms"] == now_ms + 3_000
    assert row["fencing_token"] == entry.fencing_token


@pytest.mark.parametrize("after", [NOW, LEASE_OVER])
def test_a_lost_claims_answer_is_found_with_its_lease(scene: Scene, after: timedelta) -> None:
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
            failed = outcomes.record_failure(tx, request, entry, class_, "again", delay=LEASE)
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


def test_a_call_without_an_outcome_is_counted_with_its_deadline(scene: Scene) -> None:
    request = scene.call()
    entry = scene.claimed(request)
    with scene.tx() as tx:
        assert outcomes.leave_in_doubt(tx, request, entry, "cut off") is not None

    row = scene.row(effects)
    assert (row["state"], row["failures"]) == ("in_doubt", {"in_doubt": 1})
    assert row["deadline_ms"] == entry.deadline_ms
    assert row["deadline_ms"] - row["claimed_ms"] == TIMEOUT // timedelta(milliseconds=1)
