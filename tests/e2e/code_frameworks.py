"""A run of code that imports, as agents' frameworks do, what Temporal's sandbox refuses to load."""

from __future__ import annotations

from typing import Any

import anyio
import httpx
from temporalio import workflow

from surehand import CodeRun, RunResult, StartRun, StepMaker


@workflow.defn
class Foreign(CodeRun):
    """Refunds an order, inside of what anyio makes of the workflow's event loop."""

    @workflow.run
    async def run(self, request: StartRun) -> RunResult:
        return await self.drive_code(self.steps)

    async def steps(self, steps: StepMaker) -> Any:
        given = {"order_id": steps.input["order_id"], "amount": "59.90", "currency": "EUR"}
        async with anyio.create_task_group() as group:
            group.start_soon(steps.call, "payments.refund", given)
        return str(httpx.URL("https://shop.example").join(str(given["order_id"])))
