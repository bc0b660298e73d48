"""From a tool call on the wire to the claim that the ledger decides on."""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final

import structlog
from pydantic import BaseModel, ValidationError

from surehand.activities.artifacts import ArtifactStore, ArtifactUnavailable
from surehand.activities.expressions import (
    RuleBroken,
    exact_names,
    holds,
    problem,
    unknown_param,
)
from surehand.activities.ledger import limits
from surehand.activities.ledger.core.sealed import KeyNeeded
from surehand.activities.ledger.quotas import OverQuota
from surehand.activities.ledger.steps import entries
from surehand.activities.limits_file import Limit, group_values
from surehand.activities.run_keys import Hashes
from surehand.activities.tools.call_reports import Answers, Draft, NoDraft, make_json
from surehand.activities.tools.failures import Failure, FailureClass, classify
from surehand.activities.tools.tool import Tool, ToolContext, explain, resource_names
from surehand.activities.tools.toolbox import Toolbox
from surehand.activities.worker.context import Attempt, WorkerContext, again, stop
from surehand.activities.worker.watchdog import Watchdog
from surehand.process import clock
from surehand.process.off_loop import call_off_loop
from surehand.workflows.canonical_json import LOST_DIGITS, NotCanonical, digest, has_lost_digits
from surehand.workflows.contracts.approvals import Assurance, Scope
from surehand.workflows.contracts.effects import Compensate
from surehand.workflows.contracts.tools import Effect, QuotaNeeded, ToolCall
from surehand.workflows.identity import forward_key, root_run_id, step_key
from surehand.workflows.names import ErrorType
from surehand.workflows.plain_text import clean_text
from surehand.workflows.plan.policy import Needs, combine
from surehand.workflows.plan.references import ReferenceUnresolved, value_at
from surehand.workflows.run.step_rules import fill_in

log = structlog.get_logger()

#: Digits before and after the point that an amount may have: sums of them stay exact.
MOST_DIGITS: Final = 30


def covered(scope: Scope, tool: Tool, params: BaseModel) -> entries.Covered | None:
    """Return what a call adds to what a scope limits; ``None`` if it lies outside."""
    # A read claims nothing, so that nothing would count its uses, or look again right before it.
    if tool.effect is Effect.READ:
        return None
    if (scope.tool, scope.version, scope.schema_hash) != (
        tool.name, tool.version, tool.schema_hash
    ):  # fmt: skip
        return None
    try:
        if scope.when is not None and not holds(scope.when, params):
            return None
        if scope.total_of is None:
            return entries.Covered()
        amount = _amount(scope.total_of, params)
    except RuleBroken:
        return None
    return None if amount is None else entries.Covered(amount)


def scope_problem(scope: Scope, tool: Tool) -> str | None:
    """Return what is wrong with a scope for calls of its tool, as far as that shows."""
    if tool.effect is Effect.READ:
        return "it only reads, which nothing counts: standing approvals are for effects"
    model = tool.params_model
    if scope.when is not None and (found := problem(scope.when, model, of=())) is not None:
        return found
    if scope.total_of is None:
        return None
    wrong = unknown_param(model, scope.total_of)
    return wrong and f"total {scope.total_of!r}: {wrong}"


def _amount(path: str, params: BaseModel) -> Decimal | None:
    """Return the number at a path of the params, if it is one that can be added up exactly."""
    value = value_at(exact_names(params), path)
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        return None
    amount = Decimal(value)
    exponent = amount.as_tuple().exponent
    # Less than nothing would give back what others have used.
    if not isinstance(exponent, int) or amount < 0:
        return None
    return amount if exponent >= -MOST_DIGITS and amount.adjusted() < MOST_DIGITS else None


#: Longest business key; it is part of a unique index.
LONGEST_KEY = 400
#: How long a tool's validators, key and resource may take together.
LONGEST_PREPARING: Final = timedelta(seconds=10)


