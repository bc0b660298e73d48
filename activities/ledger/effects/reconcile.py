"""Settling effects whose outcome is missing: by what a lookup finds, or by a human's answer (G2).

The reaper finds those that nobody works on any more, and takes them over.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, NamedTuple

from sqlalchemy import ColumnElement, and_, or_

from surehand.activities.ledger.core.statements import rows_of, update_rows
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import WITHOUT_OUTCOME, effects, interventions, runs
from surehand.activities.ledger.effects import claims, epochs, outcomes
from surehand.activities.ledger.effects.interventions import (
    UNDO_CHANGED,
    UNDO_REFUSED,
    UNDONE,
    human_decides,
    mark_compensated,
    tell_replayers,
)
from surehand.activities.ledger.steps import entries
from surehand.activities.ledger.steps.entries import Entry, milliseconds
from surehand.workflows.contracts.base import ARTIFACT
from surehand.workflows.contracts.effects import Resolution, ResolutionOutcome


def stale_entries(
    tx: Transaction, quiet: timedelta, limit: int, after: str | None = None
) -> list[Entry]:
    """Return entries without an outcome that nobody has touched for a while, oldest first.

    Left out are those about which a human is asked, or has given up. Times that only a clock which
    was set back explains are no reason to wait: whoever judges them cuts them.
    For as long as ``quiet`` after the end of its lease, or of its call, an entry is left to the
    run's own attempts. ``after`` is the place of the last entry before (``place_of``).
    """
    own, before = effects.c, tx.now_ms - milliseconds(quiet)

    def is_over(until: ColumnElement[int], lasts: ColumnElement[int]) -> ColumnElement[bool]:
        return or_(until < before, until > tx.now_ms + lasts)

    asked = (
        rows_of(interventions, entry_id=own.entry_id)
        .where(or_(interventions.c.state == "open", interventions.c.outcome == "give_up"))
        .exists()
    )
    in_doubt = own.state.in_(("in_doubt", "partial"))
    quiet_ones = or_(
        and_(own.state == "claimed", is_over(own.lease_until_ms, own.lease_ms)),
        and_(in_doubt, is_over(own.deadline_ms, own.timeout_ms)),
    )
    query = rows_of(effects).where(WITHOUT_OUTCOME, quiet_ones, ~asked)
    if after is not None:
        claimed_ms, _, entry_id = after.partition(":")
        here = and_(own.claimed_ms == int(claimed_ms), own.entry_id > entry_id)
        query = query.where(or_(own.claimed_ms > int(claimed_ms), here))
    rows = tx.all(query.order_by(own.claimed_ms, own.entry_id).limit(limit))
    return [Entry.from_row(row) for row in rows]


def place_of(seen: Entry) -> str:
    """Return where an entry stands among those that are stale."""
    return f"{seen.claimed_ms}:{seen.entry_id}"


def take_over(tx: Transaction, seen: Entry) -> Entry | None:
    """Put a stale entry in doubt under our fencing token; ``None`` if somebody was quicker."""
    tx.lock_key(seen.tool, seen.key)
    same = {"fencing_token": seen.fencing_token, "state": seen.state}
    entry = Entry.find(tx, rows_of(effects, entry_id=seen.entry_id, **same).with_for_update())
    if entry is None:
        return None
    tx.tick()  # it may have waited for the locks
    # A call that is alive after all has renewed its lease meanwhile.
    if entry.state == "claimed" and epochs.lease_left(tx, entry) > 0:
        return None
    # A round takes its time: meanwhile its own run may have asked a human, who settles it.
    if human_decides(tx, seen.entry_id):
        return None
    epoch = epochs.current_epoch(tx)
    if epoch is not None and epoch.doubts(entry):
        entry = claims.doubt_known_entry(tx, entry, epoch)
    reason = "its lease ran out and nobody took it over" if seen.state == "claimed" else None
    return outcomes.put_in_doubt(tx, entry, reason, rule="stale")


#: What proves that an effect did not happen; in the events, too.
Proof = Literal["lookup_not_found", "transactional", "not_called"]
#: Before an entry that somebody else has taken over meanwhile is looked at again.
_TAKEN_OVER_PAUSE: Final = timedelta(seconds=1)


def after_not_found(
    tx: Transaction,
    request: entries.ClaimRequest,
    entry: Entry,
    *,
    forward: bool,
    rule: Proof = "lookup_not_found",
    looked: timedelta = timedelta(0),
    action: Literal["bar", "fail"] = "bar",
) -> entries.ClaimResult:
    """Go on after a lookup that found nothing; raises ``ActsElsewhere``, as a claim does.

    Until the deadline of the call that was made, plus the settle time that it was made with, a
    request may still be on the wire, and the fencing token cannot stop it: wait and look again.
    After that the effect is proven not to have happened, and is claimed again (``forward``), or
    recorded as such: ``action`` is what comes of it for its step then. Nothing is waited for if
    ``rule`` says that no call can be on its way: none of a transactional tool is under a new
    fencing token. ``looked`` is how long ago the lookup began: what it found is no younger.
    """
    if forward:
        tx.share_calls()
        tx.share_run(request.acting_run)
    # Before its approval, as every claim locks them.
    if not outcomes.still_ours(tx, entry):
        return entries.Held(_TAKEN_OVER_PAUSE)  # Whoever has it knows more.
    if rule == "lookup_not_found":
        assert entry.settle_ms is not None, "without it nothing is proven"
        left = epochs.call_left(tx, entry) + entry.settle_ms + milliseconds(looked)
        if left > 0:
            return entries.Held(timedelta(milliseconds=left), settling=True)
    # It may have waited for the row. Not above: what was found is no younger for that.
    tx.tick()
    if forward:
        seen = claims.look_around(tx, request)
        seen.require_acting(request)
        result = claims.claim_again(tx, request, seen, entry, rule=rule)
        claims.note_claim(tx, request, result)
        return result
    settle_not_applied(tx, entry, rule, action)
    return entries.Barred("it did not happen, and this step is being undone")


def settle_not_applied(
    tx: Transaction, entry: Entry, rule: str, action: Literal["bar", "fail"] = "bar"
) -> None:
    """Record that the effect is proven not to have happened."""
    answer = entry.answer if action == "fail" else None
    values = {"state": "failed", "answer": answer, **outcomes.settled_values(tx)}
    if outcomes.write_entry(tx, entry, **values) is not None:
        entry.tell(tx, "effect.reconciled", rule=rule, evidence="not_found", action=action)
        outcomes.verify_recovery(tx, entry, "failed", action=action)


#: A receipt that a human gives travels in history as it is.
LARGEST_RECEIPT: Final = 8 * 1024  # bytes

_Answer = ResolutionOutcome
_OF_DOUBT: Final = {
    _Answer.HAPPENED: "committed",
    _Answer.NOT_HAPPENED: "failed",
    _Answer.CALL_OFF: "failed",
    _Answer.COMPENSATED: "compensated",
    _Answer.UNDO: "committed",
}
#: What each answer makes of an entry, by the state that it is in.
_SETTLES: Final = {
    "in_doubt": {**_OF_DOUBT, _Answer.GIVE_UP: "in_doubt"},
    "partial": {**_OF_DOUBT, _Answer.GIVE_UP: "partial"},
    "compensating": {
        _Answer.COMPENSATED: "compensated",
        _Answer.GIVE_UP: "committed",
        _Answer.UNDO: "compensating",
    },
}
#: An undo is not undone: that it happened is what settles its original. An undo that is not to be
#: tried again is given up.
_NOT_OF_UNDOS: Final = frozenset({_Answer.COMPENSATED, _Answer.UNDO, _Answer.CALL_OFF})
#: Answers that would be wrong if the call arrived after them.
RULES_IT_OUT: Final = frozenset({_Answer.NOT_HAPPENED, _Answer.CALL_OFF, _Answer.COMPENSATED})
#: What is left to say of an entry that an attempt has settled while a human was asked.
_SETTLED_MEANWHILE: Final = {
    "committed": _Answer.HAPPENED,
    "failed": _Answer.NOT_HAPPENED,
    "compensated": _Answer.COMPENSATED,
}


class Settled(NamedTuple):
    """What became of an answer to an intervention."""

    accepted: bool
    message: str
    """Why, as a sentence."""
    settled: bool
    """Whether the intervention is settled, by whomever."""


def settle_intervention(
    tx: Transaction,
    run_id: str,
    resolution_id: str,
    resolution: Resolution,
    can_undo: Callable[[str], bool] = lambda _: False,
) -> Settled:
    """Apply a human's answer, once; the run follows the intervention, whoever has settled it.

    It came through ``run_id``; the same delivery twice is one answer. ``can_undo`` says whether the
    run can undo the effects of a tool.
    """
    intervention_id, actor = resolution.intervention_id, resolution.actor
    outcome = resolution.outcome

    def refuse(why: str, *, settled: bool = False) -> Settled:
        body = {"resolution_id": resolution_id, "outcome": outcome.value, "actor": actor}
        tx.event(run_id, "resolution.refused", **body)
        return Settled(False, why, settled)

    row = tx.one(rows_of(interventions, intervention_id=intervention_id).with_for_update())
    if row is None or (row["run_id"] != run_id and is_run_open(tx, row["run_id"])):
        # Its own run settles it, and goes on; a run that has ended cannot.
        settled = row is not None and row["state"] == "settled"
        return refuse(f"this run has no intervention {intervention_id!r}", settled=settled)
    if row["state"] == "settled" and row["resolution_id"] == resolution_id:
        return Settled(True, f"settled: {row['outcome']}", True)
    if row["state"] == "settled":
        return refuse(f"already settled by {row['actor']}: {row['outcome']}", settled=True)
    effect = rows_of(effects, entry_id=row["entry_id"]).with_for_update()
    # Of a run that was erased nothing is to be settled but that others have taken note of it.
    entry = Entry.find(tx, effect.execution_options(sealed="shown"))
    assert entry is not None, "entries are never deleted"
    noted = is_noted(entry, row["rule"])
    answers = allowed_answers(entry, row["rule"], run_id, can_undo)
    state = answers.get(outcome)
    if state is None:
        allowed = sorted(outcome.value for outcome in answers)
        return refuse(f"an entry that is {entry.state} can be settled as: {', '.join(allowed)}")
    if not noted and outcome in RULES_IT_OUT and (until := may_arrive_until(tx, entry)):
        return refuse(f"its call may still arrive until {until}; answer after that")
    if outcome is _Answer.HAPPENED and not resolution.evidence:
        return refuse("say what proves that it happened (evidence)")
    receipt = resolution.receipt
    refers = isinstance(receipt, dict) and ARTIFACT in receipt
    if refers or len(json.dumps(receipt)) > LARGEST_RECEIPT:
        # It could not go into history as it is.
        return refuse(f"give a receipt of at most {LARGEST_RECEIPT} bytes, without {ARTIFACT!r}")
    takes_receipt = state == "committed" and entry.receipt is None
    if not noted:
        values: dict[str, object] = {
            "state": state,
            "fencing_token": entry.fencing_token + 1,
            "settled_ms": tx.now_ms,
            "recovering_ms": None,
            "answer": None,
            "evidence": {"rule": "human", "actor": actor, "text": resolution.evidence},
        }
        if state in ("committed", "compensated") and entry.commit_no is None:
            values["commit_no"] = entries.next_commit_no()
        if takes_receipt:
            by_hand = {"settled_by": actor, "evidence": resolution.evidence}
            values["receipt"] = by_hand if receipt is None else receipt
        if outcome is _Answer.UNDO and row["undo"] is not None:
            values["undo"] = row["undo"]
        outcomes.write_entry(tx, entry, **values)
        if state == "committed":
            mark_compensated(tx, entry)
        if state == "compensated":
            tell_replayers(tx, entry.entry_id)
    its = {"intervention_id": intervention_id, "run_id": row["run_id"], "state": "open"}
    tx.execute(
        update_rows(interventions, **its).values(
            state="settled",
            outcome=outcome.value,
            actor=actor,
            evidence=resolution.evidence,
            resolution_id=resolution_id,
            settled_ms=tx.now_ms,
        )
    )
    # In the chain of the run whose effect it is.
    asked_in = row["run_id"] if row["rule"] == UNDONE else entry.run_id
    tx.event(
        asked_in,
        "intervention.settled",
        step_id=row["step_id"],
        entry_id=entry.entry_id,
        tool=entry.tool,
        intervention_id=intervention_id,
        rule=row["rule"],
        outcome=outcome.value,
        actor=actor,
        evidence=resolution.evidence or None,
        resolution_id=resolution_id,
        action=state,
        through=None if run_id == asked_in else run_id,
        value_by=actor if takes_receipt and not noted else None,
    )
    if not noted:
        outcomes.verify_recovery(tx, entry, state, action="human")
    return Settled(True, f"settled: {outcome.value}", True)


def is_noted(entry: Entry, rule: str) -> bool:
    """Return whether an entry is what it is, whatever anybody says: a run only takes note of it."""
    return rule == UNDONE or entry.state in _SETTLED_MEANWHILE


def allowed_answers(
    entry: Entry, rule: str, run_id: str, can_undo: Callable[[str], bool]
) -> dict[ResolutionOutcome, str]:
    """Return what each answer that may be given to an intervention makes of its entry.

    ``rule`` says why it was opened, ``run_id`` through which run the answer comes, and ``can_undo``
    is as for :func:`settle_intervention`.
    """
    if is_noted(entry, rule):
        return {_SETTLED_MEANWHILE[entry.state]: entry.state}
    if entry.state == "compensating":
        # Whoever has asked undoes it, be it a run above.
        may_undo = rule in (UNDO_CHANGED, UNDO_REFUSED)
    else:
        may_undo = entry.run_id == run_id and can_undo(entry.tool)
    return {
        outcome: state
        for outcome, state in _SETTLES.get(entry.state, {}).items()
        if not (entry.undoes and outcome in _NOT_OF_UNDOS)
        and (may_undo or outcome is not _Answer.UNDO)
    }


def name_answers(
    entry: Entry, rule: str, run_id: str, can_undo: Callable[[str], bool]
) -> tuple[str, ...]:
    """Return the allowed answers as people and messages name them."""
    return tuple(answer.value for answer in allowed_answers(entry, rule, run_id, can_undo))


def may_arrive_until(tx: Transaction, entry: Entry) -> str | None:
    """Return until when a call of an entry in doubt may still arrive; ``None``: none may.

    A worker that hangs may make it until its deadline, and the outside system takes its settle
    time to show it.
    """
    left = may_arrive_for(tx, entry)
    if left <= 0:
        return None
    return f"{datetime.fromtimestamp((tx.now_ms + left) / 1000, UTC):%H:%M:%S} UTC"


def may_arrive_for(tx: Transaction, entry: Entry) -> int:
    """Return how many milliseconds longer a call of an entry in doubt may arrive; 0: none may."""
    if entry.state not in ("in_doubt", "partial") or entry.observed == entries.UNASKED:
        return 0
    return max(0, epochs.call_left(tx, entry) + (entry.settle_ms or 0))


def is_run_open(tx: Transaction, run_id: str) -> bool:
    """Return whether a run goes on, as the ledger knows it."""
    return tx.has(rows_of(runs, runs.c.run_id, run_id=run_id, closed_ms=None))
