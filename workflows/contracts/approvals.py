"""Approvals: requests, decisions, standing approvals, and what is signed."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from surehand.workflows.canonical_json import digest
from surehand.workflows.contracts.base import (
    Actor,
    ChainHead,
    ForeignContent,
    JsonObject,
    Message,
    OfRun,
    QuotaWait,
    Text,
)
from surehand.workflows.contracts.tools import ToolCall
from surehand.workflows.plan.policy import OnExpiry, Requirement


class ApprovalState(StrEnum):
    """Where an approval stands; the row decides, the run follows."""

    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    """Its params were edited: another request asks for the new ones."""
    VOID = "void"
    """The run no longer asks: cancelled, or the step was replaced."""


class Assurance(StrEnum):
    """What proves that a decision is its approver's."""

    OPEN = "open"
    """Nothing: the name is only claimed."""
    CHAT = "chat"
    """A button in the chat: the approvers' pages vouch for whose account has pressed it."""
    SIGNED = "signed"
    """A signature with a key that is registered for the approver."""
    PASSKEY = "passkey"
    """A gesture with a passkey that is registered for the approver, made for this decision."""
    DEVICE_PASSKEY = "device_passkey"
    """The same, with a passkey that cannot leave its device."""

    @property
    def by_passkey(self) -> bool:
        """Whether only a passkey does."""
        return self.satisfies(Assurance.PASSKEY)

    def stricter(self, other: Assurance) -> Assurance:
        """Return the one that satisfies both."""
        return self if self.satisfies(other) else other

    def satisfies(self, asked: Assurance) -> bool:
        """Return whether what proves so much is enough where that is asked for."""
        order = list(Assurance)
        return order.index(self) >= order.index(asked)

    def as_text(self) -> str:
        """Return what decisions need, as people are told."""
        return {
            Assurance.OPEN: "need no signature",
            Assurance.CHAT: "have to be signed, or made by a button in the chat",
            Assurance.SIGNED: "have to be signed",
            Assurance.PASSKEY: "have to be signed by a passkey",
            Assurance.DEVICE_PASSKEY: "have to be signed by a passkey that is bound to its device",
        }[self]


class ApprovalRequest(Message):
    """What a human is asked.

    Example:
        >>> [request] = (await run.view()).pending
        >>> request.tool, request.description
        ('payments.refund', 'Refund 120.00 EUR for order-7')
    """

    approval_id: str
    step_id: str
    tool: str
    version: str
    params: dict[str, JsonValue]
    params_hash: str
    description: str
    requested_by: str
    expires_at: datetime
    undo: str
    """How the effect would be undone, or that it cannot be."""
    salt: str | None = None
    """Hashed with tool, version and params, where the run is encrypted: nobody guesses them."""
    requirements: tuple[Requirement, ...] = ()
    """Who has to say yes; all of them have to be satisfied."""
    assurance: Assurance = Assurance.OPEN
    editors: tuple[str, ...] = ()
    on_expiry: OnExpiry = "deny"
    remind_every: timedelta | None = None
    votes: tuple[str, ...] = ()
    """Who has said yes so far."""
    excluded: tuple[str, ...] = ()
    """Who has no vote where four eyes are asked for, as far as that was known when it was asked."""
    key: str = ""
    """The business key of the effect; empty where an earlier version asked."""
    resources: tuple[str, ...] = ()
    """What the call holds for itself."""
    started_by: str = ""
    """Who has started its run in that name, marked if nothing proves it; empty: the same person."""
    foreign: tuple[ForeignContent, ...] = ()
    """What has brought its run content from outside, which strangers may have written."""
    program: str = "surehand"
    """How the command line is called where the worker is, for commands that are shown."""

    @property
    def askers(self) -> str:
        """Who has asked for the call, as people are told."""
        if not self.started_by:
            return self.requested_by
        return f"{self.requested_by}, started by {self.started_by}"


