"""A toolbox that keeps its promises, and runs that cannot grow without an end."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from surehand.activities.tools.call_reports import to_json
from surehand.activities.tools.describing import describe_plan
from surehand.activities.tools.tool import (
    Dedupes,
    LookupAnswer,
    No,
    NotFound,
    Tool,
    ToolContext,
    Undo,
)
from surehand.activities.tools.toolbox import (
    READ,
    WRITE,
    Toolbox,
    ToolboxError,
    derive_recovery,
    load_toolbox,
    tool,
)
from surehand.client.plan_file import load_plan
from surehand.process.exits import PlanRefused
from surehand.workflows.contracts.effects import undo_text
from surehand.workflows.contracts.tools import Effect, Recovery, ToolSpec
from surehand.workflows.plan.plan import (
    MOST_LEVELS,
    MOST_STEPS,
    Plan,
    overgrown,
    room_of_child,
    room_of_step,
    size_of,
    why_too_deep,
    why_too_many_items,
)
from surehand.workflows.plan.policy import ApprovalPolicy


class Params(BaseModel):
    order: str
    amount: int = 0


class OtherParams(BaseModel):
    order: str
    amount: str = ""


async def lookup(params: Params, ctx: ToolContext) -> LookupAnswer:
    return NotFound()


def make(name: str = "payments.refund", effect: Effect = WRITE, **options: Any) -> Tool:
    @tool(name, effect=effect, **options)
    async def fn(params: Params, ctx: ToolContext) -> str:
        """Pay back.

        All of it.
        """
        return "r-1"

    return fn


BOTH = (True, False)
DEDUPES = Recovery.DEDUPES
TRANSACTIONAL = Recovery.TRANSACTIONAL
HUMAN: dict[str, Any] = {"recovery": "human"}
WINDOW = Dedupes(timedelta(hours=1))
UNDO = Undo("payments.charge", lambda params, receipt: {"order": params["order"]})


@pytest.mark.parametrize(
    ("effect", "transactional", "dedupes", "lookup_", "human", "recovery"),
    [
        *((READ, *can, Recovery.READ) for can in itertools.product(BOTH, repeat=4)),
        *((WRITE, True, *can, TRANSACTIONAL) for can in itertools.product(BOTH, repeat=3)),
        *((WRITE, False, True, *can, DEDUPES) for can in itertools.product(BOTH, repeat=2)),
        (WRITE, False, False, True, True, Recovery.LOOKUP),
        (WRITE, False, False, True, False, Recovery.LOOKUP),
        (WRITE, False, False, False, True, Recovery.HUMAN),
        (WRITE, False, False, False, False, None),
    ],
)  # fmt: skip
def test_how_an_unknown_outcome_is_settled_follows_from_what_the_tool_can_do(
    effect: Effect,
    transactional: bool,
    dedupes: bool,
    lookup_: bool,
    human: bool,
    recovery: Recovery | None,
) -> None:
    derived = derive_recovery(
        effect, transactional=transactional, dedupes=dedupes, lookup=lookup_, human=human
    )
    assert derived is recovery


def sync_function() -> None:
    @tool("bad", effect=READ)  # type: ignore[arg-type]
    def fn(params: Params, ctx: ToolContext) -> str:
        return ""


def one_parameter() -> None:
    @tool("bad", effect=READ)  # type: ignore[arg-type]
    async def fn(params: Params) -> str:
        return ""


def no_model() -> None:
    @tool("bad", effect=READ)
    async def fn(params: dict, ctx: ToolContext) -> str:  # type: ignore[type-arg]
        return ""


def no_annotation() -> None:
    @tool("bad", effect=READ)
    async def fn(params, ctx):  # type: ignore[no-untyped-def]
        return ""


def in_seconds(**seconds: float) -> dict[str, Any]:
    return {name: timedelta(seconds=one) for name, one in seconds.items()}


def a_key(params: Params) -> str:
    return "a"


OF_PARAMS: Any = lambda params: params  # noqa: E731
#: What each has to say, and the declarations that must be refused with that.
READS: dict[str, list[dict[str, Any]]] = {
    "a READ has no key": [
        *({name: UNDO} for name in ("compensate", "cleanup")),
        *({"key": a_key}, {"dedupes": WINDOW}, {"lookup": lookup}),
    ],
    "its timeout": [in_seconds(timeout=-1)],
    "fresh_for=": [in_seconds(fresh_for=-1)],
}
WRITES: dict[str, list[dict[str, Any]]] = {
    "a way to settle an unknown outcome": [{}],
    "either irreversible or has compensate": [{**HUMAN, "irreversible": True, "compensate": UNDO}],
    "its timeout has to be more than nothing: 0:00:00": [{**HUMAN, **in_seconds(timeout=0)}],
    "its settle has to be more than nothing": [
        {"lookup": lookup, **in_seconds(settle=n)} for n in (0, -1)
    ],
    "its dedupes window has to be more than nothing": [
        {"dedupes": Dedupes(timedelta(hours=n))} for n in (0, -1)
    ],
    "its params= takes (params, receipt)": [{**HUMAN, "cleanup": Undo("b", OF_PARAMS)}],
}
FUNCTIONS: dict[str, list[Callable[[], Any]]] = {
    "must be async": [sync_function],
    "takes (params, ctx)": [one_parameter],
    "annotate 'params' with a pydantic model": [no_model, no_annotation],
}


@pytest.mark.parametrize("says", [*READS, *WRITES, *FUNCTIONS])
def test_a_contradictory_declaration_is_refused(says: str) -> None:
    declared = [partial(make, "bad", READ, **how) for how in READS.get(says, [])]
    declared += [partial(make, "bad", **how) for how in WRITES.get(says, [])]
    for declare in declared + FUNCTIONS.get(says, []):
        with pytest.raises(ToolboxError) as refused:
            declare()

        assert "'bad'" in str(refused.value)
        assert says in str(refused.value)


def test_a_name_is_taken_once() -> None:
    with pytest.raises(ToolboxError, match=r"'mail\.send'"):
        Toolbox([make("mail.send", **HUMAN), make("mail.send", READ)])


def test_no_tool_is_called_as_turns_of_models_are() -> None:
    with pytest.raises(ToolboxError, match="'model'"):
        Toolbox([make("model", **HUMAN)])


@pytest.mark.parametrize("kind", ["compensate", "cleanup"])
@pytest.mark.parametrize("others", [[], [make("payments.charge", READ)]], ids=["none", "a READ"])
def test_an_undo_has_to_be_a_loaded_write(kind: str, others: list[Tool]) -> None:
    options: dict[str, Any] = {**HUMAN, kind: UNDO}
    undone = make(**options)

    with pytest.raises(ToolboxError) as refused:
        Toolbox([undone, *others])

    assert "'payments.refund'" in str(refused.value)
    assert "'payments.charge'" in str(refused.value)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Write a module of a user's own and return its name."""
    monkeypatch.syspath_prepend(tmp_path)
    numbers = itertools.count()

    def write(text: str) -> str:
        name = f"users_tools_{tmp_path.name}_{next(numbers)}".replace("-", "_")
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    return write


