"""The JSON Schema of plan files, by which editors complete plans: ``examples/plan.schema.json``.

The models also take shorter forms than they say (`ask: "text"`,
`approval: required`, `15m`): validators turn them into longer ones, and pydantic does not know.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import textwrap
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from surehand.process import PACKAGE
from surehand.workflows.plan.plan import (
    Ask,
    Budget,
    Defaults,
    Fallback,
    Goto,
    Interrupts,
    Plan,
    Step,
    Wait,
)
from surehand.workflows.plan.policy import ApprovalPolicy, ApprovalRule, Escalate


def field_docstrings(class_: type) -> dict[str, str]:
    """Return the texts below the fields of a class and its bases, by field."""
    texts: dict[str, str] = {}
    for base in reversed(class_.__mro__):
        texts |= own_docstrings(base)
    return texts


@functools.cache
def own_docstrings(class_: type) -> Mapping[str, str]:
    """Return the texts below a class's own fields, by field."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(class_)))
    except (OSError, TypeError):
        return {}
    found: dict[str, str] = {}
    assert isinstance(tree.body[0], ast.ClassDef)
    body = tree.body[0].body
    for field, below in itertools.pairwise(body):
        target = getattr(field, "target", None) or (getattr(field, "targets", None) or [None])[0]
        if isinstance(target, ast.Name) and isinstance(below, ast.Expr):
            text = getattr(below.value, "value", None)
            found |= {target.id: inspect.cleandoc(text)} if isinstance(text, str) else {}
    return found


#: Where the schema is shipped, beside the plans that name it.
SHIPPED: Final = (PACKAGE / "examples").resolve() / "plan.schema.json"
#: What editors understand best; nothing in the schema needs a newer draft.
_DIALECT: Final = "http://json-schema.org/draft-07/schema#"

_MODELS: Final[tuple[type[BaseModel], ...]] = (
    *(Plan, Step, Defaults, Interrupts, Budget, Ask, Wait, Fallback, Goto),
    *(ApprovalPolicy, ApprovalRule, Escalate),
)
#: Said here of fields whose names say enough in the code, but not in an editor.
_MORE: Final[Mapping[str, str]] = {
    "Plan.name": "The plan's name, with which the names of its runs begin.",
    "Plan.goal": "What the plan is for, in a sentence.",
    "Plan.input": "What `${input.x}` refers to; `--set input.x=...` changes it.",
    "Plan.defaults": "Values for every step that does not set them.",
    "Plan.interrupts": "Steps that a human looks at.",
    "Plan.budget": "What a run may use; when it is used up, the run waits for more.",
    "Plan.steps": "Each waits for the one before it, unless its `after` says otherwise.",
    "Step.id": "Unique in the plan; if left out: step1, step2, ...",
    "Step.tool": "The tool that the step calls.",
    "Step.ask": "A question to a human; the answer is the step's output.",
    "Step.params": "The tool's params; ${step.path} takes an earlier output, ${input.x} the input.",
    "Step.wait": "An event from outside that the step waits for.",
    "Step.approval": "Who must approve the call, in addition to what the tool requires.",
    "Step.on_failure": "What follows if the step fails.",
    "Defaults.approval": "Who must approve each call, in addition to what its tool requires.",
    "Defaults.on_no": "What follows if a tool answers no.",
    "Defaults.on_failure": "What follows if a step fails.",
    "Defaults.on_reject": "What follows if a human says no, or nobody answers in time.",
    "Defaults.interrupt": "When a human looks at each step.",
    "Interrupts.before": "A human accepts or rejects these before they start.",
    "Interrupts.after": "A human looks at the outputs of these.",
    "Budget.tokens": "As tools report them.",
    "Budget.money": "A decimal as text, as tools report it.",
    "Ask.expires_in": "How long the step waits for an answer; left out: forever.",
    "Wait.event": "The event's name.",
    "Wait.expires_in": "How long the step waits; left out: forever.",
    "Fallback.tool": "Another tool that reads.",
    "Fallback.params": "That tool's params.",
    "Goto.goto": "A later step.",
    "Escalate.escalate": "The role that is asked then.",
    "ApprovalPolicy.remind_every": "How often people are reminded; left out: never.",
    "ApprovalPolicy.rules": "An exception for some params; the first rule that fits decides.",
    "ApprovalRule.quorum": "How many different people have to say yes.",
    "ApprovalRule.roles": "Who may decide: principals with one of these roles.",
    "ApprovalRule.four_eyes": "Nobody may decide who asked for the call, edited it, or gave its"
    " run a value.",
}
#: How docstrings write what stands in a plan.
_JSON: Final = {"``None``": "`null`", "``False``": "`false`", "``True``": "`true`", "``": "`"}


