"""LangChain's models and graphs: what a provider is told, what its errors mean, what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from datetime import timedelta
from typing import Any

import httpx
import pytest
from langchain.agents import create_agent
from langchain_core import exceptions
from langchain_core.documents import Document
from langchain_core.exceptions import LangChainException
from langchain_core.language_models import BaseChatModel, FakeListChatModel, FakeListLLM
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.retrievers import BaseRetriever
from langchain_core.tools import tool
from langgraph.cache.memory import InMemoryCache
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.types import interrupt
from openai import APIConnectionError, APITimeoutError
from pydantic import BaseModel

from surehand.activities.effects.model_turns import TurnRequest
from surehand.activities.tools.failures import (
    DependencyDown,
    Permanent,
    RateLimited,
    ToolFault,
    Transient,
)
from surehand.agents import langchain, langgraph
from surehand.workflows.contracts.tools import Effect, ToolDefinition
from surehand.workflows.run.code_run import StepFailed

REQUEST = httpx.Request("POST", "https://provider.example")


class Answer(BaseModel):
    """What an agent is to come to."""

    text: str


class Steps:
    """What makes steps: it takes one turn by asking the worker's side at once."""

    history_is_long = False
    fails_on: tuple[type[BaseException], ...] = ()

    def __init__(self) -> None:
        self.places: dict[str, str] = {}
        self.turns = 0
        self.asked: list[tuple[str, Any]] = []

    async def turn(
        self, framework: str, model: str, setup: str, messages: list[str], **more: Any
    ) -> tuple[str, str]:
        # A worker's activities know nothing of the graph.
        asked = langchain.ask(TurnRequest(model, setup, tuple(messages)))
        said = await asyncio.create_task(asked, context=Context())
        self.turns += 1
        assert (framework, said.tokens) == ("langchain", 15)
        return said.response, f"turn-{self.turns}"

    async def tools(self, *names: str) -> list[ToolDefinition]:
        return [
            ToolDefinition(
                name="orders.read",
                version="1",
                description="Reads.",
                effect=Effect.READ,
                params_schema={"type": "object", "properties": {"order_id": {"type": "string"}}},
                output_schema=None,
            )
        ]

    async def ask(self, question: str, answer: Any = None) -> Any:
        self.asked.append((question, answer))
        return {"text": "yes"}


class Heard(BaseChatModel):
    """A model that keeps what it was asked, and gives the output that it is asked for."""

    heard: dict[str, Any] = {}

    @property
    def _llm_type(self) -> str:
        return "heard"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self.bind(tools=tools, **kwargs)

    def _generate(self, messages: list[BaseMessage], *given: Any, **asked: Any) -> ChatResult:
        self.heard.update(asked, messages=messages)
        named = [one.get("function", one).get("name") for one in asked.get("tools", ())]
        calls: Any = [{"name": "Answer", "args": {"text": "hello"}, "id": "call-1"}]
        said = AIMessage(
            "hello",
            tool_calls=calls if "Answer" in named else [],
            usage_metadata={"input_tokens": 10, "output_tokens": 5, "total_tokens": 15},
        )
        return ChatResult(generations=[ChatGeneration(message=said)])


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    made = Steps()
    for module in (langchain, langgraph):
        monkeypatch.setattr(module, "current_steps", lambda: made)
    return made


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    made = Heard(heard={})
    monkeypatch.setattr(langchain, "model_named", lambda name: made)
    return made


def graph_of(node: Callable[..., Any], **compiled: Any) -> Any:
    made = StateGraph(MessagesState).add_node("node", node)
    return made.add_edge(START, "node").add_edge("node", END).compile(**compiled)


def nothing(state: MessagesState) -> dict[str, Any]:
    return {}