@dataclass(frozen=True)
class PreparedCall:
    """A call whose tool is loaded and whose params are valid."""

    tool: Tool
    params: BaseModel
    plain: dict[str, Any]
    """The validated params in JSON form."""
    params_hash: str
    salt: str | None
    """What is hashed with the params; ``None``: the run is not sealed."""
    key: str
    resources: tuple[str, ...]
    """What the call must have for itself, in the order in which everybody acquires."""


async def complete(artifacts: ArtifactStore, call: ToolCall) -> ToolCall:
    """Return the call with the params that hang on artifacts filled in."""
    if not call.late:
        return call
    wanted = {name: artifact for late in call.late for name, artifact in late.artifacts.items()}
    try:
        contents = {
            name: await artifacts.read(call.tenant, call.run_id, one)
            for name, one in wanted.items()
        }
    except ArtifactUnavailable as error:
        # Nothing has been called, and nothing is wrong with the step: it waits for the store.
        raise again(ErrorType.ARTIFACT_UNAVAILABLE, str(error)) from error

    def filled_in(contents: Mapping[str, Any]) -> dict[str, Any]:
        params = copy.deepcopy(call.params)
        fill_in(params, call.late, contents)
        return params

    try:
        params = await call_off_loop(filled_in, contents)
    except ReferenceUnresolved as error:
        raise stop(ErrorType.INVALID_PARAMS, f"{call.tool.name}: {error}") from error
    return call.model_copy(update={"params": params, "late": []})


def prepare(toolbox: Toolbox, hashes: Hashes, call: ToolCall) -> PreparedCall:
    """Validate a call with the tool's own model and hash what came out; may raise ``KeyNeeded``."""
    tool = toolbox.get(call.tool.name)
    if tool is None:
        raise stop(ErrorType.TOOL_NOT_FOUND, f"no tool {call.tool.name!r} is loaded here")
    return prepare_params(tool, hashes, call.params, call.run_id, call.step_id, call.answers)


def prepare_here(worker: WorkerContext, call: ToolCall) -> PreparedCall:
    """Prepare a call on a worker, watched."""
    with watch_preparing(worker, call.tool.name, call.run_id):
        return prepare(worker.toolbox, worker.hashes, call)


def watch_preparing(worker: WorkerContext, tool: str, run_id: str) -> AbstractContextManager[None]:
    """Watch what a tool has for params: it runs in the worker's own loop, or in a transaction.

    A validator, a key or a resource that does not return would hold up all other calls.
    """
    must_end = clock.now() + LONGEST_PREPARING.total_seconds()
    return worker.watchdog.watching(f"the params of {tool} of run {run_id}", lambda: must_end)


def prepare_params(
    tool: Tool,
    hashes: Hashes,
    given: Mapping[str, Any],
    run_id: str,
    step_id: str,
    answers: Sequence[Any] = (),
) -> PreparedCall:
    """Validate params with the tool's own model and hash what came out; may raise ``KeyNeeded``."""
    if has_lost_digits(dict(given)):
        # Before the model makes text or a `Decimal` of what may have been another amount.
        raise stop(ErrorType.INVALID_PARAMS, f"{tool.name}: params: {LOST_DIGITS}")
    try:
        params = tool.validate(given)
        plain = params.model_dump(mode="json")
        hashed = hashes.of_params(run_id, tool.name, tool.version, plain, answers)
        same = tool.validate(plain) == params
    except ValidationError as error:
        raise stop(ErrorType.INVALID_PARAMS, f"{tool.name}: {explain(error)}") from error
    except NotCanonical as error:
        raise stop(ErrorType.INVALID_PARAMS, f"{tool.name}: {error}") from error
    except KeyNeeded:
        raise
    except Exception as error:  # a validator of the user's own
        raise stop(ErrorType.INVALID_PARAMS, f"{tool.name}: params: {error!r}") from error
    if not same:
        # What the hash does not cover, nobody has approved: secrets, excluded or rounded fields.
        problem = f"{tool.name}: its params do not survive the way through JSON unchanged"
        raise stop(ErrorType.INVALID_PARAMS, problem)
    key = _key(tool, params, run_id, step_id)
    try:
        resources = resource_names(tool.resource, params)
    except ValueError as error:
        raise stop(ErrorType.INVALID_PARAMS, f"{tool.name}: {error}") from error
    return PreparedCall(tool, params, plain, hashed.hash, hashed.salt, key, resources)


