"""Plans as files: what is wrong in them is named, and editors know their schema."""

from __future__ import annotations

import json
import re
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from docs.plan_schema import SHIPPED, plan_schema
from surehand.client.plan_file import load_plan
from surehand.process.exits import ExitCode, PlanRefused
from surehand.process.files import BadDocument, parse_json, parse_yaml, read_document
from surehand.workflows.plan.plan import Plan
from tests.cli.starter import ROOT

PLAN = """\
name: refund
input: {order_id: order-1}
steps:
  - id: order
    tool: orders.read
    params: {order_id: "${input.order_id}", note: "${input.note}", lines: [1, 2]}
"""


def problems(file: Path, *overrides: str) -> list[tuple[str, str]]:
    with pytest.raises(PlanRefused) as refused:
        load_plan(str(file), overrides)
    assert refused.value.code is ExitCode.WRONG_USE
    return [(problem.where, problem.reason) for problem in refused.value.problems]


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    file = tmp_path / "plan.yaml"
    file.write_text(PLAN)
    return file


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda f: f.name)
def test_every_example_is_valid(file: Path) -> None:
    load_plan(str(file))


@pytest.mark.parametrize(
    ("text", "where", "reason"),
    [
        ("", "file", "is empty"),
        ("hello", "plan", "must be a mapping, or a list of steps"),
        ("name: x", "steps", "is missing"),
        ("steps: []", "steps", "must list at least one step"),
        ("steps: {a: b}", "steps", "must be a list"),
        ("steps: [~]", "steps.0", "must be a mapping"),
        ("steps: [{id: a}]", "steps.0 (a)", "needs one of `tool`, `ask`, `plan` and `wait`"),
        ("steps: [{id: a, tool: t, prams: {}}]", "steps.0 (a).prams", "did you mean 'params'?"),
        ("steps: [{id: a, tool: t, on_no: maybe}]", "steps.0 (a).on_no", "'fail' or 'continue'"),
        ("steps: [{id: a, tool: t, on_no: maybe}]", "steps.0 (a).on_no", "; or {goto: step}"),
        (
            "steps: [{id: a, tool: t, approval: {on_expiry: shout}}]",
            "steps.0 (a).approval.on_expiry",
            "; or {escalate: role}",
        ),
        ("steps: [{id: a, tool: t, on_no: {goto: b}}]", "steps.0 (a).on_no.goto", "no step 'b'"),
        ("steps: [{id: a, ask: 'Why ${b.c}?'}]", "steps.0 (a).ask.question", "${b.c}"),
        ("steps: [{id: a, wait: {event: e, about: '${b}'}}]", "steps.0 (a).wait.about", "${b}"),
        ("steps: [{id: a, tool: t, when: b.c == 1}]", "steps.0 (a).when", "no step 'b'"),
        ("steps: [{id: a, tool: t, for_each: '${b.c}'}]", "steps.0 (a).for_each", "${b.c}"),
        (
            "steps: [{id: a, tool: t, on_reject: {goto: b}}]",
            "steps.0 (a).on_reject.goto",
            "no step 'b'",
        ),
        (
            "steps: [{id: a, plan: [{id: b, ask: '${c.d}'}]}]",
            "steps.0 (a).plan.steps.0 (b).ask.question",
            "${c.d}",
        ),
        (
            "steps: [{id: a, tool: t, approval: {expires_in: -1h}}]",
            "steps.0 (a).approval.expires_in",
            "such as 90s",
        ),
        ("steps: [{id: a, tool: t, params: 5}]", "steps.0 (a).params", "must be a mapping"),
        (
            "steps: [{id: a, tool: t, params: {x: '${b.y}'}}]",
            "steps.0 (a).params.x",
            "unknown reference ${b.y}",
        ),
        ("steps: [{id: a, tool: t}, {id: a, tool: t}]", "steps.1 (a)", "earlier step"),
        ("steps: [{id: a b, tool: t}]", "steps.0 (a b).id", "1 to 64 letters, digits, '_' or '-'"),
        ("agent: support", "agent", "must be module:name"),
        ("steps: [{id: a, tool: t, after: [a]}]", "steps (a)", "waits for itself: a -> a"),
        (
            "steps: [{id: a, tool: t, after: [b]}, {id: b, tool: t}]",
            "steps (a)",
            "a -> b -> a (`->`: waits for); b has no `after`",
        ),
    ],
)
def test_each_mistake_is_named_once(tmp_path: Path, text: str, where: str, reason: str) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(text)

    found = problems(file)

    assert [place for place, _ in found] == [where]
    assert reason in found[0][1]


