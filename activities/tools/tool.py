"""A tool as it is loaded, what it may know about its call, and what it answers."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import BaseModel, JsonValue, PydanticUserError, TypeAdapter, ValidationError

from surehand.activities.tools.call_reports import Draft, current_meter, current_progress
from surehand.workflows.contracts.tools import Effect, Recovery, ToolDefinition, ToolSpec
from surehand.workflows.plain_text import clean_text, plain_line, reasons
from surehand.workflows.plan.policy import ApprovalPolicy

if TYPE_CHECKING:
    from surehand.activities.ledger.core.store import Session
    from surehand.activities.tools.call_reports import Answers
    from surehand.activities.tools.failures import Declared


@dataclass(frozen=True)
class No:
    """The tool's answer is no (not found, already shipped): a value, never retried.

    Example:
        >>> answer = No("order-7 was shipped already", code="shipped")
        >>> answer.code
        'shipped'
    """

    reason: str
    code: str = "no"

    def cleaned(self) -> No:
        """Return the answer as ledger and history can carry it."""
        return No(clean_text(str(self.reason), 2000), clean_text(str(self.code), 80))


@dataclass(frozen=True)
class Dedupes:
    """The provider honours our key.

    Example:
        >>> @tool("shop.pay", effect=WRITE, dedupes=Dedupes(timedelta(hours=24)), irreversible=True)
        ... async def pay(params: Order, ctx: ToolContext) -> str:
        ...     return f"paid under {ctx.idempotency_key}"
        >>> pay.dedupes.window
        datetime.timedelta(days=1)
    """

    window: timedelta
    """How long after the first call the provider recognises the key; later only a lookup or a human
    can tell."""


@dataclass(frozen=True)
class Undo:
    """How an effect is undone: another tool, with params made from the call and its receipt.

    Example:
        >>> undo = Undo("shop.refund", lambda params, receipt: {"payment": receipt["id"]})
        >>> undo.params({"order_id": "order-7"}, {"id": "pay-1"})
        {'payment': 'pay-1'}
    """

    tool: str
    params: Callable[[dict[str, Any], Any], Mapping[str, Any]]
    """``(params, receipt) -> params of the undoing tool``, all in JSON form."""
    version: str = ""
    """The version of ``params`` and ``only_if``, if they change while the tool's version stays."""
    only_if: OnlyIf | None = None
    """``async (params, receipt, ctx)``: asked right before each call of the undoing tool. ``True``:
    it may be called. ``False``, a text that says what stands in the way, or anything else: it is
    not called, and a human is asked."""


@dataclass(frozen=True)
class Found:
    """Lookup: the effect happened; ``receipt`` is what the call would have returned.

    Example:
        >>> async def find(params: Order, ctx: ToolContext) -> LookupAnswer:
        ...     payments = {"key-1": {"id": "pay-1"}}
        ...     paid = payments.get(ctx.idempotency_key)
        ...     return Found(paid) if paid else NotFound()
        >>> await find(Order(order_id="order-7"), ctx)
        Found(receipt={'id': 'pay-1'})
    """

    receipt: JsonValue


@dataclass(frozen=True)
class NotFound:
    """Lookup: there is no such effect (yet).

    Example:
        >>> NotFound()
        NotFound()
    """


@dataclass(frozen=True)
class Partial:
    """Lookup: the effect happened in part.

    Example:
        >>> Partial("1 of 2 parcels was sent", receipt={"parcels": ["p-1"]}).details
        '1 of 2 parcels was sent'
    """

    details: str
    receipt: JsonValue = None
    """What the part would have returned; a human's compensation gets it."""


@dataclass(frozen=True)
class Unknown:
    """Lookup: the outside system cannot tell.

    Example:
        >>> Unknown("the shop keeps payments for a day only").reason
        'the shop keeps payments for a day only'
    """

    reason: str


#: A ``No``: the outside system was asked, and has refused.
LookupAnswer = Found | NotFound | Partial | Unknown | No


#: As long as the ledger's column is.
LONGEST_RESOURCE: Final = 400
#: Each is locked, renewed and freed by itself: a call with more wants one wider resource.
MOST_RESOURCES: Final = 20


