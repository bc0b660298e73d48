"""How a claimed effect ended, or that nobody knows; guarded by state and fencing token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import bindparam, func

from surehand.activities.ledger.core.statements import PreparedStatement, rows_of, update_rows
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import approvals, effects
from surehand.activities.ledger.effects.interventions import mark_compensated, open_intervention
from surehand.activities.ledger.halts import stood_still
from surehand.activities.ledger.steps import attempts, entries
from surehand.activities.ledger.steps.artifacts import Kept, record_artifact
from surehand.activities.ledger.steps.entries import ClaimRequest, Entry
from surehand.workflows.canonical_json import digest

_COMMITTED: Final = (
    *("state", "receipt", "foreign_receipt", "evidence"),
    *("lease_until_ms", "recovering_ms", "settled_ms"),
)
_COMMIT_CLAIMED: Final = PreparedStatement(
    update_rows(
        effects,
        entry_id=bindparam("of_entry"),
        run_id=bindparam("of_run"),
        state="claimed",
        fencing_token=bindparam("of_token"),
        recovering_ms=None,
    )
    .values(commit_no=entries.next_commit_no())
    .returning(effects.c.commit_no),
    _COMMITTED,
)


def guard_values(entry: Entry) -> dict[str, Any]:
    """Return what the row of an entry has to be that is still ours."""
    return {
        "entry_id": entry.entry_id,
        "run_id": entry.run_id,
        "state": entry.state,
        "fencing_token": entry.fencing_token,
    }


def write_entry(tx: Transaction, entry: Entry, **values: Any) -> Entry | None:
    """Write an entry and return it as it stands then; ``None`` when it is not ours any more."""
    own = update_rows(effects, **guard_values(entry))
    return Entry.find(tx, own.values(values).returning(effects))


def recovering_since(tx: Transaction) -> Any:
    """Return the value that begins a recovery, or keeps the beginning of the one under way."""
    return func.coalesce(effects.c.recovering_ms, tx.now_ms)


def mark_compensating(tx: Transaction, original: str) -> None:
    """Mark an entry whose undo begins; one that is marked already stays so."""
    committed = update_rows(effects, entry_id=original, state="committed")
    tx.execute(committed.values(state="compensating"))


def still_ours(tx: Transaction, entry: Entry) -> bool:
    """Lock the entry's row and return whether it is still held under this fencing token."""
    return tx.has(rows_of(effects, effects.c.entry_id, **guard_values(entry)).with_for_update())


def renew_lease(tx: Transaction, entry: Entry) -> bool:
    """Extend the lease by what it lasts; ``False`` when it is not ours any more."""
    own = update_rows(effects, **guard_values(entry))
    return tx.execute(own.values(lease_until_ms=tx.now_ms + effects.c.lease_ms)) == 1


def recovers_too_long(tx: Transaction, entry: Entry, limit: timedelta) -> bool:
    """Return whether an outcome is missing for too long, not counting what halts have stood."""
    if entry.recovering_ms is None or not entry.recovers_too_long(limit, tx.now_ms):
        return False
    undoes = entry.undoes is not None
    still = stood_still(tx, entry.tool, entry.run_id, entry.recovering_ms, undoes=undoes)
    return entry.recovers_too_long(limit, tx.now_ms - still)


def verify_recovery(tx: Transaction, before: Entry, outcome: str, *, action: str) -> None:
    """Check what must hold of an entry that is settled now, and record the end of its recovery.

    Does nothing for an entry that was not being recovered. ``action`` is what follows: ``resume``,
    ``call_again``, ``bar``, ``fail`` or ``human``.
    """
    if before.recovering_ms is None:
        return
    own = effects.c
    columns = (own.approval_id, own.params_hash, own.generation, own.calls)
    now = tx.one(rows_of(effects, *columns, entry_id=before.entry_id))
    assert now is not None, "entries are never deleted"
    before.tell(
        tx,
        "recovery.verified",
        outcome=outcome,
        action=action,
        calls=now["calls"],
        took_ms=tx.now_ms - before.recovering_ms,
        broken=_find_broken(tx, before, now) or None,
    )


def _find_broken(tx: Transaction, entry: Entry, now: Mapping[str, Any]) -> list[str]:
    """Return the invariants that do not hold: an empty list, unless somebody wrote past us."""
    broken = []
    of_key = rows_of(effects, func.count(), tool=entry.tool, key=entry.key)
    if tx.count(of_key.where(effects.c.state.not_in(("failed", "compensated")))) > 1:
        broken.append("one_live_entry_for_each_key")
    if now["approval_id"] is not None:
        consumed = rows_of(
            approvals,
            approvals.c.approval_id,
            approval_id=now["approval_id"],
            params_hash=now["params_hash"],
            consumed_entry=entry.entry_id,
            consumed_generation=now["generation"],
        )
        if not tx.has(consumed):
            broken.append("runs_what_was_approved")
    return broken


