"""The event chain: ``hash = sha256(previous hash + canonical event)``, per run, without gaps."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from workflows.identity import canonical_json

#: The head of a run that has no event yet.
GENESIS: Final = "sha256:" + "0" * 64


def event_hash(previous: str, event: dict[str, Any]) -> str:
    """Return the hash of an event that follows ``previous``.

    Args:
        previous: Hash of the event before it, or ``GENESIS``.
        event: ``run_id, seq, type, step_id, body, at_ms``: digests and references, no params.
    """
    return "sha256:" + hashlib.sha256(previous.encode() + b"\n" + canonical_json(event)).hexdigest()
