"""What a plan refers to, and that one that does not hold together is refused before it starts."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any, Final

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from surehand.workflows.plan.plan import Goto, Plan
from surehand.workflows.plan.policy import ApprovalPolicy, combine, parse_duration
from surehand.workflows.plan.references import (
    ReferenceUnresolved,
    literal,
    references,
    resolve,
    unclosed,
)
from tests.unit.values import json_values


def plan(*steps: dict[str, Any], **fields: Any) -> Plan:
    return Plan.model_validate({"steps": list(steps), **fields})


def refusal(value: Any) -> str:
    with pytest.raises(ValidationError) as refused:
        Plan.model_validate(value)
    return "; ".join(
        f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}"
        for item in refused.value.errors()
    )


def test_a_bare_list_of_tools_is_a_plan_whose_steps_are_numbered() -> None:
    tools = [{"tool": "orders.read"}, {"tool": "mail.send", "id": "mail"}, {"tool": "a"}]
    bare = Plan.model_validate(tools)

    assert [step.id for step in bare.steps] == ["step1", "mail", "step3"]
    assert (bare.name, bare.input, bare.goal) == ("plan", {}, "")


def test_what_goes_into_history_reads_back_as_the_same_plan() -> None:
    written = plan(
        {"id": "a", "tool": "t", "approval": {"expires_in": "15m"}, "on_no": {"goto": "b"}},
        {"id": "b", "tool": "t", "params": {"x": "${a.y}"}, "after": []},
        defaults={"approval": "required", "on_failure": "continue"},
        input={"order": {"id": 1}},
    )

    assert Plan.model_validate_json(written.model_dump_json()) == written
    assert Plan.model_validate(written.model_dump(mode="json")) == written


T = {"tool": "t"}
#: Plans, each with what has to be said of it below.
REFUSED: Final = """\
[{id: a, tool: t, time_limit: 0s}]
    steps.0 | time_limit | must be longer than nothing and at most 3650 d
[{id: a, ask: 'Why?', time_limit: 1m}]
    steps.0 | only a step with a `tool` has a `time_limit`
[{tool: t, for_each: '${input.x}', on_no: {goto: b}}, {id: b, tool: t}]
    steps.0 | cannot `goto`
{steps: [{id: a, tool: t, for_each: '${input.x}'}, {id: b, tool: t, on_no: fail}], defaults: \
{on_no: {goto: b}}}
    steps.0 (a).on_no | cannot `goto`
[{id: a/b, tool: t}]
    steps.0.id | pattern
[{id: input, tool: t}]
    steps.0 (input) | cannot be called
[{id: a, tool: t, after: [b]}]
    steps.0 (a).after | no step 'b'
[{id: a, tool: t, params: {x: [{y: '${b.id}'}]}}]
    steps.0 (a).params.x.0.y | unknown reference ${b.id}
[{id: a, tool: t}, {id: b, tool: t, params: {x: '${steps.a.output.id}', y: '${steps.input.z}'}}]
    ${steps.a.output.id}; write ${a.id} | ${steps.input.z}; write ${input.z}
[{id: a, tool: t, params: {x: '${input.a b}'}}]
    steps.0 (a).params.x | ${input.a b}
[{id: a, tool: t, params: {x: '${}'}}]
    params.x | ${}
[{id: a, tool: t, params: {x: '${b.id}'}}, {id: b, tool: t}]
    waits for itself
[{id: a, tool: t, after: [c]}, {id: b, tool: t}, {id: c, tool: t}]
    waits for itself: a -> c -> b -> a
