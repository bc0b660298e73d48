"""A workflow whose steps an agent of pydantic-ai makes."""

from __future__ import annotations

from asyncio import gather

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
        # One agent, or several side by side.
        named = [getattr(agents, name) for name in str(steps.input["agent"]).split("+")]
        prompt = f"Refund {steps.input['count']} {steps.input['order_id']}"
        limits = UsageLimits(request_limit=None)
        results = await gather(*(agent.run(prompt, usage_limits=limits) for agent in named))
        if later := steps.input.get("later"):
            history = results[0].all_messages()
            results = [await named[0].run(str(later), message_history=history)]
        return "+".join(str(result.output) for result in results)
