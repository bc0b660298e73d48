"""What a plan writes out for a tool is checked before it starts, and refused in plain words."""

from __future__ import annotations

import re
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)

from surehand.activities.tools.describing import describe_plan, literal_problems
from surehand.activities.tools.tool import Tool, ToolContext, Undo, explain
from surehand.activities.tools.toolbox import READ, WRITE, Toolbox, tool
from surehand.workflows.plan.plan import Plan, Step


class Card(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["card"] = "card"
    number: int
    holder: Card | str = ""


class Transfer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["transfer"] = "transfer"
    iban: str
    amount: int | float = 0


def taking(type_: Any) -> Tool:
    model = create_model("Params", value=(type_, ...))

    async def called(params: Any, ctx: ToolContext) -> None:
        """Take a value."""

    called.__annotations__["params"] = model
    return tool("a.b", effect=READ)(called)


def told(type_: Any, value: Any) -> list[tuple[str, str]]:
    step = Step.model_validate({"id": "s", "tool": "a.b", "params": {"value": value}})
    return literal_problems(taking(type_), step)


TAGGED = Annotated[Card | Transfer, Field(discriminator="kind")]
TYPES: dict[str, Any] = {
    "int": int,
    "float": float,
    "decimal": Decimal,
    "bool": bool,
    "str": str,
    "date": date,
    "dict": dict[str, int],
    "list": list[int],
    "set": set[int],
    "model": Card,
    "literal": Literal["a", "b"],
    "int or float": int | float,
    "decimal or int": Decimal | int,
    "date or time": date | datetime,
    "list or int": list[int] | int,
    "two models": Card | Transfer,
    "tagged models": TAGGED,
    "int or null": int | None,
    "dict or list": dict[str, int] | list[Card],
    "tuple or int": tuple[int, str] | int,
    "with limits": Annotated[int, Field(gt=3)] | Annotated[str, Field(max_length=2)],
    "made from text": Annotated[int, BeforeValidator(int)],
    "split from text": Annotated[list[int], BeforeValidator(lambda text: ["split", text][:1])],
}


@pytest.mark.parametrize("name", TYPES)
def test_a_reference_stands_for_a_value_of_any_type(name: str) -> None:
    assert told(TYPES[name], "${input.it}") == []


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (list[int] | int, ["${a.x}", 2]),
        (Card | Transfer, {"number": "${a.x}"}),
        (Card | Transfer, {"iban": "x", "amount": "${a.x}"}),
        (Card | Transfer, {"number": 1, "holder": {"number": "${a.x}"}}),
        (TAGGED, {"kind": "${a.x}", "number": 1}),
        (TAGGED, {"kind": "transfer", "iban": "x", "amount": "${a.x}"}),
        (dict[str, int] | int, {"int": 5, "other": "${a.x}"}),
    ],
)
def test_a_reference_inside_of_a_union_may_be_what_one_member_wants(type_: Any, value: Any) -> None:
    assert told(type_, value) == []


@pytest.mark.parametrize(
    ("type_", "value", "problem"),
    [
        (
            int | float,
            "dear",
            ("value", "must be a whole number; or must be a number such as 12.5"),
        ),
        (list[int], ["${a.x}", "dear"], ("value.1", "must be a whole number")),
        (int, ["${a.x}"], ("value", "must be a whole number")),
        (Card, {"number": "${a.x}", "colour": "${a.x}"}, ("value.colour", "unknown field")),
        (Card, {"holder": "${a.x}"}, ("value.number", "is missing")),
        (
            Card | Transfer,
            {"kind": "card", "number": "${a.x}", "iban": "x", "amount": "dear"},
            None,
        ),
        (TAGGED, {"kind": "transfer", "amount": "${a.x}"}, ("value.iban", "is missing")),
        (TAGGED, {"kind": "cash", "amount": "${a.x}"}, None),
    ],
)
def test_what_no_value_of_a_reference_can_mend_is_told_where_it_is_written(
    type_: Any, value: Any, problem: tuple[str, str] | None
) -> None:
    found = told(type_, value)

    assert found
    if problem is not None:
        assert found == [(f".{problem[0]}", problem[1])]