def resource_names(
    resource: Callable[[Any], str | list[str]] | None, params: Any
) -> tuple[str, ...]:
    """Return the resources that a call names: sorted, each once. Raises ``ValueError``."""
    if resource is None:
        return ()
    try:
        given: object = resource(params)
    except Exception as error:
        raise ValueError(f"resource(params): {error!r}") from error
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, (list, tuple)) or len(names) > MOST_RESOURCES:
        raise ValueError(f"resource(params) must give a text or a list of at most {MOST_RESOURCES}")
    for name in names:
        if (
            not isinstance(name, str)
            or not 0 < len(name) <= LONGEST_RESOURCE
            or name != clean_text(name)
        ):
            raise ValueError(
                f"resource(params): a resource has 1 to {LONGEST_RESOURCE} characters of plain text"
            )
    return tuple(sorted(set(names)))


#: Characters that a human reads of a call before its params; they stand beside it.
_LONGEST_DESCRIPTION: Final = 4000
#: Characters of a title that names the values of params, and of one of them.
_LONGEST_TITLE: Final = 300
_LONGEST_VALUE: Final = 100
#: Of what is wrong with params, so much is told.
_MOST_REASONS: Final = 20


@dataclass(frozen=True)
class ToolContext:
    """What a tool may know about its call.

    Example:
        >>> ctx.run_id, ctx.step_id, ctx.attempt, ctx.idempotency_key
        ('refund-7', 'refund', 1, 'key-1')
    """

    tenant: str
    run_id: str
    step_id: str
    user: str
    attempt: int
    idempotency_key: str
    """An opaque key for the outside system; the same in every attempt at an effect."""
    session: Session | None = None
    """For ``transactional`` tools: the ledger's SQL session, in which the outcome is recorded."""
    fencing_tokens: Mapping[str, int] = field(default_factory=dict)
    """A number for each resource that the call holds. It grows with each lease, for systems that
    can refuse older ones."""
    answers: Answers | None = None
    """What humans have answered so far; ``None``: nobody can be asked."""
    artifact: Draft = field(default_factory=Draft, compare=False, repr=False)
    """What the call, or an earlier attempt at it, has written part by part. In your tests it is
    only in memory."""

    def spend(self, *, tokens: int = 0, money: str | Decimal = "0") -> None:
        """Report what this call has used of the run's budget: tokens, and money as a decimal.

        Raises:
            ValueError: Less than nothing, or no number.
        """
        current_meter().add(tokens, money)

    def progress(self, value: JsonValue) -> None:
        """Report how far this call has come: for people, and for the next attempt if this one dies.

        The newest word is sent to Temporal with the next heartbeat, within a second, and goes into
        the ledger every five minutes (``SUREHAND_CHECKPOINT_EVERY``). It never fails the call: what
        is no JSON, or over 8 KiB of it, is left out and logged. A call in a durability mode that
        sends no heartbeats (``async``) has nobody to tell.
        """
        current_progress().note(value)

    @property
    def earlier_progress(self) -> JsonValue:
        """The last progress of the previous attempt, if it was cut off; otherwise ``None``.

        A hint, and no proof: nobody knows what it did after that.
        """
        return current_progress().earlier

    async def ask(self, question: str, answer: dict[str, Any] | None = None) -> JsonValue:
        """Ask a human and return the answer; the run waits for it, holding no process.

        The call ends here, and begins again once there is an answer. So a tool asks *before* its
        effect. Questions are told apart by their order. What was approved before was the call
        without the answer: if a policy asks for approval, people are asked again.

        Args:
            question: What a human reads.
            answer: JSON Schema (2020-12) of the answer; without, all but an empty one goes.

        Raises:
            RuntimeError: Nobody can be asked here: a lookup, a precondition, or an undo.
            ValueError: The schema is none, or too large.
        """
        if self.answers is None:
            raise RuntimeError("only a tool's own call can ask, and no undo")
        from surehand.process.json_schemas import find_schema_problem  # not with `tool`

        wrong = await find_schema_problem(answer or {})
        if wrong is not None:
            raise ValueError(f"ctx.ask: the answer's schema: {wrong}")
        return self.answers.next(question, answer)


ToolFunction = Callable[[Any, ToolContext], Awaitable[Any]]
OnlyIf = Callable[[dict[str, Any], Any, ToolContext], Awaitable[bool | str]]
PreconditionFunction = Callable[[Any, ToolContext], Awaitable[JsonValue]]
#: What a lookup goes by: our key, which only our call can have left, or how the world is.
LookupBy = Literal["key", "state"]
LookupFunction = Callable[[Any, ToolContext], Awaitable[LookupAnswer]]


