"""LangGraph: graphs, and agents of LangChain, run inside a run.

All of a graph runs in workflow code, on every replay: it does nothing but make steps. What is by
chance in it stays inside: ids of its tasks and checkpoints, and the order in which it hears of
tasks that have ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.exceptions import LangChainException
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.pregel import Pregel
from langgraph.types import Command, Interrupt
from langsmith.run_helpers import tracing_context
from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from surehand.agents import calls
from surehand.agents.langchain import FRAMEWORK, GRAPH, MESSAGE, Graph, explain_unrecorded
from surehand.workflows.plan.plan import Plan
from surehand.workflows.run.code_run import StepFailed, StepMaker, current_steps


async def invoke(
    graph: Any, input: Any, config: RunnableConfig | None = None, **settings: Any
) -> Any:
    """Run a graph to its end, as ``graph.ainvoke`` does, inside a run or outside.

    What it interrupts itself for is asked of a human. Inside a run its own checkpointer is left
    aside: the run is what lasts.

    Args:
        graph: What ``create_agent`` or ``StateGraph.compile`` has returned.
        input: As for ``ainvoke``.
        config: As for ``ainvoke``.
        settings: What else ``ainvoke`` takes.

    Raises:
        StepFailed: It has failed, or reaches what a run has not recorded.
    """
    steps = current_steps()
    if steps is None:
        return await graph.ainvoke(input, config, **settings)
    return await _run_graph(steps, graph, input, config or {}, settings, Graph(continues=False))


async def run_agent(steps: StepMaker, plan: Plan) -> Any:
    """Run the graph of a plan to its end, and return its output. Raises ``StepFailed``."""
    assert plan.agent is not None
    graph = calls.named(plan.agent)
    if not isinstance(graph, Pregel):
        raise StepFailed(f"{plan.agent} is no graph of {FRAMEWORK}", called=False)
    carried: Any = steps.carried
    given = dict(plan.input if carried is None else carried)
    if carried is not None:
        given["messages"] = [MESSAGE.validate_json(one) for one in carried["messages"]]
    elif "messages" in graph.channels:
        of_state = {name: value for name, value in given.items() if name in graph.channels}
        given = {"messages": [{"role": "user", "content": calls.prompt_of(plan)}]} | of_state
    state = await _run_graph(steps, graph, given, {}, {}, Graph(continues=True))
    try:
        return _read_output(state)
    except PydanticSerializationError as error:
        raise StepFailed(f"what the graph comes to is no JSON: {error}", called=False) from error


def _read_output(state: Any) -> Any:
    """Return what a graph comes to, as JSON: the output it was asked for, or the last words."""
    found = state
    if isinstance(state, Mapping):
        messages = state.get("messages")
        found = state.get("structured_response")
        if found is None:
            # A graph's own messages may be of any type.
            found = getattr(messages[-1], "text", messages[-1]) if messages else state
    return to_jsonable_python(found)


async def _run_graph(
    steps: StepMaker,
    graph: Any,
    asked: Any,
    config: RunnableConfig,
    settings: dict[str, Any],
    of_run: Graph,
) -> Any:
    steps.fails_on = (LangChainException,)
    GRAPH.set(of_run)
    calls.stay_on_one_thread()
    inside: RunnableConfig = {
        "callbacks": [_Guard(of_run)],
        "configurable": {"thread_id": FRAMEWORK},
    }
    config = merge_configs(config, inside)
    with calls.fail_run():
        _require_recorded(graph)
        held = graph.copy({"checkpointer": InMemorySaver(serde=_AsTheyAre())})
        with tracing_context(enabled=False):  # traces have times, and are sent by a thread
            while True:
                state = await held.ainvoke(asked, config, durability="exit", **settings)
                interrupts = state.get("__interrupt__") if isinstance(state, Mapping) else None
                if not interrupts:
                    return state
                # Their ids are made by chance, and so is their order.
                waiting = sorted(interrupts, key=lambda one: _write_question(one.value))
                asked = Command(
                    resume={one.id: await _ask_interrupt(steps, one) for one in waiting}
                )
                of_run.begin_again()


def _require_recorded(graph: Any) -> None:
    """Refuse a graph that reaches what the run has not recorded, or that stops halfway."""
    if not isinstance(graph, Pregel):
        raise LangChainException(f"a {type(graph).__name__} is no compiled graph")
    for one in (graph, *(subgraph for _, subgraph in graph.get_subgraphs(recurse=True))):
        for what in ("store", "cache"):
            if getattr(one, what, None) is not None:
                raise LangChainException(
                    f"the graph has a {what}: what comes from it is not recorded, and another in"
                    " each replay. Make it a tool of Surehand's"
                )
        if getattr(one, "interrupt_before_nodes", ()) or getattr(one, "interrupt_after_nodes", ()):
            raise LangChainException(
                "the graph stops before or behind a node: inside a run call interrupt() in it"
            )


async def _ask_interrupt(steps: StepMaker, interrupt: Interrupt) -> Any:
    wanted: Any = interrupt.response_schema
    if wanted is not None and not isinstance(wanted, dict):
        wanted = TypeAdapter(wanted).json_schema()
    return await steps.ask(_write_question(interrupt.value), wanted)


def _write_question(value: Any) -> str:
    text = value if isinstance(value, str) else to_json(value, fallback=repr).decode()
    return calls.question_of(text)


class _Guard(BaseCallbackHandler):
    """Refuses what a graph's code would reach without a step."""

    run_inline = True
    raise_error = True

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def on_chat_model_start(self, serialized: Any, messages: Any, **given: Any) -> None:
        if (given.get("invocation_params") or {}).get("_type") != FRAMEWORK:
            raise LangChainException(explain_unrecorded("a chat model"))

    def on_llm_start(self, serialized: Any, prompts: Any, **given: Any) -> None:
        raise LangChainException(explain_unrecorded("a model"))

    def on_tool_start(self, serialized: Any, input_str: str, **given: Any) -> None:
        name = (serialized or {}).get("name", "")
        if name not in self._graph.own:
            raise LangChainException(calls.own_tool(name, "own=[...]"))

    def on_retriever_start(self, serialized: Any, query: str, **given: Any) -> None:
        raise LangChainException(
            "a retriever reads what the run has not recorded: make it a tool of Surehand's"
        )


class _AsTheyAre(SerializerProtocol):
    """Keeps a graph's state as it is, for as long as its code runs."""

    def dumps_typed(self, obj: Any) -> tuple[str, Any]:
        return "", obj

    def loads_typed(self, data: tuple[str, Any]) -> Any:
        return data[1]
