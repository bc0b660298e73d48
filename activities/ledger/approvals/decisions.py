"""Decisions: each delivery gets one recorded verdict, and the approval's row decides (G3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from surehand.activities.ledger.approvals.requests import locked
from surehand.activities.ledger.approvals.standing_grants import give_back
from surehand.activities.ledger.approvals.votes import (
    Vote,
    accepted_decisions,
    folded,
    may_edit,
    missing,
    needs_of,
    refusal,
    requesters,
    unknown_requester,
    votes_now,
)
from surehand.activities.ledger.core.statements import insert_row, rows_of, update_rows
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import approvals, decisions, effects, has_expired
from surehand.activities.ledger.people import principals
from surehand.activities.ledger.people.proofs import Proof, Refusal, prove_decision
from surehand.activities.ledger.steps.entries import Covered
from surehand.workflows.contracts.approvals import (
    ApprovalState,
    Assurance,
    Decision,
    DecisionOutcome,
    Scope,
    Verdict,
    VerdictCode,
    VerifyDecision,
)

#: Entries in these states leave their key free for other params.
_FREE = ("failed", "compensated")


@dataclass(frozen=True)
class Edited:
    """Other params for a call, as its tool takes them."""

    params: dict[str, Any]
    params_hash: str
    key: str


#: Validates an edit with the tool of an approval's row; a text says why it cannot be.
CheckEdit = Callable[[Mapping[str, Any], Mapping[str, Any]], Edited | str]
#: Says whether a scope covers the call of an approval's row.
CoversRow = Callable[[Mapping[str, Any], Scope], Covered | None]


def checked_edit(
    tx: Transaction,
    decision: Decision,
    row: Mapping[str, Any],
    vote: Vote,
    check_edit: CheckEdit,
) -> Edited | Refusal:
    """Return the params that an edit of an approval's row asks for, or why it cannot be."""
    if not may_edit(needs_of(row).requirements, vote.roles):
        return VerdictCode.NOT_PERMITTED, f"{decision.approver} may decide, but not edit"
    checked = check_edit(row, decision.params or {})
    if isinstance(checked, str):
        return VerdictCode.NOT_EDITABLE, checked
    if checked.params_hash == row["params_hash"]:
        return VerdictCode.NOT_EDITABLE, "the edit changes nothing"
    taken = tx.one(
        rows_of(effects, effects.c.entry_id, effects.c.state, tool=row["tool"]).where(
            effects.c.key.in_([row["key"], checked.key]), effects.c.state.not_in(_FREE)
        )
    )
    if taken is not None:
        return VerdictCode.NOT_EDITABLE, f"its key has entry {taken['entry_id']} ({taken['state']})"
    return checked


@dataclass(frozen=True)
class DecisionVerdict:
    """A verdict, and the params of an edit that counts."""

    verdict: Verdict
    params: dict[str, Any] | None = None


def judged_before(recorded: Mapping[str, Any], row: Mapping[str, Any] | None) -> DecisionVerdict:
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
    return DecisionVerdict(verdict, recorded["edited"] if counted else None)


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


