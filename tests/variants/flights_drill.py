"""What a drill of bookings needs: a fresh one, how it is, and one that is changed already."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from surehand import Context
from tests.variants.flights import now


def fresh(context: Context) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
        json.dump(["LH1"], file)
    return {"booking": file.name}


def world(context: Context) -> dict[str, Any]:
    flights = now(str(context.input["booking"]))
    return {"flight": flights[-1], "effects": {"changes": len(flights) - 1}}


def already(context: Context) -> None:
    assert context.step == "change"
    Path(str(context.input["booking"])).write_text(json.dumps(["LH2"]))
