"""Models of the OpenAI Agents SDK: what a provider is told of a turn, and what its errors mean."""

from __future__ import annotations

import sys
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
from agents import (
    Agent,
    AgentOutputSchema,
    CodeInterpreterTool,
    Model,
    ModelResponse,
    ModelSettings,
    ModelTracing,
    Usage,
    UserError,
    WebSearchTool,
    handoff,
)
from agents.models.openai_responses import Converter
from agents.testing import assistant_message
from pydantic import BaseModel

from surehand.activities.effects.model_turns import TurnRequest
from surehand.activities.tools.failures import DependencyDown, Permanent, RateLimited, Transient
from surehand.agents import openai_agents
from surehand.agents.model_run import ModelRun
from surehand.workflows.plan.plan import Plan
from surehand.workflows.run import code_run
from surehand.workflows.run.code_run import StepFailed


class Answer(BaseModel):
    text: str


class Steps:
    """What makes steps: it takes one turn by asking the worker's side at once."""

    places: dict[str, str] = {}

    async def turn(
        self, framework: str, model: str, setup: str, messages: list[str], **more: Any
    ) -> tuple[str, str]:
        said = await openai_agents.ask(TurnRequest(model, setup, tuple(messages)))
        assert (said.line, said.tokens) == ("hello", 15)
        return said.response, "turn-1"


class Heard(Model):
    """A model that keeps what it was asked."""

    async def get_response(self, *given: Any, **more: Any) -> ModelResponse:
        self.given = given
        usage = Usage(input_tokens=10, output_tokens=5, total_tokens=15)
        return ModelResponse(output=[assistant_message("hello")], usage=usage, response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


async def uncalled(context: Any, arguments: str) -> str:
    raise AssertionError


async def test_a_worker_asks_with_the_agents_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard()
    monkeypatch.setattr(openai_agents, "model_named", lambda name: heard)
    monkeypatch.setattr(openai_agents, "current_steps", Steps)
    schema = {"type": "object", "properties": {"order_id": {"type": "string"}}}
    tools = [
        openai_agents.RunTool("orders_read", "Reads.", schema, uncalled, strict_json_schema=False),
        WebSearchTool(filters={"allowed_domains": ["shop.example"]}),
        CodeInterpreterTool({"type": "code_interpreter", "container": {"type": "auto"}}),
    ]
    own = ["web_search", "code_interpreter"]
    settings = ModelSettings(temperature=0.5, tool_choice="required", extra_args={"seed": 1})
    hand_off = handoff(Agent(name="cashier", handoff_description="Pays."))
    output = AgentOutputSchema(Answer)
    response = await openai_agents.model("any", own=own).get_response(
        *("Be kind.", "hi", settings, tools, output, [hand_off], ModelTracing.DISABLED),
        previous_response_id=None,
        conversation_id=None,
        prompt=None,
    )

    assert response.output[0].content[0].text == "hello"  # type: ignore[union-attr]
    said, messages, its_settings, its_tools, its_output, its_handoffs, tracing = heard.given
    assert (said, messages) == ("Be kind.", [{"role": "user", "content": "hi"}])
    assert (its_settings, tracing) == (settings, ModelTracing.DISABLED)
    # What the provider is sent.
    sent = Converter.convert_tools(its_tools, its_handoffs)
    assert sent == Converter.convert_tools(tools, [hand_off])
    assert Converter.get_response_format(its_output) == Converter.get_response_format(output)


def status(code: int, headers: dict[str, str] | None = None) -> openai.APIStatusError:
    request = httpx.Request("POST", "https://provider.example")
    response: Any = httpx.Response(code, headers=headers, request=request)
    kind = openai.RateLimitError if code == 429 else openai.APIStatusError
    return kind("no", response=response, body=None)


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (status(503), DependencyDown),
        (status(500), Transient),
        (status(408), Transient),
        (status(400), Permanent),
        (status(401), Permanent),
        (openai.APITimeoutError(httpx.Request("POST", "https://a.example")), Transient),  # type: ignore[arg-type]
        (UserError("no such model"), Permanent),
    ],
)
def test_a_providers_error_is_its_failure(error: Exception, fault: type[Exception]) -> None:
    assert type(openai_agents._classify_error(error)) is fault


def test_a_provider_that_is_asked_too_often_says_when_to_come_back() -> None:
    fault = openai_agents._classify_error(status(429, {"retry-after": "7"}))
    assert isinstance(fault, RateLimited)
    assert fault.retry_after == timedelta(seconds=7)


async def test_outside_of_a_run_the_runs_tools_refuse() -> None:
    with pytest.raises(UserError, match="inside a Surehand run only"):
        await openai_agents.tools("orders.read")
    assert code_run.current_steps() is None


def test_inside_a_run_a_turn_is_not_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_agents, "current_steps", Steps)
    with pytest.raises(UserError, match="not streamed"):
        openai_agents.model("any").stream_response()


async def test_a_missing_framework_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "surehand.agents.pydantic_ai", None)
    run: Any = ModelRun.__new__(ModelRun)
    plan = Plan.model_validate({"agent": "no_such:agent"})
    run._data = SimpleNamespace(request=SimpleNamespace(plan=plan))

    with pytest.raises(StepFailed, match="SUREHAND_AGENT_MODULES"):
        await run._agent(None)