def test_a_rule_over_several_params_waits_for_what_they_refer_to() -> None:
    class Range(BaseModel):
        low: str | int
        high: str | int

        @model_validator(mode="after")
        def _in_order(self) -> Range:
            if str(self.low) > str(self.high):
                raise ValueError("low is above high")
            return self

    assert told(Range, {"low": "9", "high": "${a.x}"}) == []
    assert told(Range, {"low": "9", "high": "1"}) == [(".value", "low is above high")]


class Nothing(BaseModel):
    pass


def box() -> Toolbox:
    def made(name: str, **more: Any) -> Tool:
        async def called(params: Nothing, ctx: ToolContext) -> None:
            """Do it."""

        called.__annotations__["params"] = Nothing
        return tool(name, **more)(called)

    human: dict[str, Any] = {"effect": WRITE, "recovery": "human"}
    undo = Undo("billing.undo", lambda params, receipt: {})
    drop = Undo("billing.drop", lambda params, receipt: {})
    pay = made("billing.pay", **human, compensate=undo, cleanup=drop)
    undos = (made("billing.undo", **human), made("billing.drop", **human))
    return Toolbox([pay, *undos, made("billing.read", effect=READ)])


def given(tools: list[str]) -> tuple[list[str], str]:
    """Return the tools that a model is given, and what is wrong with that."""
    plan = Plan.model_validate({"model": "a:b", "tools": tools})
    described = describe_plan(box(), plan)
    told = [f"{problem.where}: {problem.reason}" for problem in described.problems]
    return sorted(described.tools), "; ".join(told)


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        (["billing.*"], ["billing.pay", "billing.read"]),
        (["*"], ["billing.pay", "billing.read"]),
        (["billing.undo"], ["billing.undo"]),
        (["billing.p?y", "billing.drop"], ["billing.drop", "billing.pay"]),
    ],
)
def test_a_model_is_given_the_tools_that_its_run_names(tools: Any, expected: list[str]) -> None:
    assert given(tools) == (expected, "")


