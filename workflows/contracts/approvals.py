"""Approval requests, decisions and verdicts."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import JsonValue

from workflows.contracts.base import Actor, ChainHead, Message, Text
from workflows.contracts.tools import ToolCall
from workflows.plan import ApprovalPolicy


class ApprovalState(StrEnum):
    """Where an approval stands; the row decides, the run follows."""

    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    VOID = "void"
    """The run no longer asks: cancelled, or the step was replaced."""


class RequestApproval(Message):
    """Asks for an approval of one call; idempotent by its approval id."""

    call: ToolCall
    number: int
    policy: ApprovalPolicy


class ApprovalRequest(Message):
    """What a human is asked."""

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


class ApprovalAsked(Message):
    """The request as the approval row has it."""

    request: ApprovalRequest | None
    """``None``: the effect is recorded already, nobody has to be asked."""
    state: ApprovalState | None = None
    head: ChainHead


class DecisionOutcome(StrEnum):
    """An approver's answer."""

    APPROVE = "approve"
    REJECT = "reject"


class Decision(Message):
    """An approver's answer to one approval request, bound to the exact params by their hash."""

    approval_id: Text
    params_hash: Text
    outcome: DecisionOutcome
    approver: Actor
    reason: Text = ""


class VerifyDecision(Message):
    """Asks the approval row for the verdict on one delivered decision."""

    tenant: str
    run_id: str
    decision_id: str
    """``{run_id}#{workflow_run_id}.{delivery}``: verifying a delivery twice finds its verdict."""
    decision: Decision | None
    refused: str | None = None
    """Set when the run already knows why it cannot count (malformed, unknown)."""


class VerdictCode(StrEnum):
    """What the gate makes of a decision."""

    ACCEPTED = "accepted"
    HELD = "held"
    """Arrived before its request; verified when the request exists."""
    MALFORMED = "malformed"
    UNKNOWN_APPROVAL = "unknown_approval"
    WRONG_HASH = "wrong_hash"
    ALREADY_DECIDED = "already_decided"
    EXPIRED = "expired"
    NOT_WAITING = "not_waiting"


class Verdict(Message):
    """The gate's answer to one decision."""

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
    head: ChainHead


class CloseApproval(Message):
    """Expires (its time is over) or voids (nobody asks any more) an approval; the row decides."""

    tenant: str
    run_id: str
    approval_id: str
    to: Literal["expired", "void"]


class ApprovalClosed(Message):
    """The approval's state now: a decision may have been quicker."""

    state: ApprovalState
    head: ChainHead
