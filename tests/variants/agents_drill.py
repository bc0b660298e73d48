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


def fresh(context: Context) -> dict[str, Any]:
    """Make an order, and a file in which the turns of one more run are counted."""
    with tempfile.NamedTemporaryFile(prefix="surehand-turns-", delete=False) as file:
        return {**shop.fresh(context), "count": file.name}


def world(context: Context) -> dict[str, Any]:
    """Return what the shop has of a run's order, and how often the model was asked."""
    asked = Path(str(context.input["count"])).stat().st_size
    return {**shop.world(context), "turns": asked}
