"""The workflow that runs an agent which somebody has, with its tools' calls as steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import fields
from functools import wraps
from typing import Any, Final

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from pydantic import JsonValue
    from pydantic_core import to_jsonable_python

    from surehand.agents import calls
    from surehand.drill import bare_agent
    from surehand.workflows.contracts.runs import RunResult, StartRun
    from surehand.workflows.run.code_run import CodeRun, StepFailed, StepMaker, current_steps


@workflow.defn
class AdoptedAgent(CodeRun):
    """A run of an agent as its user has it, but for the tools."""

    @workflow.run
    async def run(self, request: StartRun) -> RunResult:
        """Let the agent make steps until it has its output."""
        return await self.drive_code(self._play)

    async def _play(self, steps: StepMaker) -> JsonValue:
        """Run the agent that the run's input names, to its end."""
        given: Any = steps.input
        with workflow.unsafe.imports_passed_through():
            agent = calls.named(given["agent"])
            made = await _PLAY[bare_agent.framework_of(agent)](agent, given)
            output: JsonValue = to_jsonable_python(made, fallback=repr)
            return output


async def _play_pydantic_ai(agent: Any, given: Any) -> Any:
    from pydantic_ai import UsageLimits

    from surehand.agents.pydantic_ai import Surehand

    ours = Surehand(given["tools"], model=given["agent"])
    with agent.override(toolsets=[ours.get_toolset()], tools=[], native_tools=[]):
        unlimited = UsageLimits(request_limit=None)
        result = await agent.run(given["input"], capabilities=[ours], usage_limits=unlimited)
    return result.output


async def _play_openai(agent: Any, given: Any) -> Any:
    import agents

    from surehand.agents.openai_agents import SurehandAgent, run_config

    adopted = dict[int, Any]()

    def adopt_agent(one: Any) -> Any:
        if not isinstance(one, agents.Agent):
            return one
        if id(one) not in adopted:
            own = {field.name: getattr(one, field.name) for field in fields(one)}
            theirs = [tool for tool in one.tools if isinstance(tool, agents.FunctionTool)]
            own["tools"] = [tool for tool in one.tools if tool not in theirs]
            if isinstance(one.model, agents.Model):
                own["model"] = name_model(one.model)
            adopted[id(one)] = made = SurehandAgent(**own, run_tools=[tool.name for tool in theirs])
            made.handoffs = [adopt_agent(other) for other in one.handoffs]
        return adopted[id(one)]

    with calls.fail_run():
        result = await agents.Runner.run(
            adopt_agent(agent), given["input"], run_config=run_config(), max_turns=None
        )
    return result.final_output


async def _play_langgraph(graph: Any, given: Any) -> Any:
    from surehand.agents.langgraph import invoke

    adopt_graph(graph, given["tools"])
    return await invoke(graph, bare_agent.graph_input(graph, given["input"]))


def adopt_graph(graph: Any, names: list[str]) -> None:
    """Have a graph make steps of its calls and its models' turns, inside runs."""
    from langchain_core.language_models import BaseChatModel
    from langchain_core.utils.function_calling import convert_to_openai_tool

    from surehand.agents.langchain import RecordedModel, SurehandMiddleware
    from surehand.workflows.run.code_run import TURN_TIMEOUT

    ours = SurehandMiddleware(names)

    async def call_tool(request: Any, handler: Any) -> Any:
        return await ours.awrap_tool_call(request.override(tool=None), handler)

    for node in bare_agent.list_tool_nodes(graph):
        node._awrap_tool_call = call_tool  # no public name does it

    asked = BaseChatModel.ainvoke
    if hasattr(asked, "__wrapped__"):
        return

    @wraps(asked)
    async def ask_model(self: Any, input: Any, config: Any = None, **more: Any) -> Any:
        if current_steps() is None or isinstance(self, RecordedModel):
            return await asked(self, input, config, **more)
        recorded = RecordedModel(model=name_model(self), own=None, turn_timeout=TURN_TIMEOUT)
        if "tools" in more:
            more["tools"] = [convert_to_openai_tool(tool) for tool in more["tools"]]
        return await recorded.ainvoke(input, config, **more)

    BaseChatModel.ainvoke = ask_model  # type: ignore[method-assign]


async def _play_function(agent: Any, given: Any) -> Any:
    return await agent(given["input"])


_PLAY: Final[dict[str, Callable[[Any, Any], Awaitable[Any]]]] = {
    "pydantic-ai": _play_pydantic_ai,
    "openai-agents": _play_openai,
    "langgraph": _play_langgraph,
    bare_agent.FUNCTION: _play_function,
}


def name_model(model: Any) -> str:
    """Return where the worker finds a model. Raises ``StepFailed``."""
    name = calls.find_name(model)
    if name is None:
        kind = type(model).__name__
        reason = f"the agent's {kind} has no name in its module, by which another process finds it"
        raise StepFailed(f"{reason}: write `model = {kind}(...)`, then use that", called=False)
    return name


async def call_as_step(name: str, params: dict[str, Any], real: Callable[..., Any]) -> Any:
    """Have a step of the run make a call, in the place of the agent's own function."""
    steps = current_steps()
    if steps is None:
        raise RuntimeError(f"{name} is called outside of a run")
    return await steps.call(name, params)
