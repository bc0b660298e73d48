"""What a plan's tools are, and what in the plan does not fit them, before its run is opened."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from pydantic import RootModel, ValidationError
from pydantic_core import ErrorDetails

from surehand.activities import expressions
from surehand.activities.tools.tool import Tool
from surehand.activities.tools.toolbox import Toolbox
from surehand.process.json_schemas import schema_problem
from surehand.workflows.canonical_json import LOST_DIGITS, NotCanonical, digest, has_lost_digits
from surehand.workflows.contracts.tools import Effect, ToolsDescribed, ToolSpec
from surehand.workflows.plain_text import reason_of, suggest_name, unknown_tool
from surehand.workflows.plan.plan import Plan, Step, overgrown
from surehand.workflows.plan.references import PlanError, fill_input_in, references

#: The place of an error, as pydantic has it.
_Loc = tuple[int | str, ...]


def describe_plan(toolbox: Toolbox, plan: Plan) -> ToolsDescribed:
    """Return the specs of a plan's tools, and what in the plan does not fit them."""
    described = _describe_steps(toolbox, plan)
    return described.model_copy(update={"problems": [*described.problems, *overgrown(plan)]})


def define(toolbox: Toolbox, listed: Sequence[str]) -> ToolsDescribed:
    """Return specs and definitions of the tools that a list names, and what in it names none."""
    names, problems = _find_listed(toolbox, listed)
    tools = [tool for name in sorted(names) if (tool := toolbox.get(name)) is not None]
    return ToolsDescribed(
        tools={tool.name: tool.spec() for tool in tools},
        problems=[PlanError(where="tools", reason=reason) for reason in problems],
        definitions=[tool.definition() for tool in tools],
    )


def _match_tools(
    patterns: Iterable[str], known: Iterable[str], undoing: Collection[str]
) -> set[str]:
    """Return the tools that a list names, by name or by a pattern with ``*`` and ``?``.

    A pattern names no tool that undoes another one's effect: whoever writes `billing.*` thinks of
    what may be done and not of what may be undone.
    """
    listed = list(patterns)
    return {
        name
        for name in known
        if name in listed
        or (name not in undoing and any(fnmatchcase(name, pattern) for pattern in listed))
    }


def _find_listed(toolbox: Toolbox, listed: Sequence[str]) -> tuple[set[str], list[str]]:
    """Return the tools that a list names, and why parts of it name none."""
    names, undoing = toolbox.names(), toolbox.undoing()
    problems = []
    for pattern in listed:
        if _match_tools([pattern], names, undoing):
            continue
        reason = f"{pattern!r} names no tool; loaded are: {', '.join(names)}"
        if undone := sorted(_match_tools([pattern], names, ())):
            reason = f"{pattern!r} names only tools that undo others: name them exactly: "
            reason += ", ".join(undone)
        problems.append(reason)
    return _match_tools(listed, names, undoing), problems


def _describe_steps(toolbox: Toolbox, plan: Plan, *, surely: bool = True) -> ToolsDescribed:
    """Return the specs and problems of a plan's steps.

    What the input puts into params counts only if the plan runs ``surely`` and its step has no
    condition: that may be there to keep such input away.
    """
    try:
        written = plan.model_dump(mode="json")
        digest(written)
    except NotCanonical as error:
        # The ledger keeps its digest: without one, it would be asked for ever.
        return ToolsDescribed(tools={}, problems=[PlanError(where="plan", reason=str(error))])
    if has_lost_digits(written):
        return ToolsDescribed(tools={}, problems=[PlanError(where="plan", reason=LOST_DIGITS)])
    specs: dict[str, ToolSpec] = {}
    problems: list[PlanError] = []
    if plan.tools:
        named, unknown = _find_listed(toolbox, plan.tools)
        problems = [PlanError(where="tools", reason=reason) for reason in unknown]
        specs = {spec.name: spec for spec in toolbox.specs() if spec.name in named}
    for index, step in enumerate(plan.steps):
        where = f"steps.{index} ({step.id})"
        wrong = None if step.when is None else expressions.condition_problem(step.when)
        if wrong is not None:
            problems.append(PlanError(where=f"{where}.when", reason=wrong))
        if step.wait is not None:
            continue
        sure = surely and step.when is None
        params = fill_input_in(step.params, plan.input) if sure else step.params
        if step.plan is not None:
            described = _describe_steps(toolbox, step.plan.with_input(params), surely=sure)
            problems += [
                PlanError(where=f"{where}.plan.{problem.where}", reason=problem.reason)
                for problem in described.problems
            ]
            continue
        if step.ask is not None:
            reason = schema_problem(step.ask.answer)
            if reason is not None:
                problems.append(PlanError(where=f"{where}.ask.answer", reason=reason))
            continue
        tool = toolbox.get(step.tool)
        if tool is None:
            reason = unknown_tool(step.tool, toolbox.names())
            problems.append(PlanError(where=f"{where}.tool", reason=reason))
            continue
        specs[tool.name] = tool.spec()
        if step.fallback is not None:
            instead = toolbox.get(step.fallback.tool)
            if instead is None or {tool.effect, instead.effect} != {Effect.READ}:
                reason = f"{step.fallback.tool!r}: a read that is loaded, in the place of a read"
                problems.append(PlanError(where=f"{where}.fallback.tool", reason=reason))
            else:
                specs[instead.name] = instead.spec()
        filled = step.model_copy(update={"params": params})
        problems += [
            PlanError(where=f"{where}.params{path}", reason=reason)
            for path, reason in literal_problems(tool, filled)
        ]
        problems += [
            PlanError(where=f"{where}.approval", reason=reason)
            for reason in expressions.problems(plan.approvals(step), tool.params_model)
        ]
    return ToolsDescribed(tools=specs, problems=problems)


