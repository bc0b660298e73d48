"""Approval rows: requested once, decided once, consumed once (guarantee G3).

The row decides and the run follows it: every change is a guarded update under the row's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import and_, or_

from surehand.activities.ledger.approvals import votes as vote_rows
from surehand.activities.ledger.approvals.votes import needs_of
from surehand.activities.ledger.core.statements import insert_row, rows_of, update_rows
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import approvals, effects, has_expired, runs
from surehand.activities.ledger.halts import request_clock
from surehand.activities.ledger.outbox.notification import Kind
from surehand.activities.ledger.outbox.notification_rows import write_approval
from surehand.activities.ledger.people.starts import find_planners, why_start_unproven
from surehand.activities.ledger.quotas import require_place
from surehand.activities.ledger.steps.entries import (
    NO_IDENTITY,
    ApprovalRefused,
    ClaimRequest,
    ClaimResult,
    Mismatch,
    NotClaimed,
    milliseconds,
)
from surehand.verify import fold_name
from surehand.workflows.contracts.approvals import ApprovalState, Assurance, DecisionOutcome
from surehand.workflows.contracts.effects import undo_text
from surehand.workflows.identity import approval_id as approval_id_of
from surehand.workflows.plan.policy import Needs


def lock_approval(tx: Transaction, approval_id: str) -> Mapping[str, Any] | None:
    """Return an approval's row under its lock; the clock is read once the lock is held."""
    row = tx.one(rows_of(approvals, approval_id=approval_id).with_for_update())
    tx.tick()
    return row


def is_effect_settled(tx: Transaction, call: ClaimRequest) -> bool:
    """Return whether the effect of ``call`` is recorded, so that nobody has to be asked.

    One whose content is gone is not made again, whichever params it had.
    """
    made = {"tool": call.tool, "key": call.key, "state": "committed"}
    rows = tx.all(rows_of(effects, effects.c.identity_hash, **made))
    return any(
        row["identity_hash"] == NO_IDENTITY or call.is_same(row["identity_hash"]) for row in rows
    )


def _bound_to(call: ClaimRequest) -> dict[str, str]:
    """Return what an approval is bound to, beside the params."""
    return {
        "run_id": call.run_id,
        "step_id": call.step_id,
        "tool": call.tool,
        "tool_version": call.tool_version,
        "key": call.key,
        "user_id": call.user,
    }


def request_approval(
    tx: Transaction,
    call: ClaimRequest,
    *,
    number: int,
    description: str,
    needs: Needs,
    assurance: Assurance = Assurance.OPEN,
    editors: Sequence[str] = (),
    answers: Sequence[Any] = (),
    secret: bool = False,
    judge_early: Callable[[Transaction], bool] = lambda _: False,
) -> Mapping[str, Any]:
    """Write an approval request, or return the one that is there and asks just this.

    A row of that id that says anything else is another life's, or forged: it is void from now on,
    and the next free number is used. The standing approvals that cover the call vote at once, and
    then whoever has decided before it was asked: people are only told of what still waits after
    that. Raises ``QuotaUsedUp``; nothing of the request is to be left then.

    ``judge_early`` judges the decisions that have come before it, and says whether there are any.
    Of ``secret`` params it is on record who is shown them. Policies may want more ``assurance``.
    """
    # An attempt that was given up may ask at the same time: one of the two finds the other's row.
    tx.lock_step(call.run_id, call.step_id)
    assurance = assurance.stricter(Assurance(needs.proof))
    asked = {
        **_bound_to(call),
        "params_hash": call.params_hash,
        "params": call.params,
        "description": description,
        "undo": undo_text(call.undo),
        "editors": list(editors),
        "needs": needs.model_dump(mode="json"),
        "assurance": assurance.value,
        "precondition": call.precondition,
        "secret": secret,
    }
    lasts = milliseconds(needs.expires_in)
    approval_id = approval_id_of(call.run_id, call.step_id, number)
    while (already := lock_approval(tx, approval_id)) is not None:
        same = all(already[name] == value for name, value in asked.items())
        if same and already["expires_ms"] <= tx.now_ms + lasts:
            judge_early(tx)
            return lock_approval(tx, approval_id) or already
        # One of an attempt, or of a life, that asked otherwise: nobody is to decide on it.
        close_approval(tx, call.run_id, approval_id, "void")
        number += 1
        approval_id = approval_id_of(call.run_id, call.step_id, number)
    # What this step has been approved for before and has not used is not used any more.
    vote_rows.give_back_uses(tx, call.run_id, step_id=call.step_id)
    row: Mapping[str, Any] | None = tx.one(
        insert_row(
            approvals,
            **asked,
            approval_id=approval_id,
            answers=list(answers) or None,
            asked_of=vote_rows.roles_asked(needs.requirements),
            state="pending",
            requested_ms=tx.now_ms,
            expires_ms=tx.now_ms + lasts,
            remind_ms=needs.remind_every and tx.now_ms + milliseconds(needs.remind_every),
        ).returning(approvals)
    )
    assert row is not None
    tx.event(
        call.run_id,
        "approval.requested",
        step_id=call.step_id,
        approval_id=approval_id,
        tool=call.tool,
        version=call.tool_version,
        params_hash=call.params_hash,
        expires_ms=row["expires_ms"],
        assurance=assurance.value,
        quorum=max(requirement.quorum for requirement in needs.requirements),
    )
    voted = vote_rows.apply_standing(tx, row, call.covers)
    if judge_early(tx) or voted:
        row = lock_approval(tx, approval_id)
        assert row is not None
    if row["state"] == "pending":
        require_place(tx)
        write_approval(tx, row, Kind.APPROVAL)
    return row