class _Generator(GenerateJsonSchema):
    def timedelta_schema(self, schema: core_schema.TimedeltaSchema) -> JsonSchemaValue:
        return {
            "anyOf": [
                {
                    "type": "string",
                    # Ours, ISO 8601, and what a clock shows: all that the models read.
                    "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*(ms|s|m|h|d)\s*$|^[+-]?P|^[0-9]+:[0-9]",
                    "examples": ["90s", "15m", "24h", "7d"],
                },
                {"type": "number", "description": "Seconds."},
            ]
        }

    def encode_default(self, dft: Any) -> Any:
        hours = dft / timedelta(hours=1) if isinstance(dft, timedelta) else None
        return super().encode_default(dft) if hours is None else f"{hours:g}h"


def plan_schema() -> dict[str, Any]:
    schema = Plan.model_json_schema(schema_generator=_Generator)
    definitions: dict[str, Any] = schema["$defs"]
    for definition in definitions.values():
        if "description" in definition:
            definition["description"] = definition["description"].partition("\n\nExample:")[0]
    for model in _MODELS:
        describe(model, definitions[model.__name__])
    _let_be_short(definitions)
    steps = definitions["Plan"]["properties"]["steps"]
    steps_alone = {**steps, "description": "Steps, and no more."}
    either = [{"$ref": "#/$defs/WholePlan"}, steps_alone]
    definitions["WholePlan"] = definitions["Plan"]
    definitions["Plan"] = {"anyOf": either}
    return {
        "$schema": _DIALECT,
        "title": "A plan of Surehand",
        "$ref": "#/$defs/Plan",
        "$defs": dict(sorted(definitions.items())),
    }


def describe(model: type[BaseModel], definition: dict[str, Any]) -> None:
    """Put the texts below a model's fields into its schema."""
    documented = field_docstrings(model)
    definition.pop("title", None)
    for name, field in definition["properties"].items():
        field.pop("title", None)
        if field.get("default", ...) is None:
            del field["default"]  # "none": left out, which no editor has to write
        text = documented.get(name) or _MORE.get(f"{model.__name__}.{name}", "")
        for ours, theirs in _JSON.items():
            text = text.replace(ours, theirs)
        if text:
            field["description"] = " ".join(text.split())


def _let_be_short(definitions: dict[str, Any]) -> None:
    """Add the forms that the models' validators turn into longer ones."""
    plan, step, defaults = (definitions[name] for name in ("Plan", "Step", "Defaults"))
    plan["properties"]["steps"]["minItems"] = 1
    plan["required"].remove("steps")
    plan["oneOf"] = [
        {"required": ["steps"]},
        *(
            {"required": [kind], "properties": {kind: {"not": {"type": "null"}}}}
            for kind in ("code", "agent", "model")
        ),
    ]
    plan["dependentRequired"] = {"model": ["tools"], "tools": ["model"]}
    step["properties"]["ask"]["anyOf"].insert(0, {"type": "string", "minLength": 1})
    for owner in (step, defaults):
        approval = owner["properties"]["approval"]
        approval["anyOf"] = [{"const": "required"}, {"const": True}, *approval["anyOf"]]
        interrupt = owner["properties"]["interrupt"]
        lists = interrupt.pop("anyOf", None) or [_pop_keys(interrupt, "type", "items")]
        interrupt["anyOf"] = [lists[0]["items"], *lists]
    step["required"].remove("id")
    if not step["required"]:
        del step["required"]
    # As `Step` judges it: a field that says nothing is not there.
    step["oneOf"] = [
        {"required": ["tool"], "properties": {"tool": {"minLength": 1}}},
        *(
            {"required": [kind], "properties": {kind: {"not": {"type": "null"}}}}
            for kind in ("ask", "plan", "wait")
        ),
    ]


def _pop_keys(schema: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: schema.pop(name) for name in names}
