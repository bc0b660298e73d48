"""A workflow whose steps an agent of the OpenAI Agents SDK makes."""

from __future__ import annotations

from temporalio import workflow

from surehand import CodeRun, RunResult, StartRun, StepMaker

with workflow.unsafe.imports_passed_through():
    from agents import Runner, ToolExecutionConfig

    from surehand.agents.openai_agents import run_config
    from tests.variants import openai_agents


@workflow.defn
class OpenAIAgent(CodeRun):
    @workflow.run
    async def run(self, request: StartRun) -> RunResult:
        return await self.drive_code(self.steps)

    async def steps(self, steps: StepMaker) -> str:
        agent = getattr(openai_agents, str(steps.input["agent"]))
        prompt = f"Refund {steps.input['count']} {steps.input['order_id']}"
        one_by_one = ToolExecutionConfig(max_function_tool_concurrency=1)
        config = run_config(tool_execution=one_by_one if steps.input.get("one_by_one") else None)
        result = await Runner.run(agent, prompt, run_config=config)
        if later := steps.input.get("later"):
            asked = [*result.to_input_list(), {"role": "user", "content": later}]
            result = await Runner.run(agent, asked, run_config=config)
        return str(result.final_output)
