"""The OpenAI Agents SDK: its agents' turns and tool calls as steps of a run.

All of it runs in workflow code, on every replay: it does nothing but make steps. ``ask`` alone is
the activity's side of a turn.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence, Set
from dataclasses import dataclass, fields
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final, NoReturn

import agents
import anyio._backends._asyncio  # noqa: F401  # lazily imported, it would be in a workflow
import openai
from agents.run_config import CallModelData, ModelInputData
from agents.tool import set_function_tool_failure_error_function
from agents.tool_context import ToolContext
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage
from pydantic import BaseModel, TypeAdapter
from pydantic_core import from_json, to_json, to_jsonable_python

from surehand.activities.effects.model_turns import Said, TurnRequest
from surehand.activities.tools.failures import DependencyDown, Permanent, Transient
from surehand.agents import calls
from surehand.workflows.plan.plan import Plan
from surehand.workflows.run.code_run import TURN_TIMEOUT, StepFailed, StepMaker, current_steps

FRAMEWORK: Final = "openai-agents"
RESPONSE: Final = TypeAdapter(agents.ModelResponse)
#: Tools that the provider itself runs, and of which it needs no more than their settings.
HOSTED: Final[dict[str, type[Any]]] = {
    one.__name__: one
    for one in (
        *(agents.WebSearchTool, agents.FileSearchTool, agents.CodeInterpreterTool),
        *(agents.ImageGenerationTool, agents.HostedMCPTool),
    )
}
_PROVIDER: Final = agents.MultiProvider()


class OfferedTool(BaseModel):
    """A tool that the model may call, as its provider has to know of it."""

    kind: str
    fields: dict[str, Any]


class OfferedHandoff(BaseModel):
    """The same of a hand-off."""

    tool_name: str
    tool_description: str
    input_json_schema: dict[str, Any]
    agent_name: str
    strict_json_schema: bool


class Wanted(BaseModel):
    """The output that the model has to come to."""

    name: str
    schema_: dict[str, Any]
    strict: bool


class Setup(BaseModel):
    """What a turn is asked with, beside its messages."""

    instructions: str | None
    settings: dict[str, Any]
    tools: list[OfferedTool]
    handoffs: list[OfferedHandoff]
    output: Wanted | None
    prompt: dict[str, Any] | None


@dataclass
class SurehandAgent(agents.Agent[Any]):
    """An agent that may call tools of the run that it is run in.

    Outside of a run they refuse to be called: without a ledger nothing would keep them from
    paying twice.

    Example:
        >>> agent = SurehandAgent(
        ...     name="clerk",
        ...     model="gpt-5",
        ...     instructions="Refund what the customer asks for, if the order allows it.",
        ...     run_tools=["orders.read", "payments.refund"],
        ... )
    """

    run_tools: Sequence[str] = ()
    """The run's tools, by name or by a pattern with ``*`` and ``?``."""
    human: bool = False
    """Whether it may also ask a human (``ask_human``), and give up (``give_up``)."""

    async def get_all_tools(self, run_context: agents.RunContextWrapper[Any]) -> list[agents.Tool]:
        human = [
            _make_tool(_HumanTool, *one, calls.call_human, one.name)
            for one in calls.HUMAN_TOOLS.values()
        ]
        ours = [*await tools(*self.run_tools), *(human if self.human else ())]
        return [*ours, *await super().get_all_tools(run_context)]


class RunTool(agents.FunctionTool):
    """A tool of the run."""


class _HumanTool(agents.FunctionTool):
    """``ask_human``, ``give_up``: what it returns is a human's word."""


async def tools(*names: str) -> list[agents.FunctionTool]:
    """Return tools of the run that this code is of, for an agent that is made inside it.

    Args:
        names: The tools, by name or by a pattern with ``*`` and ``?``.

    Raises:
        agents.UserError: This code is of no run.
    """
    offered = await calls.offer_tools(_require_steps(), names)
    return [
        _make_tool(
            RunTool, name, one.description, one.params_schema, calls.call_for_model, one.name
        )
        for name, one in offered.items()
    ]


def _make_tool(
    kind: type[agents.FunctionTool],
    name: str,
    description: str,
    schema: dict[str, Any],
    make: Callable[..., Awaitable[Any]],
    called: str,
) -> agents.FunctionTool:
    async def call(context: ToolContext[Any], arguments: str) -> str:
        steps = _require_steps()
        step_id = steps.places.get(context.tool_call_id)
        try:
            params = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            params = error
        if isinstance(params, dict):
            told = await make(steps, called, params, step_id)
        else:
            reason = f"{calls.NO_OBJECT}{arguments[:200]}"
            await steps.refuse(called, reason, id=step_id)
            told = {"failed": reason}
        return to_json(told).decode()

    tool = kind(name, description, schema, call, strict_json_schema=False)
    # Otherwise the SDK tells the model of a call that is cancelled, and goes on.
    set_function_tool_failure_error_function(tool, None)
    return tool


