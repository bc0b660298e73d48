"""What another plan leaves of a run's memory: its end looks at each write that was begun."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

import surehand.workflows.run.amendment as module
from surehand.workflows.contracts.runs import Amend, StartRun
from surehand.workflows.contracts.states import StepState
from surehand.workflows.plan.plan import Plan
from surehand.workflows.run.agent_run import AgentRun
from surehand.workflows.run.amendment import Amendment
from surehand.workflows.state.records import leave_if_cancelled
from surehand.workflows.state.run_state import RunData


class _Control:
    def take_steering(self, *_: Any) -> None:
        """Take nothing."""


def _data(*steps: str) -> RunData:
    plan = Plan.model_validate([{"id": step, "tool": "a.b"} for step in steps])
    request = StartRun(run_id="r", tenant="default", user="ada", plan=plan)
    return RunData.new(request, "first", datetime.now(UTC))


def _amendment(data: RunData) -> Amendment:
    nothing, control = cast(Any, None), cast(Any, _Control())
    return Amendment(data, nothing, control, nothing, nothing, nothing, lambda: True)


def _amended(data: RunData, *steps: str, given_up: tuple[str, ...] = ()) -> None:
    _amendment(data)._show(_data(*steps).request.plan, set(given_up))


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


def test_what_had_begun_before_the_run_continued_as_new_is_ended_before_another_plan() -> None:
    """In the new execution nothing runs at first: what is under way is what has progress."""
    data = _data("ship", "mail")
    data.set_step("ship", StepState.RUNNING)
    data.set_progress("ship", items=["a", "b"])
    data.amending = True
    data.next_plan = Amend(actor="olga", plan=_data("ship").request.plan, based_on=1)
    run = AgentRun.__new__(AgentRun)
    run._data = data
    run._runner = cast(Any, SimpleNamespace(tool_calls=SimpleNamespace(knows=lambda _: False)))
    run._amendment = _amendment(data)

    assert [step.id for step in run._ready({})] == ["ship"]
    assert not run._may_amend({})


async def test_what_has_succeeded_just_before_another_plan_takes_over_is_not_done_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its answer and the end of the last call came at once: nobody has taken note of its end."""
    data = _data("order", "pay")
    data.set_step("order", StepState.SUCCEEDED)
    data.next_plan = Amend(actor="olga", plan=_data("order", "mail").request.plan, based_on=1)

    async def reached(condition: Callable[[], bool]) -> None:
        await asyncio.sleep(0)
        assert condition()

    async def nothing() -> None:
        """Do nothing."""

    ended = asyncio.create_task(nothing())
    await ended
    monkeypatch.setattr(module.workflow, "wait_condition", reached)
    monkeypatch.setattr(module.workflow, "now", lambda: datetime.now(UTC))
    await _amendment(data).apply({"order": ended})

    ready = data.request.plan.ready(frozenset(data.settled), frozenset())
    assert [step.id for step in ready] == ["mail"]


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
