"""A plan file, and what ``--set`` changes in it, become a :class:`workflows.plan.Plan`.

Everything that can be known without the tools is said here, each problem with file, path and
reason; whether the params fit the tools is found by the run's own ``describe_tools``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from cli.exits import PlanRefused
from cli.overrides import OverrideError, override
from cli.yamlfile import Unreadable, read_document
from workflows.contracts import PlanError
from workflows.plan import (
    INPUT,
    REFERENCE,
    ApprovalPolicy,
    Defaults,
    Goto,
    Plan,
    PlanProblem,
    ReferenceUnresolved,
    Step,
    resolve,
)

_FIELDS: Final = sorted(
    {name for model in (Plan, Step, Defaults, ApprovalPolicy, Goto) for name in model.model_fields}
)

#: Pydantic's words where they speak of Python instead of the file.
_REASONS: Final = {
    "missing": "is missing",
    "model_type": "must be a mapping",
    "dict_type": "must be a mapping",
    "tuple_type": "must be a list",
}


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
    try:
        plan = Plan.model_validate(document)
    except ValidationError as error:
        raise PlanRefused(file, list(_problems(error, document))) from error
    missing = list(_missing_input(plan))
    if missing:
        raise PlanRefused(file, missing)
    return plan


def _problems(error: ValidationError, document: Any) -> Iterator[PlanError]:
    """Yield each place once, with everything that is wrong there."""
    reasons: dict[str, list[str]] = {}
    for item in error.errors(include_url=False):
        if item["type"] == "too_short" and document["steps"]:
            continue  # pydantic counts the steps that are valid; theirs are the errors to show
        cause = item.get("ctx", {}).get("error")
        if isinstance(cause, PlanProblem):
            where, reason = cause.where, cause.reason
        else:
            where = _place(item, document)
            reason = str(cause) if isinstance(cause, ValueError) else _reason(item)
        known = reasons.setdefault(where, [])
        if reason not in known:
            known.append(reason)
    for where, found in reasons.items():
        yield PlanError(where=where, reason="; or ".join(found))


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
    if item["type"].startswith("time_delta"):
        return "must be a duration such as 90s, 15m, 24h or 7d"
    return _REASONS.get(item["type"], item["msg"])


def _missing_input(plan: Plan) -> Iterator[PlanError]:
    """Yield each reference to an input that the plan does not have."""
    for index, step in enumerate(plan.steps):
        for where, text in _texts(step.params, f"steps.{index} ({step.id}).params"):
            matches = (match for part in text.split("$${") for match in REFERENCE.finditer(part))
            for match in matches:
                if match[1].split(".")[0] != INPUT:
                    continue
                try:
                    resolve(match[0], {INPUT: plan.input})
                except ReferenceUnresolved as error:
                    yield PlanError(
                        where=where, reason=f"{error} in the plan's input (--set {match[1]}=...)"
                    )


def _texts(value: Any, where: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, f"{where}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, f"{where}.{index}")
