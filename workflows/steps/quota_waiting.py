"""Waiting for a quota of the tenant, by looks at growing intervals.

Nobody tells a run that its tenant's quota was raised, or that it is free again. It looks soon at
first. Then it looks seldom: it may wait for a day, and each look adds to its history.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow

from surehand.workflows.contracts.quotas import LONGEST_LOOK, SHORTEST_LOOK, QuotaWait
from surehand.workflows.contracts.states import StepState
from surehand.workflows.state.run_state import RunData


class QuotaWaits:
    """Has the steps of one run wait for quotas."""

    def __init__(self, data: RunData, changed: Callable[[], None]) -> None:
        self._data = data
        self._changed = changed

    async def wait(self, step_id: str, found: QuotaWait) -> None:
        """Wait until a quota may be free, and say so."""
        data = self._data
        at = data.progress_of(step_id)
        until = at.until
        if until is None:
            until = workflow.now() + min(found.pause, next_look(at.looks))
            data.set_progress(step_id, until=until, looks=at.looks + 1)
            text = f"waiting for its tenant's quota, {found.text}"
            if at.looks == 0:
                data.add_line(workflow.now(), text, step_id)
            data.set_step(step_id, StepState.WAITING_QUOTA, error=text)
            self._changed()
        await workflow.sleep(max(until - workflow.now(), timedelta(0)))
        data.set_progress(step_id, until=None)

    def over(self, step_id: str) -> None:
        """Note that a step has got what it has waited for."""
        if self._data.progress_of(step_id).looks:
            self._data.set_progress(step_id, looks=0, until=None)
            state = self._data.steps[step_id].state
            self._data.set_step(step_id, state, error=None)


def next_look(looks: int) -> timedelta:
    """Return how long to wait for the next look, after so many."""
    # Beyond that it is the longest in any case.
    return min(SHORTEST_LOOK * (1 << min(looks, 10)), LONGEST_LOOK)