def test_every_line_of_an_error_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text("steps: [{id: a}, {id: b}]")

    with pytest.raises(PlanRefused) as refused:
        load_plan(str(file))

    assert refused.value.lines == [
        f"{file}: steps.0 (a): needs one of `tool`, `ask`, `plan` and `wait`",
        f"{file}: steps.1 (b): needs one of `tool`, `ask`, `plan` and `wait`",
    ]


def test_mistakes_of_every_kind_are_told_at_once_in_the_order_of_the_steps(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(
        """
goals: x
steps:
  - {id: a, tool: t, prams: {}, after: [b]}
  - {id: b, tool: t, params: {x: "${nobody.y}", y: "${a.id", z: "${input.q}"}}
  - {id: c, on_no: {goto: nowhere}}
"""
    )

    assert [where for where, _ in problems(file)] == [
        "goals",
        "steps.0 (a).prams",
        "steps.1 (b).params.x",
        "steps.1 (b).params.y",
        "steps.1 (b).params.z",
        "steps.2 (c)",
        "steps.2 (c).on_no.goto",
        "steps (a)",
    ]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text("ab${}.", max_size=6),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["steps", "id", "tool", "params", "after", "on_no", "goto", "input", "defaults"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=15,
    )
)
def test_whatever_is_written_is_a_plan_or_said_in_words_of_the_file(written: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        file.write_text(json.dumps(written))
        try:
            load_plan(str(file))
        except PlanRefused as refused:
            assert refused.problems
            for problem in refused.problems:
                for word in ("Input", "Tuple", "dictionary", "instance", "Field", "validation"):
                    assert word not in problem.reason


def test_set_changes_values_with_the_types_they_look_like(plan: Path) -> None:
    changed = load_plan(
        str(plan),
        [
            "input.note=#5: a text",
            "input.order_id='12'",
            "steps.order.params.lines.1=5",
            "steps.0.approval=required",
            "goal=try it",
        ],
    )

    assert changed.input == {"order_id": "12", "note": "#5: a text"}
    assert changed.steps[0].params["lines"] == [1, 5]
    assert changed.steps[0].approval is not None
    assert changed.goal == "try it"


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("12 #3 Main St", "12 #3 Main St"),
        ("2 items: red", "2 items: red"),
        ("5\n6", "5\n6"),
        ("-x", "-x"),
        ("0123", "0123"),
        ("1.5.2", "1.5.2"),
        ("#5: a text", "#5: a text"),
        ("-5", -5),
        ("1.50", 1.5),
        ("1e3", 1000.0),
        ("~", None),
        ("'12'", "12"),
        ("'a # b'", "a # b"),
        ("[1, '#2']", [1, "#2"]),
        ("{a: 5}", {"a": 5}),
    ],
)
def test_set_changes_nothing_of_what_was_typed(plan: Path, typed: str, value: object) -> None:
    found = load_plan(str(plan), [f"input.note={typed}"]).input["note"]

    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("override", "where", "reason"),
    [
        ("input.order_di=x", "input.order_di", "input has 'order_id'"),
        ("steps.ordr.params.x=1", "steps.ordr", "steps has order"),
        (
            "steps.order.params.amount=1",
            "steps.order.params.amount",
            "has 'order_id', 'note', 'lines'",
        ),
        ("steps.order.params.lines.2=1", "steps.order.params.lines.2", "0 to 1"),
        ("steps.order.tool.x=1", "steps.order.tool.x", "nothing is inside it"),
        ("nmae=x", "nmae", "the plan has 'name', 'input', 'steps'"),
        ("input.order_id", "input.order_id", "path=value"),
        ("=x", "", "path=value"),
        ("input.note=[1", "input.note", "not YAML"),
        ("input.note=[1] # two", "input.note", "more follows"),
        ("input.note={a: 1} # two", "input.note", "more follows"),
        ('input.note="a" # b', "input.note", "more follows"),
        ('input.note="a": b', "input.note", "more follows"),
        ("input.note=9007199254740992", "input.note", "2^53"),
    ],
)
def test_set_refuses_what_leads_nowhere(plan: Path, override: str, where: str, reason: str) -> None:
    [(found, why)] = problems(plan, override)

    assert found == where
    assert reason in why


