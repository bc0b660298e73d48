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
from surehand.activities.ledger.effects.interventions import open_intervention
from surehand.activities.ledger.effects.undone import mark_compensated
from surehand.activities.ledger.steps import artifacts as artifact_rows
from surehand.activities.ledger.steps import attempts as step_rows
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.entries import (
    NO_MORE_REPEATS,
    ClaimRequest,
    ClaimResult,
    Entry,
    milliseconds,
    next_commit_no,
)
from surehand.workflows.canonical_json import digest


def since(tx: Transaction) -> Any:
    """Return the value that begins a recovery, or keeps the beginning of the one under way."""
    return func.coalesce(effects.c.recovering_ms, tx.now_ms)


def verified(tx: Transaction, before: Entry, outcome: str, *, action: str) -> None:
    """Check what must hold of an entry that is settled now, and record the end of its recovery.

    Does nothing for an entry that was not being recovered.

    Args:
        tx: The transaction that has settled it.
        before: The entry as it was.
        action: What follows: ``resume``, ``call_again``, ``bar``, ``fail`` or ``human``.
    """
    if before.recovering_ms is None:
        return
    now = tx.one(
        rows_of(
            effects,
            effects.c.approval_id,
            effects.c.params_hash,
            effects.c.generation,
            effects.c.calls,
            entry_id=before.entry_id,
        )
    )
    assert now is not None, "entries are never deleted"
    before.tell(
        tx,
        "recovery.verified",
        outcome=outcome,
        action=action,
        calls=now["calls"],
        took_ms=tx.now_ms - before.recovering_ms,
        broken=_broken(tx, before, now) or None,
    )


def _broken(tx: Transaction, entry: Entry, now: Mapping[str, Any]) -> list[str]:
    """Return the invariants that do not hold: an empty list, unless somebody wrote past us."""
    broken = []
    live = tx.count(
        rows_of(effects, func.count(), tool=entry.tool, key=entry.key).where(
            effects.c.state.not_in(("failed", "compensated"))
        )
    )
    if live > 1:
        broken.append("one_live_entry_for_each_key")
    if now["approval_id"] is not None:
        found = tx.one(
            rows_of(
                approvals,
                approvals.c.approval_id,
                approval_id=now["approval_id"],
                params_hash=now["params_hash"],
                consumed_entry=entry.entry_id,
                consumed_generation=now["generation"],
            )
        )
        if found is None:
            broken.append("runs_what_was_approved")
    return broken


def doubt(tx: Transaction, entry: Entry, reason: str | None, *, rule: str = "lease_over") -> Entry:
    """Put an entry in doubt under a new fencing token, so that no earlier attempt can write it."""
    row = tx.one(
        update_rows(effects, entry_id=entry.entry_id, fencing_token=entry.fencing_token)
        .values(
            state="partial" if entry.state == "partial" else "in_doubt",
            fencing_token=entry.fencing_token + 1,
            lease_until_ms=None,
            holder=None,
            recovering_ms=since(tx),
        )
        .returning(effects)
    )
    assert row is not None, "the entry's row is locked by this transaction"
    if reason:
        entry.tell(
            tx,
            "effect.in_doubt",
            rule=rule,
            evidence=reason,
            action="reconcile",
        )
    return Entry.from_row(row)


def give_back(
    tx: Transaction, request: ClaimRequest, entry: Entry, refused: ClaimResult
) -> ClaimResult:
    """Give back a claim under which nothing was called, and must not be."""
    tx.execute(
        update_rows(effects, entry_id=entry.entry_id).values(
            state="in_doubt" if entry.unproven else "failed",
            lease_until_ms=None,
            recovering_ms=entry.recovering_ms if entry.unproven else None,
            settled_ms=None if entry.unproven else tx.now_ms,
        )
    )
    entry.tell(
        tx,
        "effect.failed",
        rule="not_called",
        action="reconcile" if entry.unproven else None,
    )
    if not entry.unproven:
        verified(tx, entry, "failed", action="call_again")
    if request.undoes is None:
        step_rows.finish(
            tx, request.step_attempt, "failed", error="not called", error_class="refused"
        )
    return refused


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
    .values(commit_no=next_commit_no())
    .returning(effects.c.commit_no),
    _COMMITTED,
)


def _guard(entry: Entry) -> dict[str, Any]:
    return {
        "entry_id": entry.entry_id,
        "run_id": entry.run_id,
        "state": entry.state,
        "fencing_token": entry.fencing_token,
    }


def still_ours(tx: Transaction, entry: Entry) -> bool:
    """Lock the entry's row and return whether it is still held under this fencing token."""
    row = tx.one(rows_of(effects, effects.c.entry_id, **_guard(entry)).with_for_update())
    return row is not None


