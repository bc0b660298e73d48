"""What a tool returned, as JSON that the ledger, the chain and history can carry.

This runs after an effect has happened, so it never raises: an odd output is recorded in the best
form it has, it does not fail the call.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from workflows.identity import UNSAFE_INTEGER

#: Temporal fails an activity whose result is over 2 MiB, after its effect. Half of it leaves room
#: for what travels beside the output.
LARGEST: Final = 1024 * 1024  # bytes


def to_json(output: Any) -> Any:
    """Return a tool's output as JSON; too large ones by digest."""
    if isinstance(output, BaseModel):
        plain = output.model_dump(mode="json")
    else:
        plain = to_jsonable_python(output, fallback=repr, inf_nan_mode="strings")
    clean = _clean(plain)
    text = json.dumps(clean)
    if len(text) > LARGEST:
        sha256 = hashlib.sha256(text.encode()).hexdigest()
        return {"too_large": {"bytes": len(text), "sha256": sha256}}
    return clean


def clean_text(text: str) -> str:
    """Return text that both databases and UTF-8 can carry."""
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def _clean(value: Any) -> Any:
    """Replace what RFC 8785 or a database refuses: huge integers, lone surrogates, NUL."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int) and abs(value) >= UNSAFE_INTEGER:
        return str(value)
    if isinstance(value, dict):
        return {clean_text(str(key)): _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value
