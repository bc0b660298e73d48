"""What the ledger tells of an effect in doubt, and which answers it says may be given."""

from __future__ import annotations

from datetime import timedelta

import pytest

from surehand.activities.ledger.core.tables import effects
from surehand.activities.ledger.effects import compensations
from surehand.activities.ledger.effects.interventions import open_intervention
from surehand.activities.ledger.history.doubts import Doubt, doubts
from surehand.activities.ledger.steps.entries import Entry
from surehand.workflows.contracts.effects import Resolution, ResolutionOutcome
from tests.ledger.scene import NOW, OTHER_RUN, RUN, SETTLED, SPEC, Scene


def given(scene: Scene, state: str) -> tuple[Entry, str]:
    """Return an entry in a state that asks a human, and its intervention's id."""
    if state != "compensating":
        return scene.asked(scene.call(), partial=state == "partial")
    committed = scene.committed(scene.call())
    with scene.tx() as tx:
        intervention = compensations.failed(tx, committed, "the bank says no")
    assert isinstance(intervention, str)
    return scene.entry(committed.entry_id), intervention


def looked_at(scene: Scene, intervention: str, after: timedelta = NOW, run_id: str = RUN) -> Doubt:
    with scene.tx(after) as tx:
        return doubts(tx, run_id, [intervention])[intervention]


@pytest.mark.parametrize("state", ["in_doubt", "partial", "compensating"])
@pytest.mark.parametrize("outcome", list(ResolutionOutcome))
def test_the_answers_that_are_offered_are_those_that_are_taken(
    scene: Scene, state: str, outcome: ResolutionOutcome
) -> None:
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


def test_an_undo_is_offered_where_the_run_has_recorded_that_the_tool_has_a_way_back(
    scene: Scene,
) -> None:
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
        assert doubts(tx, RUN, [intervention]) == {}
