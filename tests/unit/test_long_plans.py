"""Long plans: no single go takes so long that the worker lets go of the run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from surehand.workflows.contracts.tools import DescribeTools
from surehand.workflows.plan.plan import Plan


def calls_of(work: Callable[[], object]) -> int:
    """Count the functions that are called meanwhile: as good as a clock, and always the same."""
    count = 0

    def called(_: Any, what: str, __: Any) -> None:
        nonlocal count
        count += what in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def written(length: int, **more: Any) -> dict[str, Any]:
    steps = [{"id": f"s{n}", "tool": "orders.read", **more} for n in range(length)]
    return {"steps": [*steps, {"id": "end", "tool": "mail.send"}]}


@pytest.mark.parametrize("more", [{}, {"on_no": {"goto": "end"}}], ids=["plain", "with gotos"])
def test_a_plan_with_four_times_the_steps_is_about_four_times_the_work(more: Any) -> None:
    short, long = written(100, **more), written(400, **more)

    assert calls_of(lambda: Plan.model_validate(long)) < 5 * calls_of(
        lambda: Plan.model_validate(short)
    )


def test_so_is_a_goto_in_it() -> None:
    def skipping(plan: Plan) -> int:
        assert plan.dependencies
        return calls_of(lambda: plan.skipped_by_goto("s0", "end"))

    short, long = (Plan.model_validate(written(length)) for length in (100, 400))

    assert skipping(long) < 5 * skipping(short)


def test_a_plan_is_judged_once_however_many_messages_it_is_put_into() -> None:
    short, long = (Plan.model_validate(written(length)) for length in (100, 400))

    assert calls_of(lambda: DescribeTools(plan=long)) == calls_of(lambda: DescribeTools(plan=short))
