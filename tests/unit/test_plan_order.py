"""Which steps may start: all that are ready, and none before what it waits for."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import surehand.workflows.run.questions as module
from surehand.workflows.contracts.base import ChainHead, StepState
from surehand.workflows.contracts.runs import StartRun, StepView
from surehand.workflows.contracts.steering import InterruptRecorded
from surehand.workflows.contracts.tools import (
    AttemptsUsed,
    Batch,
    DescribeTools,
    Effect,
    FailedStep,
    Recovery,
    ToolCall,
    ToolSpec,
)
from surehand.workflows.plan.plan import Plan
from surehand.workflows.plan.policy import ApprovalPolicy
from surehand.workflows.plan.references import ancestors
from surehand.workflows.run.run_core import RunCore
from surehand.workflows.run.run_data import RunData
from surehand.workflows.run.step_calls import LONGEST_BATCH, MOST_FACTS, Spending, make_batch
from surehand.workflows.run.step_rules import condition_values


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
def test_every_step_starts_once_after_all_it_waits_for(written: Plan, seed: int) -> None:
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


def calls_of(work: Callable[[], object]) -> int:
    """Count the functions that are called meanwhile: as good as a clock, and always the same."""
    count = 0

    def called(_: Any, what: str, __: Any) -> None:
        nonlocal count
        count += what in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def written(length: int, **more: Any) -> dict[str, Any]:
    steps = [{"id": f"s{n}", "tool": "orders.read", **more} for n in range(length)]
    return {"steps": [*steps, {"id": "end", "tool": "mail.send"}]}


@pytest.mark.parametrize("more", [{}, {"on_no": {"goto": "end"}}], ids=["plain", "with gotos"])
def test_a_plan_with_four_times_the_steps_is_about_four_times_the_work(more: Any) -> None:
    short, long = written(100, **more), written(400, **more)

    assert calls_of(lambda: Plan.model_validate(long)) < 5 * calls_of(
        lambda: Plan.model_validate(short)
    )


def test_so_is_a_goto_in_it() -> None:
    def skipping(plan: Plan) -> int:
        assert plan.dependencies
        return calls_of(lambda: plan.skipped_by_goto("s0", "end"))

    short, long = (Plan.model_validate(written(length)) for length in (100, 400))

    assert skipping(long) < 5 * skipping(short)


def test_a_plan_is_judged_once_however_many_messages_it_is_put_into() -> None:
    short, long = (Plan.model_validate(written(length)) for length in (100, 400))

    DescribeTools(plan=short)  # A message is built when the first one is made.
    assert calls_of(lambda: DescribeTools(plan=long)) == calls_of(lambda: DescribeTools(plan=short))


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
    return make_batch(data, call_of(first.id, TOOLS[first.tool]), most, 1)


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
    return make_batch(data, call_of(f"each[{at}]", SPEC), None, 1)


def ids(found: Batch | None) -> list[str]:
    return [] if found is None else [step.id for step in found.following]


@pytest.mark.parametrize(
    ("special", "more", "following"),
    [
        ({}, {}, ["b", "c", "d"]),
        ({"approval": "required"}, {}, ["b"]),
        ({"interrupt": "before"}, {}, ["b"]),
        ({"interrupt": "after"}, {}, ["b"]),
        ({"tool": "pay"}, {}, ["b"]),
        ({"tool": "", "ask": "really?"}, {}, ["b"]),
        ({"when": "a.x > 1"}, {}, ["b"]),
        ({"for_each": "${a.items}"}, {}, ["b"]),
        ({}, {"renewed": {"c"}}, ["b"]),
        ({}, {"renewed": {"b"}}, []),
        ({}, {"held": {"c"}}, ["b"]),
        ({}, {"stale": {"c": "as it was"}}, ["b"]),
    ],
    ids=[
        *("nothing", "an approval", "a look before", "a look after", "a tool's approval"),
        *("a question", "a condition", "a list", "a changed tool", "the next one's changed tool"),
        *("a step held back for reads", "a read that is made again"),
    ],
)
def test_a_batch_ends_before(special: Any, more: Any, following: list[str]) -> None:
    steps = [{"id": "a"}, {"id": "b"}, {"id": "c", **special}, {"id": "d"}]
    assert ids(batch(steps, **more)) == following


def test_nothing_follows_a_step_whose_output_a_human_looks_at() -> None:
    assert batch([{"id": "a", "interrupt": "after"}, {"id": "b"}]) is None


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
    assert make_batch(data, call, None, 1) is not None
    joined = call.model_copy(update={"joined": "iv-1"})
    assert make_batch(data, joined, None, 1) is None


def test_steps_that_may_run_side_by_side_are_no_batch() -> None:
    side_by_side = [{"id": "a"}, {"id": "b", "after": []}, {"id": "c"}]
    assert batch(side_by_side) is None
    fork = [{"id": "a"}, {"id": "b"}, {"id": "c", "after": ["b"]}, {"id": "d", "after": ["b"]}]
    assert ids(batch(fork)) == ["b"]


def test_a_batch_has_no_more_steps_than_the_budget_and_one_message_can_take() -> None:
    steps = [{"id": f"s{number}"} for number in range(2 * LONGEST_BATCH)]
    found = batch(steps)
    assert len(ids(found)) == LONGEST_BATCH - 1
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
    steps = [{"id": f"s{number}", "tool": "note"} for number in range(4)]
    data = data_of(Plan.model_validate({"steps": steps, "budget": {"steps": 3}}))
    spending = Spending(RunCore(data))
    data.set_progress("s0", counted=True)
    assert (spending.calls_left("s0"), spending.what_is_used_up("s1")) == (3, None)

    data.reported["s1"] = FailedStep(
        step_id="s1", type="T", message="m", used=AttemptsUsed(attempts=1)
    )
    data.spent.steps = 1
    assert (spending.calls_left("s0"), spending.what_is_used_up("s0")) == (1, None)
    assert spending.what_is_used_up("s2") == "3 calls"


WAIT = {"event": "signed", "about": "x"}
PLAN = Plan.model_validate([{"id": step, "wait": WAIT, "after": []} for step in ("a", "b")])


class _Core(RunCore):
    """Wakes all whose condition holds in one pass, as the SDK does."""

    def __init__(self, data: RunData) -> None:
        super().__init__(data)
        self.recorded: list[tuple[str, str]] = []
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    async def call(self, _: Any, message: Any, *__: Any, **___: Any) -> Any:
        self.recorded.append((message.interrupt.step_id, message.what))
        return InterruptRecorded(head=ChainHead(seq=1, hash=""))

    def show_change(self) -> None:
        """Show nothing: there is no workflow here."""

    async def wait_until_sent(self, arrived: Callable[[], bool], within: timedelta | None) -> bool:
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((arrived, called))
        await called
        return arrived()

    def wake(self) -> None:
        for arrived, called in self._waiting:
            if arrived() and not called.done():
                called.set_result(None)


async def turns() -> None:
    """Let everybody go on who can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_one_event_wakes_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.workflow, "now", lambda: datetime.now(UTC))
    request = StartRun(run_id="r", tenant="default", user="ada", plan=PLAN)
    data = RunData.new(request, "first", datetime.now(UTC))
    core = _Core(data)
    questions = module.Questions(core)
    waits = [step.wait for step in PLAN.steps if step.wait is not None]
    steps = [
        asyncio.create_task(questions.wait_for_event(id_, wait, "x"))
        for id_, wait in zip("ab", waits, strict=True)
    ]
    await turns()

    for payload in (1, 2):
        data.events.keep("signed", "x", payload)
        core.wake()
        await turns()

    assert sorted([await step for step in steps], key=str) == [1, 2]
    assert [what for _, what in core.recorded if what != "opened"] == ["delivered"] * 2
