"""What makes a stretch: steps that follow one another, with no human between them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from workflows.approvals import Gate
from workflows.book import Book
from workflows.contracts import (
    Effect,
    Recovery,
    StartRun,
    StepState,
    StepView,
    Stretch,
    ToolCall,
    ToolSpec,
)
from workflows.plan import Plan
from workflows.policy import ApprovalPolicy
from workflows.saga import Saga
from workflows.stretches import MOST_FACTS, MOST_STEPS, stretch_of

SPEC = ToolSpec(
    name="note",
    version="1",
    schema_hash="sha256:0",
    effect=Effect.WRITE,
    recovery=Recovery.DEDUPES,
    timeout=timedelta(seconds=1),
)
GATED = SPEC.model_copy(update={"name": "pay", "approval": ApprovalPolicy()})
TOOLS = {"note": SPEC, "pay": GATED}


def book_of(plan: Plan) -> Book:
    request = StartRun(run_id="run-1", tenant="default", user="uma", plan=plan)
    return Book(request, datetime(2026, 1, 1, tzinfo=UTC), Gate("run-1", "life"), Saga())


def stretch(
    steps: list[dict[str, Any]],
    most: int | None = None,
    stale: dict[str, Any] | None = None,
    **more: Any,
) -> Stretch | None:
    """Return the stretch that begins with the first of some steps, under way now."""
    facts = {"input": {}, **more.pop("facts", {})}
    plan = Plan.model_validate({"steps": [{"tool": "note", **step} for step in steps], **more})
    book = book_of(plan)
    book.stale.update(stale or {})
    for step_id in facts.keys() - {"input"}:
        book.set_step(step_id, StepState.SUCCEEDED)
    first = next(step for step in plan.steps if step.id not in facts)
    book.set_step(first.id, StepState.RUNNING)
    return stretch_of(book, TOOLS, facts, call_of(first.id, TOOLS[first.tool]), most, 1, {})


def call_of(step_id: str, tool: ToolSpec) -> ToolCall:
    return ToolCall(
        tenant="default",
        run_id="run-1",
        step_id=step_id,
        plan_version=1,
        user="uma",
        tool=tool,
        params={},
    )


def items(number: int, *, at: int = 0, **more: Any) -> Stretch | None:
    """Return the stretch that begins with an item of a list, under way now."""
    after = more.pop("after", "nothing")
    step = {"id": "each", "tool": "note", "for_each": "${input.items}", **more}
    steps = [step, {"id": "end", "tool": "note"}]
    plan = Plan.model_validate({"steps": steps, "interrupts": {"after": [after]}})
    book = book_of(plan)
    book.set_step("each", StepState.RUNNING)
    for n in range(number):
        state = StepState.PENDING if n > at else StepState.SUCCEEDED
        book.steps[f"each[{n}]"] = StepView(id=f"each[{n}]", tool="note", state=state)
    book.set_step(f"each[{at}]", StepState.RUNNING)
    book.note("each", items=list(range(number)))
    return stretch_of(book, TOOLS, {}, call_of(f"each[{at}]", SPEC), None, 1, {})


def ids(found: Stretch | None) -> list[str]:
    return [] if found is None else [step.id for step in found.following]


def test_steps_that_follow_one_another_are_one_stretch() -> None:
    assert ids(stretch([{"id": "a"}, {"id": "b"}, {"id": "c"}])) == ["b", "c"]


def test_what_has_a_human_before_or_after_it_ends_a_stretch() -> None:
    for human in (
        {"approval": "required"},
        {"tool": "pay"},
        {"interrupt": "before"},
        {"interrupt": "after"},
        {"tool": "", "ask": "really?"},
    ):
        steps = [{"id": "a"}, {"id": "b"}, {"id": "c", **human}, {"id": "d"}]
        assert ids(stretch(steps)) == ["b"], human


def test_nothing_follows_a_step_whose_output_a_human_looks_at() -> None:
    assert stretch([{"id": "a", "interrupt": "after"}, {"id": "b"}]) is None


def test_a_condition_or_a_list_ends_a_stretch() -> None:
    for special in ({"when": "a.x > 1"}, {"for_each": "${a.items}"}):
        assert ids(stretch([{"id": "a"}, {"id": "b"}, {"id": "c", **special}])) == ["b"], special


def test_the_items_of_a_list_that_are_still_to_come_are_one_stretch() -> None:
    found = items(4, at=1, item="one")
    assert ids(found) == ["each[2]", "each[3]"]
    assert found is not None
    assert [step.own for step in found.following] == [{"one": 2}, {"one": 3}]


def test_items_that_a_human_looks_at_or_that_run_side_by_side_are_no_stretch() -> None:
    for special in ({"approval": "required"}, {"interrupt": "after"}, {"parallel": 2}):
        assert items(4, **special) is None, special
    assert items(4, after="each[[]0]") is None
    assert items(4, at=3) is None


def test_a_call_that_waits_for_another_run_is_one_of_its_own() -> None:
    plan = Plan.model_validate(
        {"steps": [{"id": "a", "tool": "note"}, {"id": "b", "tool": "note"}]}
    )
    book = book_of(plan)
    book.set_step("a", StepState.RUNNING)
    call = call_of("a", SPEC)
    assert stretch_of(book, TOOLS, {}, call, None, 1, {}) is not None
    joined = call.model_copy(update={"joined": "iv-1"})
    assert stretch_of(book, TOOLS, {}, joined, None, 1, {}) is None


def test_a_read_that_is_made_again_is_a_call_of_its_own() -> None:
    steps = [{"id": "a"}, {"id": "b"}, {"id": "c"}, {"id": "d"}]
    assert ids(stretch(steps, stale={"c": "as it was"})) == ["b"]


def test_steps_that_may_run_side_by_side_are_no_stretch() -> None:
    side_by_side = [{"id": "a"}, {"id": "b", "after": []}, {"id": "c"}]
    assert stretch(side_by_side) is None
    fork = [{"id": "a"}, {"id": "b"}, {"id": "c", "after": ["b"]}, {"id": "d", "after": ["b"]}]
    assert ids(stretch(fork)) == ["b"]


def test_a_stretch_has_no_more_steps_than_the_budget_and_one_message_can_take() -> None:
    steps = [{"id": f"s{number}"} for number in range(2 * MOST_STEPS)]
    found = stretch(steps)
    assert len(ids(found)) == MOST_STEPS - 1
    assert ids(stretch(steps, most=3)) == ["s1", "s2"]
    assert stretch(steps, most=1) is None


def test_a_stretch_takes_along_what_its_steps_refer_to_and_not_more_than_fits() -> None:
    steps: list[dict[str, Any]] = [
        {"id": "old"},
        {"id": "other"},
        {"id": "a"},
        {"id": "b", "params": {"x": "${old.x}", "y": "${a.y}"}},
        {"id": "c", "params": {"x": "${other.x}"}},
    ]
    found = stretch(steps, facts={"old": {"x": 1}, "other": {"x": 2}})
    assert found is not None
    assert found.facts == {"old": {"x": 1}, "other": {"x": 2}}

    large = "x" * MOST_FACTS
    assert ids(stretch(steps, facts={"old": {"x": 1}, "other": {"x": large}})) == ["b"]
