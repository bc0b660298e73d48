"""Decisions: each delivery gets one recorded verdict, and the approval's row decides (G3).

That a halt is lifted is decided by the same votes and proofs.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from surehand.activities.ledger.approvals import votes as vote_rows
from surehand.activities.ledger.approvals.requests import lock_approval
from surehand.activities.ledger.approvals.votes import Vote, needs_of
from surehand.activities.ledger.core.statements import rows_of, update_rows
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import (
    decisions,
    effects,
    halt_votes,
    halts,
    has_expired,
)
from surehand.activities.ledger.halts import (
    Halt,
    HaltError,
    LiftPolicy,
    read_halt,
    request_clock,
)
from surehand.activities.ledger.people import principals
from surehand.activities.ledger.people.proofs import Proof, Refusal, prove_decision
from surehand.activities.ledger.steps.entries import Covered
from surehand.process.program import shared_program
from surehand.verify import fold_name
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
from surehand.workflows.plan.policy import Requirement

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


def _validate_edit(
    tx: Transaction,
    decision: Decision,
    row: Mapping[str, Any],
    vote: Vote,
    check_edit: CheckEdit,
) -> Edited | Refusal:
    """Return the params that an edit of an approval's row asks for, or why it cannot be."""
    if not vote_rows.may_edit(needs_of(row).requirements, vote.roles):
        return VerdictCode.NOT_PERMITTED, f"{decision.approver} may decide, but not edit"
    checked = check_edit(row, decision.params or {})
    if isinstance(checked, str):
        return VerdictCode.NOT_EDITABLE, checked
    if checked.params_hash == row["params_hash"]:
        return VerdictCode.NOT_EDITABLE, "the edit changes nothing"
    held = rows_of(effects, "entry_id", "state", tool=row["tool"])
    held = held.where(effects.c.key.in_([row["key"], checked.key]))
    taken = tx.one(held.where(effects.c.state.not_in(_FREE)))
    if taken is not None:
        return VerdictCode.NOT_EDITABLE, f"its key has entry {taken['entry_id']} ({taken['state']})"
    return checked


@dataclass(frozen=True)
class DecisionVerdict:
    """A verdict, and the params of an edit that counts."""

    verdict: Verdict
    params: dict[str, Any] | None = None


