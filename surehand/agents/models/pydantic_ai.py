"""How the worker asks a model of pydantic-ai: the activity's side of a turn."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic_ai import exceptions
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, infer_model

from surehand.activities.effects.model_turns import Asked, Said, Tell
from surehand.activities.tools.failure_classes import (
    DependencyDown,
    Permanent,
    RateLimited,
    ToolFault,
    Transient,
)
from surehand.activities.tools.retries import BEYOND_MEASURE
from surehand.agents.models.provider_errors import PAUSE, answered
from surehand.agents.named_agents import named
from surehand.agents.pydantic_ai import RESPONSE, Setup

_MESSAGE: Final[TypeAdapter[ModelMessage]] = TypeAdapter(ModelMessage)


async def ask(asked: Asked, tell: Tell | None) -> Said:
    """Ask a model.

    Raises:
        ToolFault: By what the provider has answered.
    """
    setup = Setup.model_validate_json(asked.setup)
    messages = [_MESSAGE.validate_json(message) for message in asked.messages]
    model = _model(asked.model)
    settings: Any = setup.settings
    try:
        async with model:
            request = (messages, settings, setup.parameters)
            response = None if tell is None else await _streamed(model, request, tell)
            if response is None:
                response = await model.request(*request)
    except (
        exceptions.AgentRunError,
        exceptions.UserError,
        exceptions.FallbackExceptionGroup,
    ) as error:
        raise _fault(error) from error
    return Said(
        response=RESPONSE.dump_json(response).decode(),
        line=_line(response),
        tokens=response.usage.total_tokens,
        input_tokens=response.usage.input_tokens,
        output_tokens=response.usage.output_tokens,
        money=_cost(response),
    )


async def _streamed(
    model: Model, request: tuple[list[ModelMessage], Any, ModelRequestParameters], tell: Tell
) -> ModelResponse | None:
    """Return what a model has said, telling it meanwhile; ``None``: it cannot stream."""
    async with AsyncExitStack() as stack:
        try:
            stream = await stack.enter_async_context(model.request_stream(*request))
        except (NotImplementedError, AssertionError):  # a `FunctionModel` asserts that it can
            return None
        async for event in stream:
            match event:
                case PartStartEvent(part=TextPart(content=text)):
                    tell(text)
                case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                    tell(text)
        return stream.get()


def _cost(response: ModelResponse) -> Decimal:
    """Return what a turn has cost, in dollars; nothing where no price is known."""
    try:
        return response.cost().total_price
    except (AssertionError, LookupError, ValueError):
        return Decimal(0)


def _model(name: str) -> Model:
    """Return a model by its id, such as ``anthropic:...``, or by where it is: ``module:object``.

    Raises:
        Permanent: There is none.
    """
    found = named(name)
    if isinstance(found, Model):
        return found
    try:
        return infer_model(name if found is None else found.model)
    except Exception as error:
        raise Permanent(f"model {name!r}: {type(error).__name__}: {error}") from error


def _fault(error: Exception) -> ToolFault:
    text = f"{type(error).__name__}: {error}"
    match error:
        case exceptions.FallbackExceptionGroup():
            # The next attempt asks each of them again: not before the time that one has named.
            return max((_fault(one) for one in error.exceptions), key=_patience)
        case exceptions.ModelRateLimitError():
            return RateLimited(text, _pause(error.retry_after))
        case exceptions.ModelUnavailableError():
            return DependencyDown(text)
        case exceptions.ModelTimeoutError() | exceptions.ModelRequestTimeout():
            return Transient(text)
        case exceptions.ModelConnectionError():
            return DependencyDown(text)
        case exceptions.ModelQuotaExceededError() | exceptions.ModelRequestRejectedError():
            return Permanent(text)
        case exceptions.ModelHTTPError():
            return answered(text, error.status_code, (error.headers or {}).get("retry-after"))
        case exceptions.ModelServerError() | exceptions.ConcurrencyLimitExceeded():
            return Transient(text)
        case exceptions.UnexpectedModelBehavior():
            return Transient(text)  # another answer may make sense
    return Permanent(text)


def _pause(seconds: float | None) -> timedelta:
    if seconds is None:
        return PAUSE
    return timedelta(seconds=min(seconds, BEYOND_MEASURE.total_seconds()))


def _patience(fault: ToolFault) -> tuple[int, timedelta]:
    """Return how long to wait after a fault, to be compared with others."""
    longer = (Permanent, Transient, DependencyDown, RateLimited)
    pause = fault.retry_after if isinstance(fault, RateLimited) else None
    return longer.index(type(fault)), pause or timedelta(0)


def _line(response: ModelResponse) -> str:
    said = [
        f"calls {part.tool_name}" if isinstance(part, ToolCallPart) else part.content
        for part in response.parts
        if isinstance(part, ToolCallPart | TextPart)
    ]
    return "; ".join(said)