def literal_problems(tool: Tool, step: Step) -> list[tuple[str, str]]:
    """Return what the tool's model refuses in a step's params, as far as they are written out.

    A value with a reference in it is only known when the step starts, and is checked then.
    """
    try:
        tool.validate(step.params)
    except ValidationError as error:
        wrong = _written_wrong(error.errors(include_url=False), step.params)
        return [*_unknown_params(tool, step), *_join_reasons(wrong, step.params)]
    except Exception as error:  # a validator of the user's own
        return [] if any(references(step.params)) else [("", repr(error))]
    return _unknown_params(tool, step)


def _unknown_params(tool: Tool, step: Step) -> list[tuple[str, str]]:
    """Return the params that the tool's model would drop without a word."""
    model, found = tool.params_model, list[tuple[str, str]]()
    if issubclass(model, RootModel) or model.model_config.get("extra", "ignore") != "ignore":
        return []
    try:
        model.model_validate(step.params, by_alias=True, by_name=True, extra="forbid")
    except ValidationError as error:
        for item in error.errors(include_url=False):
            # What is inside of a param may be another model, which allows more.
            if item["type"] == "extra_forbidden" and len(item["loc"]) == 1:
                [name] = map(str, item["loc"])
                known = sorted(model.model_fields)
                hint = suggest_name(name, known) or f"; there are: {', '.join(known)}"
                found.append((f".{name}", f"unknown param{hint}"))
    return found


def _written_wrong(items: list[ErrorDetails], params: Any) -> list[ErrorDetails]:
    """Return the errors that no value of a reference can mend.

    A union is refused once for each of its members: where one of them may fit, the union may.
    """
    open_, wrong = list[ErrorDetails](), list[ErrorDetails]()
    for item in items:
        (open_ if _may_fit(item, params) else wrong).append(item)
    while True:
        refused = {union for item in wrong for union in _unions(item, params)}
        fitting = {
            place
            for item in open_
            for place, member in _unions(item, params)
            if (place, member) not in refused
        }
        left = [i for i in wrong if not any(place in fitting for place, _ in _unions(i, params))]
        if len(left) == len(wrong):
            return wrong
        # A union inside a union: now its member may fit, too.
        wrong = left


def _join_reasons(items: list[ErrorDetails], params: Any) -> list[tuple[str, str]]:
    """Return each place once, as it is written, with everything that is wrong there."""
    found: dict[str, dict[str, None]] = {}
    for item in items:
        members = {len(place) for place, _ in _unions(item, params)}
        parts = [part for index, part in enumerate(item["loc"]) if index not in members]
        where = "".join(f".{part}" for part in parts)
        found.setdefault(where, {})[reason_of(item)] = None
    return [(where, "; or ".join(reasons)) for where, reasons in found.items()]


def _may_fit(item: ErrorDetails, params: Any) -> bool:
    """Return whether what was refused may be another value once its references are known."""
    type_, value = item["type"], item["input"]
    if type_ in ("missing", "extra_forbidden"):
        return False  # whatever the values are
    if isinstance(value, dict | list) and type_.endswith("_type"):
        return False  # a mapping stays a mapping, whatever is in it
    if type_ == "union_tag_invalid" and isinstance(value, dict):
        tag = item.get("ctx", {}).get("discriminator", "").strip("'")
        return any(references(value.get(tag, value)))
    # The model may have made something else of the value that is written there.
    return any(references(value)) or any(references(_at(params, item["loc"])))


def _unions(item: ErrorDetails, params: Any) -> list[tuple[_Loc, str]]:
    """Return the unions on the way to an error, by their place, with the member it is about.

    Pydantic puts a member's name into the place, where the params have no such part.
    """
    place = item["loc"][:-1] if item["type"] == "missing" else item["loc"]
    found: list[tuple[_Loc, str]] = []
    current = params
    for index, part in enumerate(place):
        # A key may be called as a member is: then the error is about the mapping itself.
        whole = index == len(place) - 1 and current is item["input"]
        if whole or not _is_in(current, part):
            found.append((place[:index], str(part)))
        if _is_in(current, part):
            current = current[part]
    return found


def _at(value: Any, place: _Loc) -> Any:
    """Return what is written at a place, or the text that it is made of; ``None``: nothing is."""
    for part in place:
        if isinstance(value, str):
            return value
        if not _is_in(value, part):
            return None
        value = value[part]
    return value


def _is_in(value: Any, part: int | str) -> bool:
    if isinstance(value, list):
        return isinstance(part, int) and part < len(value)
    return isinstance(value, dict) and part in value
