"""The plan: its steps, the references between them, and which steps are ready.

Everything here is pure. Files are read and parsed by the starter; the tools that a plan names are
checked by the run's own ``describe_tools``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import cached_property
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    field_validator,
    model_validator,
)

#: ``${order.lines.0.sku}``: a step id or ``input``, then a path of fields and list positions.
REFERENCE: Final = re.compile(r"\$\{\s*([^{}]*?)\s*\}")
_PATH: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_UNIT_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}

#: Far beyond any approval's use, and well before dates and timers end.
LONGEST_APPROVAL: Final = timedelta(days=3650)

#: The name under which references reach the run's input.
INPUT: Final = "input"


class PlanProblem(ValueError):
    """A plan does not hold together; ``where`` is the path of the error inside it."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.where = where
        self.reason = reason


class ReferenceUnresolved(ValueError):
    """A reference points at something that the earlier step did not return."""


def parse_duration(value: Any) -> Any:
    """Turn ``"90s"``, ``"15m"``, ``"24h"`` or ``"7d"`` into a timedelta; leave others alone."""
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        try:
            return timedelta(seconds=float(match[1]) * _UNIT_SECONDS[match[2]])
        except OverflowError as error:
            raise ValueError("is too long") from error
    return value


Duration = Annotated[timedelta, BeforeValidator(parse_duration)]


class _Written(BaseModel):
    """Base of what people write: unknown fields are mistakes, not extensions."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ApprovalPolicy(_Written):
    """Who is asked before a call, and for how long an answer counts."""

    expires_in: Duration = timedelta(hours=24)
    """How long after the request a decision is taken and an approval stays usable."""

    @field_validator("expires_in")
    @classmethod
    def _sensible(cls, value: timedelta) -> timedelta:
        if not timedelta(0) < value <= LONGEST_APPROVAL:
            raise ValueError(f"must be longer than nothing and at most {LONGEST_APPROVAL.days} d")
        return value

    def stricter(self, other: ApprovalPolicy | None) -> ApprovalPolicy:
        """Return the policy that satisfies both."""
        if other is None:
            return self
        return ApprovalPolicy(expires_in=min(self.expires_in, other.expires_in))


def _approval(value: Any) -> Any:
    return ApprovalPolicy() if value is True or value == "required" else value


Approval = Annotated[ApprovalPolicy | None, BeforeValidator(_approval)]


class Goto(_Written):
    """Go on at a later step; what lies between is skipped."""

    goto: str


OnNo = Literal["fail", "continue"] | Goto
OnFailure = Literal["compensate", "continue"] | Goto


class Defaults(_Written):
    """What every step of the plan takes unless it says otherwise."""

    approval: Approval = None
    on_no: OnNo = "fail"
    on_failure: OnFailure = "compensate"


class Step(_Written):
    """One step: a tool with params."""

    id: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    tool: str = Field(min_length=1, max_length=120)
    params: dict[str, JsonValue] = {}
    after: tuple[str, ...] | None = None
    """Steps that come first; ``None`` means the one listed before, ``[]`` none at all."""
    approval: Approval = None
    on_no: OnNo | None = None
    """What follows when the tool answers no; ``None`` takes the plan's default."""
    on_failure: OnFailure | None = None


