"""Waiting for the tenant's quota of open runs, before the first step."""

from __future__ import annotations

from collections.abc import Callable

from temporalio import workflow

from surehand.workflows import ports
from surehand.workflows.activity_client import ActivityClient
from surehand.workflows.contracts.quotas import AdmitRun, QuotaWait
from surehand.workflows.run.continue_as_new import Continuing
from surehand.workflows.state.run_state import RunData
from surehand.workflows.steps.quota_waiting import next_look
from surehand.workflows.wait_condition import comes_true


class Admission:
    """Has one run wait until it may take steps.

    It is recorded and hears what is sent to it. One that is paused asks all the same: the others
    wait behind it.
    """

    def __init__(
        self,
        data: RunData,
        call: ActivityClient,
        continuing: Continuing,
        changed: Callable[[], None],
    ) -> None:
        self._data = data
        self._call = call
        self._changed = changed
        self._continuing = continuing

    def opened(self, queued: QuotaWait | None) -> None:
        """Take note of what the ledger says of the run as it opens."""
        data = self._data
        if queued is not None and data.queued is None:
            data.add_line(workflow.now(), f"waiting for its tenant's quota, {queued.text}")
        data.queued = queued

    async def wait(self) -> bool:
        """Wait until the run is admitted; ``False``: it is to end before.

        Raises:
            ContinueAsNewError: It goes on waiting in another execution.
        """
        data = self._data
        while data.queued is not None and data.cancel is None:
            if self._continuing.possible():
                self._continuing.go()
            # At the front it may wait for months, and each look adds to its history.
            pause = max(data.queued.pause, next_look(min(data.queue_looks // 3, 5)))
            data.queue_looks += 1
            if not await comes_true(lambda: self._data.cancel is not None, pause):
                request = data.request
                asked = AdmitRun(tenant=request.tenant, run_id=request.run_id)
                answer = await self._call(ports.ADMIT_RUN, asked, "ask for a place")
                data.keep_head(answer.head)
                data.queued = answer.queued
                if answer.queued is None:
                    data.add_line(workflow.now(), "has its place: going on")
                self._changed()
        return data.queued is None
