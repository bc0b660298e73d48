"""A workflow whose steps an agent of pydantic-ai makes."""

from __future__ import annotations

from temporalio import workflow

from surehand import CodeRun, RunResult, StartRun, StepMaker

with workflow.unsafe.imports_passed_through():
    from pydantic_ai import UsageLimits

    from tests.variants import agents


@workflow.defn
class Agent(CodeRun):
    @workflow.run
    async def run(self, request: StartRun) -> RunResult:
        return await self.drive_code(self.steps)

    async def steps(self, steps: StepMaker) -> str:
        agent = getattr(agents, str(steps.input["agent"]))
        prompt = f"Refund {steps.input['count']} {steps.input['order_id']}"
        result = await agent.run(prompt, usage_limits=UsageLimits(request_limit=None))
        return str(result.output)
