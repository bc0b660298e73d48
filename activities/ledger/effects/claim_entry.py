"""Taking an entry: the approval consumed, the claim written, in one transaction (G1, G3)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import BindParameter, bindparam, or_, select

from surehand.activities.ledger.approvals import requests as approval_rows
from surehand.activities.ledger.core.statements import (
    PreparedStatement,
    insert_row,
    rows_of,
    update_rows,
)
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import bars, effects
from surehand.activities.ledger.effects import outcomes
from surehand.activities.ledger.effects.compensations import other_undo, still_remains
from surehand.activities.ledger.effects.epochs import Epoch, note_restored, open_epoch
from surehand.activities.ledger.effects.outcomes import give_back
from surehand.activities.ledger.effects.undone import (
    must_be_told,
    waits_to_be_told,
)
from surehand.activities.ledger.people.starts import why_forbidden
from surehand.activities.ledger.quotas import OverQuota, find_room, select_limited
from surehand.activities.ledger.steps import attempts as step_rows
from surehand.activities.ledger.steps.acting import (
    EVERY_STEP,
    ActsElsewhere,
    acting_instead,
    overtaken,
)
from surehand.activities.ledger.steps.entries import (
    FORGOTTEN,
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
from surehand.activities.ledger.steps.foreign import is_marked, marked_here
from surehand.workflows.contracts.tools import Recovery

#: Before a batch that another attempt has made its own is tried again, if it is still wanted.
OVERTAKEN_PAUSE: Final = timedelta(seconds=1)

_OF: Final[dict[str, BindParameter[str]]] = {
    name: bindparam(f"of_{name}")
    for name in ("run", "step", "batch", "acting_run", "execution", "tool", "key")
}
_LOOK_AROUND: Final = PreparedStatement(
    select(
        rows_of(bars, run_id=_OF["run"])
        .where(or_(bars.c.step_id == _OF["step"], bars.c.step_id == EVERY_STEP))
        .exists()
        .label("barred"),
        overtaken(_OF["run"], _OF["batch"]).label("overtaken"),
        acting_instead(_OF["acting_run"], _OF["execution"]).label("acting_instead"),
        waits_to_be_told(_OF["run"]).label("untold"),
        rows_of(effects, tool=_OF["tool"], key=_OF["key"]).exists().label("known"),
        is_marked(_OF["run"]).label("foreign"),
        select_limited().label("limited"),
        open_epoch().label("epoch"),
    )
)
_UNSET: Final = dict.fromkeys(one.name for one in effects.c if one.name != "tenant_id")
_FIRST: Final = PreparedStatement(insert_row(effects), list(_UNSET))
#: What a call of another run has left in an entry is that run's.
_NOTHING_LEFT: Final = {"error": None, "evidence": None, "receipt": None, "foreign_receipt": False}


@dataclass(frozen=True)
class SeenAround:
    """What stands around a call, asked in one go: hardly ever is there anything."""

    barred: bool
    """The step has been undone."""
    overtaken: bool
    """The batch that it is made in is revoked, or another attempt's."""
    acting_instead: str | None
    """The execution that acts for the run, if it is not the one that calls."""
    untold: bool
    """A human has to take note of something first."""
    fresh: bool
    """No entry has this business key."""
    foreign: bool
    """The run has read content from outside."""
    limited: str | None
    """What of the tenant's calls its quotas limit (``ledger/quotas.py``)."""
    epoch: int | None
    """The epoch that is open: the ledger was restored (``epochs.py``)."""

    def require_acting(self, request: ClaimRequest) -> None:
        """Make sure that the call is made for the execution that acts.

        Raises:
            ActsElsewhere: Another one acts for its run.
        """
        if self.acting_instead is not None:
            mine = request.execution or ""
            raise ActsElsewhere(request.tenant, request.acting_run, mine, self.acting_instead)


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
    )
    assert found is not None
    return SeenAround(
        barred=found["barred"],
        overtaken=found["overtaken"],
        acting_instead=found["acting_instead"],
        untold=found["untold"],
        fresh=not found["known"],
        foreign=found["foreign"] or bool(marked_here(tx, request.run_id)),
        limited=found["limited"],
        epoch=found["epoch"],
    )


