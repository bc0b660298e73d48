"""Decisions: each delivery gets one recorded verdict, and the approval's row decides (G3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import insert, select, update

from activities.ledger import principals
from activities.ledger.approvals import locked
from activities.ledger.store import Transaction
from activities.ledger.tables import approvals, decisions, effects
from activities.ledger.votes import (
    Vote,
    folded,
    may_edit,
    missing,
    needs_of,
    refusal,
    requesters,
    votes_now,
)
from activities.signatures import BadSignature, header_kid, matches
from activities.signatures import verify as verify_signature
from workflows.contracts import (
    ApprovalState,
    Assurance,
    Decision,
    DecisionOutcome,
    Verdict,
    VerdictCode,
    VerifyDecision,
)
from workflows.contracts.signing import DecisionClaims
from workflows.identity import NotCanonical, digest

#: Entries in these states keep their key's params as they are.
_SETTLED = ("failed", "compensated")


@dataclass(frozen=True)
class Edited:
    """Other params for a call, as its tool takes them."""

    params: dict[str, Any]
    params_hash: str
    key: str


#: Validates an edit with the tool of an approval's row; a text says why it cannot be.
CheckEdit = Callable[[Mapping[str, Any], Mapping[str, Any]], Edited | str]


@dataclass(frozen=True)
class Judged:
    """A verdict, and the params of an edit that counts."""

    verdict: Verdict
    params: dict[str, Any] | None = None


@dataclass(frozen=True)
class _Proof:
    """What proves a decision to be its approver's, if anything does."""

    kid: str | None = None
    claims: DecisionClaims | None = None

    @property
    def verified(self) -> bool:
        return self.claims is not None


_Refusal = tuple[VerdictCode, str]


