"""Decisions: each delivery gets one recorded verdict, and the approval's row decides (G3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select, update

from activities.ledger import principals
from activities.ledger.approvals import locked
from activities.ledger.edits import CheckEdit, Edited, checked_edit
from activities.ledger.proofs import Proof, prove
from activities.ledger.standing_uses import give_back
from activities.ledger.store import Transaction
from activities.ledger.tables import approvals, decisions
from activities.ledger.verdicts import Judged, judged_before, record, verdict_on
from activities.ledger.votes import (
    Refusal,
    Vote,
    folded,
    missing,
    needs_of,
    refusal,
    requesters,
    unknown_requester,
    votes_now,
)
from workflows.contracts import (
    ApprovalState,
    Assurance,
    Decision,
    DecisionOutcome,
    VerdictCode,
    VerifyDecision,
)


@dataclass(frozen=True)
class _Counts:
    """That a decision counts: what follows for its request, and why."""

    state: ApprovalState
    message: str
    verified: bool
    edited: Edited | None = None


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
        return judged_before(recorded, row)
    found: Proof | Refusal
    counts: _Counts | Refusal
    if decision is None:
        found, counts = Proof(), (VerdictCode.MALFORMED, asked.refused or "not a decision")
    else:
        found = await prove(tx, asked.run_id, decision)
        counts = await _weigh(tx, decision, row, found, assurance, check_edit)
    proof = found if isinstance(found, Proof) else Proof()
    if not isinstance(counts, _Counts):
        code, message = counts
        state = ApprovalState(row["state"]) if row else None
        verdict = verdict_on(asked, code, message, state, proof)
        await record(tx, asked, verdict, row, proof, None)
        return Judged(verdict)
    assert decision is not None and row is not None, "nothing else can count"
    verdict = verdict_on(asked, VerdictCode.ACCEPTED, counts.message, counts.state, proof)
    await record(tx, asked, verdict, row, proof, counts.edited)
    if counts.state is not ApprovalState.PENDING:
        await _close(tx, decision, row, counts)
    return Judged(verdict, counts.edited.params if counts.edited else None)


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


def judge(decision: Decision, row: Mapping[str, Any] | None, now_ms: int) -> Refusal | None:
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


async def _weigh(
    tx: Transaction,
    decision: Decision,
    row: Mapping[str, Any] | None,
    found: Proof | Refusal,
    assurance: Assurance,
    check_edit: CheckEdit,
) -> _Counts | Refusal:
    """Return what follows from a decision, or why it does not count."""
    refused = judge(decision, row, tx.now_ms)
    if refused is not None or row is None:
        assert refused is not None, "there is nothing to decide"
        return refused
    if not isinstance(found, Proof):
        return found
    assurance = Assurance(row["assurance"]).stricter(assurance)
    if assurance is Assurance.SIGNED and not found.verified:
        return VerdictCode.UNSIGNED, "only signed decisions count here"
    requirements = needs_of(row).requirements
    unknown = await unknown_requester(tx, row["run_id"], requirements, assurance)
    if unknown is not None:
        return VerdictCode.FOUR_EYES, unknown
    people = await principals.find(tx, [decision.approver])
    vote = Vote(decision.approver, people[decision.approver].roles)
    refused = refusal(requirements, vote, await requesters(tx, row))
    if refused is not None:
        return refused
    match decision.outcome:
        case DecisionOutcome.REJECT:
            message = f"rejected by {decision.approver}"
            return _Counts(ApprovalState.REJECTED, message, found.verified)
        case DecisionOutcome.EDIT:
            edited = await checked_edit(tx, decision, row, vote, check_edit)
            if not isinstance(edited, Edited):
                return edited
            message = f"edited by {decision.approver}"
            return _Counts(ApprovalState.SUPERSEDED, message, found.verified, edited)
        case DecisionOutcome.APPROVE:
            return await _with_vote(tx, row, vote, found, assurance)


async def _with_vote(
    tx: Transaction,
    row: Mapping[str, Any],
    vote: Vote,
    proof: Proof,
    assurance: Assurance,
) -> _Counts | Refusal:
    """Return where a request stands with one more yes."""
    recorded = await tx.all(
        select(decisions.c.approver, decisions.c.verified, decisions.c.standing_id).where(
            decisions.c.tenant_id == tx.tenant,
            decisions.c.approval_id == row["approval_id"],
            decisions.c.verdict == VerdictCode.ACCEPTED.value,
        )
    )
    needs = needs_of(row)
    votes = await votes_now(tx, row["approval_id"], assurance, in_advance=needs.standing)
    # Whose standing approval has ended since may look at the call and vote in person.
    in_person = {folded(one["approver"]) for one in recorded if one["standing_id"] is None}
    if folded(vote.approver) in in_person | {folded(one.approver) for one in votes}:
        return VerdictCode.ALREADY_VOTED, f"{vote.approver} counts once"
    votes = [*votes, vote]
    lacking = missing(needs.requirements, votes, await requesters(tx, row))
    if lacking is not None:
        message = f"approved by {vote.approver}; so far {lacking}"
        return _Counts(ApprovalState.PENDING, message, proof.verified)
    verified = proof.verified and all(one["verified"] for one in recorded)
    message = f"approved by {', '.join(one.label for one in votes)}"
    return _Counts(ApprovalState.APPROVED, message, verified)


async def _close(
    tx: Transaction, decision: Decision, row: Mapping[str, Any], counts: _Counts
) -> None:
    """Let a request's row follow the decision that has decided it."""
    await tx.execute(
        update(approvals)
        .where(
            approvals.c.tenant_id == tx.tenant,
            approvals.c.approval_id == decision.approval_id,
            approvals.c.state == "pending",
        )
        .values(state=counts.state.value, decided_by=decision.approver, verified=counts.verified)
    )
    tx.event(
        row["run_id"],
        f"approval.{counts.state}",
        step_id=row["step_id"],
        approval_id=decision.approval_id,
        params_hash=row["params_hash"],
        edited_hash=counts.edited.params_hash if counts.edited else None,
        verified=counts.verified,
    )
    if counts.state is not ApprovalState.APPROVED:
        await give_back(tx, row["run_id"], approval_id=decision.approval_id)
