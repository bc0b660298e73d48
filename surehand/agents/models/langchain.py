"""How the worker asks a chat model of LangChain: the activity's side of a turn."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

import httpx
from langchain_core import exceptions
from langchain_core.messages import AIMessage, BaseMessage, message_chunk_to_message
from langchain_core.runnables import Runnable

from surehand.activities.effects.model_turns import Asked, Said, Tell
from surehand.activities.tools.failure_classes import DependencyDown, Permanent, Transient
from surehand.agents.langchain import MESSAGE, Setup, bound
from surehand.agents.models.prices import cost
from surehand.agents.models.provider_errors import answered, rate_limited

#: What providers' packages, and LangChain's own errors, call the same.
_TIMEOUTS: Final = {"TimeoutException", "APITimeoutError", "ModelTimeoutError"}
_UNREACHED: Final = {"APIConnectionError", "ModelConnectionError"}


async def ask(asked: Asked, tell: Tell | None) -> Said:
    """Ask a model.

    Raises:
        ToolFault: By what the provider has answered.
    """
    setup = Setup.model_validate_json(asked.setup)
    messages = [MESSAGE.validate_json(message) for message in asked.messages]
    model = _model(asked.model, setup)
    try:
        if tell is None:
            response = await model.ainvoke(messages)
        else:
            response = await _streamed(model, messages, tell)
    except Exception as error:  # each provider's package raises its own
        raise _fault(error) from error
    return Said(
        response=MESSAGE.dump_json(response, fallback=repr).decode(),
        line=_line(response),
        tokens=usage["total_tokens"] if (usage := response.usage_metadata) else 0,
        money=_cost(asked.model, response),
        input_tokens=usage["input_tokens"] if usage else None,
        output_tokens=usage["output_tokens"] if usage else None,
    )


async def _streamed(
    model: Runnable[Any, AIMessage], messages: list[BaseMessage], tell: Tell
) -> AIMessage:
    """Return what a model has said, telling it meanwhile: at once, where it cannot stream."""
    whole: Any = None
    async for part in model.astream(messages):
        tell(part.text)
        whole = part if whole is None else whole + part
    said = message_chunk_to_message(whole)
    assert isinstance(said, AIMessage)
    return said


def _cost(name: str, response: AIMessage) -> Decimal:
    used = response.usage_metadata
    if used is None:
        return Decimal(0)
    # What an integration does not tell, the model's id does, as in "openai:gpt-5".
    provider, _, model = name.partition(":")
    said = response.response_metadata
    read: dict[str, Any] = {**used.get("input_token_details", {})}
    written = (n for kind, n in read.items() if kind.startswith(("cache_creation", "ephemeral_")))
    usage = {
        "input_tokens": used["input_tokens"],
        "output_tokens": used["output_tokens"],
        "cache_read_tokens": read.get("cache_read") or 0,
        "cache_write_tokens": sum(filter(None, written)),
    }
    asked = said.get("model_name") or said.get("model") or model
    return cost(said.get("model_provider") or provider, asked, usage)


def _model(name: str, setup: Setup) -> Runnable[Any, AIMessage]:
    """Return a model with its tools and settings.

    Raises:
        Permanent: There is none, or it takes no tools.
    """
    try:
        return bound(name, setup)
    except Exception as error:
        raise Permanent(f"model {name!r}: {type(error).__name__}: {error}") from error


def _fault(error: Exception) -> Exception:
    text = f"{type(error).__name__}: {error}"
    response = getattr(error, "response", None)
    headers = getattr(response, "headers", None) or {}
    if isinstance(error, exceptions.ModelRateLimitError):
        return rate_limited(text, headers.get("retry-after"))
    for status in (getattr(error, "status_code", None), getattr(response, "status_code", None)):
        if isinstance(status, int):
            return answered(text, status, headers.get("retry-after"))
    # A provider's package has no status then: it was not reached, or did not answer in time.
    kinds = {one.__name__ for one in type(error).__mro__}
    if isinstance(error, TimeoutError) or kinds & _TIMEOUTS:
        return Transient(text)
    if isinstance(error, ConnectionError | httpx.TransportError) or kinds & _UNREACHED:
        return DependencyDown(text)
    if isinstance(error, exceptions.ModelAPIError | exceptions.OutputParserException):
        return Transient(text)  # another answer may make sense
    return Permanent(text)


def _line(response: AIMessage) -> str:
    said = [response.text, *(f"calls {call['name']}" for call in response.tool_calls)]
    return "; ".join(filter(None, said))
