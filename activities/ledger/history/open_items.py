"""What a run's events leave open: no break of the chain, but somebody's business (G2, G4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from surehand.activities.ledger.effects.epochs import RESTORED
from surehand.activities.ledger.effects.interventions import UNDO_CHANGED

#: Ends of a run after which an effect that remains should have been undone.
_UNDOES: Final = frozenset({"run.failed", "run.cancelled", "run.stopped"})
#: What an entry is whose question was opened by a rule; in doubt by any other.
_ASKED: Final = {
    "partial": "partial",
    "compensation_failed": "compensating",
    UNDO_CHANGED: "compensating",
}


@dataclass(frozen=True)
class OpenItems:
    """Entries by what is open about them, as ``tool (step STEP, entry ENTRY)``."""

    uncompensated: list[str]
    """Committed in a run that has failed or was cancelled, and not undone."""
    in_doubt: list[str]
    """Nobody knows whether it happened."""
    partial: list[str]
    interventions: list[str]
    """Ids of questions that no human has answered."""


@dataclass
class EventsSoFar:
    """What the events have said so far."""

    states: dict[str, str] = field(default_factory=dict)
    """Of the entries, by entry."""
    names: dict[str, str] = field(default_factory=dict)
    undos: set[str] = field(default_factory=set)
    questions: dict[str, str] = field(default_factory=dict)
    """Entry by open intervention."""
    ended: str | None = None


def open_items(events: Sequence[Mapping[str, Any]]) -> OpenItems:
    """Return what a run's events leave open.

    Args:
        events: All events of the run, in order.
    """
    told = EventsSoFar()
    for event in events:
        hear(told, event)
    if told.ended is not None:
        # A call that was under way when its run ended has no recorded outcome.
        told.states = {k: "in_doubt" if v == "claimed" else v for k, v in told.states.items()}

    def named(*states: str) -> list[str]:
        return [
            told.names.get(entry, entry)
            for entry, state in told.states.items()
            # That an undo remains is as it should be.
            if state in states and not (state == "committed" and entry in told.undos)
        ]

    return OpenItems(
        uncompensated=named("committed", "compensating") if told.ended in _UNDOES else [],
        in_doubt=named("in_doubt"),
        partial=named("partial"),
        interventions=list(told.questions),
    )


def _begin(told: EventsSoFar, event: Mapping[str, Any], state: str) -> None:
    body = event["body"]
    entry = str(body["entry_id"])
    told.names[entry] = f"{body.get('tool')} (step {event['step_id']}, entry {entry})"
    told.states[entry] = state
    if body.get("undoes"):
        told.undos.add(entry)
        told.states[str(body["undoes"])] = "compensating"


def hear(told: EventsSoFar, event: Mapping[str, Any]) -> None:
    """Take in a run's next event."""
    body = event["body"]
    entry = str(body.get("entry_id", ""))
    match event["type"]:
        case "effect.claimed":
            _begin(told, event, "claimed")
        case "effect.in_doubt" if body.get("rule") == RESTORED:
            _begin(told, event, "in_doubt")
        case "effect.in_doubt":
            if told.states.get(entry) != "partial":
                told.states[entry] = "in_doubt"
        case "effect.committed":
            told.states[entry] = "committed"
        case "effect.compensated":
            told.states[entry] = "compensated"
        case "effect.answered_no":
            told.states[entry] = "failed"
        case "effect.failed":
            # Its newest call is proven not applied; an earlier one may still have been.
            told.states[entry] = "in_doubt" if body.get("action") == "reconcile" else "failed"
        case "effect.reconciled" if body.get("action") in ("bar", "fail"):
            told.states[entry] = "failed"
        case "intervention.opened":
            told.questions[str(body["intervention_id"])] = entry
            # A question about another run's effect, which that run has undone, is only a question.
            if entry in told.states:
                told.states[entry] = _ASKED.get(str(body.get("rule")), "in_doubt")
        case "intervention.settled":
            told.questions.pop(str(body["intervention_id"]), None)
            if entry in told.states:
                told.states[entry] = str(body["action"])
        case "run.completed" | "run.failed" | "run.cancelled" | "run.stopped":
            told.ended = event["type"]
        case "run.reopened":
            told.ended = None