def record(
    tx: Transaction,
    asked: VerifyDecision,
    verdict: Verdict,
    row: Mapping[str, Any] | None,
    proof: Proof,
    edited: Edited | None,
) -> None:
    """Write down a delivery, its verdict and what proves it."""
    decision = asked.decision
    tx.execute(
        insert_row(
            decisions,
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
        proof=proof.assurance.value,
        kid=proof.kid,
        reason=None if accepted else verdict.code.value,
        value_by=decision.approver if accepted and decision and _gives_value(decision) else None,
    )


def _gives_value(decision: Decision) -> bool:
    """Return whether a decision that counts gives its run a value: a model is told of both."""
    match decision.outcome:
        case DecisionOutcome.EDIT:
            return True
        case DecisionOutcome.REJECT:
            return bool(decision.reason)
        case DecisionOutcome.APPROVE:
            return False


@dataclass(frozen=True)
class _Counts:
    """That a decision counts: what follows for its request, and why."""

    state: ApprovalState
    message: str
    verified: bool
    edited: Edited | None = None


def verify(
    tx: Transaction,
    asked: VerifyDecision,
    *,
    assurance: Assurance,
    check_edit: CheckEdit,
    covers: CoversRow,
) -> DecisionVerdict:
    """Return the verdict on a delivered decision, and apply it if it is accepted.

    Verifying the same delivery again returns the recorded verdict.

    Args:
        assurance: What this worker asks for; the request's own may be stricter.
        check_edit: Validates the params of an edit.
        covers: Says which standing approvals cover the call that is asked about.
    """
    decision = asked.decision
    # Locked before looking for a verdict: the same delivery may be verified twice at once.
    row = locked(tx, decision.approval_id) if decision else None
    if row is not None and row["run_id"] != asked.run_id:
        row = None
    recorded = tx.one(rows_of(decisions, decision_id=asked.decision_id))
    if recorded is not None:
        if _is_of(recorded, asked):
            return judged_before(recorded, row)
        # Nothing is to lend its number to something else: this is the last look before a call.
        state = ApprovalState(row["state"]) if row else None
        said = "another decision was judged under its number: send it again"
        return DecisionVerdict(verdict_on(asked, VerdictCode.MALFORMED, said, state, Proof()))
    found: Proof | Refusal
    counts: _Counts | Refusal
    if decision is None:
        found, counts = Proof(), (VerdictCode.MALFORMED, asked.refused or "not a decision")
    else:
        found = prove_decision(tx, asked.run_id, decision)
        counts = _weigh(tx, decision, row, found, assurance, check_edit, covers)
    proof = found if isinstance(found, Proof) else Proof()
    if not isinstance(counts, _Counts):
        code, message = counts
        state = ApprovalState(row["state"]) if row else None
        verdict = verdict_on(asked, code, message, state, proof)
        record(tx, asked, verdict, row, proof, None)
        return DecisionVerdict(verdict)
    assert decision is not None and row is not None, "nothing else can count"
    verdict = verdict_on(asked, VerdictCode.ACCEPTED, counts.message, counts.state, proof)
    record(tx, asked, verdict, row, proof, counts.edited)
    if counts.state is not ApprovalState.PENDING:
        _close(tx, decision, row, counts)
    return DecisionVerdict(verdict, counts.edited.params if counts.edited else None)


def _is_of(recorded: Mapping[str, Any], asked: VerifyDecision) -> bool:
    """Return whether a row is of this very delivery."""
    one = asked.decision
    said = (one.approver, one.outcome.value, one.params_hash[:200]) if one else ("", "", "")
    about = one.approval_id[:400] if one else ""
    names = ("approver", "outcome", "params_hash", "approval_id")
    return tuple(recorded[name] for name in names) == (*said, about)


def decided(tx: Transaction, row: Mapping[str, Any]) -> Decision | None:
    """Return what has rejected or edited a request; ``None`` if nothing has."""
    outcomes = {"rejected": DecisionOutcome.REJECT, "superseded": DecisionOutcome.EDIT}
    outcome = outcomes.get(row["state"])
    if outcome is None:
        return None
    found = tx.one(
        rows_of(
            decisions,
            approval_id=row["approval_id"],
            verdict=VerdictCode.ACCEPTED.value,
            outcome=outcome.value,
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
    if row["state"] == "expired" or has_expired(row, now_ms):
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


def _weigh(
    tx: Transaction,
    decision: Decision,
    row: Mapping[str, Any] | None,
    found: Proof | Refusal,
    assurance: Assurance,
    check_edit: CheckEdit,
    covers: CoversRow,
) -> _Counts | Refusal:
    """Return what follows from a decision, or why it does not count."""
    if row is not None:
        assurance = Assurance(row["assurance"]).stricter(assurance)
        if _lacks_votes(tx, row, assurance, covers):
            row = {**row, "state": ApprovalState.PENDING.value}
    refused = judge(decision, row, tx.now_ms)
    if refused is not None or row is None:
        assert refused is not None, "there is nothing to decide"
        return refused
    if not isinstance(found, Proof):
        return found
    if not found.assurance.satisfies(assurance):
        if assurance.by_passkey:
            return VerdictCode.PASSKEY_NEEDED, f"decisions {assurance.as_text()} here"
        return VerdictCode.UNSIGNED, "only signed decisions count here"
    requirements = needs_of(row).requirements
    unknown = unknown_requester(tx, row["run_id"], requirements, assurance)
    if unknown is not None:
        return VerdictCode.FOUR_EYES, unknown
    people = principals.find_principals(tx, [decision.approver])
    vote = Vote(decision.approver, people[decision.approver].roles)
    refused = refusal(requirements, vote, requesters(tx, row, requirements))
    if refused is not None:
        return refused
    match decision.outcome:
        case DecisionOutcome.REJECT:
            message = f"rejected by {decision.approver}"
            return _Counts(ApprovalState.REJECTED, message, found.verified)
        case DecisionOutcome.EDIT:
            edited = checked_edit(tx, decision, row, vote, check_edit)
            if not isinstance(edited, Edited):
                return edited
            message = f"edited by {decision.approver}"
            return _Counts(ApprovalState.SUPERSEDED, message, found.verified, edited)
        case DecisionOutcome.APPROVE:
            return _with_vote(tx, row, vote, found, assurance, covers)


def _lacks_votes(
    tx: Transaction, row: Mapping[str, Any], assurance: Assurance, covers: CoversRow
) -> bool:
    """Return whether a row says approved, but the votes do not, and no call was made by it.

    Workers write the row: whoever has their rights could keep a no from being put on record.
    """
    if row["state"] != ApprovalState.APPROVED:
        return False
    used_by = row["consumed_entry"]
    if used_by and tx.one(rows_of(effects, effects.c.entry_id, entry_id=used_by)) is not None:
        return False
    recorded = accepted_decisions(tx, row["approval_id"])
    if any(one["outcome"] != DecisionOutcome.APPROVE for one in recorded):
        return False  # Somebody has said no; that the row does not say so changes nothing.
    return _missing(tx, row, _votes(tx, row, recorded, assurance, covers)) is not None


def _votes(
    tx: Transaction,
    row: Mapping[str, Any],
    recorded: Iterable[Mapping[str, Any]],
    assurance: Assurance,
    covers: CoversRow,
) -> list[Vote]:
    in_advance = partial(covers, row) if needs_of(row).standing else None
    return votes_now(tx, row["approval_id"], recorded, assurance, in_advance=in_advance)


def _missing(tx: Transaction, row: Mapping[str, Any], votes: Sequence[Vote]) -> str | None:
    requirements = needs_of(row).requirements
    return missing(requirements, votes, requesters(tx, row, requirements))


def _with_vote(
    tx: Transaction,
    row: Mapping[str, Any],
    vote: Vote,
    proof: Proof,
    assurance: Assurance,
    covers: CoversRow,
) -> _Counts | Refusal:
    """Return where a request stands with one more yes."""
    recorded = accepted_decisions(tx, row["approval_id"])
    votes = _votes(tx, row, recorded, assurance, covers)
    # Whose standing approval has ended since may look at the call and vote in person.
    in_person = {folded(one["approver"]) for one in recorded if one["standing_id"] is None}
    if folded(vote.approver) in in_person | {folded(one.approver) for one in votes}:
        return VerdictCode.ALREADY_VOTED, f"{vote.approver} counts once"
    votes = [*votes, vote]
    lacking = _missing(tx, row, votes)
    if lacking is not None:
        message = f"approved by {vote.approver}; so far {lacking}"
        return _Counts(ApprovalState.PENDING, message, proof.verified)
    verified = proof.verified and all(one["verified"] for one in recorded)
    message = f"approved by {', '.join(one.label for one in votes)}"
    return _Counts(ApprovalState.APPROVED, message, verified)


def _close(tx: Transaction, decision: Decision, row: Mapping[str, Any], counts: _Counts) -> None:
    """Let a request's row follow the decision that has decided it."""
    tx.execute(
        update_rows(
            approvals, approval_id=decision.approval_id, state=row["state"], consumed_entry=None
        ).values(state=counts.state.value, decided_by=decision.approver, verified=counts.verified)
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
        give_back(tx, row["run_id"], approval_id=decision.approval_id)