def take_first(
    tx: Transaction, request: ClaimRequest, seen: SeenAround, generation: int
) -> ClaimResult:
    """Insert the entry of a new generation."""
    entry_id = entry_id_for(request.tenant, request.tool, request.key, generation)
    # The entry's first call; whatever is tried again afterwards is the same effect.
    refused = _authorise(tx, request, seen, entry_id, generation, first=True)
    if refused is not None:
        return refused
    entry = _new_entry(tx, request, epoch=seen.epoch or 0, generation=generation)
    return _claimed(tx, request, _insert_entry(tx, entry))


def _insert_entry(tx: Transaction, entry: dict[str, Any]) -> Entry:
    tx.send(_FIRST, **entry)
    return Entry.from_row({**entry, "tenant_id": tx.tenant})


def doubt_first(
    tx: Transaction, request: ClaimRequest, seen: SeenAround, generation: int, epoch: Epoch
) -> Entry:
    """Insert the entry of a new generation in doubt: it may be there already, and forgotten.

    No approval is used for that: nothing is called.
    """
    entry = _insert_entry(
        tx,
        {
            **_new_entry(tx, request, epoch=seen.epoch or 0, generation=generation),
            "state": "in_doubt",
            "holder": None,
            "lease_until_ms": None,
            "approval_id": None,
            "observed": {"answer": FORGOTTEN},
            # A provider may have begun to count then; and the last call began before the opening.
            "first_call_ms": epoch.restored_to_ms,
            "deadline_ms": epoch.opened_ms + milliseconds(request.timeout),
            "recovering_ms": tx.now_ms,
        },
    )
    _begin_undo(tx, request)
    note_restored(tx, entry, epoch)
    if not request.undoes:
        step_rows.start(tx, request.step_attempt)
    return entry


def doubt_again(
    tx: Transaction, entry: Entry, epoch: Epoch, *, by: ClaimRequest | None = None
) -> Entry:
    """Put an entry in doubt that may have been called since, unrecorded; its row is locked.

    Args:
        epoch: The restore that may have forgotten a call.
        by: The claim that takes it over. What another run has left there is that run's, which may
            have been erased or deleted meanwhile.
    """
    taken: dict[str, Any] = {}
    if by is not None and not entry.owned_by(by.run_id, by.step_id):
        taken = {
            **_lease(tx, by),
            "approval_id": None,
            "failures": {},
            **_NOTHING_LEFT,
        }
    row = tx.one(
        update_rows(effects, entry_id=entry.entry_id)
        .values(
            **{
                **taken,
                "state": "in_doubt",
                "fencing_token": entry.fencing_token + 1,
                "holder": None,
                "lease_until_ms": None,
                # Whoever called it last began before the epoch was opened.
                "deadline_ms": max(entry.deadline_ms or 0, epoch.opened_ms + entry.timeout_ms),
                # What was so before that call is forgotten, too.
                "observed": {"answer": FORGOTTEN},
                "answer": None,
                "recovering_ms": tx.now_ms,
                "settled_ms": None,
                "epoch": epoch.number,
            }
        )
        .returning(effects)
        .execution_options(of_run=taken.get("run_id", entry.run_id))
    )
    assert row is not None, "entries are never deleted"
    doubted = Entry.from_row(row)
    note_restored(tx, doubted, epoch)
    return doubted


def _new_entry(
    tx: Transaction, request: ClaimRequest, *, epoch: int, generation: int
) -> dict[str, Any]:
    """Return the values of an entry that is claimed for the first time."""
    return {
        **_UNSET,
        "entry_id": entry_id_for(request.tenant, request.tool, request.key, generation),
        "tool": request.tool,
        "key": request.key,
        "generation": generation,
        "identity_hash": request.identity_hash,
        "undoes": request.undoes,
        "fencing_token": 1,
        "first_call_ms": tx.now_ms,
        "epoch": epoch,
        "observed": UNASKED if request.observes else None,
        "unproven": False,
        "foreign_receipt": False,
        "calls": 1,
        "failures": {},
        "claimed_ms": tx.now_ms,
        **_lease(tx, request),
        **_limits(tx, request, None),
    }


