"""What a drill needs of agents whose models are scripts: how often they were asked."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surehand.examples.shop import drill as shop

if TYPE_CHECKING:
    from surehand import Context


def fresh(context: Context) -> dict[str, Any]:
    """Make an order, and a file in which the turns of one more run are counted."""
    with tempfile.NamedTemporaryFile(prefix="surehand-turns-", delete=False) as file:
        return {**shop.fresh(context), "count": file.name}


def world(context: Context) -> dict[str, Any]:
    """Return what the shop has of a run's order, and how often the model was asked."""
    asked = Path(str(context.input["count"])).stat().st_size
    return {**shop.world(context), "turns": asked}