def _key(tool: Tool, params: BaseModel, run_id: str, step_id: str) -> str:
    if tool.key is None:
        return forward_key(step_key(run_id, step_id))
    try:
        key: object = tool.key(params)
    except Exception as error:
        raise stop(ErrorType.INVALID_PARAMS, f"{tool.name}: key(params): {error!r}") from error
    if isinstance(key, str) and key == clean_text(key):
        key = forward_key(key)
        if 0 < len(key) <= LONGEST_KEY:
            return key
    problem = f"{tool.name}: key(params) must give 1 to {LONGEST_KEY} characters of plain text"
    raise stop(ErrorType.INVALID_PARAMS, problem)


def claim_request(
    worker: WorkerContext, call: ToolCall, prepared: PreparedCall, attempt: Attempt
) -> entries.ClaimRequest:
    """Return what the ledger is asked for by a step's call."""
    tool = prepared.tool
    asking = _asking(call, needed(call, prepared, foreign=False))
    if_foreign = _asking(call, needed(call, prepared, foreign=True))
    reads, is_approved = tool.effect is Effect.READ, call.approval_id is not None
    bare = bare_request(
        *(worker, call, tool, prepared.plain, attempt),
        key=prepared.key,
        user=call.user,
        params_hash=prepared.params_hash,  # It covers the answers of people, too.
    )
    return replace(
        bare,
        attempt=call.attempts_before + attempt.number,
        gated=asking.gated,
        approval_id=call.approval_id,
        requirements=asking.requirements,
        assurance=worker.assurance,
        standing=asking.standing,
        proof=asking.proof,
        if_foreign=None if if_foreign == asking else if_foreign,
        foreign=call.tool.foreign or tool.foreign,
        undo=None if reads else worker.toolbox.undo_spec(tool, approved=is_approved),
        covers=lambda scope: covered(scope, tool, prepared.params),
        permissions=frozenset(filter(None, (call.tool.permission, tool.permission))),
        drift=drift(call, tool),
        execution=attempt.execution,
        batch=attempt.batch,
        first_attempt=call.attempts_before + 1,
        uses=_limit_uses(worker, call, prepared),
        policy=None if reads else _policy_use(worker, call, prepared, bare),
    )


def _limit_uses(
    worker: WorkerContext, call: ToolCall, prepared: PreparedCall
) -> tuple[limits.LimitUse, ...]:
    uses = []
    for limit in worker.limits:
        if prepared.tool.name not in limit.counted:
            continue
        values = group_values(limit, prepared.plain)
        if limit.run_at_most is not None:  # what counts together is a whole tree of runs
            values = {"run": root_run_id(call.run_id)}
        groups = worker.hashes.of_identity(call.tenant, limit.name, values)
        use = limits.LimitUse(
            name=limit.name,
            group=groups[0],
            plain_group=groups[-1],
            amount=limit_amount(limit, prepared.params),
            most=None if limit.most is None else Decimal(limit.most),
            within_ms=entries.milliseconds(limit.within),
            ask=limit.ask,
            shadow=limit.shadow,
            # Whom another worker's file has named are not the people of this one's.
            approved=limit.name in call.over_limits and limit.ask in call.policies,
            after=limit.after.tool if limit.after and prepared.tool.name in limit.tools else None,
            by_other=limit.after is not None and limit.after.by_other,
            at_most=limit.run_at_most,
        )
        uses.append(use)
    return tuple(uses)


