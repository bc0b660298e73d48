"""The plan: its steps, and which of them are ready.

Everything here is pure. Files are read and parsed by the starter; the tools that a plan names are
checked by the run's own ``describe_tools``.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cached_property
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from workflows.coherence import Incoherent, Outline, ancestors, incoherences, waits_for
from workflows.policy import Approval, ApprovalPolicy, Duration, Written

#: What a step's id and a plan's name may be.
ID_FORM: Final = r"^[A-Za-z0-9_-]{1,64}$"
NAME_FORM: Final = r"^[A-Za-z0-9_.-]{1,64}$"


class Goto(Written):
    """Go on at a later step; what lies between is skipped."""

    goto: str


class Ask(Written):
    """A question to a human; the answer is the step's output."""

    question: str = Field(min_length=1, max_length=2000)
    """May refer to earlier outputs."""
    answer: dict[str, JsonValue] = {}
    """JSON Schema (2020-12) of the answer; empty takes anything."""
    expires_in: Duration | None = None
    otherwise: JsonValue = None
    """What is taken when nobody answers in time; ``None``: the step fails then."""


def _ask(value: Any) -> Any:
    return {"question": value} if isinstance(value, str) else value


def _places(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


OnNo = Literal["fail", "continue"] | Goto
OnFailure = Literal["compensate", "continue"] | Goto
OnReject = Literal["compensate", "skip"] | Goto
Place = Literal["before", "after"]
Places = Annotated[tuple[Place, ...], BeforeValidator(_places)]
#: What a step that asks is called where others have a tool's name.
ASKING: Final = "ask"
#: The same of a step that is a plan.
CHILD_PLAN: Final = "plan"


class Defaults(Written):
    """What every step of the plan takes unless it says otherwise."""

    approval: Approval = None
    on_no: OnNo = "fail"
    on_failure: OnFailure = "compensate"
    on_reject: OnReject = "compensate"
    interrupt: Places = ()


class Step(Written):
    """One step: a tool with params, or a question."""

    id: str = Field(pattern=ID_FORM)
    tool: str = Field(default="", max_length=120)
    ask: Annotated[Ask | None, BeforeValidator(_ask)] = None
    plan: Plan | None = None
    """A plan of its own, in a child run; ``params`` are added to its input."""
    params: dict[str, JsonValue] = {}
    after: tuple[str, ...] | None = None
    """Steps that come first; ``None`` means the one listed before, ``[]`` none at all."""
    approval: Approval = None
    on_no: OnNo | None = None
    """What follows when the tool answers no; ``None`` takes the plan's default."""
    on_failure: OnFailure | None = None
    on_reject: OnReject | None = None
    """What follows when a human says no, or nobody answers in time."""
    interrupt: Places | None = None
    """Where a human looks at it: before it starts, after it has its output."""

    @model_validator(mode="after")
    def _does_one_thing(self) -> Self:
        if [bool(self.tool), self.ask is not None, self.plan is not None].count(True) != 1:
            raise ValueError("needs one of `tool`, `ask` and `plan`")
        if self.plan is not None and self.approval is not None:
            raise ValueError("a step that is a plan has no `approval`: its own steps have")
        if self.ask is not None and (self.params or self.approval is not None):
            raise ValueError("a step that asks has no `params` and no `approval`")
        return self

    @property
    def does(self) -> str:
        """The tool's name, or `ask`, or `plan`."""
        return self.tool or (ASKING if self.ask is not None else CHILD_PLAN)


class Interrupts(Written):
    """Steps, by id or tool with ``*`` and ``?``, that a human looks at."""

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


class Plan(Written):
    """Steps with references between them. A bare list of steps is a plan, too."""

    name: str = Field(default="plan", pattern=NAME_FORM)
    goal: str = ""
    input: dict[str, JsonValue] = {}
    defaults: Defaults = Defaults()
    interrupts: Interrupts = Interrupts()
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
        problems = incoherences(self._outlines())
        if problems:
            raise Incoherent(problems)
        return self

    def _outlines(self) -> list[Outline]:
        return [
            Outline(
                id=step.id,
                after=step.after,
                params=step.params,
                question=step.ask.question if step.ask else None,
                # With what the step takes from the plan's defaults.
                gotos={
                    field: follows.goto
                    for field, follows in (
                        ("on_no", self.on_no(step)),
                        ("on_failure", self.on_failure(step)),
                        ("on_reject", self.on_reject(step)),
                    )
                    if isinstance(follows, Goto)
                },
            )
            for step in self.steps
        ]

    def step(self, step_id: str) -> Step:
        """Return the step of that id; ``KeyError`` if there is none."""
        for step in self.steps:
            if step.id == step_id:
                return step
        raise KeyError(step_id)

    @cached_property
    def dependencies(self) -> dict[str, frozenset[str]]:
        """Return, for each step, the steps it waits for: ``after`` and what its params refer to."""
        return waits_for(self._outlines())

    def on_no(self, step: Step) -> OnNo:
        """Return what follows when this step's tool answers no."""
        return self.defaults.on_no if step.on_no is None else step.on_no

    def on_failure(self, step: Step) -> OnFailure:
        """Return what follows when this step fails for good."""
        return self.defaults.on_failure if step.on_failure is None else step.on_failure

    def on_reject(self, step: Step) -> OnReject:
        """Return what follows when a human says no to this step."""
        return self.defaults.on_reject if step.on_reject is None else step.on_reject

    def interrupted(self, step: Step, place: Place) -> bool:
        """Return whether a human looks at a step there."""
        own = self.defaults.interrupt if step.interrupt is None else step.interrupt
        patterns = self.interrupts.before if place == "before" else self.interrupts.after
        return place in own or any(
            fnmatchcase(name, pattern) for pattern in patterns for name in (step.id, step.does)
        )

    def approvals(self, step: Step) -> tuple[ApprovalPolicy, ...]:
        """Return the policies that the plan sets, apart from the tool's own one."""
        both = (step.approval, self.defaults.approval)
        return tuple(policy for policy in both if policy is not None)

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


# A step may be a plan, and a plan has steps: neither can be defined before the other.
Step.model_rebuild()
