"""A run of code with a mistake in its first step: ``Hopeless``."""

from __future__ import annotations

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from surehand import CodeRun, RunResult, StartRun, StepMaker


@workflow.defn
class Hopeless(CodeRun):
    """Raises at once."""

    @workflow.run
    async def run(self, request: StartRun) -> RunResult:
        return await self.drive_code(self.steps)

    async def steps(self, steps: StepMaker) -> None:
        raise RuntimeError("no account\x1b[2J of that name")


@workflow.defn
class Unborn(CodeRun):
    """Raises before it is opened."""

    @workflow.run
    async def run(self, request: StartRun) -> RunResult:
        raise RuntimeError("never begun")
