"""``ModelRun``: a run whose steps an agent of the user's own makes, or a model with tools."""

from __future__ import annotations

import importlib
from typing import Final

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from pydantic import JsonValue

    from surehand.agents.calls import named
    from surehand.workflows import names
    from surehand.workflows.contracts.runs import RunResult, StartRun
    from surehand.workflows.run.code_run import CodeRun, StepFailed, StepMaker

#: By the package that agents come from: the extra that a worker needs, and the module of ours.
_FRAMEWORKS: Final = {
    "agents": ("openai-agents", "openai_agents"),
    "langgraph": ("langchain", "langgraph"),
}


@workflow.defn(name=names.MODEL_RUN)
class ModelRun(CodeRun):
    """A run of a plan with ``agent``, or with ``model`` and ``tools``."""

    @workflow.run
    async def run(self, request: StartRun) -> RunResult:
        """Let the agent make steps until it has its output, which is the run's."""
        return await self.drive_code(self._agent)

    async def _agent(self, steps: StepMaker) -> JsonValue:
        plan = self._data.request.plan
        agent = None if plan.agent is None else named(plan.agent)
        if plan.agent is not None and agent is None:
            reason = "is in no module that SUREHAND_AGENT_MODULES names for the worker"
            raise StepFailed(f"{plan.agent} {reason}", called=False)
        framework, module_name = next(
            (one for package, one in _FRAMEWORKS.items() if _made_with(agent, package)),
            ("pydantic-ai", "pydantic_ai"),
        )
        with workflow.unsafe.imports_passed_through():
            try:
                module = importlib.import_module(f"surehand.agents.{module_name}")
            except ImportError as error:
                reason = f"pip install 'surehand[{framework}]' for the worker ({error})"
                raise StepFailed(f"{framework} is not there: {reason}", called=False) from error
        output: JsonValue = await module.run_agent(steps, plan)
        return output


def _made_with(agent: object, package: str) -> bool:
    """Return whether an agent is of a framework, which may not be installed."""
    return any(one.__module__.partition(".")[0] == package for one in type(agent).__mro__)
