"""With which params a step is tried again: a call that may have happened is settled by its own."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import pytest

from surehand.workflows.contracts.runs import StartRun
from surehand.workflows.contracts.steering import ResumeRun
from surehand.workflows.plan.plan import Plan
from surehand.workflows.state.records import StepFailed
from surehand.workflows.state.run_state import RunData
from surehand.workflows.steps.scheduler import Scheduler

PLANS: Final = {"amount": "120"}
EDITED: Final = {"amount": "15"}
LATER: Final = {"amount": "20"}


def tried_again(*failures: tuple[dict[str, Any] | None, bool]) -> dict[str, Any]:
    """Return the params after failures, each with the edit before it, and whether in doubt."""
    plan = Plan.model_validate([{"id": "pay", "tool": "a.b", "params": PLANS}])
    request = StartRun(run_id="r", tenant="default", user="ada", plan=plan)
    scheduler = Scheduler.__new__(Scheduler)
    scheduler._data = RunData.new(request, "first", datetime.now(UTC))
    step = plan.steps[0]
    for edited, unsettled in failures:
        if edited is not None:
            scheduler._data.of_step("pay").edited = edited
        failed = StepFailed("no answer", unsettled=unsettled)
        step = scheduler._retried(step, ResumeRun(actor="olga"), failed)
    return step.params


@pytest.mark.parametrize("unsettled", [False, True])
def test_a_call_is_tried_again_as_it_was_edited_also_where_it_may_have_happened(
    unsettled: bool,
) -> None:
    assert tried_again((None, unsettled)) == PLANS
    assert tried_again((EDITED, unsettled), (None, unsettled)) == EDITED


def test_an_edit_of_the_call_that_is_to_settle_another_one_does_not_last() -> None:
    assert tried_again((None, True), (EDITED, True)) == PLANS
    assert tried_again((EDITED, True), (LATER, True), (None, True)) == EDITED


def test_an_edit_counts_again_once_the_first_call_is_known_not_to_have_happened() -> None:
    assert tried_again((None, True), (EDITED, False)) == EDITED