@pytest.mark.parametrize(
    ("tools", "why"),
    [
        (["billing.*", "mail.*"], "tools: 'mail.*' names no tool; loaded are: "),
        (["billing.u*"], "names only tools that undo others: name them exactly"),
    ],
)
def test_a_model_that_may_call_what_is_not_there_is_refused(tools: list[str], why: str) -> None:
    assert why in given(tools)[1]


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ({"model": "a:b"}, "`model` and `tools` go together"),
        ({"model": "a:b", "tools": []}, "`model` and `tools` go together"),
        ({"agent": "a:b", "tools": ["*"]}, "`model` and `tools` go together"),
        ({"agent": "a:b", "model": "c", "tools": ["*"]}, "an agent has a model already"),
        ({"code": "ModelRun"}, "goes with `agent` or `model`"),
        ({"agent": "a:b", "code": "Other"}, "goes with `agent` or `model`"),
        ({"agent": "a b"}, "agent"),
    ],
)
def test_a_plan_says_who_makes_its_steps(plan: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        Plan.model_validate(plan)


def test_a_child_run_of_a_model_is_looked_at() -> None:
    child = {"model": "a:b", "tools": ["mail.*"]}
    [problem] = describe_plan(box(), Plan.model_validate([{"id": "s", "plan": child}])).problems
    assert problem.where == "steps.0 (s).plan.tools"


@pytest.mark.parametrize(
    ("given", "when", "wrong"),
    [
        ({"number": "many"}, None, ["steps.0 (s).params.value.number"]),
        ({"number": "many"}, "input.number", []),  # the condition may keep it away
        ({"number": None}, None, []),
        ({}, None, []),
        ({"number": 3}, None, []),
    ],
)
def test_what_the_input_says_is_checked_with_the_plan(
    given: dict[str, Any], when: str | None, wrong: list[str]
) -> None:
    params = {"value": {"number": "${input.number}", "holder": "${input.text}"}}
    step = {"id": "s", "tool": "a.b", "params": params, "when": when}
    toolbox = Toolbox([taking(Card)])

    def found(plan: dict[str, Any]) -> list[str]:
        problems = describe_plan(toolbox, Plan.model_validate(plan)).problems
        return [problem.where for problem in problems]

    assert found({"input": {**given, "text": "any"}, "steps": [step]}) == wrong
    # What a plan hands on to a plan of its own is its input, too.
    handed = {"number": "${input.number}", "text": "${input.text}"}
    child = {"id": "c", "plan": {"steps": [step]}, "params": handed}
    inside = [f"steps.0 (c).plan.{where}" for where in wrong]
    assert found({"input": {**given, "text": "any"}, "steps": [child]}) == inside
    own = {"input": {**given, "text": "any"}, "steps": [step]}
    assert found({"input": {"text": "any"}, "steps": [{"id": "c", "plan": own}]}) == inside
    guarded = {"id": "c", "plan": own, "when": "input.text"}
    assert found({"input": {"text": "any"}, "steps": [guarded]}) == []


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Line(BaseModel):
    sku: str
    count: int = Field(ge=1)


class Params(BaseModel):
    amount: Decimal = Field(default=Decimal(1), gt=0, decimal_places=2)
    colour: Colour = Colour.RED
    lines: list[Line] = []
    when: date | None = None
    urgent: bool = False
    order_id: str = "order-1"

    @field_validator("order_id")
    @classmethod
    def _known(cls, value: str) -> str:
        if not value.startswith("order-"):
            raise ValueError("must begin with order-")
        return value


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"amount": "a lot"}, 'amount: must be a number such as "12.50"'),
        ({"amount": [1]}, 'amount: must be a number such as "12.50"'),
        ({"amount": "0"}, "amount: must be greater than 0"),
        ({"amount": "1.234"}, "amount: must have at most 2 decimal places"),
        ({"colour": "green"}, "colour: must be 'red' or 'blue'"),
        ({"lines": {}}, "lines: must be a list"),
        ({"lines": [7]}, "lines.0: must be a mapping of names to values"),
        (
            {"lines": [{"count": 0}]},
            "lines.0.sku: is missing; lines.0.count: must be at least 1",
        ),
        ({"when": "tomorrow"}, "when: must be a date such as 2026-12-31"),
        ({"urgent": "very"}, "urgent: must be true or false"),
        ({"order_id": "7"}, "order_id: must begin with order-"),
    ],
)
def test_params_that_do_not_fit_are_named_in_plain_words(params: Any, says: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Params.model_validate(params)

    assert explain(refused.value).startswith(says)


class Aliased(BaseModel):
    note: str = ""
    order: str = Field("", validation_alias=AliasChoices("order_id", "order_no"))
    more: dict[str, Any] = {}
    line: Line | None = None


def test_a_param_that_the_tool_does_not_have_is_named() -> None:
    async def called(params: Aliased, ctx: ToolContext) -> None:
        """Take params."""

    reads = tool("a.b", effect=READ)(called)

    def told(**params: Any) -> list[tuple[str, str]]:
        return literal_problems(reads, Step(id="s", tool="a.b", params=params))

    known = "there are: line, more, note, order"
    assert told(nte="x", order_no="o", zz=1) == [
        (".nte", "unknown param; did you mean 'note'?"),
        (".zz", f"unknown param; {known}"),
    ]
    assert told(note=[], zz=1) == [(".zz", f"unknown param; {known}"), (".note", "must be text")]
    # What lies inside a param is its own model's matter.
    assert told(order="o", more={"any": 1}, line={"sku": "s", "count": 1, "at": 2}) == []