def _policy_use(
    worker: WorkerContext, call: ToolCall, prepared: PreparedCall, bare: entries.ClaimRequest
) -> limits.PolicyUse | None:
    if worker.policy is None:
        return None
    asked = worker.policy.asked
    if asked.tools and prepared.tool.name not in asked.tools:
        return None
    params = {path: value_at(prepared.plain, path) for path in asked.params}
    exact, millionths = exact_names(prepared.params), dict[str, int]()
    for path in asked.amounts:
        amount = value_at(exact, path)
        if isinstance(amount, int | Decimal) and not isinstance(amount, bool):
            with suppress(ValueError, OverflowError):
                # Rounded up: a policy is told of no less than is spent.
                millionths[path] = math.ceil(amount * limits.MILLIONTHS)
        if amount is not None and path not in millionths:
            # Left out, it would be nothing to a policy that refuses what is too much.
            problem = f"{prepared.tool.name}: {path} is no number of which a policy can be told"
            raise stop(ErrorType.INVALID_PARAMS, problem)
    told = {name: value for name, value in params.items() if value is not None}
    facts = {**bare.facts, "params": told, "millionths": millionths}
    approved = limits.OWN_POLICY in call.over_limits and asked.ask in call.policies
    return limits.PolicyUse(facts, asked.ask, asked.shadow, approved)


def limit_amount(limit: Limit, params: BaseModel) -> Decimal | None:
    """Return what a call adds to a limit; ``None``: no number that can be added up."""
    if limit.total_of is None:
        # What is only to come before or after something adds nothing.
        return Decimal(1 if limit.most is not None else 0)
    amount = _amount(limit.total_of, params)
    if amount is None or amount > limits.LARGEST_AMOUNT:
        return None
    # Compared, not calculated: that would round off the last of many digits.
    return amount if amount == round(amount, 6) else None


def _asking(call: ToolCall, needs: Needs | None) -> entries.Asking:
    return entries.Asking(
        # What was asked for is used, also where this worker's tool would not have asked.
        gated=needs is not None or call.approval_id is not None,
        requirements=needs.requirements if needs else (),
        standing=needs is None or needs.standing,
        proof=Assurance(needs.proof if needs else "open"),
    )


def bare_request(
    worker: WorkerContext,
    of: ToolCall | Compensate | entries.Entry,
    tool: Tool,
    params: dict[str, Any],
    attempt: Attempt,
    *,
    key: str,
    user: str,
    params_hash: str | None = None,
) -> entries.ClaimRequest:
    """Return what the ledger is asked for by a call that needs no approval and no permission."""
    if params_hash is None:
        made = worker.hashes.of_params(of.run_id, tool.name, tool.version, params)
        params_hash = made.hash
    identity, *others = worker.hashes.of_identity(of.tenant, tool.name, params)
    return entries.ClaimRequest(
        tenant=of.tenant,
        run_id=of.run_id,
        step_id=of.step_id,
        user=user,
        tool=tool.name,
        tool_version=tool.version,
        key=key,
        params=params,
        identity_hash=identity,
        also_known_by=tuple(others),
        params_hash=params_hash,
        holder=attempt.holder,
        activity_key=attempt.activity_key,
        attempt=attempt.number,
        timeout=tool.timeout,
        lease=worker.lease,
        recovery_limit=worker.retries.recovery_limit,
        recovery=tool.recovery,
        settle=tool.settle,
        window=tool.repeatable_for,
        observes=tool.lookup_by == "state",
        foreign=tool.foreign,
    )


def tool_context(
    of: entries.ClaimRequest,
    fencing_tokens: Mapping[str, int] = MappingProxyType({}),
    *,
    key: str = "",
    answers: Answers | None = None,
    draft: Draft | None = None,
) -> ToolContext:
    """Return what a tool may know about its call; without a draft it can write none.

    ``key`` is for the provider; what only reads has none.
    """
    return ToolContext(
        tenant=of.tenant,
        run_id=of.run_id,
        step_id=of.step_id,
        user=of.user,
        attempt=of.attempt,
        idempotency_key=key,
        fencing_tokens=fencing_tokens,
        answers=answers,
        artifact=draft or NoDraft(),
    )


