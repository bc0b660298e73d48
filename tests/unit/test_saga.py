"""G4: what a run knows to have done, and what it does not know of."""

from __future__ import annotations

import pytest

from surehand.workflows.contracts.effects import EffectView, RemainingEffect
from surehand.workflows.state.records import Saga


def begun(*steps: str) -> Saga:
    saga = Saga()
    for step in steps:
        saga.register(step)
    return saga


def remaining(entry_id: str, step_id: str = "a", child: str | None = None) -> RemainingEffect:
    effect = EffectView(
        entry_id=entry_id, tool="t", key="k", generation=1, state="committed", step_id=step_id
    )
    return RemainingEffect(effect=effect, child=child)


def test_a_write_is_unsettled_until_its_outcome_is_known() -> None:
    saga = begun("a", "b", "c", "a")
    saga.committed("a", "ef-1")
    saga.drop("b")

    assert saga.unsettled() == ["c"]
    assert saga.steps() == ["a", "c"]


def test_what_another_life_has_made_is_not_known_though_its_step_is() -> None:
    saga = begun("a")
    saga.committed("a", "ef-2")

    assert saga.knows(remaining("ef-2"))
    assert not saga.knows(remaining("ef-1"))


def test_a_step_has_all_that_it_has_made_in_several_lives() -> None:
    saga = begun("a")
    for entry_id in ("ef-1", "ef-2"):
        saga.committed("a", entry_id)
    saga.undone("ef-1")

    assert not saga.knows(remaining("ef-1"))
    assert saga.steps() == ["a"]


@pytest.mark.parametrize("own", [True, False])
def test_what_a_step_goes_on_with_is_known_until_the_step_begins_anew(own: bool) -> None:
    saga = begun("again")
    saga.relies("again", "ef-1", own=own)
    assert (saga.unsettled(), saga.knows(remaining("ef-1"))) == ([], True)

    saga.register("again")

    assert not saga.knows(remaining("ef-1"))


def test_of_what_a_step_goes_on_with_its_own_run_has_to_see_whether_it_stands() -> None:
    """Of what another run has undone, a human is asked."""
    saga = begun("ours", "theirs")
    saga.relies("ours", "ef-1", own=True)
    saga.relies("theirs", "ef-2", own=False)

    assert saga.lost({"ef-1"}, set()) == []
    assert saga.lost(set(), set()) == ["ours"]


def test_what_a_child_run_goes_on_with_is_known_where_it_has_completed() -> None:
    saga = begun("pay", "mail")
    used = [remaining("ef-1").model_copy(update={"used_in": [child]}) for child in ("pay", "mail")]
    saga.ended("pay", "pay", completed=True)
    saga.ended("mail", "mail", completed=False)

    assert [saga.knows(one) for one in used] == [True, False]


def test_what_this_life_takes_for_done_and_does_not_stand_is_lost_unless_it_was_withdrawn() -> None:
    saga = begun("a", "b", "pay", "mail")
    saga.committed("a", "ef-1")
    saga.committed("b", "ef-2")
    for step in ("pay", "mail"):
        saga.ended(step, f"r~{step}", completed=True)

    assert saga.lost({"ef-2"}, {"r~pay"}) == ["a", "pay"]

    saga.undone("ef-1")
    saga.withdraw("pay")
    assert saga.lost({"ef-2"}, {"r~pay"}) == []


def test_what_a_child_run_has_left_is_known_once_its_end_is() -> None:
    saga, its = begun("pay", "mail"), remaining("ef-1", child="r~pay")
    assert not saga.knows(its)

    saga.ended("pay", "r~pay", completed=True)
    saga.ended("mail", "r~mail", completed=False)

    assert saga.knows(its)
    assert saga.steps() == ["pay"]


def test_what_the_ledger_was_found_to_have_is_known_once_the_run_comes_to_it() -> None:
    saga = Saga()
    saga.add_found("a", "ef-1")
    saga.add_found("b", "ef-2")
    assert (saga.knows(remaining("ef-1")), saga.steps()) == (False, ["a", "b"])

    saga.committed("a", "ef-1")
    saga.accept("b")

    assert saga.knows(remaining("ef-1")) and saga.knows(remaining("ef-2", "b"))


def test_all_of_it_travels() -> None:
    saga = begun("a", "b", "c")
    saga.committed("a", "ef-1")
    saga.add_found("d", "ef-2")
    saga.ended("c", "r~c", completed=True)
    saga.relies("e", "ef-3", own=True)
    saga.relies("f", "ef-4", own=False)

    assert Saga.model_validate_json(saga.model_dump_json()) == saga
