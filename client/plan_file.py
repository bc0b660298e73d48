"""A plan file, and what ``--set`` changes in it, become a ``Plan``.

Everything that can be known without the tools is said here, each problem with file, path and
reason; whether the params fit the tools is found where the run is opened (``open_run``).
"""

from __future__ import annotations

import copy
import json
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from surehand.process.exits import PlanRefused
from surehand.process.files import NUMBER, BadDocument, parse_closed, parse_yaml, read_document
from surehand.workflows.plain_text import reason_of, suggest_name, unknown_tool
from surehand.workflows.plan.plan import (
    Defaults,
    Goto,
    Plan,
    Step,
    input_paths_in,
    outline_of,
    overgrown,
    texts_of,
)
from surehand.workflows.plan.policy import ApprovalPolicy, ApprovalRule, Escalate
from surehand.workflows.plan.references import (
    INPUT,
    PATH,
    Incoherent,
    Outline,
    PlanError,
    ReferenceUnresolved,
    incoherences,
    references,
    resolve,
)

#: A plan, its document, or its file.
PlanSource = Plan | Mapping[str, Any] | str | os.PathLike[str]

_WRITTEN: Final = (Plan, Step, Defaults, ApprovalPolicy, ApprovalRule, Escalate, Goto)
_FIELDS: Final = sorted({name for model in _WRITTEN for name in model.model_fields})

#: How the mapping is written that some fields take beside plain words.
_FORMS_OF: Final = {
    "on_no": "{goto: step}",
    "on_failure": "{goto: step}",
    "on_expiry": "{escalate: role}",
}

#: The number of the step that a place is in.
_STEP: Final = re.compile(r"steps\.(\d+)")


def load_plan(
    file: str, overrides: Sequence[str] = (), tools: Collection[str] | None = None
) -> Plan:
    """Return the plan in ``file`` with ``--set`` applied.

    Args:
        file: A YAML or JSON file.
        overrides: ``path=value``, in the order given.
        tools: The tools that there are, for a plan that is refused anyway: then unknown ones are
            named at once. ``None``: not known.

    Raises:
        PlanRefused: Every problem found, with its place.
    """
    return plan_of(_read_plan(file), file, overrides, tools)


def _read_plan(file: str) -> Any:
    try:
        document = read_document(Path(file))
    except BadDocument as error:
        raise PlanRefused(file, [PlanError(where=error.where, reason=error.reason)]) from error
    if document is None:
        raise PlanRefused(file, [PlanError(where="file", reason="is empty")])
    return document


def plan_of(
    document: Any,
    file: str,
    overrides: Sequence[str] = (),
    tools: Collection[str] | None = None,
    *,
    input_known: bool = True,
) -> Plan:
    """Return the plan that a document describes; ``--set`` changes the document in place."""
    document = {"steps": document} if isinstance(document, list) else document
    for text in overrides:
        try:
            override(document, text)
        except BadDocument as error:
            raise PlanRefused(
                f"--set {text}", [PlanError(where=error.where, reason=error.reason)]
            ) from error
    steps = list(_list_outlines(document))
    problems = [*_missing_input(document)] if input_known else []
    try:
        plan = Plan.model_validate(document)
    except ValidationError as error:
        unknown = () if tools is None else _unknown_tools(document, tools)
        problems = [*_list_problems(error, document), *incoherences(steps), *problems, *unknown]
        raise PlanRefused(file, _in_order(problems)) from error
    problems += overgrown(plan)
    if problems:
        raise PlanRefused(file, problems)
    return plan


def plan_from(source: PlanSource, given: Mapping[str, Any] | None = None) -> Plan:
    if isinstance(source, Plan) and not given:
        return source
    document, name = _document_of(source)
    if given and isinstance(document, dict):
        known = document.get(INPUT)
        document[INPUT] = {**(known if isinstance(known, dict) else {}), **given}
    return plan_of(document, name)


@dataclass(frozen=True)
class PlanDraft:
    """A plan for a run that goes on, read and checked as far as that can be without the run."""

    document: Any
    name: str

    @classmethod
    def of(cls, source: PlanSource) -> Self:
        document, name = _document_of(source)
        given = isinstance(document, dict) and bool(document.get(INPUT))
        plan_of(document, name, input_known=given)
        return cls(document, name)

    def amending(self, plan: Plan, overrides: Sequence[str] = ()) -> Plan:
        """Return the plan; without an input of its own it keeps that of the run's plan."""
        document = copy.deepcopy(self.document)
        document[INPUT] = document.get(INPUT) or dict(plan.input)
        return plan_of(document, self.name, overrides)


def _document_of(source: PlanSource) -> tuple[Any, str]:
    if isinstance(source, Plan):
        return source.model_dump(mode="json", exclude_defaults=True), source.name
    if isinstance(source, Mapping):
        return copy.deepcopy(dict(source)), str(source.get("name", "plan"))
    document = _read_plan(os.fspath(source))
    return {"steps": document} if isinstance(document, list) else document, os.fspath(source)