def model(
    name: str, *, own: Sequence[str] = (), turn_timeout: timedelta = TURN_TIMEOUT
) -> agents.Model:
    """Return a model whose turns are steps of the run that it is asked in.

    Args:
        name: The model, such as ``gpt-5``; or where the worker finds it, as ``module:name``.
        own: Tools of agents' own that may be called as well, and tools that the provider runs.
            Their own run in workflow code, again in each replay: they may calculate, and nothing
            else.
        turn_timeout: How long one attempt at a turn may take.
    """
    return _RecordedModel(name, frozenset(own), turn_timeout)


def run_config(
    *, own: Sequence[str] = (), turn_timeout: timedelta = TURN_TIMEOUT, **settings: Any
) -> agents.RunConfig:
    """Return the run config for ``Runner.run``: agents' models are those of ``model``.

    Args:
        own: As for ``model``.
        turn_timeout: As for ``model``.
        settings: What else a ``RunConfig`` has.
    """
    if current_steps() is not None:
        _require_steps()
        calls.stay_on_one_thread()
        # Spans have times, and are sent by a thread.
        settings = {"tool_not_found_behavior": "return_error_to_model"} | settings
        checked = _check_models(settings.get("call_model_input_filter"))
        settings |= {"tracing_disabled": True, "call_model_input_filter": checked}
    return agents.RunConfig(model_provider=_RecordedModels(tuple(own), turn_timeout), **settings)


def _check_models(other: Any) -> Any:
    """Return a filter of what models are told that refuses models which record nothing."""

    async def check(data: CallModelData[Any]) -> ModelInputData:
        asked = data.agent.model
        if isinstance(asked, agents.Model) and not isinstance(asked, _RecordedModel):
            raise agents.UserError(
                f"agent {data.agent.name!r} has a model that records no turns: name it, as"
                " module:name of a module in SUREHAND_AGENT_MODULES"
            )
        told = data.model_data if other is None else other(data)
        made: ModelInputData = await told if inspect.isawaitable(told) else told
        return made

    return check


async def run_agent(steps: StepMaker, plan: Plan) -> Any:
    """Run the agent of a plan to its end, and return its output. Raises ``StepFailed``."""
    assert plan.agent is not None
    agent = calls.named(plan.agent)
    if not isinstance(agent, agents.Agent):
        raise StepFailed(f"{plan.agent} is no agent of {FRAMEWORK}", called=False)
    reached = list(list_reached_agents(agent))
    by_name = {one.name: one for one in reached}
    if len(by_name) < len(reached):
        raise StepFailed(f"of what {plan.agent} hands over to, two have one name", called=False)
    carried: Any = steps.carried
    messages: Any = calls.prompt_of(plan)
    if carried is not None:
        messages = carried["messages"]
        if carried["agent"] not in by_name:
            gone = f"{plan.agent} hands over to no {carried['agent']} any more"
            raise StepFailed(gone, called=False)
        agent = by_name[carried["agent"]]
    settings: Any = {
        "run_config": run_config(),
        "hooks": _Continuing(steps, frozenset(by_name)),
        "max_turns": None,  # the run has a budget
    }
    with calls.fail_run():
        result = await agents.Runner.run(agent, messages, **settings)
        while result.interruptions:
            state = result.to_state()
            for asked in result.interruptions:
                # Of an agent's own tool, which the SDK asks to have approved.
                given = (asked.tool_name or "", asked.arguments or "", asked.call_id or "")
                why_not = await calls.ask_to_call(steps, *given)
                if why_not is None:
                    state.approve(asked)
                else:
                    state.reject(asked, rejection_message=why_not)
            result = await agents.Runner.run(agent, state, **settings)
    return result.final_output


@dataclass(frozen=True)
class _Continuing(agents.RunHooks[Any]):
    """Continues the run as new before a turn, once its history is long.

    An agent that is another one's tool has the run config of that one, and not its hooks: its
    conversation is not the run's.
    """

    steps: StepMaker
    names: frozenset[str]

    async def on_llm_start(
        self,
        context: agents.RunContextWrapper[Any],
        agent: agents.Agent[Any],
        system_prompt: str | None,
        input_items: list[agents.TResponseInputItem],
    ) -> None:
        """Leave what is said to the next execution, if it finds the agent."""
        steps = self.steps
        if steps.history_is_long and steps.idle and agent.name in self.names:
            told = to_jsonable_python(input_items)
            await steps.continue_as_new({"agent": agent.name, "messages": told})


