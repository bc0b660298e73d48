"""Claiming an effect: insert or lose, and the recorded result wins (guarantees G1 and G3).

One transaction looks at the newest generation of the business key, consumes the approval and
writes the claim. Every write is a guarded UPDATE that names the state and the fencing token it
expects, so that an attempt which lost its lease changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, assert_never

from sqlalchemy import BindParameter, Boolean, bindparam, or_, select

from surehand.activities.ledger import limits
from surehand.activities.ledger.approvals import requests as approval_rows
from surehand.activities.ledger.core.statements import (
    PreparedStatement,
    insert_row,
    rows_of,
    update_rows,
)
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import bars, deletions, effects, replays
from surehand.activities.ledger.effects import epochs, interventions, outcomes, run_tree
from surehand.activities.ledger.effects.compensations import other_undo, still_remains
from surehand.activities.ledger.effects.epochs import open_epoch
from surehand.activities.ledger.effects.interventions import waits_to_be_told
from surehand.activities.ledger.halts import Halted, read_halt, select_halt
from surehand.activities.ledger.outbox.notification_rows import write_pause
from surehand.activities.ledger.people.starts import why_forbidden
from surehand.activities.ledger.quotas import OverQuota, find_room, select_limited
from surehand.activities.ledger.steps import acting, artifacts, attempts, entries, foreign
from surehand.activities.ledger.steps.entries import Claimed, ClaimRequest, ClaimResult, Entry
from surehand.workflows.contracts.base import as_artifact
from surehand.workflows.contracts.tools import Recovery

#: How long to wait for an entry that is being compensated: no lease says when that ends.
COMPENSATING_WAIT: Final = timedelta(seconds=2)
#: Before a batch that another attempt has made its own is tried again, if it is still wanted.
OVERTAKEN_PAUSE: Final = timedelta(seconds=1)

_OF: Final[dict[str, BindParameter[str]]] = {
    name: bindparam(f"of_{name}")
    for name in ("run", "step", "batch", "acting_run", "execution", "tool", "key")
}
_UNDOES: Final[BindParameter[bool]] = bindparam("of_undoes", type_=Boolean)
_LOOK_AROUND: Final = PreparedStatement(
    select(
        rows_of(bars, run_id=_OF["run"])
        .where(or_(bars.c.step_id == _OF["step"], bars.c.step_id == acting.EVERY_STEP))
        .exists()
        .label("barred"),
        acting.is_overtaken(_OF["run"], _OF["batch"]).label("overtaken"),
        acting.acting_instead(_OF["acting_run"], _OF["execution"]).label("acting_instead"),
        waits_to_be_told(_OF["run"]).label("untold"),
        rows_of(effects, tool=_OF["tool"], key=_OF["key"]).exists().label("known"),
        foreign.is_marked(_OF["run"]).label("foreign"),
        select_limited().label("limited"),
        open_epoch().label("epoch"),
        select_halt(_OF["tool"], _OF["run"], _UNDOES).label("halted"),
    )
)
_NEWEST: Final = PreparedStatement(
    rows_of(effects, tool=_OF["tool"], key=_OF["key"])
    .order_by(effects.c.generation.desc())
    .limit(1)
    .with_for_update()
    # Its run may have been erased: its key is kept, and says what has happened.
    .execution_options(sealed="shown")
)
_UNSET: Final = dict.fromkeys(one.name for one in effects.c if one.name != "tenant_id")
_INSERT: Final = PreparedStatement(insert_row(effects), list(_UNSET))
#: What a call of another run has left in an entry is that run's.
_NOTHING_LEFT: Final = {"error": None, "evidence": None, "receipt": None, "foreign_receipt": False}


@dataclass(frozen=True)
class SeenAround:
    """What stands around a call, read in one statement: hardly ever is there anything."""

    barred: bool
    """The step has been undone."""
    overtaken: bool
    """The batch that it is made in is revoked, or another attempt's."""
    acting_instead: str | None
    """The execution that acts for the run, if it is not the one that calls."""
    untold: bool
    """A human has to take note of something first."""
    known: bool
    """There is an entry of this business key."""
    foreign: bool
    """The run has read content from outside."""
    limited: str | None
    """What of the tenant's calls its quotas limit (``ledger/quotas.py``)."""
    epoch: int | None
    """The epoch that is open: the ledger was restored (``epochs.py``)."""
    halted: str | None
    """The halt that stops the call (``ledger/halts.py``)."""

    def require_acting(self, request: ClaimRequest) -> None:
        """Raise ``ActsElsewhere`` if the call is made for an execution that does not act."""
        if self.acting_instead is not None:
            mine = request.execution or ""
            run_id, instead = request.acting_run, self.acting_instead
            raise acting.ActsElsewhere(request.tenant, run_id, mine, instead)