def _list_problems(error: ValidationError, document: Any) -> Iterator[PlanError]:
    """Yield what is wrong in each place; what the steps have to do with one another is apart."""
    for item in error.errors(include_url=False):
        if item["type"] == "too_short" and item["loc"] == ("steps",) and document["steps"]:
            continue  # pydantic counts the steps that are valid; theirs are the errors to show
        place, found = _find_place(item, document), item.get("ctx", {}).get("error")
        if not isinstance(found, Incoherent):
            yield PlanError(where=place, reason=_explain_error(item))
            continue
        # Of the plan itself they are found anyway, whatever else is wrong with it; `_in_order` says
        # each once.
        inside = f"{place}." if item["loc"] else ""
        for problem in found.problems:
            yield PlanError(where=f"{inside}{problem.where}", reason=problem.reason)


def _in_order(problems: Sequence[PlanError]) -> list[PlanError]:
    """Return each place once, with everything that is wrong there, in the order of the steps."""
    found: dict[str, list[str]] = {}
    for problem in problems:
        known = found.setdefault(problem.where, [])
        if problem.reason not in known:
            known.append(problem.reason)

    def position(where: str) -> float:
        step = _STEP.match(where)
        return int(step[1]) if step else math.inf if where.startswith("steps (") else -1

    return [
        PlanError(where=where, reason="; or ".join(found[where]))
        for where in sorted(found, key=position)
    ]


def _list_outlines(document: Any) -> Iterator[Outline]:
    """Yield the steps as far as they can be made out, whatever else is wrong with them."""
    written = document.get("steps") if isinstance(document, dict) else None
    defaults = document.get("defaults") if isinstance(document, dict) else None
    for number, step in enumerate(written if isinstance(written, list) else [], start=1):
        known = step if isinstance(step, dict) else {}
        yield outline_of(known, defaults if isinstance(defaults, dict) else {}, number)


def _find_place(item: ErrorDetails, document: Any) -> str:
    """Return the path inside the document.

    Pydantic also names the members of unions; a part that the document does not have is left out
    unless it is the name of a missing field.
    """
    parts: list[str] = []
    current = document
    for part in item["loc"]:
        if isinstance(current, dict) and part in current:
            current = current[str(part)]
        elif isinstance(current, list) and isinstance(part, int) and part < len(current):
            current = current[part]
            name = current.get("id") if isinstance(current, dict) else None
            part = f"{part} ({name})" if isinstance(name, str) else part
        elif not (item["type"] == "missing" and part == item["loc"][-1]):
            continue
        parts.append(str(part))
    return ".".join(parts) or "plan"


def _explain_error(item: ErrorDetails) -> str:
    if item["type"] == "extra_forbidden":
        return f"unknown field{suggest_name(str(item['loc'][-1]), _FIELDS)}"
    if item["type"] == "too_short" and item["loc"] == ("steps",):
        return "must list at least one step"
    # How the mapping is written that may stand there beside plain words, if one may.
    forms = [form for name, form in _FORMS_OF.items() if name in item["loc"]]
    if item["type"] == "model_type" and forms:
        return forms[0]
    if item["type"] == "model_type" and not item["loc"]:
        return "must be a mapping, or a list of steps"
    return reason_of(item)


def _missing_input(document: Any, inside: str = "") -> Iterator[PlanError]:
    """Yield each reference to an input that the plan does not have, or a plan inside it."""
    given = document.get(INPUT, {}) if isinstance(document, dict) else None
    if not isinstance(given, dict):
        return
    for where, step in _list_steps(document, inside):
        named = [
            found
            for part, text in {"params": step.get("params"), **texts_of(step)}.items()
            for found in references(text, f"{where}.{part}")
            if PATH.fullmatch(found[1]) and found[1].split(".")[0] == INPUT
        ]
        when = step.get("when")
        if isinstance(when, str):
            named += [(f"{where}.when", path) for path in sorted(input_paths_in(when))]
        for place, path in named:
            try:
                resolve(f"${{{path}}}", {INPUT: given})
            except ReferenceUnresolved as error:
                if not (inside and _known_later(given, path)):
                    hint = "" if inside else f" (--set {path}=...)"
                    yield PlanError(where=place, reason=f"{error} in the plan's input{hint}")
        child, params = _as_plan(step.get("plan")), step.get("params") or {}
        if child is not None and isinstance(params, dict):
            own = child.get(INPUT) or {}
            given_there = {**own, **params} if isinstance(own, dict) else own
            yield from _missing_input({**child, INPUT: given_there}, f"{where}.plan.")


def _known_later(given: Any, path: str) -> bool:
    """Return whether an input is, or is in, what a reference of the plan above stands for."""
    for part in path.split(".")[1:]:
        given = given.get(part) if isinstance(given, dict) else None
        if isinstance(given, str) and "${" in given:
            return True
    return False


def _unknown_tools(document: Any, tools: Collection[str], inside: str = "") -> Iterator[PlanError]:
    """Yield each tool that there is not, whatever else is wrong with the plan."""
    for where, step in _list_steps(document, inside):
        tool, child = step.get("tool"), _as_plan(step.get("plan"))
        if isinstance(tool, str) and tool not in tools:
            yield PlanError(where=f"{where}.tool", reason=unknown_tool(tool, tools))
        if child is not None:
            yield from _unknown_tools(child, tools, f"{where}.plan.")


