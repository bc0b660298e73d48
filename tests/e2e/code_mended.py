"""A run of code with a mistake that was mended: ``Odd``."""

from __future__ import annotations

from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from tests.e2e.code import refund
    from workflows.code_first import CodeRun, StepMaker
    from workflows.contracts import RunResult, StartRun


@workflow.defn
class Odd(CodeRun):
    """Refunds, and reads what it got."""

    @workflow.run
    async def run(self, request: StartRun) -> RunResult:
        return await self.drive_code(self.steps)

    async def steps(self, steps: StepMaker) -> Any:
        got = await refund(steps)
        return got["amount"]
