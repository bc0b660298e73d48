"""G4: what was done last is undone first, and nothing that was begun is overlooked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workflows.saga import Saga

STEPS = ["a", "b", "c", "d"]


def begun(*steps: str) -> Saga:
    saga = Saga()
    for step in steps:
        saga.register(step)
    return saga


def test_commits_are_undone_last_first_whatever_order_they_were_begun_in() -> None:
    saga = begun("a", "b", "c")
    for step, seq in [("c", 10), ("a", 20), ("b", 30)]:
        saga.committed(step, seq)

    assert saga.order() == ["b", "a", "c"]
    assert saga.unsettled() == []


def test_a_write_without_a_recorded_commit_is_undone_before_all_others() -> None:
    saga = begun("a", "b", "c", "d")
    saga.committed("a", 10)
    saga.committed("c", 20)

    assert saga.order() == ["d", "b", "c", "a"]
    assert saga.unsettled() == ["b", "d"]


def test_a_step_that_is_begun_twice_is_undone_once() -> None:
    assert begun("a", "a", "b", "a").order() == ["b", "a"]


def test_what_is_not_ours_to_undo_is_dropped() -> None:
    saga = begun("a", "b")
    saga.committed("b", 10)
    saga.drop("b")
    saga.drop("unknown")

    assert saga.order() == ["a"]


def test_a_step_that_was_dropped_and_begun_again_is_undone_again() -> None:
    saga = begun("a", "b")
    saga.drop("a")
    saga.register("a")

    assert saga.order() == ["a", "b"]


@given(
    st.lists(st.sampled_from(STEPS)),
    st.dictionaries(st.sampled_from(STEPS), st.integers(1, 1000)),
    st.sets(st.sampled_from(STEPS)),
)
def test_every_write_that_was_begun_and_not_dropped_is_undone_exactly_once(
    steps: list[str], commits: dict[str, int], dropped: set[str]
) -> None:
    saga = begun(*steps)
    for step, seq in commits.items():
        saga.committed(step, seq)
    for step in dropped:
        saga.drop(step)

    order = saga.order()

    assert sorted(order) == sorted(set(steps) - dropped)
    seqs = [commits[step] for step in order if step in commits]
    assert seqs == sorted(seqs, reverse=True)
    known = [step in commits for step in order]
    assert known == sorted(known), "what may have happened last comes first"