def look_around(tx: Transaction, request: ClaimRequest) -> SeenAround:
    """Return what stands around a call whose step and key are locked."""
    found = tx.one(
        _LOOK_AROUND,
        of_run=request.run_id,
        of_step=request.step_id,
        of_batch=request.batch,
        of_acting_run=request.acting_run,
        of_execution=request.execution,
        of_tool=request.tool,
        of_key=request.key,
        of_undoes=request.undoes is not None,
    )
    assert found is not None
    found["foreign"] = found["foreign"] or bool(foreign.marked_here(tx, request.run_id))
    return SeenAround(**found)


def claim_effect(tx: Transaction, request: ClaimRequest) -> ClaimResult:
    """Claim the effect of ``request``, or say what is there already; raises ``ActsElsewhere``."""
    if request.within is not None:
        tx.share_calls()  # first, as everybody does
        tx.share_run(request.within)
    tx.lock_call(request.run_id, request.step_id, request.tool, request.key)
    seen = look_around(tx, request)
    seen.require_acting(request)
    if not seen.known:
        result = _claim_generation(tx, request, seen, generation=1)
    else:
        row = tx.one(_NEWEST, of_tool=request.tool, of_key=request.key)
        assert row is not None, "entries are never deleted"
        # It may have waited for the row: what was seen before is old.
        tx.tick()
        seen = look_around(tx, request)
        result = _judge_entry(tx, request, seen, Entry.from_row(row))
    note_claim(tx, request, result)
    return result


def claim_at_once(tx: Transaction, request: ClaimRequest) -> Claimed | None:
    """Claim a business key that nobody has had, unless anything stands in the way.

    For a transaction that records something else: it waits for nobody, because somebody may wait
    for what it has locked. What stands in the way, ``claim_effect`` finds out and says.
    """
    if request.uses or request.policy is not None:
        return None  # Whatever counts for the same limit may be locked; and no policy was asked.
    if not tx.try_lock_call(request.run_id, request.step_id, request.tool, request.key):
        return None
    seen = look_around(tx, request)
    # A quota is its tenant's alone at any time: for that, too, it does not wait.
    # Nor for what a restore may have forgotten, which has to be asked about.
    in_the_way = (seen.acting_instead, seen.limited, seen.epoch, seen.halted)
    if seen.known or any(one is not None for one in in_the_way):
        return None
    result = _claim_generation(tx, request, seen, generation=1)
    return result if isinstance(result, Claimed) else None


