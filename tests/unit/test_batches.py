"""What makes a batch: steps that follow one another, with no human between them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

from surehand.workflows.contracts.runs import StartRun, StepView
from surehand.workflows.contracts.states import StepState
from surehand.workflows.contracts.tools import (
    AttemptsUsed,
    Batch,
    Effect,
    FailedStep,
    Recovery,
    ToolCall,
    ToolSpec,
)
from surehand.workflows.control.budget import Spending
from surehand.workflows.plan.plan import Plan
from surehand.workflows.plan.policy import ApprovalPolicy
from surehand.workflows.state.run_state import RunData
from surehand.workflows.steps.tool_calls import MOST_FACTS, MOST_STEPS, batch_of

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


def data_of(plan: Plan) -> RunData:
    request = StartRun(run_id="run-1", tenant="default", user="uma", plan=plan)
    data = RunData.new(request, "life", datetime(2026, 1, 1, tzinfo=UTC))
    data.tools = dict(TOOLS)
    return data


def batch(
    steps: list[dict[str, Any]],
    most: int | None = None,
    stale: dict[str, Any] | None = None,
    held: set[str] | None = None,
    renewed: set[str] | None = None,
    **more: Any,
) -> Batch | None:
    """Return the batch that begins with the first of some steps, under way now."""
    facts = {"input": {}, **more.pop("facts", {})}
    plan = Plan.model_validate({"steps": [{"tool": "note", **step} for step in steps], **more})
    data = data_of(plan)
    data.stale.update(stale or {})
    data.held.update(held or ())
    for step_id in renewed or ():
        data.of_step(step_id).renewed = True
    for step_id in facts.keys() - {"input"}:
        data.set_step(step_id, StepState.SUCCEEDED)
    first = next(step for step in plan.steps if step.id not in facts)
    data.set_step(first.id, StepState.RUNNING)
    data.facts = facts
    return batch_of(data, call_of(first.id, TOOLS[first.tool]), most, 1)


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


def items(number: int, *, at: int = 0, **more: Any) -> Batch | None:
    """Return the batch that begins with an item of a list, under way now."""
    after = more.pop("after", "nothing")
    step = {"id": "each", "tool": "note", "for_each": "${input.items}", **more}
    steps = [step, {"id": "end", "tool": "note"}]
    plan = Plan.model_validate({"steps": steps, "interrupts": {"after": [after]}})
    data = data_of(plan)
    data.set_step("each", StepState.RUNNING)
    for n in range(number):
        state = StepState.PENDING if n > at else StepState.SUCCEEDED
        data.steps[f"each[{n}]"] = StepView(id=f"each[{n}]", tool="note", state=state)
    data.set_step(f"each[{at}]", StepState.RUNNING)
    data.set_progress("each", items=list(range(number)))
    return batch_of(data, call_of(f"each[{at}]", SPEC), None, 1)


def ids(found: Batch | None) -> list[str]:
    return [] if found is None else [step.id for step in found.following]


def test_steps_that_follow_one_another_are_one_batch() -> None:
    assert ids(batch([{"id": "a"}, {"id": "b"}, {"id": "c"}])) == ["b", "c"]


def test_what_has_a_human_before_or_after_it_ends_a_batch() -> None:
    for human in (
        {"approval": "required"},
        {"tool": "pay"},
        {"interrupt": "before"},
        {"interrupt": "after"},
        {"tool": "", "ask": "really?"},
    ):
        steps = [{"id": "a"}, {"id": "b"}, {"id": "c", **human}, {"id": "d"}]
        assert ids(batch(steps)) == ["b"], human


def test_a_step_whose_tool_has_changed_since_its_review_ends_a_batch() -> None:
    steps = [{"id": "a"}, {"id": "b"}, {"id": "c"}]
    assert ids(batch(steps, renewed={"c"})) == ["b"]
    assert batch(steps, renewed={"b"}) is None


def test_a_step_that_is_held_back_for_reads_that_are_made_again_ends_a_batch() -> None:
    steps = [{"id": "a"}, {"id": "b"}, {"id": "c"}]
    assert ids(batch(steps, held={"c"})) == ["b"]


def test_nothing_follows_a_step_whose_output_a_human_looks_at() -> None:
    assert batch([{"id": "a", "interrupt": "after"}, {"id": "b"}]) is None


def test_a_condition_or_a_list_ends_a_batch() -> None:
    for special in ({"when": "a.x > 1"}, {"for_each": "${a.items}"}):
        assert ids(batch([{"id": "a"}, {"id": "b"}, {"id": "c", **special}])) == ["b"], special


def test_the_items_of_a_list_that_are_still_to_come_are_one_batch() -> None:
    found = items(4, at=1, item="one")
    assert ids(found) == ["each[2]", "each[3]"]
    assert found is not None
    assert [step.own for step in found.following] == [{"one": 2}, {"one": 3}]


def test_items_that_a_human_looks_at_or_that_run_side_by_side_are_no_batch() -> None:
    for special in ({"approval": "required"}, {"interrupt": "after"}, {"parallel": 2}):
        assert items(4, **special) is None, special
    assert items(4, after="each[[]0]") is None
    assert items(4, at=3) is None


def test_a_call_that_waits_for_another_run_is_one_of_its_own() -> None:
    plan = Plan.model_validate(
        {"steps": [{"id": "a", "tool": "note"}, {"id": "b", "tool": "note"}]}
    )
    data = data_of(plan)
    data.set_step("a", StepState.RUNNING)
    call = call_of("a", SPEC)
    assert batch_of(data, call, None, 1) is not None
    joined = call.model_copy(update={"joined": "iv-1"})
    assert batch_of(data, joined, None, 1) is None


def test_a_read_that_is_made_again_is_a_call_of_its_own() -> None:
    steps = [{"id": "a"}, {"id": "b"}, {"id": "c"}, {"id": "d"}]
    assert ids(batch(steps, stale={"c": "as it was"})) == ["b"]


def test_steps_that_may_run_side_by_side_are_no_batch() -> None:
    side_by_side = [{"id": "a"}, {"id": "b", "after": []}, {"id": "c"}]
    assert batch(side_by_side) is None
    fork = [{"id": "a"}, {"id": "b"}, {"id": "c", "after": ["b"]}, {"id": "d", "after": ["b"]}]
    assert ids(batch(fork)) == ["b"]


def test_a_batch_has_no_more_steps_than_the_budget_and_one_message_can_take() -> None:
    steps = [{"id": f"s{number}"} for number in range(2 * MOST_STEPS)]
    found = batch(steps)
    assert len(ids(found)) == MOST_STEPS - 1
    assert ids(batch(steps, most=3)) == ["s1", "s2"]
    assert batch(steps, most=1) is None


def test_a_batch_takes_along_what_its_steps_refer_to_and_not_more_than_fits() -> None:
    steps: list[dict[str, Any]] = [
        {"id": "old"},
        {"id": "other"},
        {"id": "a"},
        {"id": "b", "params": {"x": "${old.x}", "y": "${a.y}"}},
        {"id": "c", "params": {"x": "${other.x}"}},
    ]
    found = batch(steps, facts={"old": {"x": 1}, "other": {"x": 2}})
    assert found is not None
    assert found.facts == {"old": {"x": 1}, "other": {"x": 2}}

    large = "x" * MOST_FACTS
    assert ids(batch(steps, facts={"old": {"x": 1}, "other": {"x": large}})) == ["b"]


def test_what_a_batch_has_made_is_off_the_budget_before_its_steps_have_had_their_turn() -> None:
    class Nobody:
        def take_steering(self, *_: Any) -> None:
            """Take nothing."""

    steps = [{"id": f"s{number}", "tool": "note"} for number in range(4)]
    data = data_of(Plan.model_validate({"steps": steps, "budget": {"steps": 3}}))
    spending = Spending(data, cast(Any, Nobody()))
    data.set_progress("s0", counted=True)
    assert (spending.calls_left("s0"), spending.used_up("s1")) == (3, None)

    data.reported["s1"] = FailedStep(
        step_id="s1", type="T", message="m", used=AttemptsUsed(attempts=1)
    )
    data.spent.steps = 1
    assert (spending.calls_left("s0"), spending.used_up("s0")) == (1, None)
    assert spending.used_up("s2") == "3 calls"