@pytest.mark.parametrize("written", ["", "input:\n"])
def test_set_may_give_an_input_that_the_plan_only_refers_to(plan: Path, written: str) -> None:
    plan.write_text(PLAN.replace("input: {order_id: order-1}\n", written))

    changed = load_plan(str(plan), ["input.order_id=a", "input.note="])

    assert changed.input == {"order_id": "a", "note": ""}


@pytest.mark.parametrize(
    ("step", "where"),
    [
        ("{id: a, ask: 'Is it ${input.n}?'}", "ask.question"),
        ("{id: a, wait: {event: e, about: '${input.n}'}}", "wait.about"),
        ("{id: a, tool: t, for_each: '${input.n}'}", "for_each"),
        ("{id: a, tool: t, fallback: {tool: u, params: {x: '${input.n}'}}}", "fallback.params.x"),
        ("{id: a, tool: t, params: {x: '${input.n}'}}", "params.x"),
        ("{id: a, tool: t, when: input.n > 5}", "when"),
    ],
)
def test_missing_input_is_named_where_it_is_used(plan: Path, step: str, where: str) -> None:
    plan.write_text(f"steps: [{step}]")

    [(found, reason)] = problems(plan)

    assert (found, "--set input.n=" in reason) == (f"steps.0 (a).{where}", True)
    assert load_plan(str(plan), ["input.n=7"]).input == {"n": 7}
    assert problems(plan, "input.m=7")[0][0] == "input.m"


#
@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("2024-05-01", "2024-05-01"),
        ("2024-05-01T10:00:00Z", "2024-05-01T10:00:00Z"),
        ("12:30", "12:30"),
        ("0123", "0123"),
        ("1_000", "1_000"),
        ("0x1F", "0x1F"),
        ("no", "no"),
        ("on", "on"),
        (".inf", ".inf"),
        ("+5", "+5"),
        ("12", 12),
        ("-3", -3),
        ("1.50", 1.5),
        ("1e3", 1000.0),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("'12'", "12"),
        ("!!str 12", "12"),
    ],
)
def test_a_value_is_what_it_looks_like(written: str, value: object) -> None:
    found = parse_yaml(f"key: {written}")["key"]

    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "where", "reason"),
    [
        ("a: 1\na: 2\n", "line 2, column 1", "written twice"),
        ("- {a: 1, a: 2}\n", "line 1, column 10", "written twice"),
        ("1: a\n", "line 1, column 1", "must be text"),
        ("? [a]\n: b\n", "line 1, column 3", "must be text"),
        ("a: [1\n", "line 2, column 1", "expected"),
        ("a: 1\n---\nb: 2\n", "line 2, column 1", "another document"),
        ("a: \x07\n", "character 3", "not allowed"),
        ("!!python/name:os.system {}\n", "line 1, column 1", "the tag"),
        ("a: !!int x\n", "line 1, column 4", "the tag"),
        ('a: !!int ""\n', "line 1, column 4", "the tag"),
        ("a: !!bool maybe\n", "line 1, column 4", "the tag"),
        ("a: !!binary aGk=\n", "line 1, column 4", "the tag"),
        ("a: {b: !!timestamp x}\n", "line 1, column 8", "the tag"),
        ("a: !!set {b}\n", "line 1, column 4", "the tag"),
        ("a: !own {}\n", "line 1, column 4", "the tag"),
        ("a: [1, 9007199254740992]\n", "a.1", "2^53"),
        ("a: 9007199254740993.0\n", "a", "2^53"),
        ("a: {b: -9.007199254740993e15}\n", "a.b", "2^53"),
        ("a: 1e999\n", "a", "JSON"),
        ('a: "\\0"\n', "a", "NUL"),
        ('a: {"\\ud800": 1}\n', "a", "surrogate"),
        ("&a [*a]\n", "file", "contains itself"),
        ("[" * 5000, "file", "nested too deeply"),
    ],
)
def test_a_document_too_big_to_carry_is_refused(text: str, where: str, reason: str) -> None:
    with pytest.raises(BadDocument) as refused:
        parse_yaml(text)

    assert refused.value.where == where
    assert reason in refused.value.reason


