"""Verdicts on deliveries of decisions as rows: each is written once, with what proves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import insert

from activities.ledger.edits import Edited
from activities.ledger.proofs import Proof
from activities.ledger.store import Transaction
from activities.ledger.tables import decisions
from workflows.contracts import ApprovalState, Verdict, VerdictCode, VerifyDecision


@dataclass(frozen=True)
class Judged:
    """A verdict, and the params of an edit that counts."""

    verdict: Verdict
    params: dict[str, Any] | None = None


def judged_before(recorded: Mapping[str, Any], row: Mapping[str, Any] | None) -> Judged:
    """Return what was recorded of a delivery; ``row`` is the approval's as it is now."""
    verdict = Verdict(
        decision_id=recorded["decision_id"],
        approval_id=recorded["approval_id"],
        code=VerdictCode(recorded["verdict"]),
        message=recorded["message"],
        state=ApprovalState(row["state"]) if row else None,
        verified=recorded["verified"],
    )
    counted = verdict.code is VerdictCode.ACCEPTED
    return Judged(verdict, recorded["edited"] if counted else None)


def verdict_on(
    asked: VerifyDecision,
    code: VerdictCode,
    message: str,
    state: ApprovalState | None,
    proof: Proof,
) -> Verdict:
    """Return the verdict on a delivery, as its run is told."""
    return Verdict(
        decision_id=asked.decision_id,
        approval_id=asked.decision.approval_id[:400] if asked.decision else "",
        code=code,
        message=message,
        state=state,
        verified=proof.verified,
    )


async def record(
    tx: Transaction,
    asked: VerifyDecision,
    verdict: Verdict,
    row: Mapping[str, Any] | None,
    proof: Proof,
    edited: Edited | None,
) -> None:
    """Write down a delivery, its verdict and what proves it."""
    decision = asked.decision
    await tx.execute(
        insert(decisions).values(
            tenant_id=tx.tenant,
            decision_id=asked.decision_id,
            run_id=asked.run_id,
            approval_id=verdict.approval_id,
            approver=decision.approver if decision else "",
            outcome=decision.outcome.value if decision else "",
            params_hash=decision.params_hash[:200] if decision else "",
            reason=decision.reason if decision else "",
            verdict=verdict.code.value,
            message=verdict.message,
            verified=verdict.verified,
            edited=edited.params if edited else None,
            signature=decision.signature if decision and proof.verified else None,
            kid=proof.kid,
            nonce=proof.claims.jti if proof.claims else None,
            at_ms=tx.now_ms,
        )
    )
    accepted = verdict.code is VerdictCode.ACCEPTED
    tx.event(
        asked.run_id,
        "decision.accepted" if accepted else "decision.refused",
        step_id=row["step_id"] if row else None,
        decision_id=asked.decision_id,
        approval_id=verdict.approval_id,
        outcome=decision.outcome.value if decision else None,
        approver=decision.approver if decision else None,
        verified=verdict.verified,
        kid=proof.kid,
        reason=None if accepted else verdict.code.value,
    )