class Plan(_Written):
    """Steps with references between them. A bare list of steps is a plan, too."""

    name: str = Field(default="plan", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    goal: str = ""
    input: dict[str, JsonValue] = {}
    defaults: Defaults = Defaults()
    steps: tuple[Step, ...] = Field(min_length=1, max_length=1000)

    @model_validator(mode="before")
    @classmethod
    def _bare_list_and_ids(cls, value: Any) -> Any:
        plan = {"steps": value} if isinstance(value, list) else value
        if not isinstance(plan, dict) or not isinstance(plan.get("steps"), list):
            return plan
        numbered = [
            {"id": f"step{number}", **step} if isinstance(step, dict) else step
            for number, step in enumerate(plan["steps"], start=1)
        ]
        return {**plan, "steps": numbered}

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        ids = [step.id for step in self.steps]
        for index, step in enumerate(self.steps):
            where = f"steps.{index} ({step.id})"
            if step.id == INPUT:
                raise PlanProblem(where, f"a step cannot be called {INPUT!r}")
            if step.id in ids[:index]:
                raise PlanProblem(where, f"the id {step.id!r} is used by an earlier step")
            for other in step.after or ():
                if other not in ids:
                    raise PlanProblem(f"{where}.after", f"there is no step {other!r}")
            for path, reference in references(step.params, f"{where}.params"):
                root = reference.split(".")[0]
                if not _PATH.fullmatch(reference) or (root != INPUT and root not in ids):
                    raise PlanProblem(path, f"unknown reference ${{{reference}}}")
        dependencies = self.dependencies
        _refuse_cycles(dependencies)
        for index, step in enumerate(self.steps):
            # With what the step takes from the plan's defaults.
            for field, follows in (
                ("on_no", self.on_no(step)),
                ("on_failure", self.on_failure(step)),
            ):
                if isinstance(follows, Goto):
                    where = f"steps.{index} ({step.id}).{field}.goto"
                    if follows.goto not in ids:
                        raise PlanProblem(where, f"there is no step {follows.goto!r}")
                    if step.id not in ancestors(follows.goto, dependencies):
                        raise PlanProblem(where, f"{follows.goto!r} does not come after this step")
        return self

    def step(self, step_id: str) -> Step:
        """Return the step of that id; ``KeyError`` if there is none."""
        for step in self.steps:
            if step.id == step_id:
                return step
        raise KeyError(step_id)

    @cached_property
    def dependencies(self) -> dict[str, frozenset[str]]:
        """Return, for each step, the steps it waits for: ``after`` and what its params refer to."""
        result: dict[str, frozenset[str]] = {}
        previous: tuple[str, ...] = ()
        for step in self.steps:
            after = previous if step.after is None else step.after
            roots = {ref.split(".")[0] for _, ref in references(step.params, "")}
            result[step.id] = frozenset(after) | (roots - {INPUT})
            previous = (step.id,)
        return result

    def on_no(self, step: Step) -> OnNo:
        """Return what follows when this step's tool answers no."""
        return self.defaults.on_no if step.on_no is None else step.on_no

    def on_failure(self, step: Step) -> OnFailure:
        """Return what follows when this step fails for good."""
        return self.defaults.on_failure if step.on_failure is None else step.on_failure

    def approval(self, step: Step) -> ApprovalPolicy | None:
        """Return the approval that the plan asks for, apart from the tool's own policy."""
        if step.approval and self.defaults.approval:
            return step.approval.stricter(self.defaults.approval)
        return step.approval or self.defaults.approval

    def ready(self, settled: frozenset[str], started: frozenset[str]) -> list[Step]:
        """Return the steps whose dependencies are all settled and that have not started."""
        dependencies = self.dependencies
        return [
            step
            for step in self.steps
            if step.id not in started | settled and dependencies[step.id] <= settled
        ]

    def skipped_by_goto(self, origin: str, target: str) -> frozenset[str]:
        """Return the steps between ``origin`` and ``target`` that a goto leaves out."""
        dependencies = self.dependencies
        return frozenset(
            step.id
            for step in self.steps
            if origin in ancestors(step.id, dependencies)
            and step.id != target
            and target not in ancestors(step.id, dependencies)
        )


def ancestors(step_id: str, dependencies: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Return every step that comes before ``step_id``, directly or not."""
    seen: set[str] = set()
    waiting = list(dependencies[step_id])
    while waiting:
        current = waiting.pop()
        if current not in seen:
            seen.add(current)
            waiting.extend(dependencies[current])
    return frozenset(seen)


def resolve(value: Any, facts: Mapping[str, Any]) -> Any:
    """Return ``value`` with its references replaced by what earlier steps returned.

    A string that is one reference takes the referenced value with its type; inside a longer
    string the value is written as text. ``$${`` stands for a literal ``${``.

    Args:
        value: A step's params.
        facts: ``input`` and the outputs of finished steps, by step id.

    Raises:
        ReferenceUnresolved: If a field is missing.
    """
    if isinstance(value, str):
        return resolve_text(value, lambda reference: look_up(reference, facts))
    if isinstance(value, dict):
        return {key: resolve(item, facts) for key, item in value.items()}
    if isinstance(value, list):
        return [resolve(item, facts) for item in value]
    return value


def resolve_text(text: str, value_of: Callable[[str], Any]) -> Any:
    """Return one text with its references replaced; see ``resolve``."""
    whole = REFERENCE.fullmatch(text)
    if whole:
        return value_of(whole[1])
    parts = text.split("$${")
    return "${".join(
        REFERENCE.sub(lambda match: _as_text(value_of(match[1])), part) for part in parts
    )


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def look_up(reference: str, facts: Mapping[str, Any]) -> Any:
    """Return what a reference stands for; ``ReferenceUnresolved`` if a field is missing."""
    current: Any = facts
    for part in reference.split("."):
        if isinstance(current, Mapping) and part in current:
            current = current[part]
        elif isinstance(current, list) and part.isdigit() and int(part) < len(current):
            current = current[int(part)]
        else:
            raise ReferenceUnresolved(f"${{{reference}}}: there is no {part!r}")
    return current


def references(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield ``(path, reference)`` for each reference inside a JSON value."""
    if isinstance(value, str):
        for part in value.split("$${"):
            yield from ((path, match[1]) for match in REFERENCE.finditer(part))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from references(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from references(item, f"{path}.{index}")


def _refuse_cycles(dependencies: Mapping[str, frozenset[str]]) -> None:
    for step_id in dependencies:
        if step_id in ancestors(step_id, dependencies):
            raise PlanProblem(f"steps ({step_id})", "the step waits for itself (a cycle)")