def _list_steps(document: Any, inside: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the steps of a plan that are mappings, each with its place."""
    steps = document.get("steps") if isinstance(document, dict) else None
    for index, step in enumerate(steps if isinstance(steps, list) else []):
        if isinstance(step, dict):
            name = step.get("id")
            name = name if isinstance(name, str) else f"step{index + 1}"
            yield f"{inside}steps.{index} ({name})", step


def _as_plan(value: Any) -> dict[str, Any] | None:
    """Return the plan that a step is, which may be written as a list of steps."""
    return (
        {"steps": value} if isinstance(value, list) else value if isinstance(value, dict) else None
    )


#: Scalars that are neither text nor numbers. What is not one of them, no number, and not in quotes
#: or brackets, is text as it stands: ``12 #3 Main St`` has no comment, ``a: b`` is no mapping.
_WORDS: Final = ("true", "false", "null", "~")


def override(document: Any, text: str) -> None:
    """Apply ``path=value`` to a plan's document in place; a field that it may have is added."""
    path, parts, written = _split_change(text, "input.order_id=order-7")
    named = parts[0] == INPUT and len(parts) > 1 and isinstance(document, dict)
    if named and document.get(INPUT) is None:
        document[INPUT] = {}
    *above, last = parts
    addable = isinstance(document, dict) and _may_be_added(document, above, last)
    current, found = _find_target(document, path, parts, addable=addable)
    current[found] = _parse_value(path, written)


def assign(params: Any, text: str) -> None:
    """Apply ``path=value`` to params in place; a path may name what is there, or a new field."""
    path, parts, written = _split_change(text, "amount=50")
    # A new field has had its default so far; the tool's model judges it.
    current, found = _find_target(params, path, parts, addable=True)
    value = _parse_value(path, written)
    old = current[found] if found in current or isinstance(found, int) else None
    # Where the tool's model has made a text of it, such as an amount, it would do so again.
    number = isinstance(value, int | float) and not isinstance(value, bool)
    current[found] = written if isinstance(old, str) and number else value


def _split_change(text: str, example: str) -> tuple[str, list[str], str]:
    path, equals, written = text.partition("=")
    parts = path.strip().split(".")
    if not equals or not all(parts):
        raise BadDocument(path, f"write it as path=value, such as {example}")
    return path, parts, written


def _parse_value(path: str, written: str) -> Any:
    try:
        if written.startswith(("'", '"', "[", "{")):
            return parse_closed(written)
        return parse_yaml(written) if written in _WORDS or NUMBER.fullmatch(written) else written
    except BadDocument as error:
        raise BadDocument(path, f"the value is not YAML: {error.reason}") from error


def _find_target(
    document: Any, path: str, parts: list[str], *, addable: bool
) -> tuple[Any, str | int]:
    """Return what a path leads into, and the key or index in it; ``addable``: it may be new."""
    *above, last = parts
    current = document
    for depth, part in enumerate(above):
        found = _find_part(current, part, above[:depth])
        if found is None:
            there_is = _what_there_is(current, above[:depth])
            raise BadDocument(".".join(above[: depth + 1]), there_is)
        current = current[found]
    found = _find_part(current, last, above)
    if found is None and addable and isinstance(current, dict):
        found = last
    if found is None:
        raise BadDocument(path, _what_there_is(current, above))
    return current, found


def _find_part(current: Any, part: str, above: list[str]) -> str | int | None:
    """Return the key or index that ``part`` names, if it is there."""
    if isinstance(current, dict):
        return part if part in current else None
    if not isinstance(current, list):
        return None
    if above == ["steps"]:
        for index, step in enumerate(current):
            if isinstance(step, dict) and step.get("id", f"step{index + 1}") == part:
                return index
    return int(part) if part.isdecimal() and int(part) < len(current) else None


def _may_be_added(document: Any, above: list[str], last: str) -> bool:
    """Say whether an absent last part is still known: a field of the plan, or an input in use."""
    if not above:
        return last in Plan.model_fields
    if above == ["defaults"]:
        return last in Defaults.model_fields
    if len(above) == 2 and above[0] == "steps":
        return last in Step.model_fields
    if above == [INPUT]:
        written = json.dumps(document.get("steps"), default=str)
        # In references and in conditions, which have no braces.
        return re.search(rf"\b{INPUT}\.{re.escape(last)}(?!\w|-[A-Za-z])", written) is not None
    return False


def _what_there_is(current: Any, above: list[str]) -> str:
    place = ".".join(above) or "the plan"
    if isinstance(current, dict):
        names = [repr(str(key)) for key in current]
    elif isinstance(current, list) and above == ["steps"]:
        names = [
            str(step.get("id", f"step{index}"))
            for index, step in enumerate(current, start=1)
            if isinstance(step, dict)
        ]
    elif isinstance(current, list):
        names = [f"0 to {len(current) - 1}"] if current else []
    else:
        return f"{place} is one value, nothing is inside it"
    return f"unknown path: {place} has {', '.join(names) or 'nothing'}"
