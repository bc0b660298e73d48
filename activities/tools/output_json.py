"""What a tool returned, as JSON that the ledger, the chain and history can carry.

This runs after an effect has happened, so it never raises: an odd output is recorded in the best
form it has, it does not fail the call.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, Final

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from surehand.process.off_loop import call_off_loop
from surehand.workflows.canonical_json import canonical_json, is_too_deep, loses_digits

#: Larger ones are recorded by their digest only: a worker holds several outputs in memory.
LARGEST: Final = 64 * 1024 * 1024  # bytes
#: Characters that are kept of what is no JSON at all.
LONGEST_TEXT: Final = 2000


def to_json(output: Any) -> Any:
    """Return a tool's output as JSON; too large ones by digest, impossible ones by their text."""
    try:
        clean = _clean(_plain(output))
        text = canonical_json(clean)
        if is_too_deep(clean):
            return {"unserialisable": _text_of(output)}
    except Exception:
        # Whatever is wrong with it, the effect has happened.
        return {"unserialisable": _text_of(output)}
    if len(text) > LARGEST:
        return {"too_large": {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}}
    return clean


async def make_json(output: Any) -> Any:
    """Return the same, made beside the event loop if the output is large."""
    return await call_off_loop(to_json, output)


def clean_text(text: str, longest: int | None = None) -> str:
    """Return text that both databases and UTF-8 can carry, cut if it is longer."""
    kept = text[:longest].replace("\x00", "\N{REPLACEMENT CHARACTER}")
    return kept.encode("utf-8", "replace").decode()


def _plain(output: Any) -> Any:
    if isinstance(output, BaseModel):
        try:
            return output.model_dump(mode="json")
        except ValueError:
            pass  # The general way below has a fallback for what the model cannot say.
    return to_jsonable_python(output, fallback=_text_of)


def _text_of(value: Any) -> str:
    try:
        return clean_text(repr(value), LONGEST_TEXT)
    except Exception:
        return f"a {type(value).__name__} that cannot be shown"


def _clean(value: Any) -> Any:
    """Replace what RFC 8785 or a database refuses: huge numbers, infinity, surrogates, NUL."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, int | float) and loses_digits(value):
        return str(value)
    if isinstance(value, dict):
        return {clean_text(str(key)): _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value