def test_aliases_cannot_blow_up() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]

    with pytest.raises(BadDocument, match="too large"):
        parse_yaml("\n".join(lines))


@pytest.mark.parametrize("copies", [2, 50])
def test_merges_cannot_blow_up_before_they_are_counted(copies: int) -> None:
    merged = [f"x{n}: &x{n} {{<<: [{', '.join([f'*x{n - 1}'] * copies)}]}}" for n in range(1, 30)]
    tracemalloc.start()
    try:
        with pytest.raises(BadDocument, match=r"merges .* more than 100,000 values") as refused:
            parse_yaml("\n".join(["x0: &x0 {k: 1}", *merged]))
        assert tracemalloc.get_traced_memory()[1] < 16 * 1024 * 1024
    finally:
        tracemalloc.stop()

    assert refused.value.where.startswith("line ")


def test_anchors_and_merges_are_kept() -> None:
    document = parse_yaml("base: &b {tool: t, on_no: fail}\nstep: {<<: *b, on_no: continue}\n")

    assert document["step"] == {"tool": "t", "on_no": "continue"}


@pytest.mark.parametrize(
    ("text", "where", "reason"),
    [
        ('{"a": 1, "a": 2}', "file", "written twice"),
        ('{"a": 1', "line 1, column 8", "Expecting"),
        ('{"a": NaN}', "a", "not a number"),
        ('{"input": {"amount": 9007199254740993.0}}', "input.amount", "2^53"),
    ],
)
def test_json_is_read_as_strictly(tmp_path: Path, text: str, where: str, reason: str) -> None:
    file = tmp_path / "plan.json"
    file.write_text(text)

    with pytest.raises(BadDocument) as refused:
        read_document(file)

    assert refused.value.where == where
    assert reason in refused.value.reason


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"a: \xff")

    with pytest.raises(BadDocument, match="No such file"):
        read_document(tmp_path / "none.yaml")
    with pytest.raises(BadDocument, match="directory"):
        read_document(tmp_path)
    with pytest.raises(BadDocument, match="UTF-8"):
        read_document(tmp_path / "latin.yaml")


@pytest.mark.parametrize("read", [parse_json, parse_yaml])
def test_a_number_of_thousands_of_digits_is_refused(read: Callable[[str], object]) -> None:
    with pytest.raises(BadDocument, match="digits"):
        read("1" * 5000)


