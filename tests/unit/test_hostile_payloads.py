"""What strangers send is taken or refused in one line, and stops nothing that comes after it."""

from __future__ import annotations

import time
import tracemalloc
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given

from surehand.activities.tools.describing import describe_plan
from surehand.activities.tools.toolbox import Toolbox
from surehand.process.json_schemas import problems, schema_problem
from surehand.workflows import ports
from surehand.workflows.contracts.approvals import Decision
from surehand.workflows.contracts.base import MOST_LEVELS, Message
from surehand.workflows.contracts.effects import Resolution
from surehand.workflows.contracts.runs import Amend, TopUp
from surehand.workflows.contracts.steering import (
    AnswerInterrupts,
    CancelRun,
    InterruptKind,
    Verb,
    accept_replace_reject,
)
from surehand.workflows.plan.plan import Plan
from surehand.workflows.run.deliveries import (
    LARGEST_DELIVERY,
    LARGEST_PLAN,
    Inbox,
    Malformed,
    parse,
)
from tests.unit.values import json_values

DECISION = {
    "approval_id": "run/step/1",
    "params_hash": "sha256:0",
    "outcome": "edit",
    "approver": "ana",
}
HALF = "\ud800"


def nested(levels: int) -> Any:
    value: Any = "x"
    for level in range(levels):
        value = [value] if level % 2 else {"in": value}
    return value


HOSTILE: dict[str, Any] = {
    "too deep": {"a": nested(MOST_LEVELS)},
    "far too deep": {"a": nested(5000)},
    "half a character": {"a": [HALF]},
    "half a character in a name": {"a": {HALF: 1}},
    "half a character in the first name": {HALF: 1},
    "no JSON": {"a": {1}},
    "a number that has lost digits": {"a": [2**53]},
    "a fraction that has lost digits": {"a": 9007199254740993.0},
}


@pytest.mark.parametrize("params", HOSTILE.values(), ids=HOSTILE)
def test_an_edit_that_could_not_be_handed_on_is_malformed(params: Any) -> None:
    inbox = Inbox(prefix="run#first.")

    inbox.receive(Verb.DECIDE, {**DECISION, "params": params})

    assert inbox.queue[-1].decision is None
    assert inbox.queue[-1].refused
    inbox.queue[-1].refused.encode()


@pytest.mark.parametrize("name", ["approval_id", "params_hash", "approver", "reason", "signature"])
@pytest.mark.parametrize("text", [HALF, "nul \x00"], ids=["half", "NUL"])
def test_text_of_a_decision_that_is_none_is_malformed(name: str, text: str) -> None:
    inbox = Inbox(prefix="run#first.")

    inbox.receive(Verb.DECIDE, {**DECISION, name: text})

    [delivery] = inbox.queue
    assert delivery.decision is None
    assert (delivery.refused or "").startswith(f"{name}: ")


@pytest.mark.parametrize("receipt", HOSTILE.values(), ids=HOSTILE)
def test_a_receipt_that_could_not_be_handed_on_is_malformed(receipt: Any) -> None:
    resolution = {"intervention_id": "iv-1", "outcome": "happened", "actor": "olga"}

    with pytest.raises(Malformed):
        parse(Resolution, {**resolution, "receipt": receipt})


