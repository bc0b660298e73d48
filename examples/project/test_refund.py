"""Drills: workers are killed in the middle of the plan, and the bank is looked at afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

from surehand import Context
from surehand.examples.bank import Bank


def test_a_worker_that_dies_right_after_the_call_pays_once(drill: Any, tmp_path: Path) -> None:
    bank = Bank(tmp_path / "bank.sqlite")  # in its place: a test system, for tools run for real

    def fresh(context: Context) -> dict[str, str]:
        return {"order_id": f"order-{uuid4().hex[:8]}"}

    def world(context: Context) -> dict[str, Any]:
        return {"effects": bank.counts(context.input["order_id"])}

    report = drill(
        "refund.yaml",
        world=world,
        fresh=fresh,
        variables={"BANK_FILE": str(tmp_path / "bank.sqlite")},
        points=["after_call"],
    )

    assert report.ok, report