def _record_decision(
    tx: Transaction,
    asked: VerifyDecision,
    verdict: Verdict,
    row: Mapping[str, Any] | None,
    proof: Proof,
    counts: _Counts | None,
) -> None:
    """Write down a delivery, its verdict and what proves it."""
    decision, deputy_for = asked.decision, counts.vote.deputy_for if counts else None
    tx.insert_row(
        decisions,
        decision_id=asked.decision_id,
        run_id=asked.run_id,
        **_said(asked),
        reason=decision.reason if decision else "",
        verdict=verdict.code.value,
        message=verdict.message,
        verified=verdict.verified,
        edited=counts.edited.params if counts and counts.edited else None,
        signature=decision.signature if decision and proof.verified else None,
        kid=proof.kid,
        nonce=proof.claims.jti if proof.claims else None,
        at_ms=tx.now_ms,
        deputy_for=deputy_for,
    )
    tx.event(
        asked.run_id,
        "decision.accepted" if counts else "decision.refused",
        step_id=row["step_id"] if row else None,
        decision_id=asked.decision_id,
        approval_id=verdict.approval_id,
        outcome=decision.outcome.value if decision else None,
        approver=decision.approver if decision else None,
        deputy_for=deputy_for,
        verified=verdict.verified,
        proof=proof.assurance.value,
        kid=proof.kid,
        reason=None if counts else verdict.code.value,
        value_by=decision.approver if counts and decision and _gives_value(decision) else None,
        tool=row["tool"] if counts and row else None,
        waited_ms=max(0, tx.now_ms - row["requested_ms"]) if counts and row else None,
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
    vote: Vote
    edited: Edited | None = None


def verify_decision(
    tx: Transaction,
    asked: VerifyDecision,
    *,
    assurance: Assurance,
    check_edit: CheckEdit,
    covers: CoversRow,
) -> DecisionVerdict:
    """Return the verdict on a delivered decision, and apply it if it is accepted.

    Verifying the same delivery again returns the recorded verdict. The request may ask for more
    than this worker's ``assurance``.
    """
    decision = asked.decision
    # Locked before looking for a verdict: the same delivery may be verified twice at once.
    row = lock_approval(tx, decision.approval_id) if decision else None
    if row is not None and row["run_id"] != asked.run_id:
        row = None
    state = ApprovalState(row["state"]) if row else None
    verdict = Verdict(
        decision_id=asked.decision_id,
        approval_id=_said(asked)["approval_id"],
        code=VerdictCode.MALFORMED,
        message=asked.refused or "not a decision",
        state=state,
    )
    recorded = tx.one(rows_of(decisions, decision_id=asked.decision_id))
    if recorded is not None:
        if all(recorded[name] == value for name, value in _said(asked).items()):
            code, message = VerdictCode(recorded["verdict"]), recorded["message"]
            before = {"code": code, "message": message, "verified": recorded["verified"]}
            edit = recorded["edited"] if code is VerdictCode.ACCEPTED else None
            return DecisionVerdict(verdict.model_copy(update=before), edit)
        # Nothing is to lend its number to something else: this is the last look before a call.
        said = "another decision was judged under its number: send it again"
        return DecisionVerdict(verdict.model_copy(update={"message": said}))
    if decision is None:
        _record_decision(tx, asked, verdict, row, Proof(), None)
        return DecisionVerdict(verdict)
    found = prove_decision(tx, asked.run_id, decision)
    counts = _weigh_decision(tx, decision, row, found, assurance, check_edit, covers)
    proof = found if isinstance(found, Proof) else Proof()
    if not isinstance(counts, _Counts):
        code, message = counts
        told = {"code": code, "message": message, "verified": proof.verified}
        verdict = verdict.model_copy(update=told)
        _record_decision(tx, asked, verdict, row, proof, None)
        return DecisionVerdict(verdict)
    told = {"code": VerdictCode.ACCEPTED, "message": counts.message, "state": counts.state}
    verdict = verdict.model_copy(update={**told, "verified": proof.verified})
    _record_decision(tx, asked, verdict, row, proof, counts)
    edited = counts.edited
    if counts.state is not ApprovalState.PENDING:
        assert row is not None, "nothing else can count"
        edited_hash = edited.params_hash if edited else None
        by, verified = counts.vote.short_label, counts.verified
        vote_rows.settle_request(
            tx, row, counts.state, by, verified=verified, edited_hash=edited_hash
        )
        if counts.state is not ApprovalState.APPROVED:
            vote_rows.give_back_uses(tx, row["run_id"], approval_id=decision.approval_id)
    return DecisionVerdict(verdict, edited.params if edited else None)


def _said(asked: VerifyDecision) -> dict[str, str]:
    """Return what a delivery's row says of its decision, or of what was none."""
    one = asked.decision
    return {
        "approval_id": one.approval_id[:400] if one else "",
        "approver": one.approver if one else "",
        "outcome": one.outcome.value if one else "",
        "params_hash": one.params_hash[:200] if one else "",
    }


def find_ending_decision(tx: Transaction, row: Mapping[str, Any]) -> Decision | None:
    """Return what has rejected or edited a request; ``None`` if nothing has."""
    outcomes = {"rejected": DecisionOutcome.REJECT, "superseded": DecisionOutcome.EDIT}
    outcome = outcomes.get(row["state"])
    if outcome is None:
        return None
    counted = {"verdict": VerdictCode.ACCEPTED.value, "outcome": outcome.value}
    found = tx.one(rows_of(decisions, approval_id=row["approval_id"], **counted))
    assert found is not None, "the row and the decision are written in one transaction"
    return Decision(
        approval_id=row["approval_id"],
        params_hash=row["params_hash"],
        outcome=outcome,
        approver=found["approver"],
        reason=found["reason"],
        params=found["edited"],
    )


def judge_decision(
    decision: Decision, row: Mapping[str, Any] | None, now_ms: int
) -> Refusal | None:
    """Return why a decision on an approval row comes too late or is for something else; pure."""
    if row is None:
        named = repr(decision.approval_id[:400])
        return VerdictCode.UNKNOWN_APPROVAL, f"this run has no approval request {named}"
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
        decided = f"the decision is for params {decision.params_hash[:200]}, the request for others"
        # The right hash is not told: whoever copies it from here approves unseen.
        return VerdictCode.WRONG_HASH, f"{decided}: see `{shared_program()} show {row['run_id']}`"
    return None


def _weigh_decision(
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
    clock_ms = tx.now_ms if row is None else request_clock(tx, row)
    refused = judge_decision(decision, row, clock_ms)
    if refused is not None or row is None:
        assert refused is not None, "there is nothing to decide"
        return refused
    if not isinstance(found, Proof):
        return found
    if not found.assurance.satisfies(assurance):
        if assurance.by_passkey:
            return VerdictCode.PASSKEY_NEEDED, f"decisions {assurance.as_text()} here"
        return VerdictCode.UNSIGNED, "only signed decisions count here: sign with a key (--key)"
    if found.assurance is Assurance.CHAT and assurance is not Assurance.CHAT:
        return VerdictCode.NOT_PERMITTED, "no policy of this call takes votes from the chat"
    requirements = needs_of(row).requirements
    unknown = vote_rows.unknown_requester(tx, row["run_id"], requirements, assurance)
    if unknown is not None:
        return VerdictCode.FOUR_EYES, unknown
    vote = Vote(decision.approver, principals.find_principal(tx, decision.approver).roles)
    asked_by = vote_rows.find_requesters(tx, row, requirements)
    refused = vote_rows.refuse_vote(requirements, vote, asked_by)
    if refused is not None and refused[0] is VerdictCode.NOT_PERMITTED:
        vote = vote_rows.vote_as_deputy(tx, row, vote, requirements, asked_by)
        refused = vote_rows.refuse_vote(requirements, vote, asked_by)
    if refused is not None:
        return refused
    match decision.outcome:
        case DecisionOutcome.REJECT:
            message = f"rejected by {vote.label}"
            return _Counts(ApprovalState.REJECTED, message, found.verified, vote)
        case DecisionOutcome.EDIT:
            edited = _validate_edit(tx, decision, row, vote, check_edit)
            if not isinstance(edited, Edited):
                return edited
            message = f"edited by {decision.approver}"
            return _Counts(ApprovalState.SUPERSEDED, message, found.verified, vote, edited)
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
    if used_by and tx.has(rows_of(effects, effects.c.entry_id, entry_id=used_by)):
        return False
    recorded = vote_rows.accepted_decisions(tx, row["approval_id"])
    if any(one["outcome"] != DecisionOutcome.APPROVE for one in recorded):
        return False  # Somebody has said no; that the row does not say so changes nothing.
    return _count_votes(tx, row, recorded, assurance, covers)[1] is not None


def _count_votes(
    tx: Transaction,
    row: Mapping[str, Any],
    recorded: Iterable[Mapping[str, Any]],
    assurance: Assurance,
    covers: CoversRow,
    another: Vote | None = None,
) -> tuple[list[Vote], str | None]:
    """Return the votes that stand, with another one, and what they do not satisfy."""
    needs = needs_of(row)
    in_advance = partial(covers, row) if needs.standing else None
    about = (row["approval_id"], recorded, assurance)
    votes = vote_rows.votes_now(tx, *about, in_advance=in_advance, call=row)
    votes += [] if another is None else [another]
    asked_by = vote_rows.find_requesters(tx, row, needs.requirements)
    return votes, vote_rows.missing_votes(needs.requirements, votes, asked_by)


def _with_vote(
    tx: Transaction,
    row: Mapping[str, Any],
    vote: Vote,
    proof: Proof,
    assurance: Assurance,
    covers: CoversRow,
) -> _Counts | Refusal:
    """Return where a request stands with one more yes."""
    recorded = vote_rows.accepted_decisions(tx, row["approval_id"])
    votes, lacking = _count_votes(tx, row, recorded, assurance, covers, vote)
    # Whose standing approval has ended since may look at the call and vote in person.
    in_person = [one["approver"] for one in recorded if one["standing_id"] is None]
    voted = {fold_name(name) for name in (*in_person, *(one.approver for one in votes[:-1]))}
    if fold_name(vote.approver) in voted:
        return VerdictCode.ALREADY_VOTED, f"{vote.approver} counts once"
    if vote.deputy_for is not None and fold_name(vote.deputy_for) in {
        *voted,
        *(fold_name(one.deputy_for) for one in votes[:-1] if one.deputy_for is not None),
    }:
        return VerdictCode.ALREADY_VOTED, f"{vote.deputy_for} counts once"
    if lacking is not None:
        message = f"approved by {vote.label}; so far {lacking}"
        return _Counts(ApprovalState.PENDING, message, proof.verified, vote)
    verified = proof.verified and all(one["verified"] for one in recorded)
    message = f"approved by {', '.join(one.label for one in votes)}"
    return _Counts(ApprovalState.APPROVED, message, verified, vote)


@dataclass(frozen=True)
class Lifting:
    """Who has to say yes before a halt is lifted."""

    policy: LiftPolicy | None = None
    """As the file of limits has it here: it counts beside what the halt itself says."""
    assurance: Assurance = Assurance.OPEN
    """What decisions need here in any case."""

    def read_needs(self, halt: Halt) -> tuple[list[Requirement], Assurance]:
        """Return whose votes are asked for, and what has to prove each."""
        needs = [one for one in (halt.needs, self.policy) if one is not None]
        assurance = self.assurance
        for one in needs:
            assurance = assurance.stricter(Assurance(one.proof))
        parts = {"quorum", "roles", "four_eyes"}
        return [Requirement(**one.model_dump(include=parts)) for one in needs], assurance

    def count_votes(self, tx: Transaction, halt: Halt) -> list[Vote]:
        """Return the votes that stand now: for this halt as it was made, and proven again."""
        rows = rows_of(halt_votes, halt_id=halt.halt_id, params_hash=halt.params_hash)
        about = {"outcome": DecisionOutcome.APPROVE.value, "standing_id": None}
        about |= {"approval_id": halt.halt_id, "run_id": halt.halt_id}
        recorded = [row | about for row in tx.all(rows)]
        _, assurance = self.read_needs(halt)
        return vote_rows.votes_now(tx, halt.halt_id, recorded, assurance, in_advance=None)


def vote_for_lift(
    tx: Transaction, decision: Decision, lifting: Lifting, *, must_count: bool = False
) -> str | None:
    """Record a yes to lifting a halt, unless there are enough; return what is lacking still.

    It is a decision whose run and approval are the halt. Raises ``HaltError`` if it does not count;
    with ``must_count`` also if none is lacking.
    """
    halt = _lock_halt(tx, decision.approval_id)
    asked, assurance = lifting.read_needs(halt)
    votes, by = lifting.count_votes(tx, halt), {halt.halted_by}
    lacking = vote_rows.missing_votes(asked, votes, by)
    if lacking is None and must_count:
        raise HaltError(f"no vote is lacking to lift {halt.halt_id}: whoever owns the ledger does")
    if lacking is None:
        return None
    found = prove_decision(tx, halt.halt_id, decision)
    vote = Vote(decision.approver, principals.find_principal(tx, decision.approver).roles)
    refused = None if isinstance(found, Proof) else found[1]
    if decision.outcome is not DecisionOutcome.APPROVE:
        refused = f"{decision.outcome.value} is no yes"
    elif decision.params_hash != halt.params_hash:
        refused = "it is another halt than the one that was shown"
    elif isinstance(found, Proof) and found.assurance is Assurance.CHAT:
        refused = "no button in a chat lifts a halt"
    elif isinstance(found, Proof) and not found.assurance.satisfies(assurance):
        refused = f"decisions {assurance.as_text()} here"
    elif refused is None and not vote_rows.vote_helps(asked, votes, vote, by):
        refused = f"{vote.approver} has halted, has no role that is asked, or has said yes before"
    if refused is not None or not isinstance(found, Proof):
        raise HaltError(f"{halt.halt_id} stands: so far {lacking}; {refused}")
    tx.insert_row(
        halt_votes,
        vote_id=f"vote-{uuid.uuid4().hex[:12]}",
        halt_id=halt.halt_id,
        approver=decision.approver,
        params_hash=halt.params_hash,
        signature=decision.signature,
        kid=found.kid,
        nonce=found.claims.jti if found.claims else None,
        at_ms=tx.now_ms,
    )
    return vote_rows.missing_votes(asked, [*votes, vote], by)


def lift_halt(tx: Transaction, halt_id: str, actor: str, lifting: Lifting = Lifting()) -> Halt:
    """Let calls begin again that a halt has stopped; raises ``HaltError``.

    Only the role that owns the tables may, once those have said yes whom the halt and the file of
    limits name.
    """
    halt = _lock_halt(tx, halt_id)
    asked, _ = lifting.read_needs(halt)
    votes = lifting.count_votes(tx, halt)
    lacking = vote_rows.missing_votes(asked, votes, {halt.halted_by})
    if lacking is not None:
        raise HaltError(f"{halt_id} stands: so far {lacking}")
    standing = update_rows(halts, halt_id=halt_id, lifted_ms=None)
    tx.execute(standing.values(lifted_ms=tx.now_ms, lifted_by=actor))
    return read_halt(tx, halt_id)


def _lock_halt(tx: Transaction, halt_id: str) -> Halt:
    """Return a halt that stands, whose votes follow one another; raises ``HaltError``."""
    tx.take_turn("halt", halt_id)
    halt = read_halt(tx, halt_id)
    if halt.lifted_ms is not None:
        raise HaltError(f"{halt_id} was lifted already, by {halt.lifted_by}")
    return halt


def list_lift_voters(tx: Transaction, halt_id: str) -> list[str]:
    """Return who has said yes to lifting a halt, oldest first, as people are told."""
    rows = tx.all(rows_of(halt_votes, halt_id=halt_id).order_by(halt_votes.c.at_ms))
    told = [one["approver"] + ("" if one["signature"] else " (unverified)") for one in rows]
    return list(dict.fromkeys(told))
