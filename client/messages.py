"""What is sent to a run: composed, and signed where there is a key."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from pydantic import JsonValue

from surehand.client.ids import find_approval
from surehand.client.signing import USUAL_SIGNATURE, claims_for, fresh_claims, read_key, sign
from surehand.process.exits import WrongUse
from surehand.process.settings import ClientSettings
from surehand.workflows.contracts.approvals import Decision, DecisionOutcome
from surehand.workflows.contracts.base import Message
from surehand.workflows.contracts.signing import SteeringClaims
from surehand.workflows.contracts.steering import Steering, Verb
from surehand.workflows.deliveries import Malformed, parse
from surehand.workflows.identity import NotCanonical, digest

M = TypeVar("M", bound=Message)
S = TypeVar("S", bound=Steering)


class Seen(Protocol):
    """What an approver has seen: an ``ApprovalRequest``, or a ``SeenRequest``."""

    @property
    def approval_id(self) -> str:
        """Return which request it is."""

    @property
    def params_hash(self) -> str:
        """Return the hash of the params that were shown."""


@dataclass(frozen=True)
class SeenRequest:
    """A request as somebody has seen it, where the request itself is not at hand any more.

    A page that shows a request carries both values, and sends them back with the answer. Who looks
    the hash up when the answer comes, approves what nobody has seen.

    Example:
        >>> SeenRequest("refund-1/refund/1", "sha256:0a1b").approval_id
        'refund-1/refund/1'
    """

    approval_id: str
    params_hash: str


def decided(
    settings: ClientSettings,
    seen: Seen,
    outcome: DecisionOutcome,
    *,
    reason: str = "",
    params: dict[str, JsonValue] | None = None,
    lasts: timedelta = USUAL_SIGNATURE,
) -> tuple[str, Decision]:
    """Return the run's id and the decision.

    Args:
        settings: Who decides, and with which key.
        seen: What was seen: the decision is bound to its params.
        outcome: The answer.
        reason: Recorded with it.
        params: Of an edit: all params to ask for instead.
        lasts: How long a signature counts.

    Raises:
        WrongUse: The approval id, the reason or the key cannot be used.
        NoSuchRun: It is another tenant's.
    """
    run_id, approval_id = find_approval(settings.tenant, seen.approval_id)
    decision = composed(
        Decision,
        approval_id=approval_id,
        params_hash=seen.params_hash,
        outcome=outcome,
        approver=settings.user,
        reason=reason,
        params=params,
    )
    if settings.key is None:
        return run_id, decision
    key, now = read_key(settings.key), int(time.time())
    try:
        edited = None if params is None else digest(params)
    except NotCanonical as error:
        raise WrongUse(f"the params cannot be signed: {error}") from error
    claims = claims_for(decision, settings.tenant, run_id, now, lasts=lasts, edited=edited)
    return run_id, decision.model_copy(update={"signature": sign(key, claims)})


def composed(model: type[M], /, **values: Any) -> M:
    """Return a message to a run.

    Raises:
        WrongUse: It is none, and why.
    """
    try:
        return parse(model, values)
    except Malformed as error:
        raise WrongUse(str(error)) from error


def signed(settings: ClientSettings, run_id: str, verb: Verb, message: S) -> S:
    """Return a message as it is sent: signed where there is a key.

    Raises:
        WrongUse: The key cannot be used.
    """
    if settings.key is None:
        return message
    common = fresh_claims(message.actor, settings.tenant, int(time.time()))
    content = digest(message.content())
    claims = SteeringClaims(**common, run_id=run_id, verb=verb.value, content=content)
    return message.model_copy(update={"signature": sign(read_key(settings.key), claims)})
