"""Claiming an effect: insert or lose, and the recorded result wins (guarantees G1 and G3).

One transaction looks at the newest generation of the business key, consumes the approval and
writes the claim. Every write is a guarded UPDATE that names the state and the fencing token it
expects, so that an attempt which lost its lease changes nothing.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final, assert_never

from sqlalchemy import bindparam

from surehand.activities.ledger.core.statements import PreparedStatement, rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import effects, retentions
from surehand.activities.ledger.effects.claim_entry import (
    SeenAround,
    doubt_again,
    doubt_first,
    find_again,
    look_around,
    stopped,
    take,
    take_first,
)
from surehand.activities.ledger.effects.epochs import Epoch, lease_left, may_be_forgotten
from surehand.activities.ledger.effects.interventions import called_off, newest_intervention
from surehand.activities.ledger.effects.outcomes import doubt
from surehand.activities.ledger.effects.undone import note_replay
from surehand.activities.ledger.outbox.notification_rows import write_pause
from surehand.activities.ledger.quotas import OverQuota
from surehand.activities.ledger.steps import artifacts as artifact_rows
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.entries import (
    NO_IDENTITY,
    NO_MORE_REPEATS,
    Answered,
    ApprovalRefused,
    Asked,
    Barred,
    Claimed,
    ClaimRequest,
    ClaimResult,
    Committed,
    Doubtful,
    Drifted,
    Entry,
    Forbidden,
    Held,
    Mismatch,
    milliseconds,
)
from surehand.activities.ledger.steps.foreign import mark
from surehand.workflows.contracts.base import as_artifact
from surehand.workflows.contracts.tools import Recovery

#: How long to wait for an entry that is being compensated: no lease says when that ends.
COMPENSATING_WAIT = timedelta(seconds=2)

_NEWEST: Final = PreparedStatement(
    rows_of(effects, tool=bindparam("of_tool"), key=bindparam("of_key"))
    .order_by(effects.c.generation.desc())
    .limit(1)
    .with_for_update()
    # Its run may have been erased: its key is kept, and says what has happened.
    .execution_options(sealed="shown")
)


def claim(tx: Transaction, request: ClaimRequest) -> ClaimResult:
    """Claim the effect of ``request`` or say what is there already.

    Raises:
        ActsElsewhere: Another execution of its run acts for it.
    """
    if request.within is not None:
        tx.share_run(request.within)
    tx.lock_call(request.run_id, request.step_id, request.tool, request.key)
    seen = look_around(tx, request)
    seen.require_acting(request)
    if seen.fresh:
        result = _first(tx, request, seen, generation=1)
    else:
        row = tx.one(_NEWEST, of_tool=request.tool, of_key=request.key)
        assert row is not None, "entries are never deleted"
        # It may have waited for the row: what was seen before is old.
        tx.tick()
        seen = look_around(tx, request)
        result = _look(tx, request, seen, Entry.from_row(row))
    note(tx, request, result)
    return result


def claim_at_once(tx: Transaction, request: ClaimRequest) -> Claimed | None:
    """Claim a business key that nobody has had, unless anything stands in the way.

    For a transaction that records something else: it waits for nobody, because what it has locked
    already somebody may wait for, and what it finds in the way, ``claim`` is to tell.
    """
    if not tx.try_lock_call(request.run_id, request.step_id, request.tool, request.key):
        return None
    seen = look_around(tx, request)
    # A quota is its tenant's alone at any time: for that, too, it does not wait.
    # Nor for what a restore may have forgotten, which has to be asked about.
    there = (seen.acting_instead, seen.limited, seen.epoch)
    if not seen.fresh or any(one is not None for one in there):
        return None
    result = take_first(tx, request, seen, generation=1)
    return result if isinstance(result, Claimed) else None


def _first(
    tx: Transaction, request: ClaimRequest, seen: SeenAround, generation: int
) -> ClaimResult:
    """Claim a generation that has no entry; where that may be forgotten, it is in doubt first."""
    epoch = may_be_forgotten(tx, request, seen.epoch)
    if epoch is None:
        return take_first(tx, request, seen, generation)
    refused = stopped(tx, request, seen)
    if refused is not None:
        return refused
    entry = doubt_first(tx, request, seen, generation, epoch)
    return _look_at_doubtful(tx, request, seen, entry)


def _forgotten(
    tx: Transaction, request: ClaimRequest, seen: SeenAround, entry: Entry
) -> Epoch | None:
    """Return the open epoch if nobody has touched the entry in it: it may have been called."""
    epoch = may_be_forgotten(tx, request, seen.epoch)
    return epoch if epoch is not None and epoch.doubts(entry) else None


def _look(tx: Transaction, request: ClaimRequest, seen: SeenAround, entry: Entry) -> ClaimResult:
    same = request.is_same(entry.identity_hash)
    mine = entry.owned_by(request.run_id, request.step_id)
    if entry.undoes != request.undoes:
        undone = entry.undoes or "nothing"
        return Mismatch(f"the key is that of {entry.entry_id}, which undoes {undone}")
    if entry.state == "failed" and entry.undoes is None:
        actor = called_off(tx, request.run_id, request.step_id)
        if actor is not None:
            return Barred(f"it did not happen, and {actor} has called it off", called_off=True)
    match entry.state:
        case "failed" if not same:
            return _first(tx, request, seen, generation=entry.generation + 1)
        case "failed" if mine and _is_told_again(entry, request):
            return Answered(entry)
        case "failed":
            epoch = _forgotten(tx, request, seen, entry)
            if epoch is None:
                return take(tx, request, seen, entry)
            refused = stopped(tx, request, seen)
            if refused is not None:
                return refused
            doubted = doubt_again(tx, entry, epoch, by=request)
            return _look_at_doubtful(tx, request, seen, doubted)
        case "compensated" if mine:
            return Barred(f"the effect {entry.entry_id} of this step has been undone")
        case "compensated":
            return _first(tx, request, seen, generation=entry.generation + 1)
        case "committed" if entry.identity_hash == NO_IDENTITY:
            deleted = entry.content_deleted_ms is not None
            gone = "whose content was deleted" if deleted else "which was erased"
            return Mismatch(
                f"the key is taken by {entry.entry_id} ({entry.state}) of run {entry.run_id!r},"
                f" {gone}: it is not made again, and nobody has its receipt"
            )
        case _ if not same:
            return Mismatch(
                f"the key is taken by {entry.entry_id} ({entry.state}) of run"
                f" {entry.run_id!r} with other params"
            )
        case "committed" if entry.run_id != request.run_id and _goes(tx, entry.run_id):
            return Mismatch(
                f"the key is taken by {entry.entry_id} ({entry.state}) of run {entry.run_id!r},"
                " whose content is being deleted: it is not made again, and nobody has its receipt"
            )
        case "committed":
            return Committed(entry)
        case "compensating" if seen.barred:
            # Whoever was undoing it may be another life of this run, which is over.
            return Barred(f"the effect {entry.entry_id} is being undone, and so is this step")
        case "compensating":
            return Held(COMPENSATING_WAIT)
        case "claimed":
            return _look_at_claimed(tx, request, seen, entry)
        case "in_doubt" | "partial":
            return _look_at_doubtful(tx, request, seen, entry)
        case state:
            raise AssertionError(f"unknown entry state {state!r}")


def _is_told_again(entry: Entry, request: ClaimRequest) -> bool:
    """Return whether a step is told once more how its call has ended, and makes none."""
    if entry.reported_failure is None:
        return entry.answer is not None
    # The attempt that has recorded it may have died then. Who tries a failed step again, calls.
    return entry.activity_key == request.activity_key


def _goes(tx: Transaction, run_id: str) -> bool:
    """Return whether what a run has made is being deleted: nobody rests on it any more."""
    going = rows_of(retentions, run_id=run_id).where(
        retentions.c.going_ms.is_not(None), retentions.c.kind.in_(("runs", "outputs", "artifacts"))
    )
    return tx.one(going.limit(1)) is not None


def _look_at_claimed(
    tx: Transaction, request: ClaimRequest, seen: SeenAround, entry: Entry
) -> ClaimResult:
    epoch = _forgotten(tx, request, seen, entry)
    if entry.holder == request.holder and epoch is None:
        if _may_call_now(tx, request, entry):
            return find_again(tx, request, seen, entry)
        reason = "it was to be called again, and was held up until that was no way to settle it"
        return Doubtful(doubt(tx, entry, reason, rule="held_up"))
    left = lease_left(tx, entry)
    # Temporal runs one attempt of an activity at a time: an earlier one is gone, or a zombie whose
    # request the provider will recognise by its key.
    rule = _rule_to_call_again(tx, request, entry)
    takeover = entry.activity_key == request.activity_key and rule is not None
    if left > 0 and (not takeover or epoch is not None):
        return Held(timedelta(milliseconds=left))
    if epoch is not None:
        return _look_at_doubtful(tx, request, seen, doubt_again(tx, entry, epoch))
    if rule is not None:
        return take(tx, request, seen, entry, rule=rule)
    return Doubtful(doubt(tx, entry, "its lease ran out before an outcome was recorded"))


def _look_at_doubtful(
    tx: Transaction, request: ClaimRequest, seen: SeenAround, entry: Entry
) -> ClaimResult:
    question = newest_intervention(tx, entry.entry_id)
    if question is not None and question["state"] == "open":
        return Asked(entry, question["intervention_id"], question["question"])
    if question is not None and question["outcome"] == "give_up":
        return Barred(f"{question['actor']} gave up on {entry.entry_id}: its outcome stays unknown")
    epoch = _forgotten(tx, request, seen, entry)
    if epoch is not None:
        entry = doubt_again(tx, entry, epoch)
    rule = _rule_to_call_again(tx, request, entry)
    if rule is not None:
        return take(tx, request, seen, entry, rule=rule)
    return Doubtful(doubt(tx, entry, None))


def _rule_to_call_again(tx: Transaction, request: ClaimRequest, entry: Entry) -> Recovery | None:
    """Return what allows to call again an entry whose outcome is not recorded, if anything does."""
    if entry.state == "partial" or entry.recovers_too_long(request.recovery_limit, tx.now_ms):
        return None
    if entry.reported_failure is not None:
        return None  # Its lookup settles it.
    if request.recovery is Recovery.TRANSACTIONAL:
        if entry.tool_version != request.tool_version:
            return None  # An earlier version may have made its effect elsewhere.
        # Its effect would have committed together with the outcome. Whoever still works on it has
        # locked the entry's row, which this transaction holds now.
        return Recovery.TRANSACTIONAL
    return Recovery.DEDUPES if _dedupes(tx, request, entry) else None


def _may_call_now(tx: Transaction, request: ClaimRequest, entry: Entry) -> bool:
    """Return whether what allowed this attempt's own claim still holds: it may have been frozen."""
    if entry.unproven:
        return _rule_to_call_again(tx, request, entry) is not None
    return not entry.recovers_too_long(request.recovery_limit, tx.now_ms)


