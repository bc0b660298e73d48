"""Runs of a model that follows a script: what it is asked to do, and what it said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.runs import RunResult
from surehand.workflows.plan.plan import Plan
from tests.e2e.plans import FULL

NAME: Final = "tests.variants.model:scripted"
MODEL: Final = {"agent_modules": "tests.variants.model"}
#: What the model is told to end with: all that it has been told.
ALL: Final = "finish with all"


def driven(tmp_path: Path, *script: Any, tools: Any = ("*",)) -> Plan:
    given = {"count": str(tmp_path / "count"), "script": list(script)}
    written = {"goal": "Refund it", "model": NAME, "tools": list(tools), "input": given}
    return Plan.model_validate(written)


def call(tool: str, **params: Any) -> dict[str, Any]:
    return {"do": "call", "tool": tool, "params": params}


def finish(output: Any) -> dict[str, Any]:
    return {"do": "finish", "output": output}


def refund(order_id: str) -> dict[str, Any]:
    return call("payments.refund", order_id=order_id, amount=FULL, currency="EUR")


def asked(tmp_path: Path) -> int:
    return (tmp_path / "count").stat().st_size


def said(result: RunResult) -> Any:
    assert result.state is RunState.COMPLETED, result.error
    return json.loads(str(result.output))