def renew(tx: Transaction, entry: Entry) -> bool:
    """Extend the lease by what it lasts; ``False`` when it is not ours any more."""
    touched = tx.execute(
        update_rows(effects, **_guard(entry)).values(lease_until_ms=tx.now_ms + effects.c.lease_ms)
    )
    return touched == 1


def commit(
    tx: Transaction,
    request: ClaimRequest,
    entry: Entry,
    receipt: Kept,
    *,
    evidence: dict[str, Any] | None = None,
) -> int | None:
    """Record that the effect happened; ``None`` when another attempt holds the entry now.

    A second commit under the same token returns the first one: the answer to it may have been lost.
    ``evidence`` says what proved it, where it was not the call's own answer. Returns the number of
    the commit.
    """
    values = {
        "state": "committed",
        "receipt": receipt.value,
        "foreign_receipt": request.foreign,
        "evidence": evidence,
        "lease_until_ms": None,
        "recovering_ms": None,
        "settled_ms": tx.now_ms,
    }
    if entry.state == "claimed" and entry.recovering_ms is None and not entry.undoes:
        # The way of nearly every call: still as it was claimed, so no look at it is needed.
        done = tx.one(
            _COMMIT_CLAIMED,
            of_entry=entry.entry_id,
            of_run=entry.run_id,
            of_token=entry.fencing_token,
            **values,
        )
        if done is not None:
            _committed(tx, request, entry, receipt, evidence)
            return int(done["commit_no"])
    row = tx.one(rows_of(effects, entry_id=entry.entry_id).with_for_update())
    assert row is not None, "entries are never deleted"
    if row["fencing_token"] != entry.fencing_token:
        return None
    if row["state"] == "committed":
        return int(row["commit_no"])
    done = tx.one(
        update_rows(effects, **_guard(entry))
        # That the outside system has said that it failed ends nothing: it has happened.
        .values(**values, answer=None, commit_no=next_commit_no())
        .returning(effects.c.commit_no)
    )
    if done is None:
        return None
    _committed(tx, request, Entry.from_row(row), receipt, evidence)
    return int(done["commit_no"])


def _committed(
    tx: Transaction,
    request: ClaimRequest,
    before: Entry,
    receipt: Kept,
    evidence: dict[str, Any] | None,
) -> None:
    """Record what a commit means beside its own row."""
    rule = evidence["rule"] if evidence else None
    before.tell(tx, "effect.committed", receipt=receipt.digest, rule=rule)
    verified(tx, before, "committed", action="resume")
    artifact_rows.record(tx, before.run_id, before.step_id, receipt)
    if before.undoes:
        mark_compensated(tx, before)
    else:
        step_rows.finish(tx, request.step_attempt, "succeeded", output=receipt.value)


def answer_no(
    tx: Transaction, request: ClaimRequest, entry: Entry, reason: str, code: str
) -> Entry | None:
    """Record that the tool answered no: it did not happen, and this step is told so again.

    Where an earlier call may have happened, its repeat speaks of itself only ("already refunded"
    may be the earlier call's work): the entry stays in doubt, and is not called again before that
    is settled. A lookup speaks of both.

    Returns:
        The entry as it stands then, or ``None`` when it is not ours.
    """
    if entry.unproven and entry.state == "claimed":
        return _no_to_repeat(tx, request, entry, reason)
    row = tx.one(
        update_rows(effects, **_guard(entry))
        .values(
            state="failed",
            answer={"reason": reason, "code": code},
            lease_until_ms=None,
            recovering_ms=None,
            settled_ms=tx.now_ms,
        )
        .returning(effects)
    )
    if row is None:
        return None
    entry.tell(
        tx,
        "effect.answered_no",
        code=code,
    )
    verified(tx, entry, "failed", action="resume")
    _finish(tx, request, error=reason, error_class=step_rows.NO)
    return Entry.from_row(row)


def _no_to_repeat(
    tx: Transaction, request: ClaimRequest, entry: Entry, reason: str
) -> Entry | None:
    row = tx.one(
        update_rows(effects, **_guard(entry))
        .values(
            state="in_doubt",
            failures={**entry.failures, NO_MORE_REPEATS: 1},
            error=reason,
            lease_until_ms=None,
        )
        .returning(effects)
    )
    if row is None:
        return None
    entry.tell(
        tx,
        "effect.in_doubt",
        rule="no_to_a_repeat",
        evidence=digest(reason),
        action="reconcile",
    )
    _finish(tx, request, error=reason, error_class="in_doubt")
    return Entry.from_row(row)


