"""A workflow whose steps an agent of LangChain makes."""

from __future__ import annotations

from temporalio import workflow

from surehand import CodeRun, RunResult, StartRun, StepMaker

with workflow.unsafe.imports_passed_through():
    from surehand.agents.langgraph import invoke
    from tests.variants import langchain_agents


@workflow.defn
class LangChainAgent(CodeRun):
    @workflow.run
    async def run(self, request: StartRun) -> RunResult:
        return await self.drive_code(self.steps)

    async def steps(self, steps: StepMaker) -> str:
        agent = getattr(langchain_agents, str(steps.input["agent"]))
        prompt = f"Refund {steps.input['count']} {steps.input['order_id']}"
        asked = {"messages": [{"role": "user", "content": prompt}]}
        run = agent.ainvoke(asked) if steps.input.get("directly") else invoke(agent, asked)
        state = await run
        if later := steps.input.get("later"):
            asked = {"messages": [*state["messages"], {"role": "user", "content": later}]}
            state = await invoke(agent, asked)
        return str(state["messages"][-1].text)
