"""Taking an entry: the approval consumed, the claim written, in one transaction (G1, G3)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import BindParameter, bindparam, or_, select

from surehand.activities.ledger.approvals import requests as approval_rows
from surehand.activities.ledger.core.statements import insert_row, rows_of, update_rows
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import bars, effects
from surehand.activities.ledger.effects import recovery
from surehand.activities.ledger.effects.compensations import still_stands
from surehand.activities.ledger.effects.in_doubt import give_back
from surehand.activities.ledger.effects.undone import (
    must_be_told,
    waits_to_be_told,
)
from surehand.activities.ledger.people.starts import forbidden
from surehand.activities.ledger.steps import attempts as step_rows
from surehand.activities.ledger.steps.bars import EVERY_STEP
from surehand.activities.ledger.steps.batches import overtaken
from surehand.activities.ledger.steps.entries import (
    UNASKED,
    Barred,
    Claimed,
    ClaimRequest,
    ClaimResult,
    Drifted,
    Entry,
    Forbidden,
    Held,
    entry_id_for,
    milliseconds,
)
from surehand.activities.ledger.steps.executions import ActsElsewhere, acting_instead
from surehand.workflows.contracts.tools import Recovery

#: Before a batch that another attempt has made its own is tried again, if it is still wanted.
OVERTAKEN_PAUSE: Final = timedelta(seconds=1)

# Made once, because each claim needs them: to make a statement takes longer than to run it.
_OF: Final[dict[str, BindParameter[str]]] = {
    name: bindparam(f"of_{name}")
    for name in ("run", "step", "batch", "acting_run", "execution", "tool", "key")
}
_LOOK_AROUND: Final = select(
    rows_of(bars, run_id=_OF["run"])
    .where(or_(bars.c.step_id == _OF["step"], bars.c.step_id == EVERY_STEP))
    .exists()
    .label("barred"),
    overtaken(_OF["run"], _OF["batch"]).label("overtaken"),
    acting_instead(_OF["acting_run"], _OF["execution"]).label("acting_instead"),
    waits_to_be_told(_OF["run"]).label("untold"),
    rows_of(effects, tool=_OF["tool"], key=_OF["key"]).exists().label("known"),
)
_FIRST: Final = insert_row(effects).returning(effects)


@dataclass(frozen=True)
class Seen:
    """What stands around a call, asked in one go: hardly ever is there anything."""

    barred: bool
    """The step has been undone."""
    overtaken: bool
    """The batch that it is made in is given up, or another attempt's."""
    acting_instead: str | None
    """The execution that acts for the run, if it is not the one that calls."""
    untold: bool
    """A human has to take note of something first."""
    fresh: bool
    """No entry has this business key."""

    def require_acting(self, request: ClaimRequest) -> None:
        """Make sure that the call is made for the execution that acts.

        Raises:
            ActsElsewhere: Another one acts for its run.
        """
        if self.acting_instead is not None:
            mine = request.execution or ""
            raise ActsElsewhere(request.tenant, request.acting_run, mine, self.acting_instead)


def look_around(tx: Transaction, request: ClaimRequest) -> Seen:
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
    )
    assert found is not None
    return Seen(
        barred=found["barred"],
        overtaken=found["overtaken"],
        acting_instead=found["acting_instead"],
        untold=found["untold"],
        fresh=not found["known"],
    )


def take_first(tx: Transaction, request: ClaimRequest, seen: Seen, generation: int) -> ClaimResult:
    """Insert the entry of a new generation."""
    entry_id = entry_id_for(request.tenant, request.tool, request.key, generation)
    refused = _authorise(tx, request, seen, entry_id, generation)
    if refused is not None:
        return refused
    values = {
        "entry_id": entry_id,
        "tool": request.tool,
        "key": request.key,
        "generation": generation,
        "identity_hash": request.identity_hash,
        "undoes": request.undoes,
        "fencing_token": 1,
        "first_call_ms": tx.now_ms,
        "observed": UNASKED if request.observes else None,
        "unproven": False,
        "calls": 1,
        "failures": {},
        "claimed_ms": tx.now_ms,
        **_lease(tx, request),
        **_limits(tx, request, None),
    }
    row = tx.one(_FIRST, **values)
    assert row is not None
    return _claimed(tx, request, Entry.from_row(row))


def take(
    tx: Transaction, request: ClaimRequest, seen: Seen, entry: Entry, *, rule: str | None = None
) -> ClaimResult:
    """Claim an existing entry again, with the next fencing token."""
    refused = _authorise(tx, request, seen, entry.entry_id, entry.generation)
    if refused is not None:
        return refused
    mine = entry.owned_by(request.run_id, request.step_id)
    observed = UNASKED if request.observes else None
    row = tx.one(
        update_rows(
            effects, entry_id=entry.entry_id, state=entry.state, fencing_token=entry.fencing_token
        )
        .values(
            fencing_token=entry.fencing_token + 1,
            calls=effects.c.calls + 1,
            failures=entry.counted_failures() if mine else {},
            # Called again with the same key although the first call may have happened: what this
            # call proves, it proves of itself only.
            unproven=rule is Recovery.DEDUPES,
            recovering_ms=None if rule is None else recovery.since(tx),
            claimed_ms=effects.c.claimed_ms if mine else tx.now_ms,
            answer=None,
            # Where the first call may have happened, what was so before it still counts.
            **({} if rule is Recovery.DEDUPES else {"observed": observed}),
            **_lease(tx, request),
            **_limits(tx, request, entry if rule is Recovery.DEDUPES else None),
        )
        .returning(effects)
    )
    if row is None:
        return Held(timedelta(seconds=1))
    return _claimed(tx, request, Entry.from_row(row), rule, found=entry.state)