@dataclass(frozen=True)
class Tool:
    """One loaded tool. Made by the decorator ``@tool``; never constructed by hand.

    Example:
        >>> @tool("shop.order", effect=READ)
        ... async def order(params: Order, ctx: ToolContext) -> str:
        ...     return params.order_id
        >>> order.name, order.version
        ('shop.order', '1')
        >>> await order.fn(Order(order_id="order-7"), ctx)  # in a test of yours
        'order-7'
    """

    name: str
    version: str
    effect: Effect
    fn: ToolFunction
    params_model: type[BaseModel]
    timeout: timedelta
    key: Callable[[Any], str] | None = None
    dedupes: Dedupes | None = None
    lookup: LookupFunction | None = None
    lookup_by: LookupBy = "key"
    lookup_foreign: bool = False
    settle: timedelta | None = None
    transactional: bool = False
    recovery: Recovery = Recovery.READ
    compensate: Undo | None = None
    cleanup: Undo | None = None
    irreversible: bool = False
    approval: ApprovalPolicy | None = None
    permission: str | None = None
    precondition: PreconditionFunction | None = None
    describe: Callable[[Any], str] | None = None
    errors: Declared = field(default_factory=dict)
    health: Callable[[], Awaitable[bool]] | None = None
    resource: Callable[[Any], str | list[str]] | None = None
    fresh_for: timedelta | None = None
    foreign: bool = False
    secret_params: bool = False
    description: str = ""
    schema_hash: str = ""

    @property
    def repeatable_for(self) -> timedelta | None:
        """How long after its first call an effect may be called again; ``None``: not at all.

        Shorter than the provider's window: the repeated request has to arrive within that.
        """
        if self.dedupes is None:
            return None
        return self.dedupes.window - self.timeout - (self.settle or timedelta(0))

    def validate(self, params: Mapping[str, Any]) -> BaseModel:
        """Return the params as the tool's model; ``ValidationError`` if they do not fit."""
        return self.params_model.model_validate(dict(params), by_alias=True, by_name=True)

    def describe_call(self, params: BaseModel) -> str:
        """Return one line that says to a human what this call would do."""
        try:
            if self.describe is None:
                given = None if self.secret_params else params.model_dump(mode="json")
                if isinstance(given, dict) and given:
                    return name_values(self.name, given)
                return f"{self.name}: {self.description}"
            text = str(self.describe(params))
            cut = "…" if len(text) > _LONGEST_DESCRIPTION else ""
            return clean_text(text, _LONGEST_DESCRIPTION) + cut
        except Exception as error:
            # The params themselves are shown beside it.
            return f"{self.name} (describe(params) failed: {type(error).__name__})"

    def spec(self) -> ToolSpec:
        """Return the serialisable description that goes into history."""
        same = ToolSpec.model_fields.keys() - {"compensation", "cleanup", "lookups"}
        return ToolSpec(
            **{name: getattr(self, name) for name in same},
            compensation=self.compensate.tool if self.compensate else None,
            cleanup=self.cleanup.tool if self.cleanup else None,
            # For an earlier call and behind its own, where that fails; by state, also right before.
            lookups=0 if self.lookup is None else 3 if self.lookup_by == "state" else 2,
        )

    def definition(self) -> ToolDefinition:
        """Return what a model is told of it."""
        return ToolDefinition(
            name=self.name,
            version=self.version,
            effect=self.effect,
            description=self.description,
            params_schema=self.params_model.model_json_schema(),
            output_schema=self._output_schema(),
        )

    def _output_schema(self) -> dict[str, Any] | None:
        returned = typing.get_type_hints(self.fn).get("return", Any)
        if typing.get_origin(returned) in (typing.Union, types.UnionType):
            outputs = tuple(one for one in typing.get_args(returned) if one is not No)
            returned = typing.Union[outputs]  # noqa: UP007
        if returned in (Any, No):
            return None
        try:
            return TypeAdapter(returned).json_schema(mode="serialization", by_alias=False)
        except PydanticUserError:  # of a type of the user's own, say
            return None


def name_values(tool: str, values: Mapping[str, Any]) -> str:
    """Return what a call is given as a short line: values as JSON, so that none looks like two."""

    def show(value: Any) -> str:
        if len(text := json.dumps(value, ensure_ascii=False)) <= _LONGEST_VALUE:
            return text
        # Cut within its quotes, what a value says could be taken for the next one.
        return f"{json.dumps(value[:90], ensure_ascii=False)}…" if isinstance(value, str) else "…"

    shown = ", ".join(f"{name}={show(value)}" for name, value in values.items())
    return plain_line(f"{tool}: {shown}", _LONGEST_TITLE)


def explain(error: ValidationError) -> str:
    """Return a validation error as one line: ``amount: must be a number such as "12.50"``."""
    return "; ".join(islice(reasons(error, "params"), _MOST_REASONS))
