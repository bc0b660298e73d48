"""What a drill needs of agents whose models are scripts: how often they were asked.

A model counts in a file, one byte a request, before it answers: what dies with its worker counts.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from surehand.examples.shop import drill as shop

if TYPE_CHECKING:
    from surehand import Context

#: Before the input of a run, in the prompt of an agent that a plan names.
_INPUT: Final = "Input:\n"


#: What a model says that tells a story.
STORY: Final = "Once upon a time."


def count_turn(prompt: str) -> str:
    """Count a turn in the file that a prompt names, and return the order that it names."""
    _, given, values = prompt.partition(_INPUT)
    if given:
        path, order_id = (json.loads(values)[name] for name in ("count", "order_id"))
    else:
        _, path, order_id, *_ = prompt.split(" ")
    with Path(path).open("a") as file:
        file.write("x")
    return str(order_id)


def shares_of(prompt: str) -> list[str]:
    """Return a prompt for each of the orders that a prompt names."""
    begin, path, *orders = prompt.split(" ")
    return [f"{begin} {path} {order_id}" for order_id in orders]


def paying(order_id: str) -> dict[str, str]:
    """Return the params of a refund."""
    return {"order_id": order_id, "amount": "120.00", "currency": "EUR", "reason": "late"}


def call_id(place: int) -> str:
    """Return the id of a call as some servers of models make it: the same in each turn."""
    return f"call_{place}"


def fresh(context: Context) -> dict[str, Any]:
    """Make an order, and a file in which the turns of one more run are counted."""
    with tempfile.NamedTemporaryFile(prefix="surehand-turns-", delete=False) as file:
        return {**shop.fresh(context), "count": file.name}


def world(context: Context) -> dict[str, Any]:
    """Return what the shop has of a run's order, and how often the model was asked."""
    asked = Path(str(context.input["count"])).stat().st_size
    return {**shop.world(context), "turns": asked}
