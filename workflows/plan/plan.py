"""The plan: its steps, which of them are ready, and how large a run of it may grow.

Everything here is pure. The starter reads and parses files; the run's own ``describe_tools`` checks
the tools that a plan names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    JsonValue,
    ValidationInfo,
    model_validator,
)

from surehand.workflows.names import MODEL_RUN
from surehand.workflows.plan import references
from surehand.workflows.plan.policy import (
    LONGEST_APPROVAL,
    Approval,
    ApprovalPolicy,
    Duration,
    WrittenByPeople,
    some_time,
)


# The ledger is written at every step in all of them, and the guarantees are the same.
class Durability(StrEnum):
    """When the outcome of a step is written to history.

    Example:
        >>> Plan(steps=[{"id": "order", "tool": "orders.read"}], durability="exit").durability
        <Durability.EXIT: 'exit'>
    """

    SYNC = "sync"
    """At once: each tool call is an activity, with a row in the Web UI."""
    ASYNC = "async"
    """When the run has to wait: short calls are local activities."""
    EXIT = "exit"
    """After a batch: steps with no human between them run in one activity."""

    @property
    def calls_here(self) -> bool:
        """Whether the worker that has the run makes its short calls, as local activities."""
        return self is not Durability.SYNC

    @property
    def in_batches(self) -> bool:
        """Whether calls with no human between them run in one activity."""
        return self is Durability.EXIT


#: Deadline of a tool up to which its calls are local activities: whatever is sent to the run waits
#: until they have ended.
LONGEST_LOCAL: Final = timedelta(seconds=5)

#: What a step's id and a plan's name may be.
ID_FORM: Final = r"^[A-Za-z0-9_-]{1,64}$"
NAME_FORM: Final = r"^[A-Za-z0-9_.-]{1,64}$"
#: A step that a turn of a model has asked for also has its place in the turn: ``turn-3.2``.
STEP_FORM: Final = r"^[A-Za-z0-9_-]{1,64}(\.[0-9]{1,3})?$"
#: An object in a module: ``module:name``.
OBJECT_FORM: Final = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$"
LONGEST_OBJECT: Final = 200


#: How long the calls of a step may take.
TimeLimit = Annotated[Duration, AfterValidator(some_time)]
#: How long something is waited for: dates end, and what is added to one has to be one.
Time = Annotated[Duration, Field(ge=timedelta(0), le=LONGEST_APPROVAL)]


class Goto(WrittenByPeople):
    """Go on at a later step; what lies between is skipped."""

    goto: str


class Ask(WrittenByPeople):
    """A question to a human; the answer is the step's output."""

    question: str = Field(min_length=1, max_length=2000)
    """May refer to earlier outputs."""
    answer: dict[str, JsonValue] = {}
    """JSON Schema (2020-12) of the answer; empty accepts all but an empty answer."""
    by: Literal["anyone", "people"] = "anyone"
    """``people``: no assistant may answer it (``mcp serve``)."""
    expires_in: Time | None = None
    otherwise: JsonValue = None
    """The output if nobody answers in time; ``None``: the step fails."""


class Wait(WrittenByPeople):
    """A step that waits for an event from outside; its payload is the step's output."""

    event: str = Field(min_length=1, max_length=100)
    about: str = ""
    """What the event must be about; may refer to earlier outputs."""
    expires_in: Time | None = None
    otherwise: JsonValue = None
    """The output if it does not come in time; ``None``: the step fails."""


class Fallback(WrittenByPeople):
    """Another tool to ask if a read has failed."""

    tool: str = Field(min_length=1, max_length=120)
    params: dict[str, JsonValue] = {}


class Budget(WrittenByPeople):
    """What a run may use; when it is used up, the run waits for more."""

    steps: int | None = Field(default=None, ge=0)
    """Tool calls."""
    tokens: int | None = Field(default=None, ge=0)
    money: str | None = Field(default=None, max_length=40, pattern=r"^[0-9]+(\.[0-9]+)?$")
    time: Time | None = None
    """From the run's start, waits included."""


