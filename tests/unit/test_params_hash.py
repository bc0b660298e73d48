"""G3: from a call on the wire to a claim: validated, hashed, and bound to all of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    field_serializer,
    field_validator,
)
from temporalio.exceptions import ApplicationError

from surehand.activities.effects.prepare import (
    LONGEST_KEY,
    PreparedCall,
    claim_request,
    drift,
    prepare,
)
from surehand.activities.ledger.steps.entries import ClaimRequest, Covered
from surehand.activities.limits_file import Limit
from surehand.activities.run_keys import Hashes
from surehand.activities.tools.tool import Dedupes, Tool, ToolContext
from surehand.activities.tools.toolbox import WRITE, Toolbox, tool
from surehand.activities.worker.context import Attempt, WorkerContext
from surehand.activities.worker.crash_points import Crash
from surehand.workflows.contracts.approvals import Assurance, Scope
from surehand.workflows.contracts.effects import UndoSpec
from surehand.workflows.contracts.tools import Recovery, ToolCall
from surehand.workflows.identity import identity_hash, params_hash
from surehand.workflows.names import NON_RETRYABLE
from surehand.workflows.plan.policy import ApprovalPolicy, ApprovalRule


class Secret(BaseModel):
    iban: SecretStr
    amount: Decimal = Decimal(1)


class Excluded(BaseModel):
    amount: Decimal = Field(exclude=True)


class ExcludedWithDefault(BaseModel):
    amount: Decimal = Field(default=Decimal(1), exclude=True)


class Rounded(BaseModel):
    amount: float

    @field_serializer("amount")
    def _rounded(self, amount: float) -> float:
        return round(amount)


class Inner(BaseModel):
    secret: SecretStr


class Nested(BaseModel):
    inner: list[Inner]


class Restless(BaseModel):
    note: str

    @field_validator("note")
    @classmethod
    def _prefixed(cls, note: str) -> str:
        return f"Re: {note}"


class Broken(BaseModel):
    month: str

    @field_validator("month")
    @classmethod
    def _year_and_month(cls, month: str) -> str:
        return month.split("-")[1]


class Aliased(BaseModel):
    order_id: str = Field(alias="orderId")
    amount: Decimal = Field(validation_alias=AliasChoices("amount", "sum"))  # type: ignore[pydantic-alias]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    lines: list[Aliased]
    order_id: str = Field(alias="orderId")


def make_tool(model: type[BaseModel], key: Callable[[Any], Any] | None = None) -> Tool:
    async def refund(params: Any, ctx: ToolContext) -> None:
        """Pay back."""

    refund.__annotations__["params"] = model
    loaded: Tool = tool(
        "payments.refund", effect=WRITE, recovery="human", irreversible=True, key=key
    )(refund)
    return loaded


def prepared(loaded: Tool, params: dict[str, Any]) -> PreparedCall:
    call = ToolCall(
        tenant="default",
        run_id="run-1",
        step_id="refund",
        plan_version=1,
        user="ada",
        tool=loaded.spec(),
        params=params,
    )
    return prepare(Toolbox([loaded]), Hashes(None), call)


def refusal(loaded: Tool, params: dict[str, Any]) -> str:
    with pytest.raises(ApplicationError) as refused:
        prepared(loaded, params)
    assert (refused.value.type, refused.value.non_retryable) == ("InvalidParams", True)
    assert "payments.refund" in refused.value.message
    return refused.value.message


@pytest.mark.parametrize(
    ("model", "params"),
    [
        (Secret, {"iban": "DE1"}),
        (Excluded, {"amount": "1000"}),
        (ExcludedWithDefault, {"amount": "1000"}),
        (Rounded, {"amount": 1.4}),
        (Nested, {"inner": [{"secret": "s"}]}),
        (Restless, {"note": "hello"}),
        (Broken, {"month": "2024"}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_params_beside_the_hash_are_refused(model: type[BaseModel], params: dict[str, Any]) -> None:
    refusal(make_tool(model), params)


def test_a_refusal_does_not_tell_the_secret() -> None:
    assert "DE-very-secret" not in refusal(make_tool(Secret), {"iban": "DE-very-secret"})


@pytest.mark.parametrize(
    ("model", "params"),
    [(ExcludedWithDefault, {}), (Rounded, {"amount": 2.0})],
    ids=["excluded, its default", "rounded, to itself"],
)
def test_params_that_lose_nothing_are_taken(model: type[BaseModel], params: dict[str, Any]) -> None:
    loaded = make_tool(model)
    call = prepared(loaded, params)
    assert loaded.validate(call.plain) == call.params


def test_params_with_aliases_are_what_was_sent_wherever_they_are_read_again() -> None:
    loaded = make_tool(Aliased)
    by_alias = prepared(loaded, {"orderId": "1", "sum": "2.50"})
    by_name = prepared(loaded, {"order_id": "1", "amount": "2.50"})

    assert by_alias.plain == by_name.plain == {"order_id": "1", "amount": "2.50"}
    assert by_alias.params_hash == by_name.params_hash
    # What the ledger stores is what a later attempt, or the undoing, starts from.
    assert prepared(loaded, by_alias.plain).params == by_alias.params


def test_aliases_work_in_models_within_models_that_allow_nothing_else() -> None:
    loaded = make_tool(Strict)
    call = prepared(loaded, {"orderId": "1", "lines": [{"orderId": "2", "sum": "1"}]})

    assert prepared(loaded, call.plain).params_hash == call.params_hash
    refusal(loaded, {"orderId": "1", "lines": [], "colour": "red"})


@pytest.mark.parametrize(
    "key", [None, 1001, Decimal(1), b"refund", ["refund"]], ids=lambda key: type(key).__name__
)
def test_a_key_that_is_no_text_is_refused_and_never_made_into_some(key: Any) -> None:
    message = refusal(make_tool(Aliased, key=lambda params: key), {"orderId": "1", "sum": "1"})
    assert "key(params)" in message


ATTEMPT = Attempt(number=2, activity_key="activity", holder="activity:2:x")
LEASE = timedelta(seconds=3)
RECOVERY_LIMIT = timedelta(minutes=5)
POLICY = ApprovalPolicy()


class Params(BaseModel):
    order: str = Field(min_length=1)
    amount: Decimal = Decimal("0")
    cents: int = 0


def make(**options: Any) -> Tool:
    @tool("payments.refund", effect=WRITE, recovery="human", **options)
    async def fn(params: Params, ctx: ToolContext) -> str:
        """Pay back."""
        return ""

    return fn


def call(recorded: Tool, **changes: Any) -> ToolCall:
    values: dict[str, Any] = {
        "tenant": "acme",
        "run_id": "acme/run-1",
        "step_id": "refund",
        "plan_version": 1,
        "user": "ada",
        "tool": recorded.spec(),
        "params": {"order": "1001", "amount": "120.00"},
        **changes,
    }
    return ToolCall(**values)


def request(loaded: Tool, sent: ToolCall, *limits: Limit) -> ClaimRequest:
    tools, nowhere = Toolbox([loaded]), cast(Any, None)
    ledger = cast(Any, SimpleNamespace(keys=None))
    worker = WorkerContext(ledger, tools, nowhere, Crash(), LEASE, LEASE / 3, limits=limits)
    return claim_request(worker, sent, prepare(tools, Hashes(None), sent), ATTEMPT)


def test_what_is_hashed_is_what_the_tools_model_made_of_the_params_never_raw_text() -> None:
    refund = make()
    raw = call(refund, params={"amount": "120.00", "order": "1001", "unknown": "ignored"})

    prepared = prepare(Toolbox([refund]), Hashes(None), raw)

    assert prepared.plain == {"order": "1001", "amount": "120.00", "cents": 0}
    assert prepared.params_hash == params_hash("payments.refund", "1", prepared.plain)
    assert prepared.params == Params(order="1001", amount=Decimal("120.00"))


def refund_limit(**changes: Any) -> Limit:
    values = {"name": "refunds", "tools": ("payments.refund",), "most": 5, "within": "1d"}
    return Limit(**{**values, **changes})


def test_a_call_was_asked_about_as_over_only_if_its_policies_name_the_limits_people() -> None:
    refund, finance = make(), ApprovalPolicy(roles=("finance",))
    limit = refund_limit(ask=finance)

    def is_approved(**changes: Any) -> bool:
        sent = call(refund, approval_id="acme/run-1/refund/1", **changes)
        [use] = request(refund, sent, limit).uses
        return use.approved

    policies = (ApprovalPolicy(), finance)
    assert is_approved(over_limits=("refunds",), policies=policies)
    assert not is_approved(over_limits=("refunds",))
    # Another worker's file named others.
    assert not is_approved(over_limits=("refunds",), policies=(ApprovalPolicy(roles=("staff",)),))
    assert not is_approved(over_limits=("mails",), policies=policies)


@pytest.mark.parametrize(
    ("amount", "counts"),
    [
        ("0.000001", True),
        ("1000000000", True),
        ("0.0000001", False),
        ("1.000000000000000000000000000001", False),
        ("1000000000.000001", False),
        ("-1", False),
    ],
)
def test_an_amount_is_counted_exactly_or_not_at_all(amount: str, counts: bool) -> None:
    refund = make()
    sent = call(refund, params={"order": "1001", "amount": amount})
    [use] = request(refund, sent, refund_limit(total_of="amount")).uses
    assert use.amount == (Decimal(amount) if counts else None)


def test_a_claim_carries_everything_it_is_bound_to() -> None:
    refund = make(key=lambda p: f"refund:order-{p.order}", version="3", dedupes=Dedupes(LEASE))

    claim = request(refund, call(refund, approval_id="acme/run-1/refund/1", attempts_before=4))

    plain = {"order": "1001", "amount": "120.00", "cents": 0}
    assert claim == ClaimRequest(
        tenant="acme",
        run_id="acme/run-1",
        step_id="refund",
        user="ada",
        tool="payments.refund",
        tool_version="3",
        key="refund:order-1001",
        params=plain,
        identity_hash=identity_hash("payments.refund", plain),
        params_hash=params_hash("payments.refund", "3", plain),
        holder=ATTEMPT.holder,
        activity_key=ATTEMPT.activity_key,
        attempt=6,
        timeout=refund.timeout,
        lease=LEASE,
        recovery_limit=RECOVERY_LIMIT,
        recovery=Recovery.DEDUPES,
        window=LEASE - refund.timeout,
        gated=True,
        approval_id="acme/run-1/refund/1",
        undo=UndoSpec(version="3", approved=True),
        first_attempt=5,
    )


def test_an_approval_that_was_given_is_used_also_by_a_worker_that_would_not_have_asked() -> None:
    asking, lax = make(approval=POLICY), make()

    assert request(lax, call(lax, approval_id="acme/run-1/refund/1")).gated
    assert request(lax, call(asking)).gated
    assert not request(lax, call(lax)).gated


def test_without_a_business_key_the_key_is_the_run_and_step() -> None:
    refund = make()

    assert request(refund, call(refund)).key == "acme/run-1:refund"


def broken(params: Params) -> str:
    raise LookupError("no key")


def test_resources_are_named_once_each_in_the_one_order_in_which_all_acquire_them() -> None:
    def named(given: Any) -> tuple[str, ...]:
        loaded = make(resource=lambda p: given)
        return prepare(Toolbox([loaded]), Hashes(None), call(loaded)).resources

    assert named("account:7") == ("account:7",)
    assert named(["b", "a", "b"]) == named(("a", "b")) == ("a", "b")
    assert named([]) == ()


@pytest.mark.parametrize("business", [True, False])
def test_a_key_that_begins_like_an_undos_is_none(business: bool) -> None:
    """Whoever is called ``undo``: a fact of the business, or a run."""
    loaded = make(key=lambda p: "undo:ef-1") if business else make()
    sent = call(loaded).model_copy(update={"run_id": "undo", "step_id": "ef-1"})

    assert prepare(Toolbox([loaded]), Hashes(None), sent).key == "=undo:ef-1"


REFUSED: list[tuple[str, Tool, dict[str, Any], str, str]] = [
    ("no order", make(), {"order": ""}, "InvalidParams", "order: must have at least 1 character"),
    ("no params", make(), {}, "InvalidParams", "order: is missing"),
    ("big", make(), {"order": "1", "cents": 2**53}, "InvalidParams", "2^53"),
    ("big fraction", make(), {"order": "1", "cents": 2.0**53}, "InvalidParams", "2^53"),
    ("big text", make(), {"order": "1", "cents": "9007199254740993"}, "InvalidParams", "canonical"),
    ("surrogate", make(), {"order": "\ud800"}, "InvalidParams", ""),
    ("no key", make(key=lambda p: ""), {"order": "1"}, "InvalidParams", "key(params)"),
    ("long key", make(key=lambda p: "k" * 401), {"order": "1"}, "InvalidParams", str(LONGEST_KEY)),
    ("set apart", make(key=lambda p: "undo:" + "k" * 395), {"order": "1"}, "InvalidParams", ""),
    ("broken key", make(key=broken), {"order": "1"}, "InvalidParams", "LookupError('no key')"),
    ("broken resource", make(resource=broken), {"order": "1"}, "InvalidParams", "resource(params)"),
    ("no resource", make(resource=lambda p: None), {"order": "1"}, "InvalidParams", "a list"),
    ("empty", make(resource=lambda p: ["a", ""]), {"order": "1"}, "InvalidParams", "1 to 400"),
    ("NUL", make(resource=lambda p: "a\x00"), {"order": "1"}, "InvalidParams", "plain text"),
    ("long", make(resource=lambda p: "r" * 401), {"order": "1"}, "InvalidParams", "1 to 400"),
    ("many", make(resource=lambda p: ["r"] * 21), {"order": "1"}, "InvalidParams", "at most 20"),
    ("NUL in key", make(key=lambda p: "a\x00"), {"order": "1"}, "InvalidParams", "key(params)"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("loaded", "params", "type_", "says"), [row[1:] for row in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_params_and_keys_that_cannot_be_recorded_are_refused_for_good(
    loaded: Tool, params: dict[str, Any], type_: str, says: str
) -> None:
    sent = call(loaded).model_copy(update={"params": params})

    with pytest.raises(ApplicationError) as refused:
        prepare(Toolbox([loaded]), Hashes(None), sent)

    assert refused.value.type == type_
    assert refused.value.non_retryable
    assert type_ in {str(error) for error in NON_RETRYABLE}
    assert "payments.refund" in refused.value.message
    assert says in refused.value.message


def test_a_tool_that_is_not_loaded_is_named() -> None:
    with pytest.raises(ApplicationError, match=r"payments\.refund") as refused:
        prepare(Toolbox([]), Hashes(None), call(make()))

    assert (refused.value.type, refused.value.non_retryable) == ("ToolNotFound", True)


@pytest.mark.parametrize(
    ("by_plan", "recorded", "now", "gated"),
    [
        (False, None, None, False),
        (True, None, None, True),
        (False, POLICY, None, True),
        (False, None, POLICY, True),
        (True, POLICY, POLICY, True),
    ],
)
def test_an_approval_is_needed_if_the_plan_or_the_tool_then_or_now_says_so(
    by_plan: bool, recorded: ApprovalPolicy | None, now: ApprovalPolicy | None, gated: bool
) -> None:
    sent = call(make(approval=recorded), policies=(POLICY,) if by_plan else ())

    assert request(make(approval=now), sent).gated is gated


def test_a_tool_that_is_not_the_recorded_one_any_more_has_drifted() -> None:
    recorded = make()
    newer = make(version="2")
    other_params = replace(recorded, schema_hash="sha256:other")

    assert drift(call(recorded), recorded) is None
    assert "version 2, the run began with 1" in (drift(call(recorded), newer) or "")
    assert "params of payments.refund have changed" in (drift(call(recorded), other_params) or "")
    assert request(newer, call(recorded)).drift is not None


@pytest.mark.parametrize("settle", [None, timedelta(minutes=10)])
def test_a_claim_carries_what_it_is_judged_by(settle: timedelta | None) -> None:
    slow = make(timeout=timedelta(minutes=1), settle=settle)

    claim = request(slow, call(slow))

    assert (claim.timeout, claim.settle, claim.lease) == (timedelta(minutes=1), settle, LEASE)


@pytest.mark.parametrize("refused_by", ["the plan", "the tool then", "the tool now", "nobody"])
def test_votes_in_advance_count_unless_a_policy_refuses(refused_by: str) -> None:
    refuses = ApprovalPolicy(standing=False)
    then = make(approval=refuses if refused_by == "the tool then" else POLICY)
    now = make(approval=refuses if refused_by == "the tool now" else POLICY)
    plans = (refuses,) if refused_by == "the plan" else ()

    claim = request(now, call(then, policies=plans, approval_id="acme/run-1/refund/1"))

    assert claim.standing is (refused_by == "nobody")


@pytest.mark.parametrize("asked_by", ["the plan", "the tool then", "the tool now", "nobody"])
def test_a_claim_asks_for_the_proof_that_any_policy_has_come_to_ask_for(asked_by: str) -> None:
    asks = ApprovalPolicy(proof="passkey")
    then = make(approval=asks if asked_by == "the tool then" else POLICY)
    now = make(approval=asks if asked_by == "the tool now" else POLICY)
    plans = (asks,) if asked_by == "the plan" else ()

    claim = request(now, call(then, policies=plans, approval_id="acme/run-1/refund/1"))

    assert claim.proof is (Assurance.OPEN if asked_by == "nobody" else Assurance.PASSKEY)
    assert claim.assurance is Assurance.OPEN  # what proves the start is the worker's to ask for


def test_a_policy_may_ask_for_a_passkey_because_of_what_its_run_has_read() -> None:
    marked = ApprovalRule(when="run.foreign", proof="passkey")
    careful = make(approval=ApprovalPolicy(rules=(marked,)))

    claim = request(careful, call(careful))

    assert claim.in_run(foreign=False).proof is Assurance.OPEN
    assert claim.in_run(foreign=True).proof is Assurance.PASSKEY


def test_a_claim_says_itself_which_standing_approvals_cover_it() -> None:
    refund, newer = make(version="1"), make(version="2")
    scope = Scope(
        tool=refund.name,
        version="1",
        schema_hash=refund.schema_hash,
        when="amount <= 100",
        total_of="amount",
        total="500",
        until=2**40,
    )
    small = {"order": "1001", "amount": "99.50"}

    assert request(refund, call(refund, params=small)).covers(scope) == Covered(Decimal("99.50"))
    assert request(refund, call(refund)).covers(scope) is None
    assert request(newer, call(refund, params=small)).covers(scope) is None