async def test_a_worker_asks_with_the_agents_settings(steps: Steps, heard: Heard) -> None:
    ours = langchain.SurehandMiddleware(["orders.read"], own=["web_search"])
    agent = create_agent(
        langchain.model("any"),
        tools=[{"type": "web_search"}],
        system_prompt="Be kind.",
        middleware=[ours],
    )
    state = await langgraph.invoke(agent, {"messages": [HumanMessage("hi")]})
    assert state["messages"][-1].text == "hello"
    assert [one.content for one in heard.heard["messages"]] == ["Be kind.", "hi"]
    parameters = (await steps.tools())[0].params_schema
    assert heard.heard["tools"] == [
        {
            "type": "function",
            "function": {"name": "orders_read", "description": "Reads.", "parameters": parameters},
        },
        {"type": "web_search"},
    ]


async def test_an_agent_gets_its_output(steps: Steps, heard: Heard) -> None:
    ours = langchain.SurehandMiddleware(["orders.read"])
    agent = create_agent(langchain.model("any"), response_format=Answer, middleware=[ours])
    state = await langgraph.invoke(agent, {"messages": [HumanMessage("hi")]})
    assert langgraph._read_output(state) == {"text": "hello"}
    assert heard.heard["tool_choice"] == "any"


async def test_a_graph_leaves_its_loop_as_it_was(steps: Steps, heard: Heard) -> None:
    agent = create_agent(langchain.model("any"), middleware=[langchain.SurehandMiddleware([])])
    await langgraph.invoke(agent, {"messages": [HumanMessage("hi")]})
    assert "run_in_executor" not in vars(asyncio.get_running_loop())


@tool
def pay(order_id: str) -> str:
    """Pay at once."""
    raise AssertionError


class Documents(BaseRetriever):
    """What is known at the moment."""

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        raise AssertionError


async def asks_a_model(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await FakeListChatModel(responses=["no"]).ainvoke("hi")]}


def asks_another_model(state: MessagesState) -> dict[str, Any]:
    return {"messages": [FakeListLLM(responses=["no"]).invoke("hi")]}


async def asks_without_waiting(state: MessagesState) -> dict[str, Any]:
    return {"messages": [langchain.model("any").invoke("hi")]}


async def streams(state: MessagesState) -> dict[str, Any]:
    return {"messages": [one async for one in langchain.model("any").astream("hi")]}


async def offers(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await langchain.model("any").bind_tools([pay]).ainvoke("hi")]}


async def pays(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await pay.ainvoke({"order_id": "order-1"})]}


async def looks_up(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await Documents().ainvoke("hi")]}


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (graph_of(asks_a_model), "a chat model records no turns"),
        (graph_of(asks_another_model), "a model records no turns"),
        (graph_of(asks_without_waiting), "await it, with ainvoke"),
        (graph_of(streams), "a turn is not streamed"),
        (graph_of(offers), "tool 'pay' is the agent's own"),
        (graph_of(pays), "tool 'pay' is the agent's own"),
        (graph_of(looks_up), "a retriever reads what the run has not recorded"),
        (graph_of(nothing, store=InMemoryStore()), "the graph has a store"),
        (graph_of(nothing, cache=InMemoryCache()), "the graph has a cache"),
        (graph_of(nothing, interrupt_before=["node"]), "stops before or behind a node"),
        (graph_of(graph_of(nothing, interrupt_after=["node"])), "stops before or behind a node"),
        (nothing, "is no compiled graph"),
    ],
)
async def test_a_graph_reaches_nothing_without_steps(steps: Steps, graph: Any, reason: str) -> None:
    with pytest.raises(StepFailed, match=reason):
        await langgraph.invoke(graph, {"messages": [HumanMessage("hi")]})
    assert steps.turns == 0


async def test_an_interrupt_is_asked_with_the_schema_of_its_answer(steps: Steps) -> None:
    def asks(state: MessagesState) -> dict[str, Any]:
        answer = interrupt("Go on?", response_schema=Answer)
        return {"messages": [HumanMessage(answer.text)]}

    state = await langgraph.invoke(graph_of(asks), {"messages": [HumanMessage("hi")]})
    assert state["messages"][-1].text == "yes"
    assert steps.asked == [("Go on?", Answer.model_json_schema())]


