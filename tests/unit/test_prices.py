"""What a turn costs is charged in the same way, whatever framework asks the model."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

import agents
import pytest
from agents.testing import assistant_message
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from openai.types.responses.response_usage import InputTokensDetails
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RequestUsage

from surehand.activities.effects.model_turns import AskModel, TurnRequest
from surehand.agents import langchain, openai_agents, pydantic_ai

PRICED, UNKNOWN = "gpt-5", "nobodys-model"


class OfPydanticAI(TestModel):
    """A model that has used 1,000 tokens and 100, of which 500 were cached."""

    async def request(self, *given: Any, **more: Any) -> ModelResponse:
        usage = RequestUsage(input_tokens=1000, cache_read_tokens=500, output_tokens=100)
        named = {"model_name": self.model_name, "provider_name": "openai"}
        return ModelResponse([TextPart("hi")], usage=usage, **named)


class OfOpenAI(agents.Model):
    """The same of the OpenAI Agents SDK."""

    def __init__(self, model: str) -> None:
        self.model = model

    async def get_response(self, *given: Any, **more: Any) -> agents.ModelResponse:
        cached = InputTokensDetails(cached_tokens=500, cache_write_tokens=0)
        usage = agents.Usage(1, 1000, cached, 100, total_tokens=1100)
        return agents.ModelResponse([assistant_message("hi")], usage, None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


class OfLangChain(BaseChatModel):
    """The same of LangChain."""

    model: str

    @property
    def _llm_type(self) -> str:
        return "priced"

    def _generate(self, messages: list[BaseMessage], *given: Any, **more: Any) -> ChatResult:
        used: Any = {"input_tokens": 1000, "output_tokens": 100, "total_tokens": 1100}
        said = AIMessage(
            "hi",
            usage_metadata={**used, "input_token_details": {"cache_read": 500}},
            response_metadata={"model_provider": "openai", "model_name": self.model},
        )
        return ChatResult(generations=[ChatGeneration(message=said)])


SETUPS: Final = {
    "pydantic-ai": pydantic_ai.Setup(settings=None, parameters=ModelRequestParameters()),
    "langchain": langchain.Setup(tools=[], settings={}),
    "openai-agents": openai_agents.Setup(
        instructions=None, settings={}, tools=[], handoffs=[], output=None, prompt=None
    ),
}


async def costs(monkeypatch: pytest.MonkeyPatch, model: str) -> dict[str, Decimal]:
    monkeypatch.setattr(pydantic_ai, "named", lambda name: OfPydanticAI(model_name=model))
    monkeypatch.setattr(openai_agents, "model_named", lambda name: OfOpenAI(model))
    monkeypatch.setattr(langchain, "model_named", lambda name: OfLangChain(model=model))
    asking: dict[str, AskModel] = {
        "pydantic-ai": pydantic_ai.ask,
        "langchain": langchain.ask,
        "openai-agents": openai_agents.ask,
    }
    asked = {name: TurnRequest("any", one.model_dump_json(), ()) for name, one in SETUPS.items()}
    return {name: (await ask(asked[name], None)).money for name, ask in asking.items()}


async def test_a_turn_costs_the_same_whatever_framework_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    charged = await costs(monkeypatch, PRICED)
    assert charged["pydantic-ai"] > 0
    assert {*charged.values()} == {charged["pydantic-ai"]}


async def test_a_turn_of_a_model_without_a_known_price_is_charged_no_money(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert {*(await costs(monkeypatch, UNKNOWN)).values()} == {0}


def test_a_model_langchain_that_tells_no_provider_is_priced_by_its_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: Any = {"input_tokens": 1000, "output_tokens": 100, "total_tokens": 1100}
    said = AIMessage("hi", usage_metadata=used)
    assert langchain._cost("openai:gpt-5", said) > 0
    assert langchain._cost("module:name", said) == 0