def _judge_entry(
    tx: Transaction, request: ClaimRequest, seen: SeenAround, entry: Entry
) -> ClaimResult:
    same = request.is_same(entry.identity_hash)
    mine = entry.owned_by(request.run_id, request.step_id)
    taken = f"the key is taken by {entry.entry_id} ({entry.state}) of run {entry.run_id!r}"
    no_receipt = "it is not made again, and nobody has its receipt"
    if entry.undoes != request.undoes:
        undone = entry.undoes or "nothing"
        return entries.Mismatch(f"the key is that of {entry.entry_id}, which undoes {undone}")
    if entry.state == "failed" and entry.undoes is None:
        actor = interventions.who_called_off(tx, request.run_id, request.step_id)
        if actor is not None:
            reason = f"it did not happen, and {actor} has called it off"
            return entries.Barred(reason, called_off=True)
    match entry.state:
        case "failed" if not same:
            return _claim_generation(tx, request, seen, generation=entry.generation + 1)
        case "failed" if mine and _repeats_answer(entry, request):
            return entries.Answered(entry)
        case "failed":
            epoch = _epoch_that_forgot(tx, request, seen, entry)
            if epoch is None:
                return claim_again(tx, request, seen, entry)
            refused = _find_stop(tx, request, seen)
            if refused is not None:
                return refused
            doubted = doubt_known_entry(tx, entry, epoch, by=request)
            return _judge_doubtful(tx, request, seen, doubted)
        case "compensated" if mine:
            return entries.Barred(f"the effect {entry.entry_id} of this step has been undone")
        case "compensated":
            return _claim_generation(tx, request, seen, generation=entry.generation + 1)
        case "committed" if entry.identity_hash == entries.NO_IDENTITY:
            deleted = entry.content_deleted_ms is not None
            gone = "whose content was deleted" if deleted else "which was erased"
            return entries.Mismatch(f"{taken}, {gone}: {no_receipt}")
        case _ if not same:
            return entries.Mismatch(f"{taken} with other params")
        case "committed" if entry.run_id != request.run_id and _loses_content(tx, entry.run_id):
            return entries.Mismatch(f"{taken}, whose content is being deleted: {no_receipt}")
        case "committed":
            return entries.Committed(entry)
        case "compensating" if seen.barred:
            # Whoever was undoing it may be another life of this run, which is over.
            return entries.Barred(f"{entry.entry_id} is being undone, and so is this step")
        case "compensating":
            return entries.Held(COMPENSATING_WAIT)
        case "claimed":
            return _judge_claimed(tx, request, seen, entry)
        case "in_doubt" | "partial":
            return _judge_doubtful(tx, request, seen, entry)
        case state:
            raise AssertionError(f"unknown entry state {state!r}")


def _repeats_answer(entry: Entry, request: ClaimRequest) -> bool:
    """Return whether a step is told once more how its call has ended, and makes none."""
    if entry.reported_failure is None:
        return entry.answer is not None
    # The attempt that has recorded it may have died then. Who tries a failed step again, calls.
    return entry.activity_key == request.activity_key


def _loses_content(tx: Transaction, run_id: str) -> bool:
    """Return whether what a run has made is being deleted: nobody rests on it any more."""
    return tx.has(rows_of(deletions, run_id=run_id))


def _epoch_that_forgot(
    tx: Transaction, request: ClaimRequest, seen: SeenAround, entry: Entry
) -> epochs.Epoch | None:
    """Return the open epoch if nobody has touched the entry in it: it may have been called."""
    epoch = epochs.may_be_forgotten(tx, request, seen.epoch)
    return epoch if epoch is not None and epoch.doubts(entry) else None


def _judge_claimed(
    tx: Transaction, request: ClaimRequest, seen: SeenAround, entry: Entry
) -> ClaimResult:
    epoch = _epoch_that_forgot(tx, request, seen, entry)
    rule = _rule_to_call_again(tx, request, entry)
    if entry.holder == request.holder and epoch is None:
        # It may have been frozen since its own claim: does what allowed that still hold?
        too_late = outcomes.recovers_too_long(tx, entry, request.recovery_limit)
        if (rule is None) if entry.unproven else too_late:
            late = "it was to be called again, and was held up until that was no way to settle it"
            return entries.Doubtful(outcomes.put_in_doubt(tx, entry, late, rule="held_up"))
        return _resume_claim(tx, request, seen, entry)
    left = epochs.lease_left(tx, entry)
    # Temporal runs one attempt of an activity at a time: an earlier one is gone, or a zombie whose
    # request the provider will recognise by its key.
    takeover = entry.activity_key == request.activity_key and rule is not None
    if left > 0 and (not takeover or epoch is not None):
        return entries.Held(timedelta(milliseconds=left))
    if epoch is not None:
        return _judge_doubtful(tx, request, seen, doubt_known_entry(tx, entry, epoch))
    if rule is not None:
        return claim_again(tx, request, seen, entry, rule=rule)
    return entries.Doubtful(outcomes.put_in_doubt(tx, entry, entries.LEASE_OVER))


