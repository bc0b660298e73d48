"""A run cannot grow without an end: all runs inside it, and their lists, share its room."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surehand.activities.tools.describing import describe_plan
from surehand.activities.tools.toolbox import Toolbox
from surehand.client.plan_file import load_plan
from surehand.process.exits import PlanRefused
from surehand.workflows.plan.plan import Plan
from surehand.workflows.plan.size import (
    MOST_LEVELS,
    MOST_STEPS,
    overgrown,
    room_of_child,
    room_of_step,
    size_of,
    too_deep,
    too_many_items,
)

ASK = {"ask": "?"}


def nested(levels: int) -> Any:
    plan: Any = [ASK]
    for _ in range(levels):
        plan = [{"plan": {"steps": plan}}]
    return {"steps": plan}


def of_lists(levels: int, items: int) -> Any:
    """A plan with a list of plans with a list of plans ..."""
    plan: Any = {"steps": [ASK]}
    for _ in range(levels):
        step = {"for_each": "${input.all}", "plan": plan}
        plan = {"input": {"all": list(range(items))}, "steps": [step]}
    return plan


def problems(plan: Any) -> list[str]:
    return [f"{one.where}: {one.reason}" for one in overgrown(Plan.model_validate(plan))]


def test_child_runs_are_inside_one_another_to_a_depth() -> None:
    assert problems(nested(MOST_LEVELS)) == []
    [problem] = problems(nested(MOST_LEVELS + 1))
    inside = "steps.0 (step1).plan." * MOST_LEVELS
    assert problem.startswith(f"{inside}steps.0 (step1).plan: child runs are nested too deeply: at")
    assert too_deep(MOST_LEVELS - 1) is None
    assert too_deep(MOST_LEVELS) is not None
    assert too_deep(-5) is None


def test_lists_of_plans_of_lists_multiply_only_as_far_as_there_is_room() -> None:
    assert problems(of_lists(2, 200)) == []
    assert problems(of_lists(3, 30)) == []
    for levels, items in ((2, 400), (3, 60), (5, 12)):
        [problem] = problems(of_lists(levels, items))
        assert f"a list of {items} plans of 1 steps is too much" in problem
        assert "100,000 steps with all runs inside it" in problem


def test_a_plan_that_would_grow_too_large_is_refused_wherever_it_is_checked(tmp_path: Any) -> None:
    for plan in (nested(MOST_LEVELS + 1), of_lists(3, 100)):
        described = describe_plan(Toolbox([]), Plan.model_validate(plan))
        assert len(described.problems) == 1
        file = tmp_path / "plan.json"
        file.write_text(Plan.model_validate(plan).model_dump_json(exclude_defaults=True))
        with pytest.raises(PlanRefused) as refused:
            load_plan(str(file))
        assert [p.reason for p in refused.value.problems] == [described.problems[0].reason]


def test_a_list_of_calls_is_as_long_as_ever() -> None:
    steps = [{"for_each": "${input.all}", "tool": "a.b", "params": {}}] * 90
    assert problems({"input": {"all": list(range(1000))}, "steps": steps}) == []


def test_room_that_somebody_claims_is_no_more_than_there_is() -> None:
    plan = Plan.model_validate(of_lists(1, 10))
    assert room_of_step(plan, 10**12) == room_of_step(plan, MOST_STEPS) == MOST_STEPS - 1
    assert too_many_items(plan, 0, plan.steps[0], 1) is not None
    assert too_many_items(plan, 0, plan.steps[0], 0) is None


_PLANS = st.recursive(
    st.just({"steps": [ASK]}),
    lambda inner: st.lists(
        st.one_of(
            st.just(ASK),
            inner.map(lambda plan: {"plan": plan}),
            inner.map(lambda plan: {"plan": plan, "for_each": "${input.all}"}),
            st.just({"tool": "a.b", "for_each": "${input.all}"}),
        ),
        min_size=1,
        max_size=4,
    ).map(lambda steps: {"input": {"all": []}, "steps": steps}),
    max_leaves=12,
)


def grown(plan: Plan, room: int, longest: int) -> int:
    """Return the steps of a tree whose every list is as long as it may be."""
    total = len(plan.steps)
    for step in plan.steps:
        items = 0
        if step.for_each is not None:
            fits = (n for n in range(longest, 0, -1) if not too_many_items(plan, room, step, n))
            items = next(fits, 0)
            total += items
            if not items:
                continue
        if step.plan is not None:
            inside = grown(step.plan, room_of_child(plan, room, items), longest)
            total += max(items, 1) * inside
    return total


@settings(derandomize=True, max_examples=150, deadline=None)
@given(_PLANS, st.integers(1, 12))
def test_no_tree_outgrows_its_room_however_long_its_lists_are(plan: Any, longest: int) -> None:
    root = Plan.model_validate(plan)
    room = 60

    if size_of(root) <= room and not list(overgrown(root, room)):
        assert grown(root, room, longest) <= room