def put_in_doubt(
    tx: Transaction, entry: Entry, reason: str | None, *, rule: str = "lease_over"
) -> Entry:
    """Put an entry in doubt under a new fencing token, so that no earlier attempt can write it."""
    doubtful = write_entry(
        tx,
        entry,
        state="partial" if entry.state == "partial" else "in_doubt",
        fencing_token=entry.fencing_token + 1,
        lease_until_ms=None,
        holder=None,
        recovering_ms=recovering_since(tx),
    )
    assert doubtful is not None, "the entry's row is locked by this transaction"
    if reason:
        entry.tell(tx, "effect.in_doubt", rule=rule, evidence=reason, action="reconcile")
    return doubtful


def _not_applied(tx: Transaction, entry: Entry) -> dict[str, Any]:
    """Return the values of an entry whose call has not applied it, though an earlier one may."""
    if entry.unproven:
        return {"state": "in_doubt", "lease_until_ms": None}
    return {"state": "failed", **settled_values(tx)}


def settled_values(tx: Transaction) -> dict[str, Any]:
    """Return the columns of an entry that nobody holds or looks into any more."""
    return {"lease_until_ms": None, "recovering_ms": None, "settled_ms": tx.now_ms}


def give_up_claim(tx: Transaction, request: ClaimRequest, entry: Entry) -> None:
    """Give up a claim under which nothing was called, and must not be; its row is locked."""
    write_entry(tx, entry, **_not_applied(tx, entry))
    action = "reconcile" if entry.unproven else None
    entry.tell(tx, "effect.failed", rule="not_called", action=action)
    if not entry.unproven:
        verify_recovery(tx, entry, "failed", action="call_again")
    _fail_attempt(tx, request, "not called", "refused")


def commit_effect(
    tx: Transaction,
    request: ClaimRequest,
    entry: Entry,
    receipt: Kept,
    *,
    evidence: dict[str, Any] | None = None,
) -> int | None:
    """Record that the effect happened; ``None`` when another attempt holds the entry now.

    A second commit under the same token returns the first one: the answer to it may have been lost.
    ``evidence`` says what proved it, if it was not the call's own answer. Returns the number of the
    commit.
    """
    values = {
        "state": "committed",
        "receipt": receipt.value,
        "foreign_receipt": request.foreign,
        "evidence": evidence,
        **settled_values(tx),
    }
    before, done = entry, None
    if entry.state == "claimed" and entry.recovering_ms is None and not entry.undoes:
        # The way of nearly every call: still as it was claimed, so no look at it is needed.
        own = {"of_entry": entry.entry_id, "of_run": entry.run_id, "of_token": entry.fencing_token}
        done = tx.one(_COMMIT_CLAIMED, **own, **values)
    if done is None:
        row = tx.one(rows_of(effects, entry_id=entry.entry_id).with_for_update())
        assert row is not None, "entries are never deleted"
        if row["fencing_token"] != entry.fencing_token:
            return None
        if row["state"] == "committed":
            return int(row["commit_no"])
        before = Entry.from_row(row)
        done = tx.one(
            update_rows(effects, **guard_values(entry))
            # That the outside system has said that it failed ends nothing: it has happened.
            .values(**values, answer=None, commit_no=entries.next_commit_no())
            .returning(effects.c.commit_no)
        )
        if done is None:
            return None
    rule = evidence["rule"] if evidence else None
    before.tell(tx, "effect.committed", receipt=receipt.digest, rule=rule)
    verify_recovery(tx, before, "committed", action="resume")
    record_artifact(tx, before.run_id, before.step_id, receipt)
    if before.undoes:
        mark_compensated(tx, before)
    else:
        attempts.finish_attempt(tx, request.step_attempt, "succeeded", output=receipt.value)
    return int(done["commit_no"])


def record_no(
    tx: Transaction, request: ClaimRequest, entry: Entry, reason: str, code: str
) -> Entry | None:
    """Record that the tool answered no: it did not happen, and this step is told so again.

    If an earlier call may have happened, its repeat speaks of itself only ("already refunded" may
    be the earlier call's work): the entry stays in doubt, and is not called again before that is
    settled. A lookup speaks of both. Returns ``None`` when the entry is not ours.
    """
    if entry.unproven and entry.state == "claimed":
        failures = {**entry.failures, entries.NO_MORE_REPEATS: 1}
        return _doubt_call(tx, request, entry, "no_to_a_repeat", reason, failures=failures)
    answered = write_entry(
        tx, entry, state="failed", answer={"reason": reason, "code": code}, **settled_values(tx)
    )
    if answered is not None:
        entry.tell(tx, "effect.answered_no", code=code)
        verify_recovery(tx, entry, "failed", action="resume")
        _fail_attempt(tx, request, reason, attempts.NO)
    return answered


