"""Temporal alone: a worker whose activity makes the same call with nothing to protect it.

``python -m benchmarks.plain`` is started by ``benchmarks.steps`` beside Surehand's own worker.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Final

from temporalio import activity, workflow
from temporalio.exceptions import ApplicationError
from temporalio.worker import PollerBehaviorAutoscaling, Worker

with workflow.unsafe.imports_passed_through():
    from benchmarks.quick_tools import Attempts, Repeated, answer, attempt
    from surehand.activities.tools.failures import Transient
    from surehand.process.connect import connect, find_target
    from surehand.process.ending import leave
    from surehand.process.settings import read_environment
    from surehand.worker import STICKY_TIMEOUT, workflow_runner
    from surehand.workflows.options import HEARTBEAT_TIMEOUT

PLAIN_QUEUE: Final = "plain"
PLAIN: Final = "PlainSteps"
PLAIN_REPEATED: Final = "PlainRepeated"
READY: Final = "plain.ready"


@activity.defn
async def call(takes: float) -> dict[str, Any]:
    """Make the call."""
    return dict(await answer(takes))


@workflow.defn(name=PLAIN)
class PlainSteps:
    """Makes calls one after another."""

    @workflow.run
    async def run(self, steps: int, takes: float) -> list[float]:
        """Return when each call began."""
        began = []
        for number in range(steps):
            answered = await workflow.execute_activity(
                call,
                takes,
                start_to_close_timeout=timedelta(seconds=60),
                heartbeat_timeout=HEARTBEAT_TIMEOUT,
                summary=f"step{number + 1}",
            )
            began.append(float(answered["at"]))
        return began


@activity.defn
async def call_again(call: str, takes: float, fails: int, pause: float) -> Attempts:
    """Make a call that fails at first."""
    try:
        return await attempt(call, Repeated(takes=takes, fails=fails))
    except Transient as error:
        delay = timedelta(seconds=pause)
        raise ApplicationError(str(error), next_retry_delay=delay) from error


@workflow.defn(name=PLAIN_REPEATED)
class PlainRepeated:
    """Makes one call that fails at first."""

    @workflow.run
    async def run(self, takes: float, fails: int, pause: float) -> Attempts:
        """Return when its attempts began and ended."""
        return await workflow.execute_activity(
            call_again,
            args=[workflow.info().workflow_id, takes, fails, pause],
            start_to_close_timeout=timedelta(seconds=60),
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
        )


async def serve() -> None:
    """Work until the process is ended."""
    client = await connect(find_target(read_environment()))
    worker = Worker(
        client,
        task_queue=PLAIN_QUEUE,
        workflows=[PlainSteps, PlainRepeated],
        activities=[call, call_again],
        workflow_runner=workflow_runner(),
        sticky_queue_schedule_to_start_timeout=STICKY_TIMEOUT,
        workflow_task_poller_behavior=PollerBehaviorAutoscaling(),
        activity_task_poller_behavior=PollerBehaviorAutoscaling(),
    )
    async with worker:
        print(READY, flush=True)
        await asyncio.Event().wait()


def main() -> int:
    """Run the worker."""
    asyncio.run(serve())
    return 0


if __name__ == "__main__":
    leave(main())
