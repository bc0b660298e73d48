"""Effects in doubt on a run's page: what is known of each, and what may be said of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from surehand.activities.ledger.history.doubts import Doubt, Told
from surehand.cli.approvals_server.texts import DOUBTS
from surehand.cli.approvals_server.times import iso
from surehand.workflows.contracts.states import Waiting


def doubted(asked: Waiting, known: Doubt | None, run_id: str) -> dict[str, Any]:
    """Return what the page of a run is told of an intervention.

    Args:
        asked: As the run shows it.
        known: What the ledger has about it; ``None``: nothing.
        run_id: The run whose page it is.
    """
    told = {"id": asked.id, "step": asked.step_id, "text": asked.question}
    if known is None:
        return {
            **told,
            "evidence": [],
            "part": None,
            "elsewhere": None,
            "outcomes": [],
            "later": None,
        }
    later = {"outcomes": known.later, "left_ms": known.left_ms} if known.later else None
    return {
        **told,
        "evidence": list(_evidence(known)),
        "part": None if known.part is None else as_text(known.part),
        "elsewhere": None if known.run_id == run_id or known.outcomes else known.run_id,
        "outcomes": known.outcomes,
        # Apart: what changes with the time alone makes no other doubt of it.
        "later": later,
    }


def as_text(value: JsonValue) -> str:
    """Return JSON that nothing is signed for as a text of its own.

    A number in it that is too long for a browser shall not keep the page away.
    """
    return json.dumps(value, ensure_ascii=False)


def _evidence(known: Doubt) -> Iterator[tuple[str, str]]:
    """Yield what the ledger has, each with what it is."""
    yield DOUBTS["tool"], known.tool
    if known.key is not None:
        yield DOUBTS["key"], f"{known.key} ({DOUBTS['generation']} {known.generation})"
    yield DOUBTS["provider_key"], known.provider_key
    yield DOUBTS["entry"], f"{known.entry_id}: {known.state}"
    first = "" if known.called_ms is None else f", {DOUBTS['first']} {iso(known.called_ms)}"
    yield DOUBTS["calls"], f"{known.calls}{first}"
    if known.error:
        yield DOUBTS["error"], known.error
    for one in known.told:
        yield iso(one.at_ms), _said(one)


def _said(one: Told) -> str:
    rule = f" ({one.rule})" if one.rule else ""
    return f"{DOUBTS[one.type]}{rule}" + (f": {one.evidence}" if one.evidence else "")
