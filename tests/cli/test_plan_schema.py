from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from surehand.cli.plan_schema import SHIPPED, plan_schema
from surehand.workflows.plan.plan import Plan
from tests.cli.starter import ROOT

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

    assert SHIPPED.read_text() == made, (
        "make it anew: python starter.py plan schema > examples/plan.schema.json"
    )


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
