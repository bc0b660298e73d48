"""The file of limits: how much the effects of a tenant may come to, by customer and time.

Each claim is judged by it, together with all that were made before (``ledger/limits.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from surehand.activities.expressions import problems, unknown_param
from surehand.activities.ledger.halts import HaltPolicy, LiftPolicy
from surehand.activities.tools.toolbox import Toolbox, ToolboxError
from surehand.process.files import BadDocument, read_document
from surehand.workflows.contracts.approvals import PATH_FORM
from surehand.workflows.contracts.base import Money
from surehand.workflows.contracts.tools import Effect
from surehand.workflows.plain_text import plain, reasons, suggest_name
from surehand.workflows.plan.policy import ApprovalPolicy, Duration, WrittenByPeople, some_time
from surehand.workflows.plan.references import value_at

#: Limits of one file. However many cover a call, its claim takes one lock, one statement to count
#: it, and one query for each period.
MOST_LIMITS: Final = 100
#: For an answer of a policy: well below what an attempt takes to notice a halt.
LONGEST_ANSWER: Final = timedelta(seconds=10)
ParamPath = Annotated[str, Field(pattern=PATH_FORM, max_length=200)]


class LimitsError(ToolboxError):
    """The file of limits cannot be used; the message says where, and what is wrong."""


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class After(WrittenByPeople):
    """What has to have happened before a call, for equal ``per``."""

    tool: str
    """An effect of this tool, which stands."""
    by_other: bool = False
    """Somebody has approved it, or has started its run if nobody was asked, who has neither
    approved this call, nor started its run or given that a value."""


def _require_people(ask: ApprovalPolicy | None) -> ApprovalPolicy | None:
    # Anybody could approve what its own policy asks nobody about.
    if ask is not None and not all(rule.required for rule in ask.rules):
        raise ValueError("a rule cannot let pass what is over a limit")
    return ask


Ask = Annotated[ApprovalPolicy | None, AfterValidator(_require_people)]


class Limit(WrittenByPeople):
    """How much the effects of some tools may come to within a time, or what they come after.

    Example:
        >>> limit = Limit(name="mails", tools=("mail.send",), per=("to",), most=1, within="10m")
        >>> limit.most
        '1'
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9-]{0,59}$")
    """What it is called wherever it is told of."""
    tools: tuple[str, ...] = Field(min_length=1)
    """The tools whose effects count."""
    per: tuple[ParamPath, ...] = ()
    """Params, such as ``customer_id``: effects count together if these are equal. Without any,
    all effects of the tenant count together."""
    total_of: ParamPath | None = None
    """The param that is added up, such as ``amount``; without it effects are counted."""
    most: Annotated[Money, BeforeValidator(_as_text)] | None = None
    """What they may come to, effects under way included: a whole number, or a decimal as text."""
    after: After | None = None
    """In place of ``most``: what has to have happened before."""
    run_at_most: Literal["read", "undoable"] | None = None
    """In place of ``most``: the highest kind of effect that the call's run, with its parents and
    child runs, may have made before; ``read``: none."""
    within: Duration = timedelta(0)
    """The time up to now in which effects count; of ``run_at_most`` all do."""
    ask: Ask = None
    """Who can let through a call that would be over; without it such a call is refused."""
    shadow: bool = False
    """Only record what would have been over."""

    @field_validator("within")
    @classmethod
    def _check_within(cls, value: Any) -> Any:
        return some_time(value)

    @model_validator(mode="after")
    def _check_kind(self) -> Limit:
        if [self.most, self.after, self.run_at_most].count(None) != 2:
            raise ValueError("say one of most, after and run_at_most")
        if self.run_at_most is not None and (self.per or self.total_of or self.within):
            raise ValueError("run_at_most: it is about runs, so without per, total_of and within")
        if self.run_at_most is None and not self.within:
            raise ValueError("most and after need within: the time, such as 1d, that they are for")
        if self.after is not None and (self.total_of is not None or self.after.tool in self.tools):
            raise ValueError("after: it adds nothing up, and its tool is none of the tools")
        return self

    @property
    def counted(self) -> tuple[str, ...]:
        """The tools whose effects are counted: those it limits, and what they come after."""
        return self.tools if self.after is None else (*self.tools, self.after.tool)