TOOL = """
from pydantic import BaseModel
from surehand import READ, ToolContext, tool

class Params(BaseModel):
    order: str

@tool("{name}", effect=READ)
async def read(params: Params, ctx: ToolContext) -> str:
    return params.order
"""


def test_modules_and_their_tools_are_loaded_once(module: Callable[[str], str]) -> None:
    first = module(TOOL.format(name="orders.read"))
    second = module(TOOL.format(name="mail.read") + f"\nfrom {first} import read as other\n")

    assert load_toolbox([first, second]).names() == ["mail.read", "orders.read"]
    assert load_toolbox([]).names() == []


BROKEN: list[tuple[str, str, list[str]]] = [
    ("a mistake", "1 / 0", ["ZeroDivisionError", ".py:1"]),
    ("a syntax error", "def", ["SyntaxError"]),
    ("a missing import", "import no_such_package_of_anybody", ["no_such_package_of_anybody"]),
    ("no tool", "x = 1", ["defines no tool"]),
    ("a bad tool", TOOL.replace("async def", "def").format(name="bad"), ["'bad'", "async"]),
]


@pytest.mark.parametrize(
    ("text", "says"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN]
)
def test_a_module_that_cannot_be_used_is_named_with_the_reason(
    module: Callable[[str], str], text: str, says: list[str]
) -> None:
    name = module(text)

    with pytest.raises(ToolboxError) as refused:
        load_toolbox([name])

    assert "\n" not in str(refused.value)
    for part in says:
        assert part in str(refused.value)
    if "'bad'" not in says:
        assert name in str(refused.value)


@pytest.mark.parametrize("name", ["no_such_module_of_anybody", "not a name", "", ".relative"])
def test_a_module_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(ToolboxError, match="SUREHAND_TOOL_MODULES") as refused:
        load_toolbox([name])

    assert repr(name) in str(refused.value)


