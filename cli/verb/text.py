"""Text for people: nothing that a tool, a model or a plan wrote can steer the terminal."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from surehand.workflows.contracts.artifacts import as_artifact
from surehand.workflows.plain_text import plain


def compact(value: Any, longest: int | None = None) -> str:
    """Return a JSON value as one line of text, cut if it is longer; a plain string as it is."""
    if isinstance(value, str):
        return plain(value, longest)
    artifact = as_artifact(value)
    if artifact is not None:
        return f"artifact sha256:{artifact.sha256[:12]}... ({artifact.bytes} bytes)"
    return plain(json.dumps(value, ensure_ascii=False, default=str), longest)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 case``, ``2 cases``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def shown_time(moment: datetime) -> str:
    """Return a time as people read it, in their own time zone and with its offset."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S %z")


def rough_time(time: timedelta) -> str:
    """Return a time in its two largest units: ``3 h 12 min``."""
    minutes, seconds = divmod(int(time.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
