"""What another plan leaves of a run's memory: its end looks at each write that was begun."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

from surehand.workflows.contracts.starting import StartRun
from surehand.workflows.contracts.states import StepState
from surehand.workflows.plan.plan import Plan
from surehand.workflows.run.amendment import Amendment
from surehand.workflows.state.run_state import RunData
from surehand.workflows.state.step_failure import leave_if_cancelled


class _Control:
    def take_steering(self, *_: Any) -> None:
        """Take nothing."""


def _data(*steps: str) -> RunData:
    plan = Plan.model_validate([{"id": step, "tool": "a.b"} for step in steps])
    request = StartRun(run_id="r", tenant="default", user="ada", plan=plan)
    return RunData.new(request, "first", datetime.now(UTC))


def _amended(data: RunData, *steps: str, given_up: tuple[str, ...] = ()) -> None:
    nothing = cast(Any, None)
    control = cast(Any, _Control())
    amending = Amendment(data, nothing, control, nothing, nothing, nothing, lambda: True)
    amending._show(_data(*steps).request.plan, set(given_up))


def test_a_write_that_the_new_plan_drops_can_still_be_undone_at_the_end() -> None:
    data = _data("order", "pay")
    data.saga.register("pay")
    data.set_step("pay", StepState.PAUSED_FAILURE)

    _amended(data, "order")

    assert set(data.saga.steps()) <= data.steps.keys()
    assert (data.steps["pay"].tool, data.steps["pay"].state) == ("a.b", StepState.SKIPPED)


def test_a_write_whose_view_was_left_behind_by_continue_as_new_is_in_nobodys_way() -> None:
    data = _data("order")
    data.saga.register("pay[0]")

    _amended(data, "order", "mail")

    assert list(data.steps) == ["order", "mail"]


def test_what_an_amendment_has_cut_off_has_not_failed() -> None:
    data = _data("order", "pay")
    for step in ("order", "pay"):
        data.set_step(step, StepState.FAILED)

    _amended(data, "order", "pay", given_up=("pay",))

    states = {view.id: view.state for view in data.steps.values()}
    assert states == {"order": StepState.FAILED, "pay": StepState.PENDING}


async def test_a_step_that_was_cancelled_during_a_ledger_call_does_not_wait_afterwards() -> None:
    recorded = asyncio.Event()

    async def step() -> None:
        call = asyncio.ensure_future(recorded.wait())
        try:
            await asyncio.shield(call)
        except asyncio.CancelledError:
            await call  # as a call whose cancellation is waited for: it ends as if nothing was
        leave_if_cancelled()
        await asyncio.Event().wait()

    running = asyncio.create_task(step())
    await asyncio.sleep(0)
    running.cancel()
    recorded.set()
    ended, _ = await asyncio.wait([running], timeout=5)

    assert ended and running.cancelled()
