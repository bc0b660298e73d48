"""Decisions: each delivery gets one recorded verdict, and one decision decides a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import insert, select, update

from activities.ledger.approvals import locked
from activities.ledger.store import Transaction
from activities.ledger.tables import approvals, decisions
from workflows.contracts import (
    ApprovalState,
    Decision,
    DecisionOutcome,
    Verdict,
    VerdictCode,
    VerifyDecision,
)

_STATE_OF = {
    DecisionOutcome.APPROVE: ApprovalState.APPROVED,
    DecisionOutcome.REJECT: ApprovalState.REJECTED,
}


async def verify(tx: Transaction, asked: VerifyDecision) -> Verdict:
    """Return the verdict on a delivered decision, and apply it if it is accepted.

    Verifying the same delivery again returns the recorded verdict.
    """
    decision = asked.decision
    # Locked before looking for a verdict: the same delivery may be verified twice at once.
    row = await locked(tx, decision.approval_id) if decision else None
    if row is not None and row["run_id"] != asked.run_id:
        row = None
    recorded = await tx.one(
        select(decisions).where(
            decisions.c.tenant_id == tx.tenant, decisions.c.decision_id == asked.decision_id
        )
    )
    if recorded is not None:
        return Verdict(
            decision_id=asked.decision_id,
            approval_id=recorded["approval_id"],
            code=VerdictCode(recorded["verdict"]),
            message=recorded["message"],
            state=ApprovalState(row["state"]) if row else None,
            verified=recorded["verified"],
        )
    if decision is None:
        code, message = VerdictCode.MALFORMED, asked.refused or "not a decision"
    else:
        code, message = judge(decision, row, tx.now_ms)
    if code is VerdictCode.ACCEPTED and decision is not None:
        await _apply(tx, decision)
    verdict = Verdict(
        decision_id=asked.decision_id,
        approval_id=decision.approval_id if decision else "",
        code=code,
        message=message,
        state=_state_after(decision, row, code),
    )
    await _record(tx, asked, verdict, row)
    return verdict


def judge(
    decision: Decision, row: Mapping[str, Any] | None, now_ms: int
) -> tuple[VerdictCode, str]:
    """Return what the gate makes of a decision on an approval row; pure."""
    if row is None:
        return (
            VerdictCode.UNKNOWN_APPROVAL,
            f"this run has no approval request {decision.approval_id!r}",
        )
    if row["state"] in ("approved", "rejected"):
        mark = "" if row["verified"] else " (unverified)"
        decided = f"already {row['state']} by {row['decided_by']}{mark}"
        return VerdictCode.ALREADY_DECIDED, decided
    if row["state"] == "expired" or row["expires_ms"] <= now_ms:
        return VerdictCode.EXPIRED, "the request has expired"
    if row["state"] != "pending":
        return VerdictCode.NOT_WAITING, f"the request is {row['state']}"
    if decision.params_hash != row["params_hash"]:
        return (
            VerdictCode.WRONG_HASH,
            f"the decision is for params {decision.params_hash}, asked is {row['params_hash']}",
        )
    return VerdictCode.ACCEPTED, f"{_STATE_OF[decision.outcome]} by {decision.approver}"


async def _apply(tx: Transaction, decision: Decision) -> None:
    await tx.execute(
        update(approvals)
        .where(
            approvals.c.tenant_id == tx.tenant,
            approvals.c.approval_id == decision.approval_id,
            approvals.c.state == "pending",
        )
        .values(
            state=_STATE_OF[decision.outcome].value, decided_by=decision.approver, verified=False
        )
    )


def _state_after(
    decision: Decision | None, row: Mapping[str, Any] | None, code: VerdictCode
) -> ApprovalState | None:
    if decision is None or row is None:
        return None
    if code is VerdictCode.ACCEPTED:
        return _STATE_OF[decision.outcome]
    return ApprovalState(row["state"])


async def _record(
    tx: Transaction, asked: VerifyDecision, verdict: Verdict, row: Mapping[str, Any] | None
) -> None:
    decision = asked.decision
    await tx.execute(
        insert(decisions).values(
            tenant_id=tx.tenant,
            decision_id=asked.decision_id,
            run_id=asked.run_id,
            approval_id=verdict.approval_id[:400],
            approver=decision.approver if decision else "",
            outcome=decision.outcome.value if decision else "",
            params_hash=decision.params_hash[:200] if decision else "",
            reason=decision.reason if decision else "",
            verdict=verdict.code.value,
            message=verdict.message,
            verified=verdict.verified,
            at_ms=tx.now_ms,
        )
    )
    accepted = verdict.code is VerdictCode.ACCEPTED
    tx.event(
        asked.run_id,
        "decision.accepted" if accepted else "decision.refused",
        step_id=row["step_id"] if row else None,
        decision_id=asked.decision_id,
        approval_id=verdict.approval_id[:400],
        outcome=decision.outcome.value if decision else None,
        approver=decision.approver if decision else None,
        verified=verdict.verified,
        reason=None if accepted else verdict.code.value,
    )