def record_failure(
    tx: Transaction,
    request: ClaimRequest,
    entry: Entry,
    failure_class: str,
    message: str,
    *,
    delay: timedelta | None,
) -> Entry | None:
    """Record that this call did not apply the effect; ``None`` when the entry is not ours.

    The same failure again under the same token is the first one: the answer to it may have been
    lost.

    That proves the effect not applied, unless an earlier call may have: then it stays in doubt, and
    after the last failure of its class (no ``delay``) it is not called again before that doubt is
    settled.
    """
    earlier = entry.failures.get(failure_class, 0)
    failures = {**entry.failures, failure_class: earlier + 1}
    if entry.unproven and delay is None:
        failures[entries.NO_MORE_REPEATS] = 1
    values = _not_applied(tx, entry)
    failed = write_entry(tx, entry, **values, failures=failures, error=message)
    if failed is None:
        ours = guard_values(replace(entry, state=values["state"]))
        before = Entry.find(tx, rows_of(effects, **ours))
        return before if before is not None and before.failures == failures else None
    entry.tell(
        tx,
        "effect.failed",
        failure_class=failure_class,
        failures=earlier + 1,
        retry_ms=None if delay is None else entries.milliseconds(delay),
        action="reconcile" if entry.unproven else None,
    )
    if not entry.unproven:
        verify_recovery(tx, entry, "failed", action="call_again")
    _fail_attempt(tx, request, message, failure_class)
    return failed


def leave_in_doubt(
    tx: Transaction, request: ClaimRequest, entry: Entry, message: str, *, reported: bool = False
) -> Entry | None:
    """Record that the call ended without saying whether it happened; ``None``: it is not ours.

    ``reported``: the outside system has ended the call, and has said that it failed. Its effect may
    appear for the settle time from now on, not from the deadline, unless an earlier call of the
    entry may still be on its way.
    """
    ended: dict[str, Any] = {}
    if reported:
        ended = {"answer": {"reported_failure": message}}
        if not entry.unproven:
            ended["deadline_ms"] = min(entry.deadline_ms or 0, tx.now_ms)
    failures = {**entry.failures, "in_doubt": entry.failures.get("in_doubt", 0) + 1}
    values = {"failures": failures, "recovering_ms": recovering_since(tx), **ended}
    return _doubt_call(tx, request, entry, "call_ended_without_an_outcome", message, **values)


def _doubt_call(
    tx: Transaction, request: ClaimRequest, entry: Entry, rule: str, message: str, **values: Any
) -> Entry | None:
    """Record that nobody knows whether a call, which is over, has happened."""
    left = write_entry(tx, entry, state="in_doubt", error=message, lease_until_ms=None, **values)
    if left is not None:
        evidence = digest(message)
        entry.tell(tx, "effect.in_doubt", rule=rule, evidence=evidence, action="reconcile")
        _fail_attempt(tx, request, message, "in_doubt")
    return left


def _fail_attempt(tx: Transaction, request: ClaimRequest, error: str, error_class: str) -> None:
    # Step rows tell of a step's own attempts, not of the attempts to undo it.
    if request.undoes is None:
        attempt = request.step_attempt
        attempts.finish_attempt(tx, attempt, "failed", error=error, error_class=error_class)


def ask_human(
    tx: Transaction,
    entry: Entry,
    question: str,
    *,
    part: Kept | None = None,
    foreign: bool = False,
) -> str | None:
    """Open the entry's intervention; ``None`` when the entry is not ours any more.

    ``part`` is the receipt of what has happened of it, if it was only a part; ``foreign`` says that
    this is content from outside.
    """
    values: dict[str, Any] = {"state": "in_doubt", "receipt": None, "foreign_receipt": False}
    if part is not None:
        values = {"state": "partial", "receipt": part.value, "foreign_receipt": foreign}
    recovering = {"lease_until_ms": None, "recovering_ms": recovering_since(tx)}
    if write_entry(tx, entry, **values, **recovering) is None:
        return None
    if part is not None:
        record_artifact(tx, entry.run_id, entry.step_id, part)
    return open_intervention(tx, entry, question, rule="unknown" if part is None else "partial")


def note_late_receipt(tx: Transaction, entry: Entry, receipt: Kept) -> None:
    """Keep the receipt of an attempt that was fenced out as evidence: an artifact of its run."""
    record_artifact(tx, entry.run_id, entry.step_id, receipt)
    entry.tell(
        tx,
        "effect.late_receipt",
        fencing_token=entry.fencing_token,
        evidence=receipt.digest,
        action="kept_as_evidence",
    )
