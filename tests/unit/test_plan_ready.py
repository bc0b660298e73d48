"""Which steps may start: all that are ready, and none before what it waits for."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surehand.workflows.plan.plan import Plan
from surehand.workflows.plan.validation import ancestors
from surehand.workflows.steps.rules import condition_values


def plan(**steps: dict[str, Any]) -> Plan:
    return Plan.model_validate([{"id": id_, "tool": "t", **step} for id_, step in steps.items()])


def ready(written: Plan, settled: str = "", started: str = "") -> list[str]:
    steps = written.ready(frozenset(settled.split()), frozenset(started.split()))
    return [step.id for step in steps]


def test_steps_follow_one_another_as_listed() -> None:
    written = plan(a={}, b={}, c={})

    assert ready(written) == ["a"]
    assert ready(written, started="a") == []
    assert ready(written, settled="a") == ["b"]
    assert ready(written, settled="a b") == ["c"]
    assert ready(written, settled="a b c") == []


def test_after_changes_the_order_and_what_is_ready_together_starts_together() -> None:
    written = plan(a={}, b={"after": ["a"]}, c={"after": ["a"]}, d={"after": ["b", "c"]})

    assert ready(written) == ["a"]
    assert ready(written, settled="a") == ["b", "c"]
    assert ready(written, settled="a b", started="c") == []
    assert ready(written, settled="a b c") == ["d"]


def test_an_empty_after_starts_at_once() -> None:
    assert ready(plan(a={}, b={"after": []}, c={})) == ["a", "b"]


def test_the_step_after_one_that_starts_at_once_waits_for_that_one() -> None:
    written = plan(a={}, b={"after": []}, c={})

    assert ready(written, settled="b", started="a") == ["c"]


def test_a_reference_is_a_dependency_also_where_after_says_otherwise() -> None:
    written = plan(a={}, b={"after": [], "params": {"x": ["at ${a.id} and ${input.y}"]}})

    assert written.dependencies == {"a": frozenset(), "b": frozenset({"a"})}
    assert ready(written) == ["a"]


def test_an_escaped_reference_is_no_dependency() -> None:
    assert ready(plan(a={}, b={"after": [], "params": {"x": "$${a.id}"}})) == ["a", "b"]


@pytest.mark.parametrize(
    ("origin", "target", "skipped"),
    [("a", "d", {"b", "c"}), ("a", "b", set()), ("b", "d", {"c"}), ("c", "d", set())],
)
def test_a_goto_skips_what_lies_between(origin: str, target: str, skipped: set[str]) -> None:
    written = plan(a={}, b={}, c={}, d={}, e={})

    assert written.skipped_by_goto(origin, target) == skipped


def test_a_goto_skips_nothing_that_does_not_depend_on_where_it_starts() -> None:
    written = plan(
        a={}, side={"after": []}, b={"after": ["a"]}, end={"after": ["b", "side"]}, after_end={}
    )

    assert written.skipped_by_goto("a", "end") == {"b"}


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Plans whose steps wait for any earlier steps, by ``after`` and by reference."""
    steps = []
    for number in range(draw(st.integers(1, 8))):
        step: dict[str, Any] = {"id": f"s{number}", "tool": "t"}
        earlier = [f"s{other}" for other in range(number)]
        if earlier:
            step["params"] = {
                "refs": [f"${{{name}}}" for name in draw(st.sets(st.sampled_from(earlier)))]
            }
            if draw(st.booleans()):
                step["after"] = sorted(draw(st.sets(st.sampled_from(earlier))))
        steps.append(step)
    return Plan.model_validate(steps)


@given(plans(), st.integers())
def test_no_step_ever_starts_before_all_it_waits_for_and_every_step_starts_once(
    written: Plan, seed: int
) -> None:
    source = random.Random(seed)
    settled: set[str] = set()
    running: set[str] = set()
    order: list[str] = []
    while len(settled) < len(written.steps):
        for step in written.ready(frozenset(settled), frozenset(running)):
            assert written.dependencies[step.id] <= settled
            assert ancestors(written.dependencies, step.id) <= settled
            assert step.id not in order
            running.add(step.id)
            order.append(step.id)
        assert running, "nothing runs and nothing is ready: the plan would hang"
        finished = source.choice(sorted(running))
        running.remove(finished)
        settled.add(finished)
    assert sorted(order) == sorted(step.id for step in written.steps)


@given(plans())
def test_nothing_that_could_start_is_held_back(written: Plan) -> None:
    settled: set[str] = set()
    while len(settled) < len(written.steps):
        could = {
            step.id
            for step in written.steps
            if step.id not in settled and written.dependencies[step.id] <= settled
        }
        assert {step.id for step in written.ready(frozenset(settled), frozenset())} == could
        settled |= could


def test_a_condition_is_evaluated_with_its_values_in_one_order() -> None:
    """A workflow's calls must not differ from one process to the next."""
    names = [f"s{number}" for number in range(10, 30)]
    facts = dict.fromkeys(reversed(names), 1)

    assert list(condition_values(" and ".join(facts), facts)) == names
