"""``plan check``, ``plan graph`` and ``plan schema``: looking at plans without a server."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import textwrap
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final, Literal

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from surehand.cli import options
from surehand.cli.printer import Reply, Shape, Table, counted
from surehand.cli.tools import TOOLS_SETTING, module_problems, named_tools, problems_of, warnings_of
from surehand.client.plan_file import load_plan
from surehand.process import PACKAGE
from surehand.process.exits import ExitCode, PlanRefused, WrongUse
from surehand.workflows.contracts.tools import Effect, ToolSpec
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
from surehand.workflows.plan.references import ancestors

Kind = Literal["read", "write", "tool", "ask", "wait", "plan"]


class PlanChecked(Shape):
    """``plan check`` of a plan that is valid; what is wrong with others is an ``ErrorReport``."""

    file: str
    plan: str
    steps: int
    """Those of plans inside it included."""
    tools_checked: bool
    """False: no tools are named here, and the worker's tools may still refuse it."""
    not_checked: list[str] = []
    """What only a worker can tell, and why."""
    warnings: list[str] = []
    """What is odd about its tools, and refuses nothing."""


class GraphEdge(Shape):
    """What follows what."""

    source: str
    target: str
    on: list[Literal["on_no", "on_failure", "on_reject"]] = []
    """The ends of ``source`` at which the run goes on there; nothing: ``target`` waits for it."""


class GraphNode(Shape):
    """One step."""

    id: str
    kind: Kind
    """``tool``: of a tool that is not known here, so nobody can say whether it reads or writes."""
    does: str
    """The tool's name, the question, the event or the inner plan's name."""
    layer: int
    """Counts from 1: those of one layer run together, as far as their steps take equally long."""
    approval: bool
    """Whether the plan or the tool, where it is known, asks for an approval, maybe by its rules."""
    when: str | None
    for_each: str | None
    parallel: int
    interrupts: list[Literal["before", "after"]]
    fallback: str | None
    plan: PlanGraph | None
    """The plan that the step is."""


class PlanGraph(Shape):
    """``plan graph``."""

    name: str
    goal: str
    nodes: list[GraphNode]
    edges: list[GraphEdge]
    """Waits that others imply are left out."""


_PLACES: Final[tuple[Literal["before", "after"], ...]] = ("before", "after")
_End = Literal["on_no", "on_failure", "on_reject"]


def graph_of(plan: Plan, tools: Mapping[str, ToolSpec]) -> PlanGraph:
    layers = _layers(plan)
    return PlanGraph(
        name=plan.name,
        goal=plan.goal,
        nodes=[_node(plan, step, layers[step.id], tools) for step in plan.steps],
        edges=[*_waits(plan), *(edge for step in plan.steps for edge in _gotos(plan, step))],
    )


def _node(plan: Plan, step: Step, layer: int, tools: Mapping[str, ToolSpec]) -> GraphNode:
    tool = tools.get(step.tool)
    asked = bool(step.tool) and (
        bool(plan.approvals(step)) or (tool is not None and tool.approval is not None)
    )
    kind, does = _kind_and_text(step, tool)
    return GraphNode(
        id=step.id,
        kind=kind,
        does=does,
        layer=layer,
        approval=asked,
        when=step.when,
        for_each=step.for_each,
        parallel=step.parallel,
        interrupts=[place for place in _PLACES if plan.interrupted(step, place)],
        fallback=step.fallback.tool if step.fallback else None,
        plan=graph_of(step.plan, tools) if step.plan else None,
    )


def _kind_and_text(step: Step, tool: ToolSpec | None) -> tuple[Kind, str]:
    if step.plan is not None:
        return "plan", step.plan.name
    if step.ask is not None:
        return "ask", step.ask.question
    if step.wait is not None:
        return "wait", step.wait.event
    if tool is None:
        return "tool", step.tool
    return "read" if tool.effect is Effect.READ else "write", step.tool


def _layers(plan: Plan) -> dict[str, int]:
    """Return for each step how many others come one after another up to it, itself included."""
    waiting, layers = dict(plan.dependencies), dict[str, int]()
    while waiting:  # a plan has no cycles
        for step_id in [key for key, needs in waiting.items() if needs <= layers.keys()]:
            layers[step_id] = 1 + max((layers[need] for need in waiting.pop(step_id)), default=0)
    return layers


def _waits(plan: Plan) -> list[GraphEdge]:
    found = []
    for step in plan.steps:
        needs = plan.dependencies[step.id]
        implied = ancestors(plan.dependencies, *needs)
        direct = [other.id for other in plan.steps if other.id in needs - implied]
        found += [GraphEdge(source=other, target=step.id) for other in direct]
    return found


def _gotos(plan: Plan, step: Step) -> list[GraphEdge]:
    targets: dict[str, list[_End]] = {}
    ends: dict[_End, object] = {
        "on_no": plan.on_no(step),
        "on_failure": plan.on_failure(step),
        "on_reject": plan.on_reject(step),
    }
    for end, follows in ends.items():
        if isinstance(follows, Goto):
            targets.setdefault(follows.goto, []).append(end)
    return [GraphEdge(source=step.id, target=to, on=on) for to, on in targets.items()]


