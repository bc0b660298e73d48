"""Going on after a lookup that found nothing (guarantee G2)."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, Literal

from surehand.activities.ledger.core.statements import update_rows
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import effects
from surehand.activities.ledger.effects import recovery
from surehand.activities.ledger.effects.claim_entry import look_around, take
from surehand.activities.ledger.effects.claims import note
from surehand.activities.ledger.effects.clock_jumps import call_left
from surehand.activities.ledger.effects.outcomes import still_ours
from surehand.activities.ledger.steps.entries import (
    Barred,
    ClaimRequest,
    ClaimResult,
    Entry,
    Held,
    milliseconds,
)

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
        tx: The transaction.
        request: The call.
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
        recovery.verified(tx, entry, "failed", action=action)