def keep_observed(
    tx: Transaction, request: ClaimRequest, entry: Entry, answer: str, evidence: str | None
) -> Entry | None:
    """Keep what a lookup has said before the call, whose lease and deadline count from now.

    Returns:
        The entry; ``None`` when it is not ours any more: nothing may be called then.
    """
    row = tx.one(
        update_rows(
            effects, entry_id=entry.entry_id, state="claimed", fencing_token=entry.fencing_token
        )
        .values(
            observed={"answer": answer, "evidence": evidence},
            **_limits(tx, request, entry if entry.unproven else None),
        )
        .returning(effects)
    )
    if row is None:
        return None
    entry.tell(tx, "effect.observed", answer=answer, evidence=evidence)
    return Entry.from_row(row)


def find_again(tx: Transaction, request: ClaimRequest, seen: Seen, entry: Entry) -> ClaimResult:
    """Return the claim whose answer was lost, its lease and deadline counted from now.

    The call starts only now: what others hold against it must not have run out before, and its
    approval must not, either.
    """
    refused = _authorise(tx, request, seen, entry.entry_id, entry.generation)
    if refused is not None:
        return give_back(tx, request, entry, refused)
    row = tx.one(
        update_rows(effects, entry_id=entry.entry_id)
        .values(
            # However long ago it has looked at the world: it looks again.
            **({} if entry.unproven or entry.observed is None else {"observed": UNASKED}),
            **_limits(tx, request, entry if entry.unproven else None),
        )
        .returning(effects)
    )
    assert row is not None, "the entry's row is locked by this transaction"
    return Claimed(Entry.from_row(row))


def _lease(tx: Transaction, request: ClaimRequest) -> dict[str, Any]:
    return {
        "tool_version": request.tool_version,
        "params_hash": request.params_hash,
        "params": request.params,
        "run_id": request.run_id,
        "step_id": request.step_id,
        "approval_id": request.approval_id,
        "state": "claimed",
        "holder": request.holder,
        "activity_key": request.activity_key,
        "settled_ms": None,
        "left_because": None,
    }


def _limits(tx: Transaction, request: ClaimRequest, before: Entry | None) -> dict[str, Any]:
    """Return what this claim is judged by, also by workers whose own limits are others.

    Args:
        tx: The transaction.
        request: The claim.
        before: The entry, if an earlier call of it may still be on the wire: then the one that is
            over last counts.
    """
    timeout_ms = milliseconds(request.timeout)
    settle_ms = None if request.settle is None else milliseconds(request.settle)
    window_ms = None if request.window is None else milliseconds(request.window)
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
        "lease_until_ms": tx.now_ms + milliseconds(request.lease),
        "lease_ms": milliseconds(request.lease),
        "deadline_ms": deadline_ms,
        "timeout_ms": timeout_ms,
        "settle_ms": settle_ms,
        "window_ms": window_ms,
    }


def _claimed(
    tx: Transaction,
    request: ClaimRequest,
    entry: Entry,
    rule: str | None = None,
    *,
    found: str | None = None,
) -> Claimed:
    if request.undoes:
        tx.execute(
            update_rows(effects, entry_id=request.undoes, state="committed").values(
                state="compensating"
            )
        )
    if rule:
        tx.event(
            request.run_id,
            "effect.reconciled",
            step_id=request.step_id,
            entry_id=entry.entry_id,
            tool=entry.tool,
            rule=rule,
            evidence=f"no outcome was recorded under fencing token {entry.fencing_token - 1}",
            action="call_again",
            found=found,
        )
    tx.event(
        request.run_id,
        "effect.claimed",
        step_id=request.step_id,
        entry_id=entry.entry_id,
        tool=entry.tool,
        generation=entry.generation,
        fencing_token=entry.fencing_token,
        attempt=request.attempt,
        params_hash=request.params_hash,
        approval_id=request.approval_id,
        undoes=request.undoes,
    )
    if not request.undoes:
        step_rows.start(tx, request.step_attempt)
    return Claimed(entry)


def _authorise(
    tx: Transaction, request: ClaimRequest, seen: Seen, entry_id: str, generation: int
) -> ClaimResult | None:
    """Return why this call may not go forward, or ``None`` once its approval is consumed."""
    if seen.barred and not request.undoes:
        return Barred("this step has been undone; a late attempt must not apply it")
    if seen.overtaken and not request.undoes:
        return Held(OVERTAKEN_PAUSE)
    if seen.untold and not request.undoes:
        told = must_be_told(tx, request.run_id)
        if told is not None:
            return told
    if request.undoes and not still_stands(tx, request.undoes):
        return Barred("a human has settled the effect to undo meanwhile")
    reason = forbidden(*(tx, request.run_id, request.user, request.permissions, request.assurance))
    if reason is not None:
        return Forbidden(reason)
    if request.drift:
        return Drifted(request.drift)
    if not request.gated:
        return None
    return approval_rows.consume(tx, request, entry_id, generation)
