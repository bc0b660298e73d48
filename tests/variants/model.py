"""A model that says what the run's input has it say, and counts how often it is asked."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel, JsonValue

from surehand import READ, ToolContext, tool
from surehand.examples.shop.tools import *  # noqa: F403


class Asked(BaseModel):
    goal: str
    input: dict[str, JsonValue]
    so_far: list[dict[str, JsonValue]]


@tool("model.next", effect=READ)
async def next_turn(params: Asked, ctx: ToolContext) -> Any:
    """Say what comes next."""
    with Path(str(params.input["count"])).open("a") as file:
        file.write("x")
    script: Any = params.input["script"]
    turn = script[min(len(params.so_far), len(script) - 1)]
    return {"do": "finish", "output": params.so_far} if turn == "finish with all" else turn


#: Short enough for a local activity.
quick_turn = tool("model.quick", effect=READ, timeout=timedelta(seconds=5))(next_turn.fn)
