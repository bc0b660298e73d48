"""A run whose steps are made by code: branches, a loop, a gather, a question.

Loaded with ``SUREHAND_WORKFLOW_MODULES=surehand.examples.late_orders``, started with
``late_orders.yaml``. Each of the orders is refunded, two at a time; then a human is asked whether
the customers are told.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from surehand import CodeRun, RunResult, StartRun, StepFailed, StepMaker


@workflow.defn
class LateOrders(CodeRun):
    """Refunds returned orders and tells their customers."""

    @workflow.run
    async def run(self, request: StartRun) -> RunResult:
        """Run the steps below."""
        return await self.drive_code(self.steps)

    async def steps(self, steps: StepMaker) -> dict[str, Any]:
        """Decide what comes next, by what the steps before have returned."""
        # Random, read once, or of this moment: recorded, because code runs again in each replay.
        batch = await steps.record(lambda: secrets.token_hex(3), id="batch")
        orders: Any = steps.input["orders"]
        refunded: list[Any] = []
        for first in range(0, len(orders), 2):
            pair = orders[first : first + 2]
            found = await asyncio.gather(*(self.refund(steps, order_id) for order_id in pair))
            refunded += [order for order in found if order is not None]
        tell: Any = None
        if refunded:
            asked = f"Batch {batch}: tell {len(refunded)} customers?"
            tell = await steps.ask(asked, {"type": "boolean"}, id="tell")
        for order in refunded if tell else []:
            await steps.call(
                "mail.send",
                {
                    "order_id": order["order_id"],
                    "kind": "refund_notice",
                    "to": order["customer_email"],
                    "subject": f"Your refund for {order['order_id']}",
                    "body": f"We have refunded {order['paid']} {order['currency']}.",
                },
                id=f"mail-{order['order_id']}",
            )
        return {"batch": batch, "refunded": [order["order_id"] for order in refunded]}

    async def refund(self, steps: StepMaker, order_id: str) -> Any:
        """Refund one order; ``None`` where it must not be, or a human says no."""
        order: Any = await steps.call("orders.read", {"order_id": order_id}, id=f"order-{order_id}")
        amount: Any = await steps.call(
            "refunds.calculate",
            {"order_id": order_id, "paid": order["paid"]},
            id=f"amount-{order_id}",
            on_no="continue",
        )
        if "no" in amount:
            return None
        try:
            await steps.call(
                "payments.refund",
                {"order_id": order_id, "amount": amount["amount"], "currency": order["currency"]},
                id=f"refund-{order_id}",
            )
        except StepFailed as failed:
            if failed.rejected:
                return None
            raise
        return order