def test_params_as_deep_as_any_tool_has_are_taken() -> None:
    inbox = Inbox(prefix="run#first.")

    inbox.receive(Verb.DECIDE, {**DECISION, "params": {"a": nested(MOST_LEVELS // 2)}})

    assert inbox.queue[-1].decision is not None


def test_a_reason_for_refusing_is_no_longer_than_somebody_reads() -> None:
    inbox = Inbox(prefix="run#first.")

    inbox.receive(Verb.DECIDE, {**DECISION, "params": {"k" * 1_000_000: {1}}})
    inbox.receive(
        Verb.DECIDE, {**DECISION, "params": {str(number): {1} for number in range(20_000)}}
    )

    one, other = (delivery.refused or "" for delivery in inbox.queue)
    assert 0 < len(one) < 5_000
    assert 0 < len(other) < 5_000


def test_a_decision_that_is_too_large_is_refused_and_not_kept() -> None:
    inbox = Inbox(prefix="run#first.")

    inbox.receive(Verb.DECIDE, {**DECISION, "reason": "x" * LARGEST_DELIVERY})

    [delivery] = inbox.queue
    assert delivery.decision is None
    assert "too large" in (delivery.refused or "")


def test_what_is_kept_to_know_a_decision_again_does_not_grow_with_it() -> None:
    inbox = Inbox(prefix="run#first.")

    inbox.receive(Verb.DECIDE, {**DECISION, "reason": "x" * (LARGEST_DELIVERY // 2)})

    assert len(str(inbox.by_content)) < 200


RESOLUTION: dict[str, Any] = {
    "intervention_id": "iv-1",
    "outcome": "happened",
    "actor": "olga",
    "evidence": "bank statement",
}


def test_what_is_right_is_taken_with_what_a_newer_sender_adds() -> None:
    taken = parse(Resolution, {**RESOLUTION, "signature": "x"})

    assert (taken.actor, taken.outcome) == ("olga", "happened")


@pytest.mark.parametrize(
    ("model", "payload", "says"),
    [
        (Resolution, {**RESOLUTION, "outcome": "perhaps"}, "outcome: "),
        (Resolution, {**RESOLUTION, "actor": ""}, "actor: "),
        (Resolution, {**RESOLUTION, "actor": "a" * 201}, "actor: "),
        (Resolution, {**RESOLUTION, "actor": "nul \x00"}, "actor: "),
        (Resolution, {**RESOLUTION, "evidence": "nul \x00"}, "evidence: "),
        (Resolution, {**RESOLUTION, "intervention_id": "nul \x00"}, "intervention_id: "),
        (Resolution, {}, "actor: is missing; intervention_id: is missing; outcome: is missing"),
        (CancelRun, {"actor": "olga", "mode": "stop"}, "mode: "),
        (CancelRun, {}, "actor: is missing"),
        (CancelRun, {"actor": "olga", "reason": "nul \x00"}, "reason: "),
        (CancelRun, "compensate", "cancelrun: must be a JSON object with actor"),
        (CancelRun, None, "cancelrun: "),
        (
            Decision,
            "approve",
            "decision: must be a JSON object with approval_id, params_hash, outcome, approver",
        ),
        (
            Decision,
            {**DECISION, "outcome": "yes"},
            "outcome: must be 'approve', 'reject' or 'edit'",
        ),
        (Decision, {**DECISION, "approver": ""}, "approver: must have at least 1 character"),
        (Decision, {**DECISION, "approver": "a" * 201}, "approver: "),
        (Decision, {**DECISION, "params_hash": 7}, "params_hash: must be text"),
    ],
)
def test_what_is_wrong_is_named(model: type[Message], payload: Any, says: str) -> None:
    with pytest.raises(Malformed) as refused:
        parse(model, payload)

    assert str(refused.value).startswith(says)
    assert "\n" not in str(refused.value)


@given(json_values)
def test_no_payload_does_anything_else(payload: Any) -> None:
    for model in (Resolution, CancelRun, Decision):
        try:
            parse(model, payload)
        except Malformed:
            continue


def test_every_message_is_whole_when_its_module_is_loaded() -> None:
    # A reference to a class further down is resolved by chance, at whatever uses it first.
    declared = [value for value in vars(ports).values() if isinstance(value, ports.Port)]
    messages = [message for port in declared for message in (port.takes, port.returns)]

    assert [message for message in messages if not message.__pydantic_fields_complete__] == []


def test_what_is_nested_too_deeply_to_be_handed_on_is_refused() -> None:
    with pytest.raises(Malformed, match="nested too deeply"):
        parse(Decision, {"approval_id": nested(190)})


@pytest.mark.parametrize(
    "schema", [{"$ref": "#"}, {"required": ["a"], "$ref": "#/required/x"}, {"$ref": "http://[bad"}]
)
def test_an_unusable_schema_is_refused_and_raises_nothing(schema: dict[str, Any]) -> None:
    assert schema_problem(schema) is not None
    assert problems(schema, 1)


def test_an_answer_that_is_no_boolean_is_told_what_one_is() -> None:
    assert problems({"type": "boolean"}, "yes") == ["must be true or false, not 'yes'"]


def test_an_answer_that_is_none_of_several_is_told_what_each_of_them_wants() -> None:
    [why] = problems(accept_replace_reject(InterruptKind.AFTER), "no")

    assert "['accept', 'reject']" in why
    assert "'object'" in why


#: Python's own ``re`` would be at it until long after the run.
ENDLESS = "^(a+)+$"
AT_IT = "a" * 200 + "!"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


@pytest.mark.parametrize(
    ("schema", "answer"),
    [
        ({"pattern": ENDLESS}, AT_IT),
        ({"patternProperties": {ENDLESS: {}}, "additionalProperties": False}, {AT_IT: 1}),
        ({"patternProperties": {".": {"items": {"pattern": ENDLESS}}}}, {"x": [AT_IT]}),
    ],
    ids=["pattern", "patternProperties", "inside"],
)
def test_a_patterns_time_is_bounded(schema: dict[str, Any], answer: Any) -> None:
    assert schema_problem(schema) is None
    assert problems(schema, answer)


_TWICE = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(60)}


@pytest.mark.parametrize(
    ("schema", "answer", "why"),
    [
        ({"pattern": "(?=a)b"}, "b", "RE2 does not take"),
        ({"patternProperties": {r"(a)\1": {}}}, {"aa": 1}, "RE2 does not take"),
        ({"patternProperties": {ENDLESS: {}}, "unevaluatedProperties": False}, {}, "take one"),
        ({"items": {"$schema": DRAFT_7, "pattern": ENDLESS}}, [AT_IT], "another $schema"),
        ({"$defs": {**_TWICE, "d60": {}}, "$ref": "#/$defs/d0"}, 1, "too long"),
    ],
    ids=["lookahead", "back reference", "unevaluated", "another draft", "references that multiply"],
)
def test_an_unbounded_schema_is_refused(schema: dict[str, Any], answer: Any, why: str) -> None:
    assert why in (schema_problem(schema) or "")
    assert why in problems(schema, answer)[0]


def cost_of(schema: dict[str, Any], answer: Any) -> tuple[list[str], int, float]:
    """Return what is told of an answer, bytes at their peak, and seconds of the processor."""
    tracemalloc.start()
    began = time.thread_time()
    try:
        told = problems(schema, answer)
        return told, tracemalloc.get_traced_memory()[1], time.thread_time() - began
    finally:
        tracemalloc.stop()


def test_items_that_must_differ_take_time_in_proportion_to_the_answer() -> None:
    """What cannot be sorted, the library compares each with each: minutes, for one answer."""
    answer = [item for n in range(10_000) for item in (n, f"a{n}", {"n": n})]

    told, _, seconds = cost_of({"uniqueItems": True}, answer)
    assert told == []
    assert seconds < 20
    assert len(problems({"uniqueItems": True}, [*answer, {"n": 7}])) == 1


@pytest.mark.parametrize(
    ("answer", "same"),
    [
        ([1, 1.0], True),
        ([{"a": 1, "b": [2.0]}, {"b": [2], "a": 1}], True),
        ([[], []], True),
        ([1, True, 0, False, "1", "true", None, "null", [1], ["1"], {"a": 1}], False),
        ([0.1, 0.10000000000000002, 10**30, 10**30 + 1], False),
    ],
)
def test_items_are_the_same_as_json_schema_has_it(answer: list[Any], same: bool) -> None:
    assert bool(problems({"uniqueItems": True}, answer)) is same


def test_a_choice_of_many_keeps_no_copy_of_the_answer_for_each_of_them() -> None:
    schema = {"anyOf": [{"minLength": 1_000_000 + n} for n in range(300)]}
    told, peak, _ = cost_of(schema, "x" * 250_000)

    assert len(told) == 1
    assert peak < 8 * 1024 * 1024


def test_names_that_no_pattern_takes_are_additional_ones() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "properties": {"id": {}, "inner": {"$ref": "#"}},
        "patternProperties": {"^x-": {"type": "string"}},
        "additionalProperties": {"type": "integer"},
    }

    assert problems(schema, {"id": None, "x-a": "text", "more": 1, "inner": {"x-b": ""}}) == []
    assert problems(schema, {"x-a": 1, "more": "text", "inner": {"more": 0.5}}) == [
        "inner.more: 0.5 is not of type 'integer'",
        "x-a: 1 is not of type 'string'",
        "more: 'text' is not of type 'integer'",
    ]


@pytest.mark.parametrize("more", [{"time": timedelta.max}, {"tokens": 10**400}, {"steps": 10**400}])
def test_more_budget_is_refused_that_cannot_be_added_up(more: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        parse(TopUp, {"actor": "ana", **more})


@pytest.mark.parametrize("answer", [float("nan"), [float("inf")]])
def test_a_number_that_json_does_not_have_is_refused(answer: Any) -> None:
    with pytest.raises(Malformed, match="JSON does not have"):
        parse(AnswerInterrupts, {"actor": "ana", "answer": answer})


def test_the_same_in_an_amended_plan_is_refused() -> None:
    plan = [{"tool": "a.b", "params": {"n": float("nan")}}]
    with pytest.raises(Malformed, match="JSON does not have"):
        parse(Amend, {"actor": "ana", "plan": plan, "based_on": 1})


def test_an_amended_plan_without_a_digest_is_refused_and_not_tried_for_ever() -> None:
    plan = Plan.model_validate([{"tool": "a.b", "params": {"n": 2**60}}])

    assert [problem.where for problem in describe_plan(Toolbox([]), plan).problems] == ["plan"]


@pytest.mark.parametrize("number", [2**53, 9007199254740993.0, -1e20])
def test_an_answer_that_may_be_another_number_by_now_is_malformed(number: float) -> None:
    with pytest.raises(Malformed, match="2\\^53"):
        parse(AnswerInterrupts, {"actor": "ana", "answers": {"ask.1": [{"n": number}]}})


@pytest.mark.parametrize(
    "plan",
    [
        {"steps": [{"tool": "a.b", "params": {"n": 9007199254740993.0}}]},
        {"input": {"n": [1e20]}, "steps": [{"ask": "?"}]},
        {"steps": [{"plan": {"input": {"n": 1e20}, "steps": [{"ask": "?"}]}}]},
    ],
)
def test_a_plan_with_a_number_that_may_be_another_one_by_now_is_refused(plan: Any) -> None:
    [problem] = describe_plan(Toolbox([]), Plan.model_validate(plan)).problems

    assert "2^53" in problem.reason


def test_a_plan_may_be_larger_than_other_things_that_are_sent() -> None:
    plan = [{"tool": "a.b", "params": {"text": "x" * LARGEST_DELIVERY}}]

    amend = parse(Amend, {"actor": "ana", "plan": plan, "based_on": 1}, LARGEST_PLAN)

    assert len(amend.plan.steps) == 1
    with pytest.raises(Malformed, match="too large"):
        parse(Amend, {"actor": "ana", "plan": plan * 4, "based_on": 1}, LARGEST_PLAN)


@pytest.mark.parametrize("time", ["999999999d", "-P1D"])
@pytest.mark.parametrize(
    "step", [{"ask": {"question": "?"}}, {"wait": {"event": "paid"}}], ids=["ask", "wait"]
)
def test_a_time_that_no_clock_reaches_is_no_plan(step: dict[str, Any], time: str) -> None:
    [(kind, asked)] = step.items()
    with pytest.raises(ValueError, match="expires_in"):
        Plan.model_validate([{kind: {**asked, "expires_in": time}}])


def test_answers_for_others_answer_nothing_inside_a_child() -> None:
    sent = AnswerInterrupts(actor="ana", answers={"pay/x.1": 1, "own.1": 2}, answer="other")

    assert sent.inside("pay").answers == {"x.1": 1}
    assert (sent.inside("ship").answers, sent.inside("ship").answer) == ({}, None)