class SettledApproval(Message):
    """A request that waits no more."""

    request: ApprovalRequest
    state: ApprovalState
    decided_by: str = ""
    """Who has approved, rejected or edited it, marked if nothing proves the name."""
    reason: str = ""


class DecisionOutcome(StrEnum):
    """An approver's answer.

    Example:
        >>> [request] = (await run.view()).pending
        >>> (await run.decide(request, DecisionOutcome.REJECT)).state
        <ApprovalState.REJECTED: 'rejected'>
    """

    APPROVE = "approve"
    REJECT = "reject"
    EDIT = "edit"
    """Ask for other params in place of these."""


class HeldApproval(Message):
    """A decision that has come before its request: it is judged once the step asks."""

    approval_id: str
    step_id: str
    outcome: DecisionOutcome
    approver: str
    """As claimed: what proves the name is looked at with the request."""
    waits_for: str
    """What has to come first, as one clause."""


class Decision(Message):
    """An approver's answer to one approval request, bound to the exact params by their hash."""

    approval_id: Text
    params_hash: Text
    outcome: DecisionOutcome
    approver: Actor
    reason: Text = ""
    params: JsonObject | None = None
    """For an ``edit``: all params of the call that shall be asked for instead."""
    signature: Text | None = None
    """Compact JWS over ``DecisionClaims``, or a passkey's proof, by a key of the approver's."""


class ApprovalAsked(Message):
    """The request as the approval row has it."""

    request: ApprovalRequest | None
    """``None``: nobody has to be asked; the effect is recorded, or no policy asks for a human."""
    state: ApprovalState | None = None
    decided: Decision | None = None
    """What has rejected or edited a request that is not new: a run that was reset has no memory."""
    verified: bool = False
    """Whether a signature proves that."""
    standing: tuple[str, ...] = ()
    """Whose standing approvals have voted, as people are told: nobody has looked at the call."""
    over_quota: QuotaWait | None = None
    """Why nobody was asked yet: as many of the tenant's requests wait as may."""
    head: ChainHead


class VerifyDecision(OfRun):
    """Asks the approval row for the verdict on one delivered decision."""

    decision_id: str
    """``{run_id}#{workflow_run_id}.{delivery}``: verifying a delivery twice finds its verdict."""
    decision: Decision | None
    refused: str | None = None
    """Set when the run already knows why it cannot count (malformed, unknown)."""


class RequestApproval(Message):
    """Asks for an approval of one call; idempotent by its approval id."""

    call: ToolCall
    number: int
    editors: tuple[str, ...] = ()
    """Who has changed the params since the plan asked for the call."""
    escalated_to: str | None = None
    """The only role that may decide: an earlier request has expired."""
    early: tuple[VerifyDecision, ...] = ()
    """Decisions that have come before the request: they are judged as it is written."""


class VerdictCode(StrEnum):
    """What the gate makes of a decision.

    Example:
        >>> [request] = (await run.view()).pending
        >>> (await run.approve(request)).code is VerdictCode.ACCEPTED
        True
    """

    ACCEPTED = "accepted"
    """It counts."""
    HELD = "held"
    """Arrived before its request; verified when the request exists."""
    MALFORMED = "malformed"
    """It is no decision: a field is missing or wrong."""
    UNKNOWN_APPROVAL = "unknown_approval"
    """There is no such request."""
    WRONG_HASH = "wrong_hash"
    """It is for other params than those of the request."""
    ALREADY_DECIDED = "already_decided"
    """The request was approved or rejected before."""
    EXPIRED = "expired"
    """The request's time is over."""
    NOT_WAITING = "not_waiting"
    """An edit has replaced the request, or the run no longer asks."""
    UNSIGNED = "unsigned"
    """This request needs a signed decision."""
    PASSKEY_NEEDED = "passkey_needed"
    """This request needs a decision that is signed by a passkey."""
    BAD_SIGNATURE = "bad_signature"
    """Not a signature, not of this decision, not by a key of the approver's, or not in time."""
    USED_SIGNATURE = "used_signature"
    """The signature was judged before: each counts once, even if it was refused."""
    NOT_PERMITTED = "not_permitted"
    """The approver has none of the roles that may decide."""
    FOUR_EYES = "four_eyes"
    """The approver has asked for the call, or given its run a value."""
    ALREADY_VOTED = "already_voted"
    """The approver has said yes before; one person has one vote."""
    NOT_EDITABLE = "not_editable"
    """The params cannot be changed (any more), or the new ones do not fit the tool."""


