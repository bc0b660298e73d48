"""What another plan leaves of a run's memory: its end looks at each write that was begun."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

from workflows.amending import Amending
from workflows.approvals import Gate
from workflows.book import Book
from workflows.contracts import StartRun, StepState
from workflows.ends import leave_if_cancelled
from workflows.plan import Plan
from workflows.saga import Saga


class _Helm:
    def take(self, *_: Any) -> None:
        """Take nothing."""


def _book(*steps: str) -> Book:
    plan = Plan.model_validate([{"id": step, "tool": "a.b"} for step in steps])
    request = StartRun(run_id="r", tenant="default", user="ada", plan=plan)
    return Book(request, datetime.now(UTC), Gate("r", "first"), Saga())


def _amended(book: Book, *steps: str, given_up: tuple[str, ...] = ()) -> None:
    nothing = cast(Any, None)
    amending = Amending(
        *(book, nothing, cast(Any, _Helm()), nothing, nothing, nothing, {}), lambda: True
    )
    amending._show(_book(*steps).request.plan, set(given_up))


def test_a_write_that_the_new_plan_drops_can_still_be_undone_at_the_end() -> None:
    book = _book("order", "pay")
    book.saga.register("pay")
    book.set_step("pay", StepState.PAUSED_FAILURE)

    _amended(book, "order")

    assert set(book.saga.steps()) <= book.steps.keys()
    assert (book.steps["pay"].tool, book.steps["pay"].state) == ("a.b", StepState.SKIPPED)


def test_what_an_amendment_has_cut_off_has_not_failed() -> None:
    book = _book("order", "pay")
    for step in ("order", "pay"):
        book.set_step(step, StepState.FAILED)

    _amended(book, "order", "pay", given_up=("pay",))

    states = {view.id: view.state for view in book.steps.values()}
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