def _judge_doubtful(
    tx: Transaction, request: ClaimRequest, seen: SeenAround, entry: Entry
) -> ClaimResult:
    question = interventions.newest_intervention(tx, entry.entry_id)
    if question is not None and question["state"] == "open":
        return interventions.asked_about(entry, question)
    if question is not None and question["outcome"] == "give_up":
        gave_up = f"{question['actor']} gave up on {entry.entry_id}: its outcome stays unknown"
        return entries.Barred(gave_up)
    epoch = _epoch_that_forgot(tx, request, seen, entry)
    if epoch is not None:
        entry = doubt_known_entry(tx, entry, epoch)
    rule = _rule_to_call_again(tx, request, entry)
    if rule is not None:
        return claim_again(tx, request, seen, entry, rule=rule)
    return entries.Doubtful(outcomes.put_in_doubt(tx, entry, None))


def _rule_to_call_again(tx: Transaction, request: ClaimRequest, entry: Entry) -> Recovery | None:
    """Return what allows to call again an entry whose outcome is not recorded, if anything does."""
    too_late = outcomes.recovers_too_long(tx, entry, request.recovery_limit)
    if entry.state == "partial" or too_late:
        return None
    if entry.reported_failure is not None:
        return None  # Its lookup settles it.
    if entry.tool_version != request.tool_version:
        # An earlier version may have made its effect elsewhere, or whoever takes the repeat may not
        # be who has taken the first call.
        return None
    if request.recovery is Recovery.TRANSACTIONAL:
        # Its effect would have committed together with the outcome. Whoever still works on it has
        # locked the entry's row, which this transaction holds now.
        return Recovery.TRANSACTIONAL
    if request.recovery is not Recovery.DEDUPES or request.window is None:
        return None
    if entry.window_ms is None or entries.NO_MORE_REPEATS in entry.failures:
        return None
    # Negative: the clock was set back, and nobody knows how long ago the first call was.
    window_ms = min(entry.window_ms, entries.milliseconds(request.window))
    ago_ms = tx.now_ms - (entry.first_call_ms or 0)
    return Recovery.DEDUPES if 0 <= ago_ms < window_ms else None


def _claim_generation(
    tx: Transaction, request: ClaimRequest, seen: SeenAround, generation: int
) -> ClaimResult:
    """Insert the entry of a new generation: claimed, or in doubt if a restore may have lost it."""
    entry_id = entries.entry_id_for(request.tenant, request.tool, request.key, generation)
    epoch = epochs.may_be_forgotten(tx, request, seen.epoch)
    if epoch is None:
        # The entry's first call; whatever is tried again afterwards is the same effect.
        refused = _authorise_call(tx, request, seen, entry_id, generation, first=True, judged=True)
    else:
        # No approval is used: nothing is called.
        refused = _find_stop(tx, request, seen)
    if refused is not None:
        return refused
    values = {
        **_UNSET,
        "entry_id": entry_id,
        "tool": request.tool,
        "key": request.key,
        "generation": generation,
        "identity_hash": request.identity_hash,
        "undoes": request.undoes,
        "fencing_token": 1,
        "first_call_ms": tx.now_ms,
        "epoch": seen.epoch or 0,
        "observed": entries.UNASKED if request.observes else None,
        "unproven": False,
        "foreign_receipt": False,
        "calls": 1,
        "failures": {},
        "claimed_ms": tx.now_ms,
        **_call_values(request),
        **_limit_values(tx, request, None),
    }
    if epoch is not None:
        values |= {
            "state": "in_doubt",
            "holder": None,
            "lease_until_ms": None,
            "approval_id": None,
            "observed": {"answer": entries.FORGOTTEN},
            # A provider may have begun to count then; and the last call began before the opening.
            "first_call_ms": epoch.restored_to_ms,
            "deadline_ms": epoch.opened_ms + entries.milliseconds(request.timeout),
            "recovering_ms": tx.now_ms,
        }
    tx.send(_INSERT, **values)
    entry = Entry.from_row({**values, "tenant_id": tx.tenant})
    if epoch is None:
        return _record_claim(tx, request, entry)
    if request.uses:
        # It may have happened, so it counts whatever was used; with the locks of `_authorise_call`.
        find_room(tx, seen.limited)
        limits.lock_limits(tx, request.uses)
        limits.count_uses(tx, request.uses, entry_id)
    _begin_step(tx, request)
    epochs.note_restored(tx, entry, epoch)
    return _judge_doubtful(tx, request, seen, entry)


