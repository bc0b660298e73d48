"""G1: the row is written before the call, and the recorded result wins."""

from __future__ import annotations

from datetime import timedelta

import pytest

from surehand.activities.ledger.core.tables import effects, steps
from surehand.activities.ledger.steps.entries import (
    Answered,
    Claimed,
    Committed,
    Drifted,
    Held,
    Mismatch,
)
from tests.ledger.scene import OTHER_RUN, RUN, STEP, Scene

pytestmark = pytest.mark.guarantee("G1")

MADE_IN = {
    "claimed": Scene.claimed,
    "committed": Scene.committed,
    "in_doubt": Scene.in_doubt,
    "compensating": Scene.compensating,
}
OTHER_PARAMS = {"order": "1001", "amount": "999.00"}


def test_a_first_claim_writes_the_entry_and_its_attempt_before_any_call(
    scene: Scene,
) -> None:
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


def test_a_committed_effect_is_returned_to_its_own_step_and_not_claimed_again(
    scene: Scene,
) -> None:
    committed = scene.committed(scene.call(), receipt={"id": "r-1"})

    result = scene.claim(scene.call(attempt=2))

    assert result == Committed(committed)
    assert committed.receipt == {"id": "r-1"}
    assert scene.entry(committed.entry_id) == committed


def test_a_committed_effect_is_returned_to_another_run_whose_events_say_who_made_it(
    scene: Scene,
) -> None:
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
def test_a_live_key_with_other_params_is_a_mismatch_and_changes_nothing(
    scene: Scene, state: str, run_id: str
) -> None:
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


def test_a_proven_failure_is_claimed_again_under_the_same_key_and_the_next_token(
    scene: Scene,
) -> None:
    failed = scene.failed(scene.call())

    again = scene.claimed(scene.call(attempt=2))

    assert (again.entry_id, again.generation) == (failed.entry_id, 1)
    assert again.provider_key == failed.provider_key
    assert again.fencing_token == failed.fencing_token + 1
    assert again.failures == {"transient": 1}
    assert (scene.row(effects))["calls"] == 2


def test_another_run_that_takes_a_failed_effect_owns_it_and_has_its_own_failure_count(
    scene: Scene,
) -> None:
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
def test_a_no_told_to_one_step_does_not_keep_another_from_asking(
    scene: Scene, change: dict[str, str]
) -> None:
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
def test_after_it_was_undone_another_step_may_use_the_key_for_a_new_generation(
    scene: Scene, change: dict[str, str]
) -> None:
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
