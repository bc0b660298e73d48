"""Which reads are made again at a resume, and what waits for them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

import pytest

from surehand.workflows.contracts.base import StepState
from surehand.workflows.contracts.runs import StartRun
from surehand.workflows.contracts.tools import Effect, Recovery, Succeeded, ToolSpec
from surehand.workflows.plan.plan import Plan
from surehand.workflows.run.run_changes import Freshness
from surehand.workflows.run.run_core import RunCore
from surehand.workflows.run.run_data import RunData
from surehand.workflows.run.step_runner import read_at

NOW: Final = datetime(2026, 1, 2, tzinfo=UTC)
WRITE: Final = ToolSpec(
    name="pay",
    version="1",
    schema_hash="sha256:0",
    effect=Effect.WRITE,
    recovery=Recovery.DEDUPES,
    timeout=timedelta(seconds=1),
)
READ: Final = WRITE.model_copy(
    update={"name": "price", "effect": Effect.READ, "fresh_for": timedelta(minutes=1)}
)


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    """A workflow's clock; there is no workflow here."""
    monkeypatch.setattr("surehand.workflows.run.run_changes.workflow.now", lambda: NOW)


def resumed(state: StepState, *, age: timedelta, started: bool = False, **progress: Any) -> RunData:
    """Look at a run that has read a price, and waits with a payment of it."""
    pays = {"id": "pay", "tool": "pay", "params": {"amount": "${price}"}}
    plan = Plan.model_validate([{"id": "price", "tool": "price"}, pays])
    request = StartRun(run_id="r", tenant="default", user="uma", plan=plan)
    data = RunData.new(request, "life", NOW)
    data.set_step("price", StepState.SUCCEEDED, output=7)
    data.of_step("price").read_at = NOW - age
    data.set_step("pay", state)
    if started:
        data.saga.register("pay")
    if progress:
        data.set_progress("pay", **progress)
    data.facts["price"] = 7
    data.tools = {"price": READ, "pay": WRITE}
    Freshness(RunCore(data), cast(Any, None)).hold_what_is_stale()
    return data


@pytest.mark.parametrize(
    "state", [StepState.PENDING, StepState.WAITING_APPROVAL, StepState.PAUSED_USER]
)
def test_what_has_not_begun_waits_for_reads_to_be_made_again(state: StepState) -> None:
    data = resumed(state, age=READ.fresh_for or timedelta())
    assert (data.stale, data.held) == ({"price": 7}, {"pay"})

    data = resumed(state, age=timedelta(seconds=59))
    assert (data.stale, data.held) == ({}, set())


#: What is under way, in doubt, or has started and waits.
STARTED: Final = ("RUNNING", "NEEDS_INTERVENTION", "PAUSED_PERMISSION", "WAITING_INPUT")


@pytest.mark.parametrize("state", STARTED)
def test_a_call_that_has_started_keeps_its_params_and_waits_for_nothing(state: str) -> None:
    data = resumed(StepState[state], age=timedelta(hours=1), started=True)
    assert (data.stale, data.held) == ({}, set())


def test_a_write_that_a_human_looks_at_is_not_made_again() -> None:
    made = Succeeded(attempts=1, output="paid")
    data = resumed(StepState.WAITING_INPUT, age=timedelta(hours=1), outcome=made)
    assert (data.stale, data.held) == ({}, set())


@pytest.mark.parametrize(
    ("read_ms", "at"),
    [
        (None, NOW),  # a worker of before
        (1767312000000 - 5000, NOW - timedelta(seconds=5)),
        (1767312000000 + 5000, NOW),  # the database's clock is ahead
    ],
)
def test_a_read_is_as_old_as_it_is_and_not_as_its_report(
    read_ms: int | None, at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("surehand.workflows.run.step_runner.workflow.now", lambda: NOW)
    assert read_at(Succeeded(attempts=1, read_ms=read_ms)) == at