def list_reached_agents(first: agents.Agent[Any]) -> Iterator[agents.Agent[Any]]:
    """Yield an agent, and those that it hands over to, directly or not."""
    waiting, seen = [first], set[int]()
    while waiting:
        agent = waiting.pop()
        if id(agent) not in seen:
            seen.add(id(agent))
            yield agent
            # No public name leads from a hand-off to its agent.
            others = [
                one._agent_ref and one._agent_ref() if isinstance(one, agents.Handoff) else one
                for one in agent.handoffs
            ]
            waiting += [one for one in others if isinstance(one, agents.Agent)]


def model_named(name: str) -> agents.Model:
    """Return a model by its name, such as ``gpt-5``, or by where it is: ``module:object``."""
    found = calls.named(name)
    return found if isinstance(found, agents.Model) else _PROVIDER.get_model(name)


@dataclass(frozen=True)
class _RecordedModels(agents.ModelProvider):
    """Provides models whose turns are steps of the run."""

    own: tuple[str, ...]
    timeout: timedelta

    def get_model(self, model_name: str | None) -> agents.Model:
        if model_name is None:
            raise agents.UserError(
                "the agent names no model: a run does not take one from a worker"
            )
        return model(model_name, own=self.own, turn_timeout=self.timeout)


@dataclass(frozen=True)
class _RecordedModel(agents.Model):
    """A model whose turns are steps of the run."""

    name: str
    own: frozenset[str]
    timeout: timedelta

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[Any],
        model_settings: agents.ModelSettings,
        tools: list[agents.Tool],
        output_schema: agents.AgentOutputSchemaBase | None,
        handoffs: list[agents.Handoff[Any, Any]],
        tracing: agents.ModelTracing,
        *,
        previous_response_id: str | None,
        conversation_id: str | None,
        prompt: Any,
    ) -> agents.ModelResponse:
        if current_steps() is None:
            return await model_named(self.name).get_response(
                *(system_instructions, input, model_settings, tools),
                *(output_schema, handoffs, tracing),
                previous_response_id=previous_response_id,
                conversation_id=conversation_id,
                prompt=prompt,
            )
        steps = _require_steps()
        if previous_response_id is not None or conversation_id is not None:
            raise agents.UserError(
                "inside a run the run has the conversation, and not the provider"
            )
        setup = Setup(
            instructions=system_instructions,
            settings={n: v for n, v in model_settings.to_json_dict().items() if v is not None},
            tools=[self._describe_tool(tool) for tool in tools],
            handoffs=[OfferedHandoff.model_validate(one, from_attributes=True) for one in handoffs],
            output=_describe_output(output_schema),
            prompt=prompt,
        )
        hosted = [one.fields for one in setup.tools if one.kind in HOSTED]
        calls.refuse_secrets(agents.UserError, setup.settings, hosted)
        messages = [{"role": "user", "content": input}] if isinstance(input, str) else input
        ours = {tool.name for tool in tools if isinstance(tool, RunTool)}
        said, turn_id = await steps.turn(
            FRAMEWORK,
            self.name,
            setup.model_dump_json(),
            [to_json(message).decode() for message in messages],
            known_by=to_json(list(_list_said(messages, ours))).decode(),
            timeout=self.timeout,
            foreign=any(offered.kind in HOSTED for offered in setup.tools),
        )
        response = RESPONSE.validate_json(said)
        items = [one for one in response.output if isinstance(one, ResponseFunctionToolCall)]
        asked = [(item.call_id, item.name, None) for item in items]
        there = {tool.name for tool in tools} | {one.tool_name for one in handoffs}
        placed = await calls.place_calls(steps, turn_id, asked, there)
        for item, one in zip(items, placed, strict=True):
            item.call_id = one.call_id
        return response

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        if current_steps() is not None:
            raise agents.UserError("inside a run use Runner.run(); a turn is not streamed")
        return model_named(self.name).stream_response(*args, **kwargs)

    def _describe_tool(self, tool: agents.Tool) -> OfferedTool:
        if not isinstance(tool, RunTool | _HumanTool) and tool.name not in self.own:
            if isinstance(tool, agents.FunctionTool):
                raise agents.UserError(calls.own_tool(tool.name, "model(own=[...])"))
            raise agents.UserError(calls.provider_tool(tool.name, "model(own=[...])"))
        if isinstance(tool, agents.FunctionTool):
            given = {
                "name": tool.name,
                "description": tool.description,
                "params_json_schema": tool.params_json_schema,
                "strict_json_schema": tool.strict_json_schema,
            }
            return OfferedTool(kind=agents.FunctionTool.__name__, fields=given)
        kind = type(tool).__name__
        if kind not in HOSTED:
            raise agents.UserError(f"tool {tool.name!r}: a {kind} cannot be called inside a run")
        values = {one.name: getattr(tool, one.name) for one in fields(tool)}
        given = {name: v for name, v in values.items() if v is not None and not callable(v)}
        return OfferedTool(kind=kind, fields=to_jsonable_python(given))


