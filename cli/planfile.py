"""A plan file, and what ``--set`` changes in it, become a :class:`workflows.plan.Plan`.

Everything that can be known without the tools is said here, each problem with file, path and
reason; whether the params fit the tools is found by the run's own ``describe_tools``.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from cli.exits import PlanRefused
from cli.overrides import OverrideError, override
from cli.yamlfile import Unreadable, read_document
from workflows.coherence import Incoherent, Outline, incoherences
from workflows.contracts import PlanError
from workflows.model_tools import input_problems
from workflows.names import MODEL_RUN
from workflows.plan import Defaults, Goto, Plan, Step, names_in
from workflows.policy import ApprovalPolicy, ApprovalRule, Escalate
from workflows.references import INPUT, PATH, ReferenceUnresolved, references, resolve
from workflows.tree import overgrown
from workflows.wording import reason_of

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


def load_plan(file: str, overrides: Sequence[str] = ()) -> Plan:
    """Return the plan in ``file`` with ``--set`` applied.

    Args:
        file: A YAML or JSON file.
        overrides: ``path=value``, in the order given.

    Raises:
        PlanRefused: Every problem found, with its place.
    """
    try:
        document = read_document(Path(file))
    except Unreadable as error:
        raise PlanRefused(file, [PlanError(where=error.where, reason=error.reason)]) from error
    if document is None:
        raise PlanRefused(file, [PlanError(where="file", reason="is empty")])
    document = {"steps": document} if isinstance(document, list) else document
    for text in overrides:
        try:
            override(document, text)
        except OverrideError as error:
            raise PlanRefused(
                f"--set {text}", [PlanError(where=error.where, reason=error.reason)]
            ) from error
    steps = list(_outlines(document))
    problems = [*_missing_input(document, steps)]
    try:
        plan = Plan.model_validate(document)
    except ValidationError as error:
        problems = [*_problems(error, document), *_of_steps(steps), *problems]
        raise PlanRefused(file, _in_order(problems)) from error
    problems += [PlanError(where=found.where, reason=found.reason) for found in overgrown(plan)]
    if plan.code == MODEL_RUN:
        wrong = input_problems(plan.input).items()
        problems += [PlanError(where=f"input.{field}", reason=reason) for field, reason in wrong]
    if problems:
        raise PlanRefused(file, problems)
    return plan


def _problems(error: ValidationError, document: Any) -> Iterator[PlanError]:
    """Yield what is wrong in each place; what the steps have to do with one another is apart."""
    for item in error.errors(include_url=False):
        if item["type"] == "too_short" and item["loc"] == ("steps",) and document["steps"]:
            continue  # pydantic counts the steps that are valid; theirs are the errors to show
        place, found = _place(item, document), item.get("ctx", {}).get("error")
        if not isinstance(found, Incoherent):
            yield PlanError(where=place, reason=_reason(item))
            continue
        # Of the plan itself they are found anyway, whatever else is wrong with it; `_in_order` says
        # each once.
        inside = f"{place}." if item["loc"] else ""
        for problem in found.problems:
            yield PlanError(where=f"{inside}{problem.where}", reason=problem.reason)


def _of_steps(steps: Sequence[Outline]) -> Iterator[PlanError]:
    for problem in incoherences(steps):
        yield PlanError(where=problem.where, reason=problem.reason)


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


def _outlines(document: Any) -> Iterator[Outline]:
    """Yield the steps as far as they can be made out, whatever else is wrong with them."""
    written = document.get("steps") if isinstance(document, dict) else None
    defaults = document.get("defaults") if isinstance(document, dict) else None
    for number, step in enumerate(written if isinstance(written, list) else [], start=1):
        known = step if isinstance(step, dict) else {}
        step_id, after = known.get("id", f"step{number}"), known.get("after")
        own = {**defaults, **known} if isinstance(defaults, dict) else known
        gotos = {name: own.get(name) for name in ("on_no", "on_failure", "on_reject")}
        ask, each, when = known.get("ask"), known.get("for_each"), known.get("when")
        yield Outline(
            id=step_id if isinstance(step_id, str) else f"step{number}",
            after=tuple(item for item in after if isinstance(item, str))
            if isinstance(after, list)
            else None,
            params=known.get("params"),
            texts_of={
                "ask.question": ask if isinstance(ask, str) else _within(ask, "question"),
                "wait.key": _within(known.get("wait"), "key"),
                "for_each": each,
                "fallback.params": _within(known.get("fallback"), "params"),
            },
            names=frozenset({str(known.get("item", "item"))} if each else ()),
            conditions=names_in(when if isinstance(when, str) else None),
            gotos={
                name: follows["goto"]
                for name, follows in gotos.items()
                if isinstance(follows, dict) and isinstance(follows.get("goto"), str)
            },
        )


def _within(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _place(item: ErrorDetails, document: Any) -> str:
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


def _reason(item: ErrorDetails) -> str:
    if item["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(item["loc"][-1]), _FIELDS, n=1)
        return f"unknown field; did you mean {near[0]!r}?" if near else "unknown field"
    if item["type"] == "too_short" and item["loc"] == ("steps",):
        return "must list at least one step"
    if item["type"] == "model_type" and (form := _written_as(item["loc"])):
        return form
    if item["type"] == "model_type" and not item["loc"]:
        return "must be a mapping, or a list of steps"
    return reason_of(item)


def _written_as(place: Sequence[int | str]) -> str:
    """Return how the mapping is written that may stand there beside plain words, if one may."""
    forms = (form for name, form in _FORMS_OF.items() if name in place)
    return next(forms, "")


def _missing_input(document: Any, steps: Sequence[Outline]) -> Iterator[PlanError]:
    """Yield each reference to an input that the plan does not have."""
    given = document.get(INPUT, {}) if isinstance(document, dict) else None
    if not isinstance(given, dict):
        return
    for index, step in enumerate(steps):
        for where, reference in references(step.params, f"steps.{index} ({step.id}).params"):
            if not PATH.fullmatch(reference) or reference.split(".")[0] != INPUT:
                continue
            try:
                resolve(f"${{{reference}}}", {INPUT: given})
            except ReferenceUnresolved as error:
                yield PlanError(
                    where=where, reason=f"{error} in the plan's input (--set {reference}=...)"
                )
