"""Temporal alone: a worker whose activity makes the same call with nothing to protect it.

``python -m benchmarks.plain`` is started by other benchmarks beside Surehand's own worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, TypeVar

from temporalio import activity, workflow
from temporalio.worker import PollerBehaviorAutoscaling, Worker

with workflow.unsafe.imports_passed_through():
    from benchmarks import tools
    from surehand.examples.shop.params import (
        CalculateParams,
        Mailed,
        MailParams,
        OrderParams,
        RefundParams,
        RestockParams,
    )
    from surehand.process.connect import connect, find_target
    from surehand.process.exits import leave
    from surehand.process.settings import read_environment
    from surehand.worker import STICKY_TIMEOUT, workflow_runner
    from surehand.workflows.ports import HEARTBEAT_TIMEOUT

PLAIN_QUEUE: Final = "plain"
PLAIN: Final = "PlainSteps"
PLAIN_REFUND: Final = "PlainRefund"
#: The signal that approves a refund.
APPROVE: Final = "approve"
READY: Final = "plain.ready"

A = TypeVar("A")


@activity.defn
async def call(takes: float) -> dict[str, Any]:
    return dict(await tools.answer(takes))


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


async def _execute(what: Callable[..., Awaitable[A]], params: Any) -> A:
    answered: A = await workflow.execute_activity(
        what,
        params,
        start_to_close_timeout=timedelta(seconds=60),
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
    )
    return answered


@workflow.defn(name=PLAIN_REFUND)
class PlainRefund:
    """Makes the calls of ``examples/refund.yaml``; the refund waits for a signal."""

    def __init__(self) -> None:
        self._approved = False

    @workflow.signal(name=APPROVE)
    def approve(self, approver: str) -> None:
        """Take down that somebody has approved."""
        self._approved = True

    @workflow.run
    async def run(self, order_id: str) -> Mailed:
        """Return the last call's answer."""
        order = await _execute(tools.order_of, OrderParams(order_id=order_id))
        amount = await _execute(
            tools.refundable_of, CalculateParams(order_id=order.order_id, paid=order.paid)
        )
        await workflow.wait_condition(lambda: self._approved)
        paid = await _execute(
            tools.refund_of,
            RefundParams(order_id=order_id, amount=amount.amount, currency=order.currency),
        )
        await _execute(tools.restock_of, RestockParams(order_id=order_id, lines=order.lines))
        mail = MailParams(
            order_id=order_id,
            kind="refund_notice",
            to=order.customer_email,
            subject=f"Your refund for {order_id}",
            body=f"We have refunded {paid.amount} {paid.currency} for {order_id}.",
        )
        return await _execute(tools.mail_of, mail)


async def serve() -> None:
    client = await connect(find_target(read_environment()))
    worker = Worker(
        client,
        task_queue=PLAIN_QUEUE,
        workflows=[PlainSteps, PlainRefund],
        activities=[call, *tools.REFUND_CALLS],
        workflow_runner=workflow_runner(),
        sticky_queue_schedule_to_start_timeout=STICKY_TIMEOUT,
        workflow_task_poller_behavior=PollerBehaviorAutoscaling(),
        activity_task_poller_behavior=PollerBehaviorAutoscaling(),
    )
    async with worker:
        print(READY, flush=True)
        await asyncio.Event().wait()


def main() -> int:
    asyncio.run(serve())
    return 0


if __name__ == "__main__":
    leave(main())