[{id: a, tool: t, params: {x: ['$${fine}', '${input.y']}}]
    steps.0 (a).params.x.1 | not closed | $${ for a literal ${
[{id: a, tool: t, after: [nobody], params: {x: '${b.y}'}}, {id: b, tool: t, on_no: {goto: x}}, \
{id: b, tool: t, params: {x: '${'}}]
    steps.0 (a).after: there is no step 'nobody' | steps.1 (b).on_no.goto: there is no step 'x' | \
steps.2 (b): the id 'b' is used | steps.2 (b).params.x | a -> b -> a
[{id: a, tool: t, after: [b]}, {id: b, tool: t, after: [a]}, {id: c, tool: t, after: [d]}, {id: \
d, tool: t, after: [c]}]
    a -> b -> a | c -> d -> c
[{id: a, tool: t}, {id: b, tool: t, on_failure: {goto: a}}]
    steps.1 (b).on_failure.goto | does not come after
[{id: a, tool: t, on_no: {goto: b}}, {id: b, tool: t, after: []}]
    steps.0 (a).on_no.goto | does not come after
[{id: a, tool: t, on_no: {goto: a}}]
    steps.0 (a).on_no.goto | does not come after
{steps: [{id: a, tool: t}], defaults: {on_no: {goto: x}}}
    on_no.goto | no step 'x'
{steps: [{id: a, tool: t}, {id: b, tool: t}], defaults: {on_failure: {goto: b}}}
    steps.1 (b).on_failure.goto | does not come after
[{tool: t, on_failure: fail}]
    steps.0.on_failure
[{tool: t, approval: {expires_in: 0s}}]
    steps.0.approval.expires_in | longer than nothing
[{tool: t, approval: {expires_in: 9999999999999d}}]
    steps.0.approval.expires_in
"""


LINES: Final = REFUSED.splitlines()


@pytest.mark.parametrize(("value", "says"), [*zip(LINES[::2], LINES[1::2], strict=True)])
def test_a_mistake_is_named_with_its_path_and_reason(value: str, says: str) -> None:
    message = refusal(yaml.safe_load(value))

    for part in says.strip().split(" | "):
        assert part in message


def test_a_default_goto_counts_for_the_steps_before_its_target() -> None:
    written = plan(
        {"id": "a", **T},
        {"id": "b", **T},
        {"id": "sorry", **T, "on_no": "fail"},
        defaults={"on_no": {"goto": "sorry"}},
    )

    assert written.on_no(written.step("a")) == Goto(goto="sorry")
    assert written.on_no(written.step("sorry")) == "fail"


@pytest.mark.parametrize(
    ("written", "means"),
    [
        ("90s", timedelta(seconds=90)),
        ("15m", timedelta(minutes=15)),
        ("1.5h", timedelta(minutes=90)),
        ("7d", timedelta(days=7)),
        ("250ms", timedelta(milliseconds=250)),
        (" 2 h ", timedelta(hours=2)),
        ("PT1H", timedelta(hours=1)),
        (90, timedelta(seconds=90)),
    ],
)
def test_a_duration_is_written_as_people_write_it(written: Any, means: timedelta) -> None:
    assert ApprovalPolicy.model_validate({"expires_in": written}).expires_in == means


@pytest.mark.parametrize("written", ["", "h", "1 week", "-5m", "1h30m", "1,5h"])
def test_what_is_no_duration_is_refused(written: str) -> None:
    with pytest.raises(ValidationError):
        ApprovalPolicy.model_validate({"expires_in": written})


@given(st.integers(0, 10**400), st.sampled_from(["ms", "s", "m", "h", "d"]))
def test_no_duration_is_too_long_to_be_refused(number: int, unit: str) -> None:
    try:
        assert parse_duration(f"{number % 10**6}{unit}") >= timedelta(0)
        ApprovalPolicy.model_validate({"expires_in": f"{number}{unit}"})
    except ValidationError:
        return


@pytest.mark.parametrize("written", [True, "required", {}])
def test_an_approval_is_asked_for_in_three_ways(written: Any) -> None:
    assert plan({**T, "approval": written}).steps[0].approval == ApprovalPolicy()


@pytest.mark.parametrize(
    ("default", "own", "hours"),
    [("2h", None, 2), (None, "1h", 1), ("2h", "1h", 1), ("1h", "2h", 1)],
)
def test_a_step_softens_no_plans_approval(default: str | None, own: str | None, hours: int) -> None:
    def policy(expires_in: str | None) -> Any:
        return expires_in and {"expires_in": expires_in}

    written = plan({**T, "approval": policy(own)}, defaults={"approval": policy(default)})

    needs = combine(written.approvals(written.steps[0]), lambda _: False)
    assert needs is not None and needs.expires_in == timedelta(hours=hours)


def test_what_a_step_does_not_say_its_plan_says() -> None:
    written = plan(
        {"id": "a", **T}, {"id": "b", **T, "on_no": "fail"}, defaults={"on_no": "continue"}
    )

    assert [written.on_no(step) for step in written.steps] == ["continue", "fail"]
    assert [written.on_failure(step) for step in written.steps] == ["compensate"] * 2


FACTS: dict[str, Any] = {
    "input": {"order": "1001", "rate": 0.5, "empty": None},
    "order": {
        "lines": [{"sku": "a", "quantity": 2}, {"sku": "b", "quantity": 1}],
        "paid": True,
        "note": "${input.order}",
    },
    "total": 120,
    "step-1": {"my_field": "x"},
}


@pytest.mark.parametrize(
    ("written", "becomes"),
    [
        ("${input.order}", "1001"),
        ("${input.rate}", 0.5),
        ("${input.empty}", None),
        ("${order.paid}", True),
        ("${order.lines.1.sku}", "b"),
        ("${order.lines}", FACTS["order"]["lines"]),
        ("${total}", 120),
        ("${ total }", 120),
        ("${step-1.my_field}", "x"),
    ],
)
def test_a_whole_reference_takes_the_values_type(written: str, becomes: Any) -> None:
    assert resolve(written, FACTS) == becomes
    assert type(resolve(written, FACTS)) is type(becomes)


@pytest.mark.parametrize(
    ("written", "becomes"),
    [
        ("order ${input.order}", "order 1001"),
        ("${input.order}/${total}", "1001/120"),
        ("${order.paid} ${input.empty} ${input.rate}", "true null 0.5"),
        ("line ${order.lines.0}", 'line {"sku": "a", "quantity": 2}'),
        (" ${total}", " 120"),
        ("costs $5, {total} and $ {total}", "costs $5, {total} and $ {total}"),
        ("$${total} is ${total}", "${total} is 120"),
        ("$${total}", "${total}"),
        ("$$${total}", "$${total}"),
        ("${total", "${total"),
        ("a\0b", "a\0b"),
        ("a\0b ${total}", "a\0b 120"),
    ],
)
def test_inside_a_longer_string_a_value_is_written_as_text(written: str, becomes: str) -> None:
    assert resolve(written, FACTS) == becomes


def test_references_are_found_at_any_depth_and_keys_are_left_alone() -> None:
    written = {"${total}": [{"deep": "${total}"}, "${order.paid}", 7, None]}

    assert resolve(written, FACTS) == {"${total}": [{"deep": 120}, True, 7, None]}


def test_what_a_step_returned_is_never_read_as_a_reference_again() -> None:
    assert resolve("${order.note}", FACTS) == "${input.order}"
    assert resolve("note: ${order.note}", FACTS) == "note: ${input.order}"


@pytest.mark.parametrize(
    ("written", "missing"),
    [
        ("${order.total}", "'total'"),
        ("${nobody.x}", "'nobody'"),
        ("${order.lines.2}", "'2'"),
        ("${order.lines.-1}", "'-1'"),
        ("${order.lines.first}", "'first'"),
        (f"${{order.lines.{'9' * 5000}}}", "there is no"),
        (f"${{order.lines.{'0' * 5000}}}", "there is no"),
        ("${total.x}", "'x'"),
        ("${input.order.0}", "'0'"),
        ("${input.empty.x}", "'x'"),
    ],
)
def test_a_field_that_is_not_there_is_named(written: str, missing: str) -> None:
    for text in (written, f"text {written}"):
        with pytest.raises(ReferenceUnresolved) as error:
            resolve(text, FACTS)
        assert written in str(error.value)
        assert missing in str(error.value)


@given(json_values)
def test_a_value_without_references_is_left_as_it_is(value: Any) -> None:
    assume("${" not in repr(value))
    assert resolve(value, FACTS) == value


@given(json_values)
def test_any_value_of_an_earlier_step_arrives_unchanged(value: Any) -> None:
    assert resolve({"x": "${step.value}"}, {"step": {"value": value}}) == {"x": value}


@given(st.lists(st.sampled_from(["$", "${", "$${", "a", ".", "}", "{", " "]), max_size=8))
def test_what_a_plan_takes_for_a_reference_is_what_is_looked_up(parts: list[str]) -> None:
    written = "".join(parts)
    assume(not list(unclosed(written)))
    step = {"id": "a", "tool": "t", "params": {"x": written}, "after": []}
    try:
        Plan.model_validate([{"id": "b", "tool": "t"}, step])
    except ValidationError:
        with pytest.raises(ReferenceUnresolved):
            resolve(written, {})
    else:
        resolve(written, {})


@given(st.lists(st.sampled_from(["$", "${", "$${", "${total}", "a", "}", "{"]), max_size=8))
def test_what_is_written_as_a_literal_is_read_as_what_it_was(parts: list[str]) -> None:
    value = {"x": ["".join(parts), 1]}
    assert resolve(literal(value), FACTS) == value


@pytest.mark.parametrize(
    "text",
    [
        "${" + " " * 200_000,
        "${" + "a " * 100_000,
        "${" + "a" * 100_000 + " " * 100_000,
        "${" * 9000,
    ],
    ids=["blanks", "words", "a word and blanks", "beginnings"],
)
def test_a_reference_without_an_end_is_looked_at_once(text: str) -> None:
    """Whoever writes a plan writes its texts, and each run looks through them again."""
    began = time.thread_time()

    assert list(references({"text": text})) == []
    assert list(unclosed({"text": text})) == [".text"]
    assert resolve(text, FACTS) == text
    assert time.thread_time() - began < 5


def test_a_text_that_references_would_blow_up_is_refused() -> None:
    facts = {"page": {"text": "x" * 100_000}}

    assert len(resolve("${page.text}, " * 50, facts)) > 5_000_000
    with pytest.raises(ReferenceUnresolved, match="too large"):
        resolve("${page.text}, " * 100_000, facts)