class Verdict(Message):
    """The gate's answer to one decision.

    Example:
        >>> [request] = (await run.view()).pending
        >>> verdict = await run.approve(request)
        >>> verdict.code, verdict.verified
        (<VerdictCode.ACCEPTED: 'accepted'>, False)
    """

    decision_id: str
    approval_id: str
    code: VerdictCode
    message: str
    state: ApprovalState | None = None
    """The approval's state after this decision; ``None`` if there is no such approval."""
    verified: bool = False
    """False: unsigned, the approver's name is only claimed."""


class VerdictReached(Message):
    """A verdict and the chain's new head."""

    verdict: Verdict
    params: dict[str, JsonValue] | None = None
    """The validated params of an edit that counts."""
    head: ChainHead


class CloseApproval(OfRun):
    """Expires (its time is over) or voids (nobody asks any more) an approval; the row decides."""

    approval_id: str
    to: Literal["expired", "void"]


class ApprovalClosed(Message):
    """The approval's state now: a decision may have been quicker."""

    state: ApprovalState
    head: ChainHead


#: Of a passkey's proof, as ``typ`` is of a JWS; its challenge begins with it.
PASSKEY_TYP: Final = "surehand-decision+webauthn"
#: The same of what steers a run.
STEERING_PASSKEY_TYP: Final = "surehand-steering+webauthn"


class Signed(BaseModel):
    """What every signature claims; each kind adds what it is bound to, and nothing else."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    typ: ClassVar[str]
    """Of the protected header: a signature made for one thing never counts as another."""
    passkey_typ: ClassVar[str | None] = None
    """The same of a passkey's proof, whose challenge begins with it; ``None``: there is none."""

    aud: Text
    """Whom it is meant for: :func:`audience` of the tenant."""
    sub: Actor
    iat: int
    """When it was signed, in seconds since 1970."""


class Claims(Signed):
    """What a signature claims that is sent: it counts once, and not for long."""

    exp: int
    """Until when it is taken, in seconds since 1970."""
    jti: Annotated[Text, Field(min_length=16, max_length=100)]
    """The nonce: a signature counts once."""


class DecisionClaims(Claims):
    """An approver's decision; each claim is bound to the decision that carries the signature."""

    typ: ClassVar[str] = "surehand-decision+jws"
    passkey_typ: ClassVar[str | None] = PASSKEY_TYP

    approval_id: Text
    run_id: Text
    params_hash: Text
    outcome: Annotated[DecisionOutcome, Field(strict=False)]
    edited: Text | None = None
    """Digest of the params that an ``edit`` puts in the place of those that were asked for."""
    reason: Text | None = None
    """Digest of the decision's reason, if it has one."""


#: The principal whose keys vouch for decisions in a chat: the approvers' pages have one of them.
CHAT: Final = "chat"


class ChatClaims(DecisionClaims):
    """A decision that somebody has made by a button in a chat; :data:`CHAT` signs it, not they."""

    typ: ClassVar[str] = "surehand-decision+chat"
    passkey_typ: ClassVar[str | None] = None

    account: Text
    """Who has pressed it, as the chat knows them: ``slack:TEAM:USER``."""


class SteeringClaims(Claims):
    """What steers a run: bound to the whole of what was sent."""

    typ: ClassVar[str] = "surehand-steering+jws"
    passkey_typ: ClassVar[str | None] = STEERING_PASSKEY_TYP

    run_id: Text
    verb: Text
    content: Text
    """Digest of ``Steering.content()``."""