def refuse_read(tx: Transaction, call: ClaimRequest) -> ApprovalRefused | Mismatch | None:
    """Return why an approval does not allow a read now, or ``None``.

    A read changes nothing, so it consumes nothing: it is looked at before each call of the read.
    """
    found = _check_approval(tx, call)
    if isinstance(found, NotClaimed):
        return found
    return _refuse_if_changed(call, found)


def consume_approval(
    tx: Transaction, call: ClaimRequest, entry_id: str, generation: int
) -> ClaimResult | None:
    """Use an approval for one entry and generation; ``None`` once that is done.

    The retries of that entry find it consumed by themselves; no other entry may use it.
    """
    found = _check_approval(tx, call)
    if isinstance(found, NotClaimed):
        return found
    consumer = (found["consumed_entry"], found["consumed_generation"])
    if consumer == (entry_id, generation):
        return None
    if consumer != (None, None):
        return ApprovalRefused(f"approval {call.approval_id} was used by {consumer[0]}")
    # Not for the retries of an entry: its own first call may be what has changed the world.
    changed = _refuse_if_changed(call, found)
    if changed is not None:
        return changed
    unused = update_rows(approvals, approval_id=call.approval_id, consumed_entry=None)
    tx.send(unused.values(consumed_entry=entry_id, consumed_generation=generation))
    body = {"approval_id": call.approval_id, "params_hash": call.params_hash}
    late_ms = max(0, tx.now_ms - found["expires_ms"] + 1)
    by = {"entry_id": entry_id, "generation": generation, "halted_ms": late_ms or None}
    tx.event(call.run_id, "approval.consumed", step_id=call.step_id, **body, **by)
    return None


def _refuse_if_changed(call: ClaimRequest, row: Mapping[str, Any]) -> ApprovalRefused | None:
    if row["precondition"] == call.precondition:
        return None
    return ApprovalRefused(f"what approval {call.approval_id} was given for has changed since")


def _check_approval(
    tx: Transaction, call: ClaimRequest
) -> Mapping[str, Any] | ApprovalRefused | Mismatch:
    """Return an approval's row, locked, if it allows the call that is about to be made.

    Expiry is checked at each forward call, by the database's clock, and so are the votes: by what
    the policies ask for then and now, and by who may vote now.
    """
    if call.approval_id is None:
        return ApprovalRefused("this call needs an approval")
    row, named = lock_approval(tx, call.approval_id), f"approval {call.approval_id}"
    if row is None:
        return ApprovalRefused(f"there is no approval {call.approval_id!r}")
    asked, given = row["params_hash"], call.params_hash
    if asked != given:
        return Mismatch(f"{named} is for params {asked}, this call has {given}")
    differs = [name for name, value in _bound_to(call).items() if row[name] != value]
    if differs:
        return Mismatch(f"{named} is for another {', '.join(differs)}")
    if row["state"] != ApprovalState.APPROVED:
        return ApprovalRefused(f"{named} is {row['state']}")
    if has_expired(row, request_clock(tx, row)):
        return ApprovalRefused(f"{named} has expired")
    if row["undo"] != (undo := undo_text(call.undo)):
        return ApprovalRefused(f"{named} says {row['undo']}; now it is {undo}")
    assurance = Assurance(row["assurance"]).stricter(call.assurance).stricter(call.proof)
    then = needs_of(row)
    in_advance = call.covers if then.standing and call.standing else None
    decided = vote_rows.accepted_decisions(tx, call.approval_id)
    for one in decided:
        # Whatever the row's state says: workers write that, and a no is never taken back.
        if one["outcome"] != DecisionOutcome.APPROVE:
            return ApprovalRefused(f"{named} does not hold: {one['outcome']} by {one['approver']}")
    about = (call.approval_id, decided, assurance)
    votes = vote_rows.votes_now(tx, *about, in_advance=in_advance, call=row)
    now = [one.escalated() if then.escalated_to else one for one in call.requirements]
    wanted = (*then.requirements, *now)
    lacking = vote_rows.unknown_requester(tx, call.run_id, wanted, assurance)
    if lacking is None:
        lacking = vote_rows.missing_votes(wanted, votes, vote_rows.find_requesters(tx, row, wanted))
    if lacking is not None:
        return ApprovalRefused(f"{named} does not hold any more: {lacking}")
    return row


