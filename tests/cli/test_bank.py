"""The tools that the README shows do what it says of them."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from surehand.examples.bank import Bank
from tests.cli.starter import ROOT, Verbs

BANK = str(ROOT / "examples" / "bank.yaml")


def waiting(verbs: Verbs, start: list[str]) -> tuple[str, str, str]:
    """What decides the one request that the run waits for: its id and its hash."""
    ended = verbs(*start, "--wait", "--json")
    assert ended.code == 10, ended
    [request] = ended.document()["waiting_for"]
    return request["id"], "--params-hash", request["params_hash"]


def test_the_first_refund_is_taken_back_once_when_the_second_is_rejected(verbs: Verbs) -> None:
    bank = Bank(Path(verbs.environment["BANK_FILE"]))
    run = f"bank-{uuid.uuid4().hex[:8]}"
    orders = [f"--set=input.{step}=order-{run}-{step}" for step in ("first", "second")]
    start = ["start", BANK, "--run-id", run, *orders]

    verbs("approve", *waiting(verbs, start))
    verbs("reject", *waiting(verbs, start), "--reason", "not returned")
    ended = verbs(*start, "--wait", "--json")

    assert ended.code == 20
    assert bank.counts() == {"refund": 1, "cancellation": 1}
    entries: list[dict[str, Any]] = verbs("effects", run, "--json").document()["rows"]
    refund, undo = sorted(entries, key=lambda row: str(row["tool"]), reverse=True)
    assert (refund["tool"], refund["state"]) == ("bank.refund", "compensated")
    assert (undo["tool"], undo["state"]) == ("bank.cancel", "committed")
    assert undo["key"] == f"undo:{refund['entry_id']}"


def test_an_order_that_the_bank_does_not_know_is_answered_with_no(verbs: Verbs) -> None:
    run = f"bank-{uuid.uuid4().hex[:8]}"
    start = ["start", BANK, "--run-id", run, "--set", "input.first=parcel-1"]

    verbs("approve", *waiting(verbs, start))
    ended = verbs(*start, "--wait", "--json")

    assert ended.code == 20
    [refused] = [step for step in ended.document()["steps"] if step["id"] == "first"]
    assert "no such order" in str(refused)