def needed(call: ToolCall, prepared: PreparedCall, *, foreign: bool) -> Needs | None:
    """Return what has to be approved: the plan's, the recorded and the present policy together.

    ``foreign``: whether the run has read content from outside.
    """
    own = (call.tool.approval, prepared.tool.approval)
    policies = (*call.policies, *(policy for policy in own if policy is not None))

    def fits(expression: str) -> bool:
        return holds(expression, prepared.params, foreign=foreign)

    try:
        return combine(policies, fits)
    except RuleBroken as error:
        raise stop(ErrorType.INVALID_PARAMS, f"{prepared.tool.name}: {error}") from error


def drift(call: ToolCall, tool: Tool) -> str | None:
    """Return how the loaded tool differs from the one recorded at the run's start."""
    if tool.version != call.tool.version:
        return f"{tool.name} is version {tool.version}, the run began with {call.tool.version}"
    if tool.schema_hash != call.tool.schema_hash:
        return f"the params of {tool.name} have changed since the run was started"
    return None


def require_queue(found: OverQuota, tool: str) -> None:
    """Raise ``QuotaExceeded`` if what is over the tenant's quotas may not wait."""
    if found.over == "reject":
        raise stop(ErrorType.QUOTA_EXCEEDED, f"{tool}: over the tenant's quota, {found.wait.text}")


def quota_needed(found: OverQuota, tool: str, attempts: int) -> QuotaNeeded:
    """Return the outcome of a call that is over a quota and waits."""
    require_queue(found, tool)
    return QuotaNeeded(wait=found.wait, attempts=attempts)


#: Limit of a precondition: well below the deadline of the activity that asks for an approval.
LIMIT: Final = timedelta(seconds=5)
#: Tries to read it: nobody is asked on a guess.
MOST_TRIES: Final = 10
#: Equals no digest: an approval is not used on a guess, either.
_UNREADABLE: Final = "unreadable"


async def to_ask_with(
    watchdog: Watchdog, request: entries.ClaimRequest, prepared: PreparedCall, attempt: int
) -> entries.ClaimRequest:
    """Return the request with the digest of what the tool's precondition says now.

    If it cannot be read, that is tried again, at most ten times.
    """
    try:
        return replace(request, precondition=await _read_precondition(watchdog, request, prepared))
    except Exception as error:
        failure = classify(error)
        message = f"{prepared.tool.name}: its precondition: {failure.message}"
        if failure.failure_class is FailureClass.PERMANENT or attempt >= MOST_TRIES:
            raise stop(ErrorType.TOOL_FAILED, message) from error
        raise again(ErrorType.TRANSIENT, message) from error


async def to_call_with(
    watchdog: Watchdog, request: entries.ClaimRequest, prepared: PreparedCall
) -> entries.ClaimRequest:
    """Return the request with what the precondition says; unreadable, it equals nothing."""
    if prepared.tool.precondition is None:
        return request
    try:
        return replace(request, precondition=await _read_precondition(watchdog, request, prepared))
    except Exception:
        # What is recorded, or in doubt, can still be settled: only a first call is refused.
        return replace(request, precondition=_UNREADABLE)


async def _read_precondition(
    watchdog: Watchdog, request: entries.ClaimRequest, prepared: PreparedCall
) -> str | None:
    read = prepared.tool.precondition
    if read is None or not request.gated:
        return None
    context = tool_context(request)
    what = f"the precondition of {prepared.tool.name} of run {request.run_id}"
    async with watchdog.watched(what, LIMIT):
        said = await make_json(await read(prepared.params, context))
        return await call_off_loop(digest, said)


#: A dependency that does not say within this time that it is well, is not. Far below a lease.
PATIENCE: Final = timedelta(seconds=1)
STILL_DOWN: Final = Failure(FailureClass.DEPENDENCY_DOWN, "its health check says it is still down")


async def is_healthy(watchdog: Watchdog, tool: Tool) -> bool:
    """Return what the tool's health check says; ``True`` where it has none."""
    if tool.health is None:
        return True
    try:
        async with watchdog.watched(f"the health check of {tool.name}", PATIENCE):
            return bool(await tool.health())
    except (Exception, asyncio.CancelledError) as error:
        log.info("dependency.unhealthy", tool=tool.name, error=repr(error))
        return False