#: Plans that are written in every form there is.
WRITTEN = [
    "[{tool: a}]",
    "steps: [{tool: a}]",
    "steps: [{ask: Why}]",
    "steps: [{ask: {question: Why, answer: {type: string}, expires_in: 2h, otherwise: x}}]",
    "steps: [{wait: {event: e, about: '${input.x}', expires_in: 14d}}]",
    "steps: [{plan: [{tool: a}]}]",
    "steps: [{plan: {steps: [{tool: a}]}, params: {x: 1}}]",
    "steps: [{tool: a, approval: required}]",
    "steps: [{tool: a, approval: true}]",
    "steps: [{tool: a, approval: ~, ask: ~, after: ~}]",
    "steps: [{tool: a, approval: {roles: [x], quorum: 2, expires_in: 24h, remind_every: 15m}}]",
    "steps: [{tool: a, approval: {on_expiry: {escalate: cfo}, rules: [{when: x > 1}]}}]",
    "steps: [{tool: a, approval: {expires_in: 90, on_expiry: ask_again}}]",
    "steps: [{tool: a, approval: {expires_in: PT15M}}]",
    "steps: [{tool: a, approval: {expires_in: '00:15:00'}}]",
    "steps: [{tool: a, interrupt: before}, {tool: b, interrupt: [before, after]}]",
    "{steps: [{tool: a}], defaults: {interrupt: after, approval: required, on_reject: skip}}",
    "{steps: [{tool: a}], interrupts: {before: ['payments.*']}, budget: {time: 3d, money: '2.5'}}",
    "steps: [{tool: a, on_no: {goto: b}, on_failure: pause}, {id: b, tool: b}]",
    "steps: [{tool: a, for_each: '${input.x}', item: line, parallel: 4, when: input.y > 1}]",
    "steps: [{tool: a, fallback: {tool: b, params: {}}}]",
]
#: Plans that no form is right for.
MISTAKEN = [
    "hello",
    "name: x",
    "steps: []",
    "steps: [{id: a}]",
    "steps: [{tool: a, ask: Why}]",
    "steps: [{tool: ''}]",
    "steps: [{ask: ''}]",
    "steps: [{tool: a, prams: {}}]",
    "steps: [{tool: a, approval: maybe}]",
    "steps: [{tool: a, approval: false}]",
    "steps: [{tool: a, approval: {expires_in: 15x}}]",
    "steps: [{tool: a, interrupt: between}]",
    "steps: [{tool: a, on_no: maybe}]",
    "steps: [{tool: a, parallel: 0}]",
    "steps: [{id: a b, tool: a}]",
    "{steps: [{tool: a}], budget: {money: a lot}}",
    "steps: [{plan: []}]",
]
SCHEMA = Draft202012Validator(plan_schema())


def test_the_shipped_schema_is_that_of_the_models() -> None:
    made = json.dumps(plan_schema(), indent=2) + "\n"

    assert SHIPPED.read_text() == made, "`make reference` writes it"


@pytest.mark.parametrize("text", WRITTEN)
def test_what_the_models_take_the_schema_takes(text: str) -> None:
    Plan.model_validate(yaml.safe_load(text))

    assert not list(SCHEMA.iter_errors(yaml.safe_load(text)))


@pytest.mark.parametrize("text", MISTAKEN)
def test_what_the_models_refuse_the_schema_refuses(text: str) -> None:
    with pytest.raises(ValidationError):
        Plan.model_validate(yaml.safe_load(text))

    assert list(SCHEMA.iter_errors(yaml.safe_load(text)))


def test_every_field_of_every_part_is_described() -> None:
    assert [
        f"{part}.{name}"
        for part, definition in plan_schema()["$defs"].items()
        for name, field in definition.get("properties", {}).items()
        if not field.get("description")
    ] == []


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda f: f.name)
def test_every_example_names_the_schema_and_fits_it(file: Any) -> None:
    named = re.match(r"# yaml-language-server: \$schema=(\S+)\n", file.read_text())

    assert named
    assert (file.parent / named[1]).resolve() == SHIPPED
    assert not list(SCHEMA.iter_errors(yaml.safe_load(file.read_text())))
