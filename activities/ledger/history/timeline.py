"""What events tell people, in one line each: above all how an outcome was found out (G2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from surehand.activities.ledger.approvals.waiting import readable
from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import events
from surehand.activities.ledger.effects.epochs import RESTORED
from surehand.workflows.contracts.base import TimelineLine

_DIED: Final = "the worker died during {tool}, or was cut off: nobody knew whether it had happened"
#: What is told of an event, by its type and rule.
_RECOVERY: Final[Mapping[str, Mapping[str, str]]] = {
    "effect.in_doubt": {
        "lease_over": _DIED,
        "stale": _DIED,
        "held_up": "{tool} was held up too long to be called again: nobody knew whether it had"
        " happened",
        "call_ended_without_an_outcome": "{tool} ended without saying whether it had happened",
        "no_to_a_repeat": "{tool} was called again and said no: nobody knew whether the first call"
        " had happened",
        RESTORED: "the ledger was restored, and may have forgotten that {tool} was called",
    },
    "effect.reconciled": {
        "lookup_not_found": "the outside system was asked: {tool} had not happened; it was called"
        " again",
        "dedupes": "{tool} had no recorded outcome; it was called again with the same key, which"
        " its provider recognises",
        "transactional": "{tool} had not happened, because it commits with its outcome; it was"
        " called again",
        "not_called": "{tool} had not been called yet; it was called now",
    },
    "effect.committed": {
        "lookup": "the outside system was asked: {tool} had happened; it was not called again",
    },
}


def recovery_of(tx: Transaction, run_id: str, step_id: str) -> tuple[TimelineLine, ...]:
    """Return how unknown outcomes of a step's calls were found out, oldest fact first."""
    told = rows_of(events, run_id=run_id, step_id=step_id).where(events.c.type.in_(_RECOVERY))
    rows = tx.all(readable(tx, told.order_by(events.c.seq)))
    lines = ((row, _recovery_text(row)) for row in rows)
    return tuple(_line(row, text) for row, text in lines if text is not None)


def story_of(told: Sequence[Mapping[str, Any]]) -> list[TimelineLine]:
    """Return one line for each of a run's events."""
    return [_line(event, _recovery_text(event) or _plain_text(event)) for event in told]


def _line(event: Mapping[str, Any], text: str) -> TimelineLine:
    at = datetime.fromtimestamp(event["at_ms"] / 1000, UTC)
    return TimelineLine(at=at, step_id=event["step_id"], text=text)


def _recovery_text(event: Mapping[str, Any]) -> str | None:
    body = event["body"]
    if event["type"] == "effect.reconciled" and body.get("action") != "call_again":
        return f"{body['tool']} had not happened; it is not called any more"
    text = _RECOVERY.get(event["type"], {}).get(body.get("rule"))
    return None if text is None else text.format(tool=body["tool"])


def _plain_text(event: Mapping[str, Any]) -> str:
    words = str(event["type"]).replace(".", " ").replace("_", " ")
    about = event["body"].get("tool") or event["body"].get("approval_id")
    return f"{words}: {about}" if about else words
