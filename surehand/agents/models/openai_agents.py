"""How the worker asks a model of the OpenAI Agents SDK: the activity's side of a turn."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, NoReturn

import openai
from agents import (
    AgentOutputSchemaBase,
    AgentsException,
    FunctionTool,
    Handoff,
    Model,
    ModelBehaviorError,
    ModelResponse,
    ModelSettings,
    ModelTimeoutError,
    ModelTracing,
    Tool,
    Usage,
)
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage
from pydantic import TypeAdapter
from pydantic_core import from_json

from surehand.activities.effects.model_turns import Asked, Said, Tell
from surehand.activities.tools.failure_classes import DependencyDown, Permanent, Transient
from surehand.agents.models.prices import cost
from surehand.agents.models.provider_errors import answered
from surehand.agents.openai_agents import (
    HOSTED,
    RESPONSE,
    Offered,
    OfferedHandoff,
    Setup,
    Wanted,
    model_named,
)

_SETTINGS = TypeAdapter(ModelSettings)


async def ask(asked: Asked, tell: Tell | None) -> Said:
    """Ask a model.

    Raises:
        ToolFault: By what the provider has answered.
    """
    setup = Setup.model_validate_json(asked.setup)
    prompt: Any = setup.prompt
    model = model_named(asked.model)
    request = (
        setup.instructions,
        [from_json(message) for message in asked.messages],
        _SETTINGS.validate_python(setup.settings),
        [_tool(one) for one in setup.tools],
        None if setup.output is None else _Output(setup.output),
        [_handoff(one) for one in setup.handoffs],
        ModelTracing.DISABLED,
    )
    more = {"previous_response_id": None, "conversation_id": None, "prompt": prompt}
    try:
        response = None if tell is None else await _streamed(model, request, more, tell)
        if response is None:
            response = await model.get_response(*request, **more)
    except (AgentsException, openai.OpenAIError) as error:
        raise _fault(error) from error
    return Said(
        response=RESPONSE.dump_json(response, by_alias=True, exclude_unset=True).decode(),
        line=_line(response),
        tokens=response.usage.total_tokens,
        money=_cost(str(getattr(model, "model", asked.model)), response.usage),
        input_tokens=response.usage.input_tokens,
        output_tokens=response.usage.output_tokens,
    )


async def _streamed(
    model: Model, request: tuple[Any, ...], more: dict[str, Any], tell: Tell
) -> ModelResponse | None:
    """Return what a model has said, telling it meanwhile; ``None``: it cannot stream."""
    items = list[Any]()
    try:
        events = model.stream_response(*request, **more)
        async for event in events:
            match event.type:
                case "response.output_text.delta":
                    tell(event.delta)
                case "response.output_item.done":
                    items.append(event.item)
                case "response.completed":
                    # Some providers leave out what they have sent item by item.
                    output, usage = event.response.output or items, Usage()
                    if (used := event.response.usage) is not None:
                        read = (used.input_tokens, used.input_tokens_details)
                        written = (used.output_tokens, used.output_tokens_details)
                        usage = Usage(1, *read, *written, used.total_tokens)
                    return ModelResponse(output, usage, event.response.id)
    except NotImplementedError:
        return None
    raise ModelBehaviorError("the stream has ended without an answer")


def _cost(model: str, used: Usage) -> Decimal:
    details = used.input_tokens_details
    usage = {
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "cache_read_tokens": details.cached_tokens,
        "cache_write_tokens": details.cache_write_tokens,
    }
    # LiteLLM has the provider in the model's name.
    return cost("litellm" if "/" in model else "openai", model, usage)


def _tool(offered: Offered) -> Tool:
    if offered.kind == FunctionTool.__name__:
        return FunctionTool(on_invoke_tool=_uncalled, **offered.fields)
    tool: Tool = HOSTED[offered.kind](**offered.fields)
    return tool


def _handoff(offered: OfferedHandoff) -> Handoff[Any, Any]:
    return Handoff(on_invoke_handoff=_uncalled, **offered.model_dump())


async def _uncalled(*_: Any) -> NoReturn:
    raise AssertionError("a model calls no tool: the run does")


class _Output(AgentOutputSchemaBase):
    """The output that a model has to come to, as its provider is told of it."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted

    def is_plain_text(self) -> bool:
        return False

    def name(self) -> str:
        return self._wanted.name

    def json_schema(self) -> dict[str, Any]:
        return self._wanted.schema_

    def is_strict_json_schema(self) -> bool:
        return self._wanted.strict

    def validate_json(self, json_str: str) -> Any:
        return from_json(json_str)


def _fault(error: Exception) -> Exception:
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, openai.APITimeoutError | ModelTimeoutError):
        return Transient(text)
    if isinstance(error, openai.APIConnectionError):
        return DependencyDown(text)
    if isinstance(error, openai.APIStatusError):
        return answered(text, error.status_code, error.response.headers.get("retry-after"))
    if isinstance(error, ModelBehaviorError):
        return Transient(text)  # another answer may make sense
    return Permanent(text)


def _line(response: ModelResponse) -> str:
    said = list[str]()
    for item in response.output:
        if isinstance(item, ResponseFunctionToolCall):
            said.append(f"calls {item.name}")
        elif isinstance(item, ResponseOutputMessage):
            said += [part.text for part in item.content if part.type == "output_text"]
    return "; ".join(said)