class AskedPolicy(WrittenByPeople):
    """A policy of the user's own that is asked before each claim: OPA's, or Cedar's."""

    opa: str | None = Field(default=None, pattern=r"^https?://[^\s?#@]+/v1/data/[^\s?#@]+$")
    """Address of a rule in OPA's Data API."""
    cedar: str | None = None
    """File of Cedar policies, beside the file of limits."""
    tools: tuple[str, ...] = ()
    """The tools whose writes it is asked about; left out: all of them."""
    params: tuple[ParamPath, ...] = ()
    """Params that it is told; of the others it is told their hash."""
    amounts: tuple[ParamPath, ...] = ()
    """Params that it is told as whole numbers, in millionths."""
    timeout: Annotated[Duration, Field(gt=timedelta(0), le=LONGEST_ANSWER)] = timedelta(seconds=2)
    """How long it may take."""
    ask: Ask = None
    """Who is asked if it says so; without it such a call is refused."""
    shadow: bool = False
    """Only record what it would have stopped."""

    @model_validator(mode="after")
    def _check_kind(self) -> AskedPolicy:
        if (self.opa is None) == (self.cedar is None):
            raise ValueError("say either opa or cedar")
        return self


def _check_names(limits: tuple[Limit, ...]) -> tuple[Limit, ...]:
    names = [one.name for one in limits]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"two limits are called {twice[0]}")
    return limits


class _File(WrittenByPeople):
    limits: Annotated[
        tuple[Limit, ...], Field(max_length=MOST_LIMITS), AfterValidator(_check_names)
    ] = ()
    halts: HaltPolicy = HaltPolicy()
    """Who halts calls, and who lifts that."""
    policy: AskedPolicy | None = None
    """Who is asked before each claim."""


def read_file(path: str) -> _File:
    """Return all of a file, as far as it can be judged without tools. Raises ``LimitsError``."""
    if not path:
        return _File()
    try:
        document = read_document(Path(path))
    except BadDocument as error:
        raise LimitsError(f"limits file {path}: {error}") from error
    try:
        return _File.model_validate(document)
    except ValidationError as error:
        models = (_File, Limit, After, AskedPolicy, HaltPolicy, LiftPolicy, ApprovalPolicy)
        reason = next(reasons(error, "file", *models))
        match error.errors()[0]["loc"]:
            case "limits", int(at), *_ if isinstance(document["limits"][at], dict):
                name = document["limits"][at].get("name", "without a name")
                reason = reason.replace(f".{at}", f".{at} ({plain(name, 60)})", 1)
        raise LimitsError(f"limits file {path}: {reason}") from error


def read_limits(path: str, toolbox: Toolbox) -> tuple[Limit, ...]:
    """Return the limits of a file; without a path, none. Raises ``LimitsError``."""
    limits = read_file(path).limits
    for limit in limits:
        for name in limit.counted:
            ask = limit.ask if name in limit.tools else None
            paths = (*limit.per, *filter(None, [limit.total_of]))
            problem = _find_problem(name, toolbox, ask, paths)
            if problem is not None:
                raise LimitsError(f"limits file {path}: {limit.name}: {name}: {problem}")
    return limits


def check_policy(path: str, policy: AskedPolicy, toolbox: Toolbox) -> None:
    """Make sure that a policy can be asked about its tools. Raises ``LimitsError``."""
    paths = (*policy.params, *policy.amounts)
    for name in policy.tools:
        problem = _find_problem(name, toolbox, policy.ask, paths)
        if problem is not None:
            raise LimitsError(f"limits file {path}: policy: {name}: {problem}")
    if policy.tools:
        return
    loaded = map(toolbox.get, toolbox.names())
    writes = [tool for tool in loaded if tool is not None and tool.effect is Effect.WRITE]
    for one in paths:
        # It is about all tools: not each of them has each param, but one does.
        if all(unknown_param(tool.params_model, one) for tool in writes):
            raise LimitsError(f"limits file {path}: policy: no tool has a param {one}")


def _find_problem(
    name: str, toolbox: Toolbox, ask: ApprovalPolicy | None, paths: Iterable[str]
) -> str | None:
    """Return why nothing can be said about a tool's effects by these params."""
    tool = toolbox.get(name)
    if tool is None:
        near = suggest_name(name, toolbox.names())
        return f"it is not loaded here{near} (SUREHAND_TOOL_MODULES names the modules that are)"
    if tool.effect is Effect.READ:
        return "it only reads, and limits are for effects"
    if ask is not None:
        for wrong in problems([ask], tool.params_model):
            return f"ask: {wrong}"
    for path in paths:
        unknown = unknown_param(tool.params_model, path)
        if unknown is not None:
            return f"it has {unknown}"
    return None


def group_values(limit: Limit, plain: dict[str, Any]) -> dict[str, Any]:
    """Return the params by which effects count together; what is not there is null."""
    return {path: value_at(plain, path) for path in limit.per}
