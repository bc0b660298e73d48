"""Claiming an effect: insert or lose, and the recorded result wins (guarantees G1 and G3).

One transaction looks at the newest generation of the business key, consumes the approval and
writes the claim. Every write is a guarded UPDATE that names the state and the fencing token it
expects, so that an attempt which lost its lease changes nothing.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, assert_never

from sqlalchemy import insert, select, update

from activities.ledger import approvals as approval_rows
from activities.ledger import artifacts as artifact_rows
from activities.ledger import recovery
from activities.ledger import steps as step_rows
from activities.ledger.artifacts import Kept
from activities.ledger.clock_jumps import lease_left
from activities.ledger.compensations import still_stands
from activities.ledger.doubts import doubt, give_back
from activities.ledger.entries import (
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
    Held,
    Mismatch,
    entry_id_for,
    milliseconds,
)
from activities.ledger.questions import newest_question
from activities.ledger.store import Transaction
from activities.ledger.tables import bars, effects
from activities.ledger.undone import must_be_told, note_replay
from workflows.contracts import Recovery, as_artifact

#: How long to wait for an entry that is being compensated: no lease says when that ends.
COMPENSATING_WAIT = timedelta(seconds=2)


async def claim(tx: Transaction, request: ClaimRequest) -> ClaimResult:
    """Claim the effect of ``request`` or say what is there already."""
    await tx.lock_step(request.run_id, request.step_id)
    await tx.lock_key(request.tool, request.key)
    row = await tx.one(
        select(effects)
        .where(
            effects.c.tenant_id == tx.tenant,
            effects.c.tool == request.tool,
            effects.c.key == request.key,
        )
        .order_by(effects.c.generation.desc())
        .limit(1)
        .with_for_update()
    )
    entry = Entry.from_row(row) if row else None
    await tx.tick()
    result = await _look(tx, request, entry)
    await note(tx, request, result)
    return result


async def _look(tx: Transaction, request: ClaimRequest, entry: Entry | None) -> ClaimResult:
    if entry is None:
        return await _first(tx, request, generation=1)
    same = entry.identity_hash == request.identity_hash
    mine = entry.owned_by(request.run_id, request.step_id)
    match entry.state:
        case "failed" if not same:
            return await _first(tx, request, generation=entry.generation + 1)
        case "failed" if entry.answer is not None and mine:
            return Answered(entry)
        case "failed":
            return await take(tx, request, entry)
        case "compensated" if mine:
            return Barred(f"the effect {entry.entry_id} of this step has been undone")
        case "compensated":
            return await _first(tx, request, generation=entry.generation + 1)
        case _ if not same:
            return Mismatch(
                f"the key is taken by {entry.entry_id} ({entry.state}) of run"
                f" {entry.run_id!r} with other params"
            )
        case "committed":
            return Committed(entry)
        case "compensating":
            return Held(COMPENSATING_WAIT)
        case "claimed":
            return await _look_at_claimed(tx, request, entry)
        case "in_doubt" | "partial":
            return await _look_at_doubtful(tx, request, entry)
        case state:
            raise AssertionError(f"unknown entry state {state!r}")


async def _look_at_claimed(tx: Transaction, request: ClaimRequest, entry: Entry) -> ClaimResult:
    if entry.holder == request.holder:
        return await _found_itself(tx, request, entry)
    left = await lease_left(tx, entry, request.lease)
    # Temporal runs one attempt of an activity at a time: an earlier one is gone, or a zombie whose
    # request the provider will recognise by its key.
    rule = _rule_to_call_again(tx, request, entry)
    takeover = entry.activity_key == request.activity_key and rule is not None
    if left > 0 and not takeover:
        return Held(timedelta(milliseconds=left))
    if rule is not None:
        return await take(tx, request, entry, rule=rule)
    return Doubtful(await doubt(tx, entry, "its lease ran out before an outcome was recorded"))


async def _found_itself(tx: Transaction, request: ClaimRequest, entry: Entry) -> ClaimResult:
    """Return the claim whose answer was lost, its lease and deadline counted from now.

    The call starts only now: what others hold against it must not have run out before, and its
    approval must not, either.
    """
    refused = await _authorise(tx, request, entry.entry_id, entry.generation)
    if refused is not None:
        return await give_back(tx, request, entry, refused)
    fresh = _lease(tx, request)
    row = await tx.one(
        update(effects)
        .where(effects.c.tenant_id == tx.tenant, effects.c.entry_id == entry.entry_id)
        .values({name: fresh[name] for name in ("lease_until_ms", "deadline_ms")})
        .returning(effects)
    )
    assert row is not None, "the entry's row is locked by this transaction"
    return Claimed(Entry.from_row(row))


async def _look_at_doubtful(tx: Transaction, request: ClaimRequest, entry: Entry) -> ClaimResult:
    question = await newest_question(tx, entry.entry_id)
    if question is not None and question["state"] == "open":
        return Asked(entry, question["intervention_id"], question["question"])
    if question is not None and question["outcome"] == "give_up":
        return Barred(f"{question['actor']} gave up on {entry.entry_id}: its outcome stays unknown")
    rule = _rule_to_call_again(tx, request, entry)
    if rule is not None:
        return await take(tx, request, entry, rule=rule)
    return Doubtful(await doubt(tx, entry, None))


def _rule_to_call_again(tx: Transaction, request: ClaimRequest, entry: Entry) -> Recovery | None:
    """Return what allows to call again an entry whose outcome is not recorded, if anything does."""
    recovering = tx.now_ms - (entry.recovering_ms or tx.now_ms)
    if entry.state == "partial" or recovering > milliseconds(request.recovery_limit):
        return None
    if request.recovery is Recovery.TRANSACTIONAL:
        # Its effect would have committed together with the outcome. Whoever still works on it has
        # locked the entry's row, which this transaction holds now.
        return Recovery.TRANSACTIONAL
    return Recovery.DEDUPES if _dedupes(tx, request, entry) else None


def _dedupes(tx: Transaction, request: ClaimRequest, entry: Entry) -> bool:
    """Return whether calling again, by the same key, may settle this entry."""
    if request.recovery is not Recovery.DEDUPES or request.window is None:
        return False
    if NO_MORE_REPEATS in entry.failures:
        return False
    age = tx.now_ms - (entry.first_call_ms or 0)
    return age < milliseconds(request.window)


async def _first(tx: Transaction, request: ClaimRequest, generation: int) -> ClaimResult:
    """Insert the entry of a new generation."""
    entry_id = entry_id_for(request.tenant, request.tool, request.key, generation)
    refused = await _authorise(tx, request, entry_id, generation)
    if refused is not None:
        return refused
    values = {
        "tenant_id": tx.tenant,
        "entry_id": entry_id,
        "tool": request.tool,
        "key": request.key,
        "generation": generation,
        "identity_hash": request.identity_hash,
        "undoes": request.undoes,
        "fencing_token": 1,
        "first_call_ms": tx.now_ms,
        "unproven": False,
        "calls": 1,
        "failures": {},
        "claimed_ms": tx.now_ms,
        **_lease(tx, request),
    }
    row = await tx.one(insert(effects).values(values).returning(effects))
    assert row is not None
    return await _claimed(tx, request, Entry.from_row(row), None)


async def take(
    tx: Transaction, request: ClaimRequest, entry: Entry, *, rule: str | None = None
) -> ClaimResult:
    """Claim an existing entry again, with the next fencing token."""
    refused = await _authorise(tx, request, entry.entry_id, entry.generation)
    if refused is not None:
        return refused
    mine = entry.owned_by(request.run_id, request.step_id)
    row = await tx.one(
        update(effects)
        .where(
            effects.c.tenant_id == tx.tenant,
            effects.c.entry_id == entry.entry_id,
            effects.c.state == entry.state,
            effects.c.fencing_token == entry.fencing_token,
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
            **_lease(tx, request),
        )
        .returning(effects)
    )
    if row is None:
        return Held(timedelta(seconds=1))
    return await _claimed(tx, request, Entry.from_row(row), rule)


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
        "lease_until_ms": tx.now_ms + milliseconds(request.lease),
        "deadline_ms": tx.now_ms + milliseconds(request.timeout),
        "settled_ms": None,
    }


async def _claimed(
    tx: Transaction, request: ClaimRequest, entry: Entry, rule: str | None
) -> Claimed:
    if request.undoes:
        await tx.execute(
            update(effects)
            .where(
                effects.c.tenant_id == tx.tenant,
                effects.c.entry_id == request.undoes,
                effects.c.state == "committed",
            )
            .values(state="compensating")
        )
    if rule:
        tx.event(
            request.run_id,
            "effect.reconciled",
            step_id=request.step_id,
            entry_id=entry.entry_id,
            rule=rule,
            evidence=f"no outcome was recorded under fencing token {entry.fencing_token - 1}",
            action="call_again",
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
        await step_rows.start(tx, request.step_attempt)
    return Claimed(entry)


async def _authorise(
    tx: Transaction, request: ClaimRequest, entry_id: str, generation: int
) -> ClaimResult | None:
    """Return why this call may not go forward, or ``None`` once its approval is consumed."""
    barred = await tx.one(
        select(bars.c.barred_ms).where(
            bars.c.tenant_id == tx.tenant,
            bars.c.run_id == request.run_id,
            bars.c.step_id == request.step_id,
        )
    )
    if barred is not None and not request.undoes:
        return Barred("this step has been undone; a late attempt must not apply it")
    told = None if request.undoes else await must_be_told(tx, request.run_id)
    if told is not None:
        return told
    if request.undoes and not await still_stands(tx, request.undoes):
        return Barred("a human has settled the effect to undo meanwhile")
    if request.drift:
        return Drifted(request.drift)
    if not request.gated:
        return None
    return await approval_rows.consume(tx, request, entry_id, generation)


async def note(tx: Transaction, request: ClaimRequest, result: ClaimResult) -> None:
    """Record what a claim found, where that changes what the run does next."""
    body: dict[str, Any]
    match result:
        case Committed(entry):
            made_by = None if entry.run_id == request.run_id else entry.run_id
            type_, body = "effect.replayed", {"entry_id": entry.entry_id, "made_by": made_by}
            await note_replay(tx, request.run_id, request.step_id, entry)
            receipt = Kept(entry.receipt, as_artifact(entry.receipt))
            await artifact_rows.record(tx, request.run_id, request.step_id, receipt)
        case Mismatch(reason) | ApprovalRefused(reason) | Barred(reason) | Drifted(reason):
            type_ = "effect.refused"
            body = {"tool": request.tool, "rule": type(result).__name__, "evidence": reason}
        case Claimed() | Answered() | Held() | Doubtful() | Asked():
            return
        case _:
            assert_never(result)
    tx.event(request.run_id, type_, step_id=request.step_id, **body)