def names_in(expression: str | None) -> frozenset[str]:
    """Return what an expression refers to: steps, ``input`` and ``run``."""
    nodes = () if expression is None else _nodes_of(expression)
    return frozenset(node.id for node in nodes if isinstance(node, ast.Name))


def input_paths_in(expression: str) -> frozenset[str]:
    """Return the fields of the input that an expression refers to, such as ``input.order.paid``."""
    nodes = _nodes_of(expression)
    dotted = (ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute))
    return frozenset(
        path for path in dotted if references.PATH.fullmatch(path) and path.startswith("input.")
    )


def _nodes_of(expression: str) -> Iterable[ast.AST]:
    try:
        return ast.walk(ast.parse(expression.strip(), mode="eval"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()  # `describe_tools` says what is wrong with it


OnNo = Literal["fail", "continue"] | Goto
OnFailure = Literal["compensate", "continue", "pause"] | Goto
OnReject = Literal["compensate", "replan", "skip"] | Goto
Place = Literal["before", "after"]
Places = Annotated[
    tuple[Place, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
]
#: What a step that asks is called where others have a tool's name.
ASKING: Final = "ask"
#: The same of a step that is a plan, and of one that waits.
CHILD_PLAN: Final = "plan"
WAITING: Final = "wait"
#: The same of a value that code has recorded.
RECORDING: Final = "record"
#: What comes behind a step's id for each item of its list: ``ship[0]``.
ITERATION: Final = re.compile(r"\[[0-9]+\]$")


class Defaults(WrittenByPeople):
    """Values for every step that does not set them."""

    approval: Approval = None
    on_no: OnNo = "fail"
    on_failure: OnFailure = "compensate"
    on_reject: OnReject = "compensate"
    interrupt: Places = ()


class Step(WrittenByPeople):
    """One step: a tool with params, or a question."""

    id: str = Field(pattern=STEP_FORM)
    tool: str = Field(default="", max_length=120)
    ask: Annotated[
        Ask | None, BeforeValidator(lambda v: {"question": v} if isinstance(v, str) else v)
    ] = None
    plan: Plan | None = None
    """A plan that runs in a child run; ``params`` are added to its input."""
    params: dict[str, JsonValue] = {}
    wait: Wait | None = None
    when: str | None = Field(default=None, min_length=1, max_length=500)
    """An expression over earlier outputs and ``input``; if it is false, the step is skipped."""
    for_each: str | None = Field(default=None, max_length=200)
    """A reference to a list: the step runs for each item, as ``id[0]``, ``id[1]``, ..."""
    item: str = Field(default="item", pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,40}$")
    """What ``params`` call the item."""
    parallel: int = Field(default=1, ge=1, le=50)
    """How many items run at a time."""
    fallback: Fallback | None = None
    """What is asked instead if this read fails."""
    after: tuple[str, ...] | None = None
    """Steps that come first; ``None``: the one listed before; ``[]``: none."""
    approval: Approval = None
    on_no: OnNo | None = None
    """What follows if the tool answers no; ``None``: the plan's default."""
    on_failure: OnFailure | None = None
    on_reject: OnReject | None = None
    """What follows if a human says no, or nobody answers in time."""
    interrupt: Places | None = None
    """When a human looks at it: before it starts, after it has its output."""
    time_limit: TimeLimit | None = None
    """How long its calls may take, with retries and pauses, but without waits for people. When it
    is over, the step fails as soon as the call under way has ended."""

    @model_validator(mode="after")
    def _does_one_thing(self) -> Self:
        kinds = (self.tool or None, self.ask, self.plan, self.wait)
        if sum(kind is not None for kind in kinds) != 1:
            raise ValueError("needs one of `tool`, `ask`, `plan` and `wait`")
        if self.wait is not None and (self.params or self.approval is not None):
            raise ValueError("a step that waits has no `params` and no `approval`")
        if self.fallback is not None and not self.tool:
            raise ValueError("only a step with a `tool` has a `fallback`")
        if self.time_limit is not None and not self.tool:
            raise ValueError("only a step with a `tool` has a `time_limit`")
        if self.for_each is not None and not references.REFERENCE.fullmatch(self.for_each):
            raise ValueError("`for_each` is one reference to a list, such as ${order.lines}")
        if self.plan is not None and self.approval is not None:
            raise ValueError("a step that is a plan has no `approval`: its own steps have")
        if self.ask is not None and (self.params or self.approval is not None):
            raise ValueError("a step that asks has no `params` and no `approval`")
        return self

    @property
    def does(self) -> str:
        """The tool's name, or `ask`, `plan` or `wait`."""
        if self.wait is not None:
            return WAITING
        return self.tool or (ASKING if self.ask is not None else CHILD_PLAN)

    def of_item(self, number: int) -> Step:
        changes = {"id": item_id(self.id, number), "for_each": None, "when": None}
        return self.model_copy(update=changes)


def item_id(step_id: str, number: int) -> str:
    return f"{step_id}[{number}]"


def _require_steps(steps: tuple[Step, ...], found: ValidationInfo) -> tuple[Step, ...]:
    if not steps and found.data.get("code") is None:
        raise ValueError("must list at least one step")
    return steps


ToolPattern = Annotated[str, Field(min_length=1, max_length=120)]


class Interrupts(WrittenByPeople):
    """Steps, by id or tool with ``*`` and ``?``, that a human looks at."""

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


class Plan(WrittenByPeople):
    """Steps with references between them. A bare list of steps is a plan, too.

    Example:
        >>> plan = Plan(name="look", steps=[{"id": "order", "tool": "orders.read"}])
        >>> [step.id for step in plan.steps]
        ['order']
    """

    name: str = Field(default="plan", pattern=NAME_FORM)
    goal: str = ""
    input: dict[str, JsonValue] = {}
    defaults: Defaults = Field(default_factory=Defaults)
    interrupts: Interrupts = Field(default_factory=Interrupts)
    budget: Budget = Field(default_factory=Budget)
    priority: int | None = Field(default=None, ge=1, le=5)
    """When workers are busy, calls with 1 come before calls with 5; ``None``: 3."""
    durability: Durability | None = None
    """When runs write their progress to history; a run may override it; ``None``: ``sync``."""
    code: str | None = Field(default=None, pattern=NAME_FORM)
    """Your workflow that makes the steps; then the plan lists none."""
    agent: str | None = Field(default=None, pattern=OBJECT_FORM, max_length=LONGEST_OBJECT)
    """A framework's agent that makes the steps, as ``module:name``."""
    model: str | None = Field(default=None, min_length=1, max_length=200)
    """A model that makes the steps, such as ``anthropic:claude-sonnet-4-5``. It is told goal and
    input, and may call ``tools``."""
    tools: Annotated[tuple[ToolPattern, ...], Field(max_length=200)] = ()
    """Tools that the model may call, by name or pattern (``*``, ``?``)."""
    steps: Annotated[tuple[Step, ...], Field(max_length=1000), AfterValidator(_require_steps)]

    @model_validator(mode="before")
    @classmethod
    def _bare_list_and_ids(cls, value: Any) -> Any:
        plan = {"steps": value} if isinstance(value, list) else value
        if isinstance(plan, dict) and (plan.get("agent") or plan.get("model")):
            plan = {"code": MODEL_RUN, **plan}
        if isinstance(plan, dict) and plan.get("code") is not None:
            plan = {"steps": (), **plan}
        if not isinstance(plan, dict) or not isinstance(plan.get("steps"), list):
            return plan
        numbered = [
            {"id": f"step{number}", **step} if isinstance(step, dict) else step
            for number, step in enumerate(plan["steps"], start=1)
        ]
        return {**plan, "steps": numbered}

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        if self.code is not None and self.steps:
            raise ValueError("has `steps`, and `code` that makes them: one of both is enough")
        if (self.code == MODEL_RUN) != (self.agent is not None or self.model is not None):
            raise ValueError(f"`code: {MODEL_RUN}` goes with `agent` or `model`, and they with it")
        if self.agent is not None and self.model is not None:
            raise ValueError("has `agent` and `model`: an agent has a model already")
        if (self.model is not None) != bool(self.tools):
            raise ValueError("`model` and `tools` go together: a model may call what `tools` names")
        if self._incoherences:
            raise references.Incoherent(self._incoherences)
        return self

    @cached_property
    def _incoherences(self) -> list[references.PlanError]:
        # Looked for once: pydantic asks again, and twice, for each message that a plan is put into.
        return references.incoherences(self.outlines())

    def with_input(self, given: Mapping[str, Any]) -> Plan:
        """Return the same plan with more in its input, as a child run is given it."""
        return self.model_copy(update={"input": {**self.input, **given}})

    def outlines(self) -> list[references.Outline]:
        """Return each step as far as its place in the plan goes."""
        return [outline_of(dict(step), dict(self.defaults)) for step in self.steps]

    def step(self, step_id: str) -> Step:
        """Return the step of that id, or of that item of it; ``KeyError`` if there is none."""
        base = ITERATION.sub("", step_id)
        for step in self.steps:
            if step.id == base:
                return step
        raise KeyError(step_id)

    @cached_property
    def lists(self) -> frozenset[str]:
        return frozenset(step.id for step in self.steps if step.for_each is not None)

    @cached_property
    def dependencies(self) -> dict[str, frozenset[str]]:
        """Return, for each step, the steps it waits for: ``after`` and what its params refer to."""
        return references.waits_for(self.outlines())

    @cached_property
    def uses(self) -> dict[str, frozenset[str]]:
        """Return, for each step, the steps whose outputs it refers to."""
        return references.uses(self.outlines())

    def on_no(self, step: Step) -> OnNo:
        return self.defaults.on_no if step.on_no is None else step.on_no

    def on_failure(self, step: Step) -> OnFailure:
        return self.defaults.on_failure if step.on_failure is None else step.on_failure

    def on_reject(self, step: Step) -> OnReject:
        return self.defaults.on_reject if step.on_reject is None else step.on_reject

    def interrupted(self, step: Step, place: Place) -> bool:
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
        dependencies, begun = self.dependencies, started | settled
        return [
            step for step in self.steps if step.id not in begun and dependencies[step.id] <= settled
        ]

    def skipped_by_goto(self, origin: str, target: str) -> frozenset[str]:
        """Return the steps between ``origin`` and ``target`` that a goto leaves out."""
        after = references.descendants(self.dependencies, origin)
        return after - references.descendants(self.dependencies, target) - {target}


def outline_of(
    step: Mapping[str, Any], defaults: Mapping[str, Any], number: int = 1
) -> references.Outline:
    """Return a step as far as its place in the plan goes, and as far as that can be made out.

    Its fields may be those of a ``Step``, or as people have written them, right or wrong.
    """
    step_id, after, when = step.get("id"), step.get("after"), step.get("when")
    # With what the step takes from the plan's defaults.
    own = {**defaults, **{name: value for name, value in step.items() if value is not None}}
    gotos = {name: _within(own.get(name), "goto") for name in ("on_no", "on_failure", "on_reject")}
    return references.Outline(
        id=step_id if isinstance(step_id, str) else f"step{number}",
        after=tuple(one for one in after if isinstance(one, str))
        if isinstance(after, list | tuple)
        else None,
        params=step.get("params"),
        texts_of=texts_of(step),
        names=frozenset({str(step.get("item", "item"))} if step.get("for_each") else ()),
        conditions=names_in(when if isinstance(when, str) else None),
        gotos={name: target for name, target in gotos.items() if isinstance(target, str)},
    )


def texts_of(step: Mapping[str, Any]) -> dict[str, Any]:
    """Return what may refer to earlier steps and the input beside the params."""
    ask = step.get("ask")
    return {
        "ask.question": ask if isinstance(ask, str) else _within(ask, "question"),
        "wait.about": _within(step.get("wait"), "about"),
        "for_each": step.get("for_each"),
        "fallback.params": _within(step.get("fallback"), "params"),
    }


def _within(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


#: Child runs inside one another.
MOST_LEVELS: Final = 5
#: Steps of a run and of all runs inside it; an item of a list is a step.
MOST_STEPS: Final = 100_000

# A run has room for so many steps, its own and those of all runs inside it. What multiplies (a
# list, a step that is a plan) gets an equal part of that room, and each item of a list of plans an
# equal part of the list's. So the whole tree stays within its root's room, and no run needs to know
# what the others have used. Steps that code or a model makes are bounded by budgets instead.


def size_of(plan: Plan) -> int:
    """Return how many steps a plan has at the least: nobody knows yet how long its lists are."""
    inside = (step.plan for step in plan.steps if step.plan is not None and step.for_each is None)
    return len(plan.steps) + sum(map(size_of, inside))


def room_of_step(plan: Plan, room: int) -> int:
    """Return the room of each step of a plan that multiplies."""
    left = min(room, MOST_STEPS) - len(plan.steps)
    multiplying = sum(step.plan is not None or step.for_each is not None for step in plan.steps)
    return left // max(multiplying, 1)


def room_of_child(plan: Plan, room: int, items: int = 0) -> int:
    """Return the room of a child run that a step starts, or each of so many items of it."""
    share = room_of_step(plan, room)
    return share // items - 1 if items else share  # an item is a step, beside those of its run


def why_too_many_items(plan: Plan, room: int, step: Step, items: int) -> str | None:
    share = room_of_child(plan, room, items) if step.plan else room_of_step(plan, room)
    needed = size_of(step.plan) if step.plan else items
    if items == 0 or needed <= share:
        return None
    each = f" plans of {needed} steps" if step.plan else ""
    return (
        f"a list of {items}{each} is too much: a run has {MOST_STEPS:,} steps with all runs inside"
        f" it, and of these this list has {room_of_step(plan, room):,}"
    )


def why_too_deep(level: int) -> str | None:
    """Return why a run may start no child run, if it may not; the run that people start is 0."""
    if max(level, 0) < MOST_LEVELS:
        return None
    return f"child runs are nested too deeply: at most {MOST_LEVELS} inside one another"


def overgrown(
    plan: Plan, room: int = MOST_STEPS, level: int = 0, inside: str = ""
) -> Iterator[references.PlanError]:
    """Yield what makes a plan too large, as far as that shows before it runs."""
    share = room_of_step(plan, room)
    for index, step in enumerate(plan.steps):
        where = f"{inside}steps.{index} ({step.id})"
        items = _known_items(plan, step)
        if step.plan is not None and (why := why_too_deep(level)) is not None:
            yield references.PlanError(where=f"{where}.plan", reason=why)
        elif items and (why := why_too_many_items(plan, room, step, items)) is not None:
            yield references.PlanError(where=f"{where}.for_each", reason=why)
        elif step.plan is not None:
            if step.for_each is None and size_of(step.plan) > share:
                why = f"a plan of {size_of(step.plan)} steps is too much here: at most {share:,}"
                yield references.PlanError(where=f"{where}.plan", reason=why)
                continue
            inner = room_of_child(plan, room, items or int(step.for_each is not None))
            yield from overgrown(step.plan, inner, level + 1, f"{where}.plan.")


def _known_items(plan: Plan, step: Step) -> int:
    """Return how long a list is that the plan's own input has; 0: nobody knows yet."""
    if step.for_each is None:
        return 0
    try:
        items = references.resolve(step.for_each, {references.INPUT: plan.input})
    except references.ReferenceUnresolved:
        return 0
    return len(items) if isinstance(items, list) else 0
