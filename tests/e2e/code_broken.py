"""A run of code with a mistake: ``Odd``."""

from __future__ import annotations

from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from surehand import CodeRun, RunResult, StartRun, StepMaker
    from tests.e2e.code import refund


@workflow.defn
class Odd(CodeRun):
    """Refunds, and reads what it got."""

    @workflow.run
    async def run(self, request: StartRun) -> RunResult:
        return await self.drive_code(self.steps)

    async def steps(self, steps: StepMaker) -> Any:
        got = await refund(steps)
        return got["no_such_field"]