def _describe_output(schema: agents.AgentOutputSchemaBase | None) -> Wanted | None:
    if schema is None or schema.is_plain_text():
        return None
    return Wanted(
        name=schema.name(), schema_=schema.json_schema(), strict=schema.is_strict_json_schema()
    )


def _list_said(messages: Sequence[Any], ours: Set[str]) -> Iterator[Any]:
    """Yield what a person or the model has said: not what the run's tools have returned.

    What people have rejected or changed comes back as a tool's output, too.
    """
    called = dict[str, str]()  # the newest by its id: models may number them again in each turn
    for one in messages:
        if one.get("type") == "function_call":
            called[one["call_id"]] = one["name"]
        returned = one.get("type") == "function_call_output" and called.get(one["call_id"]) in ours
        if not returned or calls.is_told_by_people(one.get("output")):
            yield one


def _require_steps() -> StepMaker:
    steps = current_steps()
    if steps is None:
        raise agents.UserError(calls.OUTSIDE)
    # Its errors reach the run's code: nothing is mended by trying that again.
    steps.fails_on = (agents.AgentsException,)
    return steps


_SETTINGS = TypeAdapter(agents.ModelSettings)


async def ask(asked: TurnRequest) -> Said:
    """Ask a model. Raises ``ToolFault``."""
    setup = Setup.model_validate_json(asked.setup)
    prompt: Any = setup.prompt
    model = model_named(asked.model)
    handoffs: list[agents.Handoff[Any, Any]] = [
        agents.Handoff(on_invoke_handoff=_refuse_call, **one.model_dump()) for one in setup.handoffs
    ]
    request = (
        setup.instructions,
        [from_json(message) for message in asked.messages],
        _SETTINGS.validate_python(setup.settings),
        [_tool_of(one) for one in setup.tools],
        None if setup.output is None else _Output(setup.output),
        handoffs,
        agents.ModelTracing.DISABLED,
    )
    more = {"previous_response_id": None, "conversation_id": None, "prompt": prompt}
    try:
        response = await model.get_response(*request, **more)
    except (agents.AgentsException, openai.OpenAIError) as error:
        raise _classify_error(error) from error
    return Said(
        response=RESPONSE.dump_json(response, by_alias=True, exclude_unset=True).decode(),
        line=_summarize_turn(response),
        tokens=response.usage.total_tokens,
        money=_price_response(str(getattr(model, "model", asked.model)), response.usage),
        input_tokens=response.usage.input_tokens,
        output_tokens=response.usage.output_tokens,
    )


def _price_response(model: str, used: agents.Usage) -> Decimal:
    details = used.input_tokens_details
    usage = {
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "cache_read_tokens": details.cached_tokens,
        "cache_write_tokens": details.cache_write_tokens,
    }
    # LiteLLM has the provider in the model's name.
    return calls.price_turn("litellm" if "/" in model else "openai", model, usage)


def _tool_of(offered: OfferedTool) -> agents.Tool:
    if offered.kind == agents.FunctionTool.__name__:
        return agents.FunctionTool(on_invoke_tool=_refuse_call, **offered.fields)
    tool: agents.Tool = HOSTED[offered.kind](**offered.fields)
    return tool


async def _refuse_call(*_: Any) -> NoReturn:
    raise AssertionError("a model calls no tool: the run does")


@dataclass
class _Output(agents.AgentOutputSchemaBase):
    """The output that a model has to come to, as its provider is told of it."""

    wanted: Wanted

    def is_plain_text(self) -> bool:
        return False

    def name(self) -> str:
        return self.wanted.name

    def json_schema(self) -> dict[str, Any]:
        return self.wanted.schema_

    def is_strict_json_schema(self) -> bool:
        return self.wanted.strict

    def validate_json(self, json_str: str) -> Any:
        return from_json(json_str)


def _classify_error(error: Exception) -> Exception:
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, openai.APITimeoutError | agents.ModelTimeoutError):
        return Transient(text)
    if isinstance(error, openai.APIConnectionError):
        return DependencyDown(text)
    if isinstance(error, openai.APIStatusError):
        return calls.read_status(text, error.status_code, error.response.headers.get("retry-after"))
    if isinstance(error, agents.ModelBehaviorError):
        return Transient(text)  # another answer may make sense
    return Permanent(text)


def _summarize_turn(response: agents.ModelResponse) -> str:
    said = list[str]()
    for item in response.output:
        if isinstance(item, ResponseFunctionToolCall):
            said.append(f"calls {item.name}")
        elif isinstance(item, ResponseOutputMessage):
            said += [part.text for part in item.content if part.type == "output_text"]
    return "; ".join(said)
