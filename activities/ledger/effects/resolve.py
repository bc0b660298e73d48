"""Settling interventions: what a human answers, checked, once (guarantee G2)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from surehand.activities.ledger.core.statements import rows_of, update_rows
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import effects, interventions, runs
from surehand.activities.ledger.effects import outcomes
from surehand.activities.ledger.effects.epochs import call_left
from surehand.activities.ledger.effects.interventions import UNDO_CHANGED, UNDONE
from surehand.activities.ledger.effects.undone import mark_compensated, tell_replayers
from surehand.activities.ledger.steps.entries import UNASKED, Entry, next_commit_no
from surehand.workflows.contracts.base import ARTIFACT
from surehand.workflows.contracts.effects import Resolution, ResolutionOutcome

#: A receipt that a human gives travels in history as it is.
LARGEST_RECEIPT: Final = 8 * 1024  # bytes

#: What each answer makes of the entry, by what the entry is in.
_SETTLES = {
    ("in_doubt", ResolutionOutcome.HAPPENED): "committed",
    ("partial", ResolutionOutcome.HAPPENED): "committed",
    ("in_doubt", ResolutionOutcome.NOT_HAPPENED): "failed",
    ("partial", ResolutionOutcome.NOT_HAPPENED): "failed",
    ("in_doubt", ResolutionOutcome.CALL_OFF): "failed",
    ("partial", ResolutionOutcome.CALL_OFF): "failed",
    ("in_doubt", ResolutionOutcome.COMPENSATED): "compensated",
    ("partial", ResolutionOutcome.COMPENSATED): "compensated",
    ("in_doubt", ResolutionOutcome.UNDO): "committed",
    ("partial", ResolutionOutcome.UNDO): "committed",
    ("in_doubt", ResolutionOutcome.GIVE_UP): "in_doubt",
    ("partial", ResolutionOutcome.GIVE_UP): "partial",
    ("compensating", ResolutionOutcome.COMPENSATED): "compensated",
    ("compensating", ResolutionOutcome.GIVE_UP): "committed",
    ("compensating", ResolutionOutcome.UNDO): "compensating",
}
#: An undo is not undone: that it happened is what settles its original. An undo that is not to be
#: tried again is given up.
_NOT_OF_UNDOS: Final = frozenset(
    {ResolutionOutcome.COMPENSATED, ResolutionOutcome.UNDO, ResolutionOutcome.CALL_OFF}
)
#: Answers that would be wrong if the call arrived after them.
RULES_IT_OUT: Final = frozenset(
    {
        ResolutionOutcome.NOT_HAPPENED,
        ResolutionOutcome.CALL_OFF,
        ResolutionOutcome.COMPENSATED,
    }
)
#: What is left to say of an entry that an attempt has settled while a human was asked.
_SETTLED_MEANWHILE = {
    "committed": ResolutionOutcome.HAPPENED,
    "failed": ResolutionOutcome.NOT_HAPPENED,
    "compensated": ResolutionOutcome.COMPENSATED,
}


def _nothing(tool: str) -> bool:
    return False


def settle(
    tx: Transaction,
    run_id: str,
    resolution_id: str,
    resolution: Resolution,
    can_undo: Callable[[str], bool] = _nothing,
) -> tuple[bool, str]:
    """Apply a human's answer, once. Returns whether it counted, and a sentence that says why.

    Args:
        run_id: The run through which the answer came.
        resolution_id: Of its delivery: the same one twice is one answer.
        can_undo: Whether the effects of a tool can be undone by the run, if that is wished.
    """
    accepted, message = _settle(tx, run_id, resolution_id, resolution, can_undo)
    if not accepted:
        tx.event(
            run_id,
            "resolution.refused",
            resolution_id=resolution_id,
            outcome=resolution.outcome.value,
            actor=resolution.actor,
        )
    return accepted, message


def _settle(
    tx: Transaction,
    run_id: str,
    resolution_id: str,
    resolution: Resolution,
    can_undo: Callable[[str], bool],
) -> tuple[bool, str]:
    row = tx.one(
        rows_of(interventions, intervention_id=resolution.intervention_id).with_for_update()
    )
    if row is not None and row["run_id"] != run_id and is_open(tx, row["run_id"]):
        row = None  # Its own run settles it, and goes on; a run that has ended cannot.
    if row is None:
        return False, f"this run has no intervention {resolution.intervention_id!r}"
    if row["state"] == "settled":
        if row["resolution_id"] == resolution_id:
            return True, f"settled: {row['outcome']}"
        return False, f"already settled by {row['actor']}: {row['outcome']}"
    effect = rows_of(effects, entry_id=row["entry_id"]).with_for_update()
    # Of a run that was erased nothing is to be settled but that others have taken note of it.
    entry_row = tx.one(effect.execution_options(sealed="shown"))
    assert entry_row is not None
    entry = Entry.from_row(entry_row)
    noted = is_noted(entry, row["rule"])
    answers = answers_to(entry, row["rule"], run_id, can_undo)
    state = answers.get(resolution.outcome)
    if state is None:
        allowed = sorted(outcome.value for outcome in answers)
        return False, f"an entry that is {entry.state} can be settled as: {', '.join(allowed)}"
    if not noted and resolution.outcome in RULES_IT_OUT and (until := may_arrive_until(tx, entry)):
        return False, f"its call may still arrive until {until}; answer after that"
    if resolution.outcome is ResolutionOutcome.HAPPENED and not resolution.evidence:
        return False, "say what proves that it happened (evidence)"
    if not _fits(resolution.receipt):
        return False, f"give a receipt of at most {LARGEST_RECEIPT} bytes, without {ARTIFACT!r}"
    if not noted:
        _apply(tx, entry, state, resolution, row["undo"])
    tx.execute(
        update_rows(
            interventions,
            intervention_id=resolution.intervention_id,
            run_id=row["run_id"],
            state="open",
        ).values(
            state="settled",
            outcome=resolution.outcome.value,
            actor=resolution.actor,
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
        intervention_id=resolution.intervention_id,
        rule=row["rule"],
        outcome=resolution.outcome.value,
        actor=resolution.actor,
        evidence=resolution.evidence or None,
        resolution_id=resolution_id,
        action=state,
        through=None if run_id == asked_in else run_id,
        value_by=resolution.actor if _takes_receipt(entry, state) and not noted else None,
    )
    if not noted:
        outcomes.verified(tx, entry, state, action="human")
    return True, f"settled: {resolution.outcome.value}"


def is_noted(entry: Entry, rule: str) -> bool:
    """Return whether an entry is what it is, whatever anybody says: a run only takes note of it."""
    return rule == UNDONE or entry.state in _SETTLED_MEANWHILE


def answers_to(
    entry: Entry, rule: str, run_id: str, can_undo: Callable[[str], bool]
) -> dict[ResolutionOutcome, str]:
    """Return what each answer that may be given to an intervention makes of its entry.

    Args:
        entry: What it is about.
        rule: Why it was opened.
        run_id: The run through which the answer comes.
        can_undo: As for :func:`settle`.
    """
    if is_noted(entry, rule):
        return {_SETTLED_MEANWHILE[entry.state]: entry.state}
    answers = {
        outcome: state
        for (before, outcome), state in _SETTLES.items()
        if before == entry.state and not (entry.undoes and outcome in _NOT_OF_UNDOS)
    }
    if entry.state == "compensating":
        may_undo = rule == UNDO_CHANGED  # Whoever has asked undoes it, be it a run above.
    else:
        may_undo = entry.run_id == run_id and can_undo(entry.tool)
    if not may_undo:
        answers.pop(ResolutionOutcome.UNDO, None)
    return answers


def _fits(receipt: Any) -> bool:
    """Return whether a receipt given by a human can go into history as it is."""
    if isinstance(receipt, dict) and ARTIFACT in receipt:
        return False
    return len(json.dumps(receipt)) <= LARGEST_RECEIPT


def is_settled(tx: Transaction, intervention_id: str) -> bool:
    """Return whether an intervention is settled, by whomever: its run follows the row."""
    row = tx.one(rows_of(interventions, interventions.c.state, intervention_id=intervention_id))
    return row is not None and row["state"] == "settled"


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
    if entry.state not in ("in_doubt", "partial") or entry.observed == UNASKED:
        return 0
    return max(0, call_left(tx, entry) + (entry.settle_ms or 0))


def is_open(tx: Transaction, run_id: str) -> bool:
    """Return whether a run goes on, as the ledger knows it."""
    row = tx.one(rows_of(runs, runs.c.closed_ms, run_id=run_id))
    return row is not None and row["closed_ms"] is None


def _takes_receipt(entry: Entry, state: str) -> bool:
    """Return whether an entry that becomes that gets its receipt from whoever settles it."""
    return state == "committed" and entry.receipt is None


def _apply(
    tx: Transaction,
    entry: Entry,
    state: str,
    resolution: Resolution,
    undo: Mapping[str, Any] | None,
) -> None:
    values: dict[str, object] = {
        "state": state,
        "fencing_token": entry.fencing_token + 1,
        "settled_ms": tx.now_ms,
        "recovering_ms": None,
        "answer": None,
        "evidence": {"rule": "human", "actor": resolution.actor, "text": resolution.evidence},
    }
    if state in ("committed", "compensated") and entry.commit_no is None:
        values["commit_no"] = next_commit_no()
    if _takes_receipt(entry, state):
        by_hand = {"settled_by": resolution.actor, "evidence": resolution.evidence}
        values["receipt"] = by_hand if resolution.receipt is None else resolution.receipt
    if resolution.outcome is ResolutionOutcome.UNDO and undo is not None:
        values["undo"] = undo
    tx.execute(
        update_rows(
            effects,
            entry_id=entry.entry_id,
            run_id=entry.run_id,
            fencing_token=entry.fencing_token,
        ).values(**values)
    )
    if state == "committed":
        mark_compensated(tx, entry)
    if state == "compensated":
        tell_replayers(tx, entry.entry_id)
