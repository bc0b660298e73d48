"""``ModelRun``: a run whose steps an agent of the user's own makes, or a model with tools."""

from __future__ import annotations

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from pydantic import JsonValue

    from surehand.agents import calls
    from surehand.workflows import names
    from surehand.workflows.contracts.runs import RunResult, StartRun
    from surehand.workflows.run.code_run import CodeRun, StepFailed, StepMaker


@workflow.defn(name=names.MODEL_RUN)
class ModelRun(CodeRun):
    """A run of a plan with ``agent``, or with ``model`` and ``tools``."""

    @workflow.run
    async def run(self, request: StartRun) -> RunResult:
        """Let the agent make steps until it has its output, which is the run's."""
        return await self.drive_code(self._agent)

    async def _agent(self, steps: StepMaker) -> JsonValue:
        plan = self._data.request.plan
        agent = None if plan.agent is None else calls.named(plan.agent)
        if plan.agent is not None and agent is None:
            reason = "is in no module that SUREHAND_AGENT_MODULES names for the worker"
            raise StepFailed(f"{plan.agent} {reason}", called=False)
        with workflow.unsafe.imports_passed_through():
            try:
                module = calls.import_adapter(calls.find_framework(agent) or "pydantic-ai")
            except ImportError as error:
                raise StepFailed(str(error), called=False) from error
        output: JsonValue = await module.run_agent(steps, plan)
        return output