def claim_again(
    tx: Transaction,
    request: ClaimRequest,
    seen: SeenAround,
    entry: Entry,
    *,
    rule: str | None = None,
) -> ClaimResult:
    """Claim an existing entry again, with the next fencing token."""
    # What a restore has forgotten is counted once it is called, as far as anybody knows first.
    first = entry.observed_answer == entries.FORGOTTEN and entry.calls == 1
    where = (entry.entry_id, entry.generation)
    # What may have happened was judged already, unless a restore has forgotten it.
    judged = first or rule is None
    refused = _authorise_call(tx, request, seen, *where, first=first, judged=judged)
    if refused is not None:
        return refused
    mine, repeats = entry.owned_by(request.run_id, request.step_id), rule is Recovery.DEDUPES
    claimed = Entry.find(
        tx,
        update_rows(effects, **outcomes.guard_values(entry))
        .values(
            fencing_token=entry.fencing_token + 1,
            calls=effects.c.calls + 1,
            failures=entry.counted_failures() if mine else {},
            # Called again with the same key although the first call may have happened: what this
            # call proves, it proves of itself only.
            unproven=repeats,
            recovering_ms=None if rule is None else outcomes.recovering_since(tx),
            claimed_ms=effects.c.claimed_ms if mine else tx.now_ms,
            answer=None,
            # If the first call may have happened, what was so before it still counts.
            observed=entry.observed if repeats else entries.UNASKED if request.observes else None,
            **({} if mine else _NOTHING_LEFT),
            **_call_values(request),
            **_limit_values(tx, request, entry if repeats else None),
        )
        .returning(effects)
        .execution_options(of_run=request.run_id),
    )
    if claimed is None:
        return entries.Held(timedelta(seconds=1))
    return _record_claim(tx, request, claimed, rule, found=entry.state)


def doubt_known_entry(
    tx: Transaction, entry: Entry, epoch: epochs.Epoch, *, by: ClaimRequest | None = None
) -> Entry:
    """Put an entry in doubt that may have been called since, unrecorded; its row is locked.

    ``by`` is the claim that takes it over. What another run has left there is that run's, which may
    have been erased or deleted meanwhile.
    """
    taken: dict[str, Any] = {}
    if by is not None and not entry.owned_by(by.run_id, by.step_id):
        taken = {**_call_values(by), "approval_id": None, "failures": {}, **_NOTHING_LEFT}
    values = {
        **taken,
        "state": "in_doubt",
        "fencing_token": entry.fencing_token + 1,
        "holder": None,
        "lease_until_ms": None,
        # Whoever called it last began before the epoch was opened.
        "deadline_ms": max(entry.deadline_ms or 0, epoch.opened_ms + entry.timeout_ms),
        # What was so before that call is forgotten, too.
        "observed": {"answer": entries.FORGOTTEN},
        "answer": None,
        "recovering_ms": tx.now_ms,
        "settled_ms": None,
        "epoch": epoch.number,
    }
    own = update_rows(effects, entry_id=entry.entry_id).values(**values).returning(effects)
    of_run = taken.get("run_id", entry.run_id)
    doubted = Entry.find(tx, own.execution_options(of_run=of_run))
    assert doubted is not None, "entries are never deleted"
    epochs.note_restored(tx, doubted, epoch)
    return doubted


def keep_observed(
    tx: Transaction, request: ClaimRequest, entry: Entry, observed: dict[str, Any]
) -> Entry | None:
    """Keep what was so before the call, whose lease and deadline count from now.

    Returns ``None`` when the entry is not ours any more: nothing may be called then.
    """
    limited = _limit_values(tx, request, entry if entry.unproven else None)
    kept = outcomes.write_entry(tx, entry, observed=observed, **limited)
    if kept is not None:
        answer, evidence = observed["answer"], observed.get("evidence")
        entry.tell(tx, "effect.observed", answer=answer, evidence=evidence)
    return kept