async def verify(
    tx: Transaction, asked: VerifyDecision, *, assurance: Assurance, check_edit: CheckEdit
) -> Judged:
    """Return the verdict on a delivered decision, and apply it if it is accepted.

    Verifying the same delivery again returns the recorded verdict.

    Args:
        tx: The transaction.
        asked: The delivery.
        assurance: What this worker asks for; the request's own may be stricter.
        check_edit: Validates the params of an edit.
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
        return _judged_before(recorded, row)
    proof, edited = _Proof(), None
    if decision is None:
        refused: _Refusal | None = (VerdictCode.MALFORMED, asked.refused or "not a decision")
    else:
        found = await _prove(tx, asked, decision)
        proof = found if isinstance(found, _Proof) else proof
        refused = judge(decision, row, tx.now_ms)
        if refused is None and not isinstance(found, _Proof):
            refused = found
        if refused is None and row is not None:
            refused = await _may_decide(tx, decision, row, proof, assurance)
        if refused is None and row is not None and decision.outcome is DecisionOutcome.EDIT:
            checked = await _check_edit(tx, decision, row, proof, check_edit)
            edited = checked if isinstance(checked, Edited) else None
            refused = None if isinstance(checked, Edited) else checked
    if refused is not None or decision is None or row is None:
        assert refused is not None
        verdict = _verdict(asked, *refused, row=row, proof=proof)
        await _record(tx, asked, verdict, row, proof, edited)
        return Judged(verdict)
    accepted = _verdict(asked, VerdictCode.ACCEPTED, "", row=row, proof=proof)
    await _record(tx, asked, accepted, row, proof, edited)
    state, message = await _apply(tx, decision, row, proof, edited, assurance)
    verdict = accepted.model_copy(update={"state": state, "message": message})
    await tx.execute(
        update(decisions)
        .where(decisions.c.tenant_id == tx.tenant, decisions.c.decision_id == asked.decision_id)
        .values(message=message)
    )
    return Judged(verdict, edited.params if edited else None)


async def decided(tx: Transaction, row: Mapping[str, Any]) -> Decision | None:
    """Return what has rejected or edited a request; ``None`` if nothing has."""
    outcomes = {"rejected": DecisionOutcome.REJECT, "superseded": DecisionOutcome.EDIT}
    outcome = outcomes.get(row["state"])
    if outcome is None:
        return None
    found = await tx.one(
        select(decisions).where(
            decisions.c.tenant_id == tx.tenant,
            decisions.c.approval_id == row["approval_id"],
            decisions.c.verdict == VerdictCode.ACCEPTED.value,
            decisions.c.outcome == outcome.value,
        )
    )
    assert found is not None, "the row and the decision are written in one transaction"
    return Decision(
        approval_id=row["approval_id"],
        params_hash=row["params_hash"],
        outcome=outcome,
        approver=found["approver"],
        reason=found["reason"],
        params=found["edited"],
    )


def judge(decision: Decision, row: Mapping[str, Any] | None, now_ms: int) -> _Refusal | None:
    """Return why a decision on an approval row comes too late or is for something else; pure."""
    if row is None:
        return (
            VerdictCode.UNKNOWN_APPROVAL,
            f"this run has no approval request {decision.approval_id[:400]!r}",
        )
    if row["state"] in ("approved", "rejected"):
        mark = "" if row["verified"] else " (unverified)"
        decided = f"already {row['state']} by {row['decided_by']}{mark}"
        return VerdictCode.ALREADY_DECIDED, decided
    if row["state"] == "superseded":
        return VerdictCode.NOT_WAITING, f"{row['decided_by']} has edited it: another request asks"
    if row["state"] == "expired" or row["expires_ms"] <= now_ms:
        return VerdictCode.EXPIRED, "the request has expired"
    if row["state"] != "pending":
        return VerdictCode.NOT_WAITING, f"the request is {row['state']}"
    if decision.params_hash != row["params_hash"]:
        return (
            VerdictCode.WRONG_HASH,
            f"the decision is for params {decision.params_hash[:200]},"
            f" asked is {row['params_hash']}",
        )
    return None


async def _prove(tx: Transaction, asked: VerifyDecision, decision: Decision) -> _Proof | _Refusal:
    """Verify a decision's signature with a key that is registered for its approver now."""
    if decision.signature is None:
        return _Proof()
    try:
        kid = header_kid(decision.signature)
        key = await principals.key(tx, kid)
        if key is None or key.principal != decision.approver:
            return VerdictCode.BAD_SIGNATURE, f"{decision.approver} has no key {kid}"
        if key.revoked:
            return VerdictCode.BAD_SIGNATURE, f"key {kid} was revoked"
        claims = verify_signature(decision.signature, key.public_key, now_s=tx.now_ms // 1000)
    except BadSignature as error:
        return VerdictCode.BAD_SIGNATURE, str(error)
    differs = matches(claims, decision, asked.run_id, tx.tenant)
    if differs is None and not _signs_edit(claims, decision):
        differs = "it is for other edited params"
    if differs is not None:
        return VerdictCode.BAD_SIGNATURE, differs
    used = await tx.one(
        select(decisions.c.decision_id).where(
            decisions.c.tenant_id == tx.tenant,
            decisions.c.approver == decision.approver,
            decisions.c.nonce == claims.jti,
            decisions.c.verdict == VerdictCode.ACCEPTED.value,
        )
    )
    if used is not None:
        return VerdictCode.USED_SIGNATURE, "this signature has counted already"
    return _Proof(kid, claims)


def _signs_edit(claims: DecisionClaims, decision: Decision) -> bool:
    """Return whether the claims name an edit's params, by the digest of their canonical JSON."""
    if decision.params is None:
        return claims.edited is None
    try:
        return claims.edited == digest(decision.params)
    except NotCanonical:
        return False  # nobody can have signed them, and no tool takes them


async def _may_decide(
    tx: Transaction,
    decision: Decision,
    row: Mapping[str, Any],
    proof: _Proof,
    assurance: Assurance,
) -> _Refusal | None:
    if Assurance(row["assurance"]).stricter(assurance) is Assurance.SIGNED and not proof.verified:
        return VerdictCode.UNSIGNED, "only signed decisions count here"
    vote = await _vote(tx, decision.approver)
    refused = refusal(needs_of(row).requirements, vote, requesters(row))
    if refused is not None:
        return refused
    voted = await tx.all(
        select(decisions.c.approver).where(
            decisions.c.tenant_id == tx.tenant,
            decisions.c.approval_id == decision.approval_id,
            decisions.c.verdict == VerdictCode.ACCEPTED.value,
        )
    )
    counted = {folded(one["approver"]) for one in voted}
    if folded(decision.approver) in counted and decision.outcome is DecisionOutcome.APPROVE:
        return VerdictCode.ALREADY_VOTED, f"{decision.approver} counts once"
    return None


async def _vote(tx: Transaction, approver: str) -> Vote:
    return Vote(approver, (await principals.find(tx, [approver]))[approver].roles)


async def _check_edit(
    tx: Transaction,
    decision: Decision,
    row: Mapping[str, Any],
    proof: _Proof,
    check_edit: CheckEdit,
) -> Edited | _Refusal:
    vote = await _vote(tx, decision.approver)
    if not may_edit(needs_of(row).requirements, vote.roles):
        return VerdictCode.NOT_PERMITTED, f"{decision.approver} may decide, but not edit"
    checked = check_edit(row, decision.params or {})
    if isinstance(checked, str):
        return VerdictCode.NOT_EDITABLE, checked
    if checked.params_hash == row["params_hash"]:
        return VerdictCode.NOT_EDITABLE, "the edit changes nothing"
    taken = await tx.one(
        select(effects.c.entry_id, effects.c.state).where(
            effects.c.tenant_id == tx.tenant,
            effects.c.tool == row["tool"],
            effects.c.key.in_([row["key"], checked.key]),
            effects.c.state.not_in(_SETTLED),
        )
    )
    if taken is not None:
        return VerdictCode.NOT_EDITABLE, f"its key has entry {taken['entry_id']} ({taken['state']})"
    return checked


async def _apply(
    tx: Transaction,
    decision: Decision,
    row: Mapping[str, Any],
    proof: _Proof,
    edited: Edited | None,
    assurance: Assurance,
) -> tuple[ApprovalState, str]:
    """Let an accepted decision count; returns the state of the request then, and why."""
    state, message, verified = ApprovalState.APPROVED, "", proof.verified
    match decision.outcome:
        case DecisionOutcome.REJECT:
            state, message = ApprovalState.REJECTED, f"rejected by {decision.approver}"
        case DecisionOutcome.EDIT:
            state, message = ApprovalState.SUPERSEDED, f"edited by {decision.approver}"
        case DecisionOutcome.APPROVE:
            needed = Assurance(row["assurance"]).stricter(assurance)
            votes = await votes_now(tx, decision.approval_id, needed)
            lacking = missing(needs_of(row).requirements, votes, requesters(row))
            if lacking is not None:
                return ApprovalState.PENDING, f"approved by {decision.approver}; so far {lacking}"
            message = f"approved by {', '.join(vote.approver for vote in votes)}"
            verified = verified and await _all_verified(tx, decision.approval_id)
    await tx.execute(
        update(approvals)
        .where(
            approvals.c.tenant_id == tx.tenant,
            approvals.c.approval_id == decision.approval_id,
            approvals.c.state == "pending",
        )
        .values(state=state.value, decided_by=decision.approver, verified=verified)
    )
    tx.event(
        row["run_id"],
        f"approval.{state}",
        step_id=row["step_id"],
        approval_id=decision.approval_id,
        params_hash=row["params_hash"],
        edited_hash=edited.params_hash if edited else None,
        verified=verified,
    )
    return state, message


async def _all_verified(tx: Transaction, approval_id: str) -> bool:
    unproven = await tx.one(
        select(decisions.c.decision_id).where(
            decisions.c.tenant_id == tx.tenant,
            decisions.c.approval_id == approval_id,
            decisions.c.verdict == VerdictCode.ACCEPTED.value,
            decisions.c.outcome == DecisionOutcome.APPROVE.value,
            decisions.c.verified.is_(False),
        )
    )
    return unproven is None


def _judged_before(recorded: Mapping[str, Any], row: Mapping[str, Any] | None) -> Judged:
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


def _verdict(
    asked: VerifyDecision,
    code: VerdictCode,
    message: str,
    *,
    row: Mapping[str, Any] | None,
    proof: _Proof,
) -> Verdict:
    return Verdict(
        decision_id=asked.decision_id,
        approval_id=asked.decision.approval_id[:400] if asked.decision else "",
        code=code,
        message=message,
        state=ApprovalState(row["state"]) if row else None,
        verified=proof.verified,
    )


async def _record(
    tx: Transaction,
    asked: VerifyDecision,
    verdict: Verdict,
    row: Mapping[str, Any] | None,
    proof: _Proof,
    edited: Edited | None,
) -> None:
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
