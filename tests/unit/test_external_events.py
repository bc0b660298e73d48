"""One event is one step's, however many wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

import surehand.workflows.control.interrupts as module
from surehand.workflows.contracts.runs import StartRun
from surehand.workflows.contracts.steering import Interrupt
from surehand.workflows.control.interrupts import Interrupts
from surehand.workflows.plan.plan import Plan
from surehand.workflows.state.run_state import RunData

WAIT = {"event": "signed", "about": "x"}
PLAN = Plan.model_validate([{"id": step, "wait": WAIT, "after": []} for step in ("a", "b")])


class _Control:
    """Wakes all whose condition holds in one pass, as the SDK does."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def take_steering(self, *_: Any) -> None:
        """Take nothing."""

    async def wait_until(self, arrived: Callable[[], bool], within: timedelta | None) -> bool:
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((arrived, called))
        await called
        return arrived()

    def wake(self) -> None:
        """Look at every condition once."""
        for arrived, called in self._waiting:
            if arrived() and not called.done():
                called.set_result(None)


class _Interrupts(Interrupts):
    def __init__(self, data: RunData) -> None:
        self._data = data
        self.recorded: list[tuple[str, str]] = []

    async def record(self, interrupt: Interrupt, what: Any, output: Any = None) -> None:
        self.recorded.append((interrupt.step_id, what))


async def turns() -> None:
    """Let everybody go on who can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_of_two_steps_that_wait_for_one_event_the_other_one_goes_on_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module.workflow, "now", lambda: datetime.now(UTC))
    request = StartRun(run_id="r", tenant="default", user="ada", plan=PLAN)
    data = RunData.new(request, "first", datetime.now(UTC))
    control, interrupts = _Control(), _Interrupts(data)
    external = module.ExternalEvents(data, cast(Any, control), interrupts, lambda: None)
    waits = [step.wait for step in PLAN.steps if step.wait is not None]
    steps = [
        asyncio.create_task(external.wait(id_, wait, "x"))
        for id_, wait in zip("ab", waits, strict=True)
    ]
    await turns()

    for payload in (1, 2):
        data.events.keep("signed", "x", payload)
        control.wake()
        await turns()

    assert sorted([await step for step in steps], key=str) == [1, 2]
    assert [what for _, what in interrupts.recorded if what != "opened"] == ["delivered"] * 2