def _resume_claim(
    tx: Transaction, request: ClaimRequest, seen: SeenAround, entry: Entry
) -> ClaimResult:
    """Return the claim whose answer was lost, its lease and deadline counted from now.

    The call starts only now: what others hold against it must not have run out before, and its
    approval must not, either.
    """
    refused = _authorise_call(tx, request, seen, entry.entry_id, entry.generation)
    if refused is not None:
        outcomes.give_up_claim(tx, request, entry)
        return refused
    resumed = Entry.find(
        tx,
        update_rows(effects, entry_id=entry.entry_id, run_id=entry.run_id)
        .values(
            # However long ago it has looked at the world: it looks again.
            **({} if entry.unproven or entry.observed is None else {"observed": entries.UNASKED}),
            **_limit_values(tx, request, entry if entry.unproven else None),
        )
        .returning(effects),
    )
    assert resumed is not None, "the entry's row is locked by this transaction"
    return Claimed(resumed)


def _call_values(request: ClaimRequest) -> dict[str, Any]:
    """Return what an entry says of the call that is made by it now."""
    return {
        "tool_version": request.tool_version,
        "params_hash": request.params_hash,
        "params": request.params,
        "undo": request.undo and request.undo.model_dump(mode="json"),
        "run_id": request.run_id,
        "step_id": request.step_id,
        "approval_id": request.approval_id,
        "state": "claimed",
        "holder": request.holder,
        "activity_key": request.activity_key,
        "settled_ms": None,
        "left_because": None,
        "content_deleted_ms": None,
    }


def _limit_values(tx: Transaction, request: ClaimRequest, before: Entry | None) -> dict[str, Any]:
    """Return what this claim is judged by, also by workers whose own limits are others.

    ``before`` is the entry, if an earlier call of it may still be on the wire: then the one that is
    over last counts.
    """
    timeout_ms = entries.milliseconds(request.timeout)
    settle_ms = None if request.settle is None else entries.milliseconds(request.settle)
    window_ms = None if request.window is None else entries.milliseconds(request.window)
    deadline_ms = tx.now_ms + timeout_ms
    if before is not None:
        assert window_ms is not None and before.window_ms is not None, "else it is not repeated"
        window_ms = min(window_ms, before.window_ms)
        unsettled = settle_ms is None or before.settle_ms is None
        last = (before.deadline_ms or 0) + (before.settle_ms or 0)
        if last > deadline_ms + (settle_ms or 0):
            deadline_ms, timeout_ms = before.deadline_ms or 0, before.timeout_ms
            settle_ms = before.settle_ms
        settle_ms = None if unsettled else settle_ms
    return {
        "lease_until_ms": tx.now_ms + entries.milliseconds(request.lease),
        "lease_ms": entries.milliseconds(request.lease),
        "deadline_ms": deadline_ms,
        "timeout_ms": timeout_ms,
        "settle_ms": settle_ms,
        "window_ms": window_ms,
    }


def _record_claim(
    tx: Transaction,
    request: ClaimRequest,
    entry: Entry,
    rule: str | None = None,
    *,
    found: str | None = None,
) -> Claimed:
    if rule:
        why = f"no outcome was recorded under fencing token {entry.fencing_token - 1}"
        body = {"rule": rule, "evidence": why, "action": "call_again", "found": found}
        entry.tell(tx, "effect.reconciled", **body)
    entry.tell(
        tx,
        "effect.claimed",
        generation=entry.generation,
        fencing_token=entry.fencing_token,
        attempt=request.attempt,
        params_hash=request.params_hash,
        approval_id=request.approval_id,
        undoes=request.undoes,
        instead_of=request.instead_of,
    )
    _begin_step(tx, request)
    return Claimed(entry)


def _begin_step(tx: Transaction, request: ClaimRequest) -> None:
    """Mark the original of an undo; of any other call, its step's attempt runs."""
    if request.undoes:
        outcomes.mark_compensating(tx, request.undoes)
    else:
        attempts.start_attempt(tx, request.step_attempt)


def _find_stop(tx: Transaction, request: ClaimRequest, seen: SeenAround) -> ClaimResult | None:
    """Return why this call may not begin at all, whoever has allowed it, or ``None``."""
    if seen.halted is not None:
        return Halted(read_halt(tx, seen.halted), request.tool)
    if request.undoes:
        if not still_remains(tx, request.undoes):
            return entries.Barred("a human has settled the effect to undo meanwhile")
        # It was begun by a worker that has another undo loaded.
        other = other_undo(tx, request.undoes, request.tool)
        return None if other is None else entries.Barred(f"{other} may have undone it")
    if seen.barred:
        return entries.Barred("this step has been undone; a late attempt must not apply it")
    if seen.overtaken:
        return entries.Held(OVERTAKEN_PAUSE)
    return interventions.must_be_told(tx, request.run_id) if seen.untold else None


