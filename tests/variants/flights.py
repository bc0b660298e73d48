"""A booking that can only be asked how it is: whoever changed it, it is changed."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel

from surehand import WRITE, Found, LookupAnswer, No, NotFound, ToolContext, tool


class Change(BaseModel):
    booking: str
    """A file."""
    flight: str


def now(booking: str) -> list[str]:
    """Return the flights that the booking has had, newest last."""
    flights: list[str] = json.loads(Path(booking).read_text())
    return flights


async def is_changed(params: Change, ctx: ToolContext) -> LookupAnswer:
    """Ask whether the booking is for the flight."""
    flights = now(params.booking)
    if flights[-1] == "closed":
        return No("the booking is closed", code="closed")
    return Found({"flight": params.flight}) if flights[-1] == params.flight else NotFound()


@tool(
    "flights.change",
    effect=WRITE,
    key=lambda params: f"{params.booking}:{params.flight}",
    timeout=timedelta(seconds=1),
    lookup=is_changed,
    lookup_by="state",
    settle=timedelta(milliseconds=100),
    irreversible=True,
)
async def change(params: Change, ctx: ToolContext) -> dict[str, str]:
    """Change a booking."""
    flights = now(params.booking)
    Path(params.booking).write_text(json.dumps([*flights, params.flight]))
    return {"flight": params.flight}