def find_others(
    tx: Transaction, run_id: str, approval_id: str | None, assurance: Assurance
) -> Callable[[Mapping[str, Any]], bool]:
    """Return what says whether others stand behind an effect than behind a call of a run.

    Behind an effect stand those whose votes for it hold still; none is given in advance, because
    nobody has looked at it then. If nobody was asked, whoever has started its run. A person and
    their deputy are one. Who stands behind the call is read once, if at all. If nothing proves who
    has started its run, and something has to, nobody is known to be another one.
    """

    @cache
    def own() -> frozenset[str] | None:
        if assurance is not Assurance.OPEN and why_start_unproven(tx, run_id) is not None:
            return None
        people = set(find_planners(tx, run_id))
        if approval_id is not None:
            for one in vote_rows.accepted_decisions(tx, approval_id):
                people |= {one["approver"], one["deputy_for"]} - {None}
        return frozenset(map(fold_name, people))

    def is_by_other(made: Mapping[str, Any]) -> bool:
        behind = own()
        if behind is None:
            return False
        if made["approval_id"] is not None:
            return _has_voter(tx, made["approval_id"], assurance, behind)
        if assurance is not Assurance.OPEN and why_start_unproven(tx, made["run_id"]) is not None:
            return False
        started = tx.one(rows_of(runs, "user_id", "started_by", run_id=made["run_id"]))
        assert started is not None, "an effect is of a run"
        return behind.isdisjoint(map(fold_name, started.values()))

    return is_by_other


def _has_voter(
    tx: Transaction, approval_id: str, assurance: Assurance, excluded: frozenset[str]
) -> bool:
    """Return whether a vote of somebody else than ``excluded`` holds for a request, by its needs.

    As it would if the request's call were made now.
    """
    row = tx.one(rows_of(approvals, approval_id=approval_id))
    if row is None:
        return False
    wanted, assurance = needs_of(row).requirements, Assurance(row["assurance"]).stricter(assurance)
    decided = vote_rows.accepted_decisions(tx, approval_id)
    votes = vote_rows.votes_now(tx, approval_id, decided, assurance, in_advance=None, call=row)
    if not vote_rows.any_counts(wanted, votes, excluded):
        return False
    # Only now: that is a walk over the run's events.
    if vote_rows.unknown_requester(tx, row["run_id"], wanted, assurance) is not None:
        return False
    asked_by = map(fold_name, vote_rows.find_requesters(tx, row, wanted))
    return vote_rows.any_counts(wanted, votes, excluded.union(asked_by))


def waive_approval(tx: Transaction, call: ClaimRequest) -> None:
    """Record that no policy asks a human about this call: an audit looks for that."""
    body = {"tool": call.tool, "params_hash": call.params_hash}
    tx.event(call.run_id, "approval.waived", step_id=call.step_id, **body)


def close_approval(tx: Transaction, run_id: str, approval_id: str, to: str) -> ApprovalState:
    """Expire or void a pending approval; returns its state now, a decision may have been quicker.

    An approved one that nothing has consumed is voided too when its run stops asking.
    """
    row = lock_approval(tx, approval_id)
    if row is None or row["run_id"] != run_id:
        return ApprovalState.VOID
    unused = row["state"] == "approved" and row["consumed_entry"] is None
    too_early = to == "expired" and not has_expired(row, request_clock(tx, row))
    if too_early or not (unused or row["state"] == "pending"):
        return ApprovalState(row["state"])
    same = {"approval_id": approval_id, "state": row["state"], "consumed_entry": None}
    tx.execute(update_rows(approvals, **same).values(state=to, decided_by=None, verified=None))
    tx.event(run_id, f"approval.{to}", step_id=row["step_id"], approval_id=approval_id)
    vote_rows.give_back_uses(tx, run_id, approval_id=approval_id)
    return ApprovalState(to)


def void_approvals(tx: Transaction, run_id: str, *, approved: bool) -> None:
    """Void what a run that ends still asks; ``approved``: also what it may do and has not used."""
    waits = approvals.c.state == "pending"
    unused = and_(approvals.c.state == "approved", approvals.c.consumed_entry.is_(None))
    asked = rows_of(approvals, approvals.c.approval_id, run_id=run_id)
    asked = asked.where(or_(waits, unused) if approved else waits)
    for row in tx.all(asked.order_by(approvals.c.approval_id)):
        close_approval(tx, run_id, row["approval_id"], "void")