def _authorise_call(
    tx: Transaction,
    request: ClaimRequest,
    seen: SeenAround,
    entry_id: str,
    generation: int,
    *,
    first: bool = False,
    judged: bool = False,
) -> ClaimResult | None:
    """Return why this call may not go forward, or ``None`` once its approval is consumed.

    ``first``: it counts for its tenant's quota of effects. ``judged``: its limits may refuse it;
    else only those may whose time is over since it was counted. It counts from now in any case.
    """
    refused = _find_stop(tx, request, seen)
    if refused is not None:
        return refused
    reason = why_forbidden(tx, request.run_id, request.user, request.permissions, request.assurance)
    if reason is not None:
        return entries.Forbidden(reason)
    if request.drift:
        return entries.Drifted(request.drift)
    room = find_room(tx, seen.limited if first and not request.undoes else None)
    if isinstance(room, OverQuota):
        return room
    request = request.in_run(foreign=seen.foreign)
    limits.lock_limits(tx, request.uses)
    is_by_other = approval_rows.find_others(
        tx, request.run_id, request.approval_id, request.assurance
    )
    over = limits.find_over(
        tx,
        request.uses,
        entry_id,
        is_by_other=is_by_other,
        is_higher=lambda kind: run_tree.has_made_more(tx, request.run_id, kind, entry_id),
        judged=judged,
    )
    policy = request.policy
    if policy is not None and judged:
        over += limits.find_not_allowed(policy, request.facts)
    for one in over:
        if one.stops(gated=request.gated):
            return entries.OverLimit(one.reason, one.use.name, one.use.ask)
    if request.gated:
        refused = approval_rows.consume_approval(tx, request, entry_id, generation)
    if refused is None:
        room.take(tx)
        limits.count_uses(tx, request.uses, entry_id)
        for one in over:
            by = "shadow" if one.use.shadow else "approval"
            body = {"tool": request.tool, "limit": one.use.name, "evidence": one.reason}
            tx.event(request.run_id, "limit.exceeded", step_id=request.step_id, allowed=by, **body)
        if policy is not None and judged and policy.answer is not None:
            told = policy.answer
            body = {"tool": request.tool, "answer": told.said, "evidence": told.reasons}
            body |= {"params_hash": request.params_hash, "policy_version": told.version}
            tx.event(request.run_id, "policy.answered", step_id=request.step_id, **body)
    return refused


def note_claim(tx: Transaction, request: ClaimRequest, result: ClaimResult) -> None:
    """Record what a claim found, if that changes what the run does next."""
    match result:
        case entries.Committed(entry):
            made_by = None if entry.run_id == request.run_id else entry.run_id
            type_ = "effect.replayed"
            body = {"entry_id": entry.entry_id, "tool": entry.tool, "made_by": made_by}
            if made_by is not None:
                step = {"run_id": request.run_id, "step_id": request.step_id}
                rests = {"entry_id": entry.entry_id, "replayed_ms": tx.now_ms}
                tx.insert_new(replays, step | rests)
            if request.foreign or entry.foreign_receipt:
                foreign.mark_foreign(tx, request.run_id, [request.content])
            receipt = artifacts.Kept(entry.receipt, as_artifact(entry.receipt))
            artifacts.record_artifact(tx, request.run_id, request.step_id, receipt)
        case entries.NotClaimed(reason):
            type_ = "effect.refused"
            body = {"tool": request.tool, "rule": type(result).__name__, "evidence": reason}
            if isinstance(result, entries.Forbidden):
                pause = (request.run_id, request.step_id, request.first_attempt)
                write_pause(tx, *pause, tool=request.tool, reason=reason)
        case OverQuota() | Halted():
            result.note(tx, request.run_id, request.step_id)
            return
        case Claimed() | entries.Answered() | entries.Held() | entries.Doubtful() | entries.Asked():
            return
        case _:
            assert_never(result)
    tx.event(request.run_id, type_, step_id=request.step_id, **body)