def test_the_spec_says_all_that_a_run_has_to_know_and_no_code() -> None:
    spec = make(
        lookup=lookup,
        settle=timedelta(seconds=5),
        compensate=UNDO,
        approval=ApprovalPolicy(quorum=2),
        permission="refunds",
        timeout=timedelta(seconds=7),
        version="3",
        secret_params=True,
    ).spec()

    assert spec.model_dump(exclude={"schema_hash"}) == {
        "name": "payments.refund",
        "version": "3",
        "effect": "WRITE",
        "recovery": "lookup",
        "timeout": timedelta(seconds=7),
        "description": "Pay back.",
        "settle": timedelta(seconds=5),
        "compensation": "payments.charge",
        "cleanup": None,
        "irreversible": False,
        "approval": ApprovalPolicy(quorum=2).model_dump(),
        "permission": "refunds",
        "fresh_for": None,
        "foreign": False,
        "secret_params": True,
        "lookups": 2,
    }
    assert ToolSpec.model_validate_json(spec.model_dump_json()) == spec


def test_the_schema_hash_changes_with_the_params_and_not_with_the_code() -> None:
    @tool("payments.refund", effect=WRITE, recovery="human")
    async def changed(params: OtherParams, ctx: ToolContext) -> str:
        return ""

    assert make(**HUMAN).schema_hash == make(**HUMAN, version="2").schema_hash
    assert changed.schema_hash != make(**HUMAN).schema_hash


def test_a_human_is_told_what_would_happen_and_how_it_would_be_undone() -> None:
    params = Params(order="1001", amount=5)
    plain = make(**HUMAN)
    told = make(**HUMAN, describe=lambda p: f"refund {p.order}", compensate=UNDO)

    assert plain.describe_call(params) == 'payments.refund: order="1001", amount=5'
    hidden = make(**HUMAN, secret_params=True)
    assert hidden.describe_call(params) == "payments.refund: Pay back."
    long = Params(order="\u202e1" + "0" * 5000, amount=5)
    title = plain.describe_call(long)
    assert title.startswith('payments.refund: order="\\u202e100')
    assert title.endswith('0"…, amount=5') and len(title) < 200
    assert told.describe_call(params) == "refund 1001"
    charge = make("payments.charge", version="7", **HUMAN)
    tools = Toolbox([charge, told])
    shown = undo_text(tools.undo_spec(told, approved=False))
    assert shown == "undone by payments.charge (version 7)"
    assert undo_text(tools.undo_spec(plain, approved=False)) == "cannot be undone"
    assert undo_text(None) == "changes nothing"
    drops = make("drafts.make", **HUMAN, cleanup=UNDO)
    shown = undo_text(Toolbox([charge, drops]).undo_spec(drops, approved=False))
    assert shown == "cannot be undone; a cancel with cleanup runs payments.charge (version 7)"


class Receipt(BaseModel):
    receipt_id: str = Field(alias="receiptId")


class Odd:
    """What pydantic knows no schema of."""


@pytest.mark.parametrize(
    ("returned", "schema"),
    [
        (int, {"type": "integer"}),
        (int | No, {"type": "integer"}),
        (int | str | No, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (None, {"type": "null"}),
        (Any, None),
        (No, None),
        (Odd, None),
    ],
)
def test_a_model_hears_outputs_and_no_noes(returned: Any, schema: dict[str, Any] | None) -> None:
    async def fn(params: Params, ctx: ToolContext) -> Any:
        """Pay back."""

    fn.__annotations__["return"] = returned
    made = tool("payments.refund", effect=READ)(fn).definition()

    assert made.output_schema == schema
    assert (made.name, made.effect, made.description) == ("payments.refund", READ, "Pay back.")
    assert made.params_schema["required"] == ["order"]


def test_an_output_is_told_of_by_the_names_that_it_is_recorded_with() -> None:
    async def fn(params: Params, ctx: ToolContext) -> Receipt:
        """Pay back."""
        return Receipt(receiptId="r-1")

    schema = tool("payments.refund", effect=READ)(fn).definition().output_schema

    assert schema is not None and list(schema["properties"]) == ["receipt_id"]
    assert to_json(Receipt(receiptId="r-1")) == {"receipt_id": "r-1"}


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
    assert why_too_deep(MOST_LEVELS - 1) is None
    assert why_too_deep(MOST_LEVELS) is not None
    assert why_too_deep(-5) is None


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
    assert why_too_many_items(plan, 0, plan.steps[0], 1) is not None
    assert why_too_many_items(plan, 0, plan.steps[0], 0) is None


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
            fits = (n for n in range(longest, 0, -1) if not why_too_many_items(plan, room, step, n))
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


def test_an_effect_that_is_a_word_is_refused_in_one_line() -> None:
    with pytest.raises(ToolboxError, match=r"'payments.refund': effect='wirte': use READ or WRITE"):
        make(effect="wirte")  # type: ignore[arg-type]