def notes(node: GraphNode) -> list[str]:
    """Return what there is to be said of a step beside its id, a line each."""
    lines = [f"{node.kind}: {node.does}"]
    if node.when is not None:
        lines.append(f"when {node.when}")
    if node.for_each is not None:
        at_once = f", {node.parallel} at a time" if node.parallel > 1 else ""
        lines.append(f"for each of {node.for_each}{at_once}")
    if node.fallback is not None:
        lines.append(f"else {node.fallback}")
    if node.approval:
        lines.append("needs an approval")
    if node.interrupts:
        lines.append(f"a human looks {' and '.join(node.interrupts)}")
    return lines


def table_rows(graph: PlanGraph, inside: str = "") -> Iterator[list[str]]:
    """Yield a row for each step, in layers; steps of an inner plan come after the step it is."""
    for node in sorted(graph.nodes, key=lambda node: node.layer):
        waits = [e.source for e in graph.edges if e.target == node.id and not e.on]
        gotos = [
            f"{', '.join(e.on)} ..> {e.target}" for e in graph.edges if e.source == node.id and e.on
        ]
        what = "; ".join([*notes(node), *gotos])
        yield [str(node.layer), f"{inside}{node.id}", ", ".join(waits) or "at once", what]
        if node.plan is not None:
            yield from table_rows(node.plan, f"{inside}{node.id}/")


def check(
    caller: options.Anybody, plan: options.PlanFile, changes: options.Changes = None
) -> Reply:
    """Validate a plan as `start` does, and start nothing; with tools where they are named.

    Example: surehand plan check examples/refund.yaml
    """
    toolbox = named_tools(caller)
    tools = None if toolbox is None else toolbox.names()
    parsed = load_plan(plan, changes or [], tools)
    missing, not_checked = module_problems(caller, parsed)
    problems = [*missing, *problems_of(toolbox, parsed)]
    if problems:
        raise PlanRefused(plan, problems)
    if tools is None:
        not_checked.append(f"its tools and params ({TOOLS_SETTING} names none)")
    checked = PlanChecked(
        file=plan,
        plan=parsed.name,
        steps=_count_steps(parsed),
        tools_checked=tools is not None,
        not_checked=not_checked,
        warnings=warnings_of(toolbox, tools_in(parsed)),
    )
    for warning in checked.warnings:
        caller.printer.warn(warning)
    steps = counted(checked.steps, "step")
    made = steps if parsed.code is None else f"its steps are made by the workflow {parsed.code}"
    said = [f"Not checked: {one}" for one in checked.not_checked]
    return Reply(checked, [f"{plan}: valid: plan {parsed.name}, {made}", *said])


def graph(
    caller: options.Anybody,
    plan: options.PlanFile,
    changes: options.Changes = None,
) -> Reply:
    """Show a plan's steps in layers: what waits for what, needs a human, and where gotos lead.

    Example: surehand plan graph examples/refund.yaml
    """
    parsed = load_plan(plan, changes or [])
    if parsed.code is not None:
        raise WrongUse(f"{plan}: the workflow {parsed.code} makes its steps: nothing to show")
    toolbox = named_tools(caller)
    known = {} if toolbox is None else {spec.name: spec for spec in toolbox.specs()}
    drawn = graph_of(parsed, known)
    goal = f": {drawn.goal}" if drawn.goal else ""
    table = Table(("layer", "step", "after", "what"), list(table_rows(drawn)))
    return Reply(drawn, [f"{drawn.name}{goal}", table])


def schema(caller: options.Anybody) -> ExitCode:
    """Print the JSON Schema of plan files, always as JSON; editors complete plans with it.

    Example: surehand plan schema > plan.schema.json
    """
    caller.printer.document(plan_schema())
    return ExitCode.DONE


def tools_in(plan: Plan) -> Iterator[str]:
    for step in plan.steps:
        if step.plan is not None:
            yield from tools_in(step.plan)
        yield step.tool


def _count_steps(plan: Plan) -> int:
    return sum(1 + (_count_steps(step.plan) if step.plan else 0) for step in plan.steps)


# The JSON Schema of plan files. The models also take shorter forms than they say (`ask: "text"`,
# `approval: required`, `15m`): validators turn them into longer ones, and pydantic does not know.


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
    "Plan.name": "What runs of this plan are named after.",
    "Plan.goal": "What the plan is for, in a sentence.",
    "Plan.input": "What `${input.x}` refers to; `--set input.x=...` changes it.",
    "Plan.defaults": "What holds for every step unless it says otherwise.",
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
    "ApprovalPolicy.rules": "What holds instead for some params; the first rule that fits decides.",
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
        _describe(model, definitions[model.__name__])
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


def _describe(model: type[BaseModel], definition: dict[str, Any]) -> None:
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