class StartClaims(Claims):
    """The start of a run: bound to the whole of what is started, and to whom it acts for."""

    typ: ClassVar[str] = "surehand-start+jws"

    run_id: Text
    user: Actor
    content: Text
    """Digest of ``StartRun.content()``."""


class ResumeClaims(Claims):
    """Proof that whoever resumes a run has its resume token; the token itself stays at home."""

    typ: ClassVar[str] = "surehand-resume+jws"

    run_id: Text
    content: Text
    """Digest of what is sent, but for the proof itself."""


class ReceiptClaims(Signed):
    """A run's receipt, as it was at ``iat``; it stays true forever."""

    typ: ClassVar[str] = "surehand-receipt+jws"

    run_id: Text
    seq: int
    """Of the newest event."""
    head: Text
    content: Text
    """Digest of the receipt without its signature."""


def audience(tenant: str) -> str:
    return f"surehand:{tenant}"


#: Most uses that one can be granted for: each use looks at the ones before it.
MOST_USES: Final = 100_000
#: Until when it can be granted at most, from the time of the grant.
LONGEST_STANDING: Final = timedelta(days=3650)
#: Characters.
LONGEST_REASON: Final = 1000
#: Decimals as they are written and signed: one spelling, no exponent.
DECIMAL_FORM: Final = r"^(0|[1-9][0-9]{0,17})(\.[0-9]{1,9})?$"
#: A param, or one within others: ``amount``, ``order.amount``.
PATH_FORM: Final = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"

#: Hex digits of an id: enough for people to tell them apart, and the ledger takes none twice.
_DIGITS: Final = 12


class Scope(BaseModel):
    """The calls that a standing approval covers; whoever grants it signs exactly this."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    tool: Annotated[Text, Field(min_length=1, max_length=120)]
    version: Annotated[Text, Field(max_length=40)]
    schema_hash: Annotated[Text, Field(max_length=80)]
    """With the version: what was looked at. A tool that has changed since is not covered."""
    when: Annotated[Text, Field(min_length=1, max_length=500)] | None = None
    """An expression over the params that has to be true, as in the rules of policies."""
    count: Annotated[int, Field(ge=1, le=MOST_USES)] | None = None
    total_of: Annotated[str, Field(pattern=PATH_FORM, max_length=200)] | None = None
    """The param whose sum over all calls is limited."""
    total: Annotated[str, Field(pattern=DECIMAL_FORM)] | None = None
    """What that sum may come to."""
    foreign: bool = False
    """Also calls of runs that have read content from outside."""
    until: Annotated[int, Field(ge=0, lt=2**43)]
    """When it ends, in seconds since 1970."""

    @model_validator(mode="after")
    def _check_total(self) -> Scope:
        if (self.total_of is None) != (self.total is None):
            raise ValueError("a total needs both the param and the limit")
        return self


class StandingClaims(Claims):
    """A granter's standing approval. ``exp`` ends its arrival, ``scope.until`` its use."""

    typ: ClassVar[str] = "surehand-standing+jws"

    scope: Scope


class StandingGrant(BaseModel):
    """A standing approval on its way to the ledger."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    granter: Actor
    scope: Scope
    nonce: Annotated[Text, Field(min_length=16, max_length=100)]
    signature: Annotated[Text, Field(max_length=4096)] | None = None
    """Compact JWS over ``StandingClaims``, by a key of the granter's."""
    reason: Annotated[Text, Field(max_length=LONGEST_REASON)] = ""


def standing_id_of(nonce: str) -> str:
    """Return the id of the standing approval with that nonce, which its granter signs."""
    return f"SA-{digest(nonce).removeprefix('sha256:')[:_DIGITS]}"


def standing_label(granter: str, standing_id: str) -> str:
    """Return how people are told whose vote it is: nobody shall believe that they looked."""
    return f"{granter}'s standing approval {standing_id}"
