"""What is undone before a run completes: effects that it has not come to since they were found."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from workflows.approvals import Gate
from workflows.book import Book
from workflows.contracts import (
    Compensate,
    CompensationOutcome,
    CompensationReport,
    StartRun,
)
from workflows.plan import Plan
from workflows.saga import Saga
from workflows.unwinding import Unwinding

NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def test_what_was_found_and_not_come_to_since_is_undone_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given a clock and a ledger that are stand-ins: there is no workflow here
    monkeypatch.setattr("workflows.unwinding.workflow.now", lambda: NOW)
    undone = list[str]()

    async def call(port: Any, asked: Compensate, *_: Any, **__: Any) -> CompensationReport:
        undone.append(asked.step_id)
        return CompensationReport(outcome=CompensationOutcome.COMPENSATED, reason="undone")

    plan = Plan.model_validate([{"id": "pay", "tool": "a.b"}])
    request = StartRun(run_id="r", tenant="default", user="ada", plan=plan)
    book = Book(request, NOW, Gate("r", "life"), Saga())
    book.saga.register("pay")
    book.unheard = {"pay"}
    none = cast(Any, None)
    unwinding = Unwinding(book, none, cast(Any, call), none, none)

    for _ in range(2):
        await unwinding.undo_strays()

    assert (undone, book.unheard) == (["pay"], set())