def _dedupes(tx: Transaction, request: ClaimRequest, entry: Entry) -> bool:
    """Return whether calling again, by the same key, may settle this entry."""
    if request.recovery is not Recovery.DEDUPES or request.window is None:
        return False
    if entry.window_ms is None or entry.tool_version != request.tool_version:
        return False  # Whoever takes the repeat may not be who has taken the first call.
    if NO_MORE_REPEATS in entry.failures:
        return False
    # Negative: the clock was set back, and nobody knows how long ago the first call was.
    window_ms = min(entry.window_ms, milliseconds(request.window))
    return 0 <= tx.now_ms - (entry.first_call_ms or 0) < window_ms


def note(tx: Transaction, request: ClaimRequest, result: ClaimResult) -> None:
    """Record what a claim found, where that changes what the run does next."""
    body: dict[str, Any]
    match result:
        case Committed(entry):
            made_by = None if entry.run_id == request.run_id else entry.run_id
            type_ = "effect.replayed"
            body = {"entry_id": entry.entry_id, "tool": entry.tool, "made_by": made_by}
            note_replay(tx, request, entry)
            if request.foreign or entry.foreign_receipt:
                mark(tx, request.run_id, [request.content])
            receipt = Kept(entry.receipt, as_artifact(entry.receipt))
            artifact_rows.record(tx, request.run_id, request.step_id, receipt)
        case (
            Mismatch(reason)
            | ApprovalRefused(reason)
            | Forbidden(reason)
            | Barred(reason=reason)
            | Drifted(reason)
        ):
            type_ = "effect.refused"
            body = {"tool": request.tool, "rule": type(result).__name__, "evidence": reason}
            if isinstance(result, Forbidden):
                step = (request.run_id, request.step_id, request.first_attempt)
                write_pause(tx, *step, tool=request.tool, reason=reason)
        case OverQuota():
            result.note(tx, request.run_id, request.step_id)
            return
        case Claimed() | Answered() | Held() | Doubtful() | Asked():
            return
        case _:
            assert_never(result)
    tx.event(request.run_id, type_, step_id=request.step_id, **body)
