"""Effects that nobody works on any more: found, and taken for settling."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, Literal

from sqlalchemy import ColumnElement, and_, or_

from surehand.activities.ledger.core.statements import rows_of, update_rows
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import WITHOUT_OUTCOME, effects, interventions
from surehand.activities.ledger.effects import outcomes
from surehand.activities.ledger.effects.claim_entry import doubt_again, look_around, take
from surehand.activities.ledger.effects.claims import note
from surehand.activities.ledger.effects.epochs import call_left, current, lease_left
from surehand.activities.ledger.effects.interventions import newest_intervention
from surehand.activities.ledger.effects.outcomes import doubt, still_ours
from surehand.activities.ledger.steps.entries import (
    Barred,
    ClaimRequest,
    ClaimResult,
    Entry,
    Held,
    milliseconds,
)


def stale_entries(
    tx: Transaction, quiet: timedelta, limit: int, after: str | None = None
) -> list[Entry]:
    """Return entries without an outcome that nobody has touched for a while, oldest first.

    Left out are those about which a human is asked, or has given up. Times that only a clock which
    was set back explains are no reason to wait: whoever judges them cuts them.

    Args:
        quiet: How long after the end of its lease, or of its call, an entry is left to the run's
            own attempts.
        limit: Most entries to return.
        after: The place of the last entry of the page before (``place``).
    """
    before = tx.now_ms - milliseconds(quiet)
    asked = (
        rows_of(interventions, entry_id=effects.c.entry_id)
        .where(or_(interventions.c.state == "open", interventions.c.outcome == "give_up"))
        .exists()
    )
    rows = tx.all(
        rows_of(effects)
        .where(
            WITHOUT_OUTCOME,
            or_(
                and_(effects.c.state == "claimed", _over(tx, before, "lease_until_ms", "lease_ms")),
                and_(
                    effects.c.state.in_(("in_doubt", "partial")),
                    _over(tx, before, "deadline_ms", "timeout_ms"),
                ),
            ),
            ~asked,
            *_behind(after),
        )
        .order_by(effects.c.claimed_ms, effects.c.entry_id)
        .limit(limit)
    )
    return [Entry.from_row(row) for row in rows]


def _over(tx: Transaction, before: int, until: str, lasts: str) -> ColumnElement[bool]:
    return or_(effects.c[until] < before, effects.c[until] > tx.now_ms + effects.c[lasts])


def place(seen: Entry) -> str:
    """Return where an entry stands among those that are stale."""
    return f"{seen.claimed_ms}:{seen.entry_id}"


def _behind(after: str | None) -> list[ColumnElement[bool]]:
    if after is None:
        return []
    claimed_ms, _, entry_id = after.partition(":")
    here = and_(effects.c.claimed_ms == int(claimed_ms), effects.c.entry_id > entry_id)
    return [or_(effects.c.claimed_ms > int(claimed_ms), here)]


def take_over(tx: Transaction, seen: Entry) -> Entry | None:
    """Put a stale entry in doubt under our fencing token; ``None`` if somebody was quicker."""
    tx.lock_key(seen.tool, seen.key)
    row = tx.one(
        rows_of(
            effects, entry_id=seen.entry_id, fencing_token=seen.fencing_token, state=seen.state
        ).with_for_update()
    )
    if row is None:
        return None
    tx.tick()  # it may have waited for the locks
    entry = Entry.from_row(row)
    # A call that is alive after all has renewed its lease meanwhile.
    if entry.state == "claimed" and lease_left(tx, entry) > 0:
        return None
    # A round takes its time: meanwhile its own run may have asked a human, who settles it.
    question = newest_intervention(tx, seen.entry_id)
    if question is not None and (question["state"] == "open" or question["outcome"] == "give_up"):
        return None
    epoch = current(tx)
    if epoch is not None and epoch.doubts(entry):
        entry = doubt_again(tx, entry, epoch)
    reason = "its lease ran out and nobody took it over" if seen.state == "claimed" else None
    return doubt(tx, entry, reason, rule="stale")


#: What proves that an effect did not happen; in the events, too.
Proof = Literal["lookup_not_found", "transactional", "not_called"]
#: Before an entry that somebody else has taken over meanwhile is looked at again.
_TAKEN_OVER_PAUSE: Final = timedelta(seconds=1)


def after_not_found(
    tx: Transaction,
    request: ClaimRequest,
    entry: Entry,
    *,
    forward: bool,
    rule: Proof = "lookup_not_found",
    looked: timedelta = timedelta(0),
    action: Literal["bar", "fail"] = "bar",
) -> ClaimResult:
    """Go on after a lookup that found nothing.

    Until the deadline of the call that was made, plus the settle time that it was made with, a
    request may still be on the wire, and the fencing token cannot stop it: wait and look again.
    After that the effect is proven not to have happened.

    Args:
        entry: The entry, in doubt under our fencing token.
        forward: Claim it again; otherwise record that it did not happen.
        rule: What proves it. Calls of a transactional tool are over once the entry is in doubt
            under a new fencing token, and one that was not called yet has none: nothing is waited
            for then.
        looked: How long ago the lookup began: what it found is no younger.
        action: What comes of that for its step, where it is not claimed again: it is being undone,
            or it fails.

    Raises:
        ActsElsewhere: It is to be claimed again, and another execution of its run acts.
    """
    if forward:
        tx.share_run(request.acting_run)
    # Before its approval, as every claim locks them.
    if not still_ours(tx, entry):
        return Held(_TAKEN_OVER_PAUSE)  # Whoever has it knows more.
    if rule == "lookup_not_found":
        assert entry.settle_ms is not None, "without it nothing is proven"
        left = call_left(tx, entry) + entry.settle_ms + milliseconds(looked)
        if left > 0:
            return Held(timedelta(milliseconds=left), settling=True)
    # It may have waited for the row. Not above: what was found is no younger for that.
    tx.tick()
    if forward:
        seen = look_around(tx, request)
        seen.require_acting(request)
        result = take(tx, request, seen, entry, rule=rule)
        note(tx, request, result)
        return result
    settle_not_applied(tx, entry, rule, action)
    return Barred("it did not happen, and this step is being undone")


def settle_not_applied(
    tx: Transaction, entry: Entry, rule: str, action: Literal["bar", "fail"] = "bar"
) -> None:
    """Record that the effect is proven not to have happened."""
    touched = tx.execute(
        update_rows(
            effects, entry_id=entry.entry_id, state=entry.state, fencing_token=entry.fencing_token
        ).values(
            state="failed",
            answer=entry.answer if action == "fail" else None,
            lease_until_ms=None,
            recovering_ms=None,
            settled_ms=tx.now_ms,
        )
    )
    if touched:
        entry.tell(
            tx,
            "effect.reconciled",
            rule=rule,
            evidence="not_found",
            action=action,
        )
        outcomes.verified(tx, entry, "failed", action=action)