def take(
    tx: Transaction,
    request: ClaimRequest,
    seen: SeenAround,
    entry: Entry,
    *,
    rule: str | None = None,
) -> ClaimResult:
    """Claim an existing entry again, with the next fencing token."""
    # What a restore has forgotten is counted once it is called, as far as anybody knows first.
    first = entry.observed_answer == FORGOTTEN and entry.calls == 1
    refused = _authorise(tx, request, seen, entry.entry_id, entry.generation, first=first)
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
            recovering_ms=None if rule is None else outcomes.since(tx),
            claimed_ms=effects.c.claimed_ms if mine else tx.now_ms,
            answer=None,
            # Where the first call may have happened, what was so before it still counts.
            observed=entry.observed if rule is Recovery.DEDUPES else observed,
            **({} if mine else _NOTHING_LEFT),
            **_lease(tx, request),
            **_limits(tx, request, entry if rule is Recovery.DEDUPES else None),
        )
        .returning(effects)
        .execution_options(of_run=request.run_id)
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
            effects,
            entry_id=entry.entry_id,
            run_id=entry.run_id,
            state="claimed",
            fencing_token=entry.fencing_token,
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


def find_again(
    tx: Transaction, request: ClaimRequest, seen: SeenAround, entry: Entry
) -> ClaimResult:
    """Return the claim whose answer was lost, its lease and deadline counted from now.

    The call starts only now: what others hold against it must not have run out before, and its
    approval must not, either.
    """
    refused = _authorise(tx, request, seen, entry.entry_id, entry.generation)
    if refused is not None:
        return give_back(tx, request, entry, refused)
    row = tx.one(
        update_rows(effects, entry_id=entry.entry_id, run_id=entry.run_id)
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


def _limits(tx: Transaction, request: ClaimRequest, before: Entry | None) -> dict[str, Any]:
    """Return what this claim is judged by, also by workers whose own limits are others.

    Args:
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
    _begin_undo(tx, request)
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
        instead_of=request.instead_of,
    )
    if not request.undoes:
        step_rows.start(tx, request.step_attempt)
    return Claimed(entry)


def _begin_undo(tx: Transaction, request: ClaimRequest) -> None:
    if request.undoes:
        tx.execute(
            update_rows(effects, entry_id=request.undoes, state="committed").values(
                state="compensating"
            )
        )


def stopped(tx: Transaction, request: ClaimRequest, seen: SeenAround) -> ClaimResult | None:
    """Return why this call may not begin at all, whoever has allowed it, or ``None``."""
    if seen.barred and not request.undoes:
        return Barred("this step has been undone; a late attempt must not apply it")
    if seen.overtaken and not request.undoes:
        return Held(OVERTAKEN_PAUSE)
    if seen.untold and not request.undoes:
        told = must_be_told(tx, request.run_id)
        if told is not None:
            return told
    if request.undoes and not still_remains(tx, request.undoes):
        return Barred("a human has settled the effect to undo meanwhile")
    # It was begun by a worker that has another undo loaded.
    if request.undoes and (other := other_undo(tx, request.undoes, request.tool)):
        return Barred(f"{other} may have undone it")
    return None


def _authorise(
    tx: Transaction,
    request: ClaimRequest,
    seen: SeenAround,
    entry_id: str,
    generation: int,
    *,
    first: bool = False,
) -> ClaimResult | None:
    """Return why this call may not go forward, or ``None`` once its approval is consumed."""
    refused = stopped(tx, request, seen)
    if refused is not None:
        return refused
    reason = why_forbidden(
        *(tx, request.run_id, request.user, request.permissions, request.assurance)
    )
    if reason is not None:
        return Forbidden(reason)
    if request.drift:
        return Drifted(request.drift)
    limited = seen.limited if first and not request.undoes else None
    room = find_room(tx, limited)
    if isinstance(room, OverQuota):
        return room
    request = request.in_run(foreign=seen.foreign)
    refused = approval_rows.consume(tx, request, entry_id, generation) if request.gated else None
    if refused is None:
        room.take(tx)
    return refused