def fail(
    tx: Transaction,
    request: ClaimRequest,
    entry: Entry,
    failure_class: str,
    message: str,
    *,
    delay: timedelta | None,
) -> Entry | None:
    """Record that this call did not apply the effect.

    The same failure again under the same token is the first one: the answer to it may have been
    lost.

    That proves the effect not applied, unless an earlier call may have: then it stays in doubt, and
    after the last failure of its class it is not called again before that doubt is settled.

    Args:
        entry: The entry under our fencing token.
        failure_class: What kind of failure it was.
        message: Kept in the entry.
        delay: Pause before the next try; ``None`` says that there is none.

    Returns:
        The entry as it stands then, or ``None`` when it is not ours.
    """
    earlier = entry.failures.get(failure_class, 0)
    failures = {**entry.failures, failure_class: earlier + 1}
    if entry.unproven and delay is None:
        failures[NO_MORE_REPEATS] = 1
    state = "in_doubt" if entry.unproven else "failed"
    row = tx.one(
        update_rows(effects, **_guard(entry))
        .values(
            state=state,
            failures=failures,
            error=message,
            lease_until_ms=None,
            recovering_ms=entry.recovering_ms if entry.unproven else None,
            settled_ms=None if entry.unproven else tx.now_ms,
        )
        .returning(effects)
    )
    if row is None:
        row = tx.one(rows_of(effects, **_guard(replace(entry, state=state))))
        return Entry.from_row(row) if row is not None and row["failures"] == failures else None
    entry.tell(
        tx,
        "effect.failed",
        failure_class=failure_class,
        failures=earlier + 1,
        retry_ms=None if delay is None else milliseconds(delay),
        action="reconcile" if entry.unproven else None,
    )
    if not entry.unproven:
        verified(tx, entry, "failed", action="call_again")
    _finish(tx, request, error=message, error_class=failure_class)
    return Entry.from_row(row)


def leave_in_doubt(
    tx: Transaction, request: ClaimRequest, entry: Entry, message: str, *, reported: bool = False
) -> Entry | None:
    """Record that the call ended without saying whether it happened.

    Args:
        entry: The entry under our fencing token.
        message: What the call ended with.
        reported: The outside system has ended the call, and has said that it failed. Its effect may
            appear for the settle time from now on, not from the deadline, unless an earlier call of
            the entry may still be on its way.

    Returns:
        The entry as it stands then, or ``None`` when it is not ours.
    """
    ended: dict[str, Any] = {}
    if reported:
        ended = {"answer": {"reported_failure": message}}
        if not entry.unproven:
            ended["deadline_ms"] = min(entry.deadline_ms or 0, tx.now_ms)
    row = tx.one(
        update_rows(effects, **_guard(entry))
        .values(
            state="in_doubt",
            failures={**entry.failures, "in_doubt": entry.failures.get("in_doubt", 0) + 1},
            error=message,
            lease_until_ms=None,
            recovering_ms=since(tx),
            **ended,
        )
        .returning(effects)
    )
    if row is None:
        return None
    entry.tell(
        tx,
        "effect.in_doubt",
        rule="call_ended_without_an_outcome",
        evidence=digest(message),
        action="reconcile",
    )
    _finish(tx, request, error=message, error_class="in_doubt")
    return Entry.from_row(row)


def _finish(tx: Transaction, request: ClaimRequest, *, error: str, error_class: str) -> None:
    # Step rows tell of a step's own attempts, not of the attempts to undo it.
    if request.undoes is None:
        attempt = request.step_attempt
        step_rows.finish(tx, attempt, "failed", error=error, error_class=error_class)


def ask_human(
    tx: Transaction,
    entry: Entry,
    question: str,
    *,
    part: Kept | None = None,
    foreign: bool = False,
) -> str | None:
    """Open the entry's intervention; ``None`` when the entry is not ours any more.

    Args:
        entry: The entry in doubt.
        question: What the human is asked.
        part: It happened in part: the receipt of that part, or of nothing.
        foreign: Whether that receipt is content from outside.
    """
    touched = tx.execute(
        update_rows(effects, **_guard(entry)).values(
            state="in_doubt" if part is None else "partial",
            receipt=None if part is None else part.value,
            foreign_receipt=foreign and part is not None,
            lease_until_ms=None,
            recovering_ms=since(tx),
        )
    )
    if not touched:
        return None
    if part is not None:
        artifact_rows.record(tx, entry.run_id, entry.step_id, part)
    rule = "unknown" if part is None else "partial"
    return open_intervention(tx, entry, question, rule=rule)


def note_late_receipt(tx: Transaction, entry: Entry, receipt: Kept) -> None:
    """Keep the receipt of an attempt that was fenced out as evidence: an artifact of its run."""
    artifact_rows.record(tx, entry.run_id, entry.step_id, receipt)
    entry.tell(
        tx,
        "effect.late_receipt",
        fencing_token=entry.fencing_token,
        evidence=receipt.digest,
        action="kept_as_evidence",
    )