async def test_outside_of_a_run_a_model_is_asked_and_the_runs_tools_refuse(heard: Heard) -> None:
    assert (await langchain.model("any").ainvoke("hi")).text == "hello"
    ours = langchain.SurehandMiddleware(["orders.read"])
    agent = create_agent(langchain.model("any"), middleware=[ours])
    with pytest.raises(LangChainException, match="inside a Surehand run only"):
        await langgraph.invoke(agent, {"messages": [HumanMessage("hi")]})
    calls: Any = [{"name": "orders_read", "args": {}, "id": "call-1"}]
    graph = graph_of(langchain.tool_node("orders.read"))
    with pytest.raises(LangChainException, match="inside a Surehand run only"):
        await graph.ainvoke({"messages": [AIMessage("", tool_calls=calls)]})


async def test_a_call_that_was_made_before_an_interrupt_is_not_made_again(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tool
    def ask_somebody() -> str:
        """Ask."""
        return str(interrupt("Sure?")["text"])

    async def called(steps: Steps, tool: str, params: Any, step_id: str) -> Any:
        made.append(step_id)
        return "done"

    made = list[str]()
    monkeypatch.setattr(langchain.calls, "call_for_model", called)
    names = ("orders_read", "ask_somebody")
    calls: Any = [{"name": one, "args": {}, "id": one} for one in names]
    steps.places = {"orders_read": "turn-1.1", "ask_somebody": "turn-1.2"}
    graph = graph_of(langchain.tool_node("orders.read", own=[ask_somebody]))
    state = await langgraph.invoke(graph, {"messages": [AIMessage("", tool_calls=calls)]})
    assert [one.content for one in state["messages"][1:]] == ['"done"', "yes"]
    assert (made, steps.asked) == (["turn-1.1"], [("Sure?", None)])


class Provider(Exception):
    """An error of a provider's package: the status may be its own, or its response's."""

    def __init__(self, status: int, *, own: bool = True, **headers: str) -> None:
        super().__init__("no")
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.response = httpx.Response(status, headers=headers, request=REQUEST)
        if own:
            self.status_code = status


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (Provider(503), DependencyDown),
        (Provider(529, own=False), DependencyDown),
        (Provider(500), Transient),
        (Provider(408, own=False), Transient),
        (Provider(401), Permanent),
        (APITimeoutError(REQUEST), Transient),  # type: ignore[arg-type]
        (APIConnectionError(request=REQUEST), DependencyDown),  # type: ignore[arg-type]
        (httpx.ReadTimeout("slow"), Transient),
        (httpx.ConnectError("away"), DependencyDown),
        (TimeoutError(), Transient),
        (exceptions.ModelTimeoutError("slow"), Transient),
        (exceptions.ModelConnectionError("away"), DependencyDown),
        (exceptions.ModelAPIError("broken"), Transient),
        (exceptions.ModelNotFoundError("no such model"), Permanent),
        (ValueError("no such param"), Permanent),
    ],
)
def test_a_providers_error_is_its_failure(error: Exception, fault: type[ToolFault]) -> None:
    assert type(langchain._classify_error(error)) is fault


@pytest.mark.parametrize(
    ("error", "pause"),
    [
        (Provider(429, retry_after="7"), 7),
        (Provider(429, own=False, retry_after="7"), 7),
        (exceptions.ModelRateLimitError("slower"), 30),
    ],
)
def test_a_busy_provider_says_when_to_come_back(error: Exception, pause: int) -> None:
    fault = langchain._classify_error(error)
    assert isinstance(fault, RateLimited)
    assert fault.retry_after == timedelta(seconds=pause)


async def test_a_model_that_is_not_there_is_no_turn() -> None:
    with pytest.raises(Permanent, match="model 'nobody:nothing'"):
        await langchain.ask(TurnRequest("nobody:nothing", '{"tools": [], "settings": {}}', ()))
