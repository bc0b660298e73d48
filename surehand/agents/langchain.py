"""LangChain: models whose turns are steps of a run, and the middleware that offers its tools.

Their hooks run in workflow code, on every replay: they do nothing but make steps. ``ask`` is the
activity's side of a turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence, Set
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final

import httpx
import langsmith
from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain.chat_models import init_chat_model
from langchain_core import exceptions
from langchain_core.exceptions import LangChainException
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    ToolCall,
    ToolMessage,
)
from langchain_core.messages.tool import tool_call
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, ensure_config
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.config import get_config
from langgraph.prebuilt import ToolNode
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command
from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from surehand.activities.effects.model_turns import Said, TurnRequest
from surehand.activities.tools.failures import DependencyDown, Permanent, Transient
from surehand.agents import calls
from surehand.workflows.canonical_json import NotCanonical, canonical_json
from surehand.workflows.plain_text import plain
from surehand.workflows.run.code_run import TURN_TIMEOUT, StepMaker, current_steps

FRAMEWORK: Final = "langchain"
MESSAGE: Final[TypeAdapter[Any]] = TypeAdapter(AnyMessage)
#: What an agent's state has beside what another execution has to be told.
_OF_ONE_TURN: Final = {"messages", "jump_to", "structured_response"}
#: What dictionaries have that describe a function, in any provider's form.
_FUNCTION: Final = {"function", "parameters", "input_schema", "properties"}


class Setup(BaseModel):
    """What a turn is asked with, beside its messages."""

    tools: list[dict[str, Any]]
    """Each as OpenAI writes functions, which all integrations take; or as its provider does."""
    settings: dict[str, Any]


@dataclass(frozen=True)
class GraphTurn:
    """What a model has said inside a node."""

    known_by: str
    """What it was told."""
    message: AIMessage


@dataclass
class Graph:
    """A graph that is run inside a run."""

    continues: bool
    """Whether it goes on in another execution where the history is long."""
    own: set[str] = field(default_factory=set)
    """Tools that are not the run's, and may be called."""
    ours: set[str] = field(default_factory=set)
    """Tools of the run, by the names that models know."""
    told: dict[str, str] = field(default_factory=dict)
    """What is told of calls, by step or task: a node that was interrupted makes them again."""
    unasked: dict[str, tuple[str, Any]] = field(default_factory=dict)
    """Calls that no model has asked for, by task: their tools and arguments."""
    turns: defaultdict[str, list[GraphTurn]] = field(default_factory=lambda: defaultdict(list))
    """What models have said, by the graph's own task."""
    again: dict[str, list[GraphTurn]] = field(default_factory=dict)
    """Of a task that was interrupted: what it has yet to hear again."""

    def begin_again(self) -> None:
        """Let each task hear what it has heard already: one that was interrupted runs again."""
        self.again = {task: [*turns] for task, turns in self.turns.items()}

    def said_before(self, task: str, known_by: str) -> GraphTurn | None:
        """Return what a model has said to a task that runs again; ``None``: nothing yet."""
        left = self.again.get(task)
        if not left:
            return None
        found = next((turn for turn in left if turn.known_by == known_by), None)
        if found is None:
            raise LangChainException(
                "a node that was interrupted asks a model something else when it runs again: what"
                " its calls have done would be done again"
            )
        left.remove(found)
        return found


GRAPH: Final[ContextVar[Graph | None]] = ContextVar("surehand_graph", default=None)


class SurehandMiddleware(AgentMiddleware[Any, Any, Any]):
    """Makes what an agent does steps of the run that it is run in.

    Outside of a run its tools refuse to be called: without a ledger nothing would keep them from
    paying twice.

    Example:
        >>> agent = create_agent(
        ...     model("anthropic:claude-sonnet-4-5"),
        ...     system_prompt="Refund what the customer asks for, if the order allows it.",
        ...     middleware=[SurehandMiddleware(["orders.read", "payments.refund"])],
        ... )
    """

    def __init__(
        self,
        tools: Sequence[str],
        *,
        human: bool = False,
        own: Sequence[str] = (),
        model: str | None = None,
        turn_timeout: timedelta = TURN_TIMEOUT,
    ) -> None:
        """Let an agent call tools.

        Args:
            tools: The run's tools, by name or by a pattern with ``*`` and ``?``.
            human: Whether it may also ask a human (``ask_human``), and give up (``give_up``).
            own: As for ``model``.
            model: The model, as for ``model``, where the agent was made with another one.
            turn_timeout: As for ``model``, where the agent was made with another one.
        """
        super().__init__()
        self._names = tuple(tools)
        self._human = calls.HUMAN_TOOLS if human else {}
        self._own = frozenset(own)
        self._model = model
        self._turn_timeout = turn_timeout

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """Have the turn recorded, and offer the run's tools."""
        steps, graph = _require_graph()
        asked, own = request.model, self._own
        if isinstance(asked, RecordedModel):
            own |= asked.own or frozenset()
        elif self._model is not None:
            asked = RecordedModel(model=self._model, turn_timeout=self._turn_timeout)
        else:
            raise LangChainException(explain_unrecorded("the agent's model"))
        for tool in request.tools:
            _refuse_tool(tool, own)
        graph.own |= own
        if graph.continues and steps.history_is_long and steps.idle:
            await _continue_as_new(steps, request.state)
        # Its tools were looked at. Those that its output is given by are none that anybody calls.
        checked = asked.model_copy(update={"own": None, "profile": request.model.profile})
        human = [_describe_function(*tool) for tool in self._human.values()]
        offered = [*await tools(*self._names), *human, *request.tools]
        return await handler(request.override(model=checked, tools=offered))

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """Put a tool in place that makes the call as a step, inside all that wraps the call."""
        steps, graph = _require_graph()
        graph.own |= self._own
        call = request.tool_call
        if request.tool is None or steps.places.get(call["id"] or "") in graph.told:
            tool = _StepTool(name=call["name"], description="", make_call=self._make_call)
            request = request.override(tool=tool)
        return await handler(request)

    async def _make_call(self, call: ToolCall) -> ToolMessage:
        """Make a call as a step, and return what the model is told of it."""
        steps, graph = _require_graph()
        called, call_id = call["name"], call["id"] or ""
        step_id = steps.places.get(call_id)
        # A call that no model has asked for is known by the node that makes it.
        known_as = step_id or f"{_find_task()} {call_id}"
        if step_id is None:
            said = (called, call["args"])
            if graph.unasked.setdefault(known_as, said) != said:
                raise LangChainException(
                    f"a node makes two calls with the id {call_id!r}: give each call its own, by"
                    " which it is recognised when the node runs again"
                )
        if known_as not in graph.told:
            tool = (await calls.offer_tools(steps, self._names)).get(called)
            if tool is not None:
                told = await calls.call_for_model(steps, tool.name, dict(call["args"]), step_id)
            elif called in self._human:
                told = await calls.call_human(steps, called, dict(call["args"]), step_id)
            else:  # what wraps the call has named another tool
                raise LangChainException(calls.own_tool(called, "own=[...]"))
            graph.told[known_as] = to_json(told).decode()
        content = graph.told[known_as]
        return ToolMessage(content, name=called, tool_call_id=call_id)


class _StepTool(BaseTool):
    """Makes calls as steps."""

    args_schema: Any = {"type": "object", "properties": {}}
    make_call: Callable[[ToolCall], Awaitable[ToolMessage]]

    async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> ToolMessage:
        return await self.make_call(input)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        raise LangChainException("await it: a call is a step of the run")


def tool_node(*names: str, own: Sequence[BaseTool] = ()) -> ToolNode:
    """Return a node for the calls that the last message asks for, in a graph of your own.

    Args:
        names: The run's tools, by name or by a pattern with ``*`` and ``?``.
        own: Tools of the graph itself, which only calculate.
    """
    ours = SurehandMiddleware(names, own=[tool.name for tool in own])
    return ToolNode([*own], awrap_tool_call=ours.awrap_tool_call)


async def tools(*names: str) -> list[dict[str, Any]]:
    """Return what ``bind_tools`` takes to offer tools of the run, in a node of your own.

    Args:
        names: The tools, by name or by a pattern with ``*`` and ``?``.

    Raises:
        LangChainException: This code is of no run.
    """
    steps, graph = _require_graph()
    offered = await calls.offer_tools(steps, names)
    graph.ours |= offered.keys()
    return [
        _describe_function(name, one.description, one.params_schema)
        for name, one in offered.items()
    ]


def _describe_function(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


def model(
    name: str, *, own: Sequence[str] = (), turn_timeout: timedelta = TURN_TIMEOUT
) -> BaseChatModel:
    """Return a chat model whose turns are steps of the run that it is asked in.

    Args:
        name: The model, as ``init_chat_model`` takes it, such as ``openai:gpt-5``; or where the
            worker finds it, as ``module:name``.
        own: Tools of the graph itself that may be called as well. They run in workflow code, anew
            in each replay: they may calculate, ask, and nothing else. Also tools that the model's
            provider runs, by their type.
        turn_timeout: How long one attempt at a turn may take.
    """
    return RecordedModel(model=name, own=frozenset(own), turn_timeout=turn_timeout)


async def _continue_as_new(steps: StepMaker, state: Mapping[str, Any]) -> None:
    """Go on in another execution, if that can be told all of an agent's state."""
    others = {n: v for n, v in state.items() if n not in _OF_ONE_TURN and v is not None}
    inside_another = "|" in get_config()["configurable"].get("checkpoint_ns", "")
    if inside_another or to_jsonable_python(others, fallback=repr) != others:
        return
    try:
        canonical_json(others)
    except NotCanonical:
        return
    # As text: a model may have written a number that no canonical JSON has.
    messages = [MESSAGE.dump_json(one).decode() for one in state["messages"]]
    await steps.continue_as_new({"messages": messages} | others)


def model_named(name: str) -> BaseChatModel:
    """Return a model by its name, or by where it is: ``module:name``."""
    found = calls.named(name)
    made: BaseChatModel = found if isinstance(found, BaseChatModel) else init_chat_model(name)
    return made


def bind_model(name: str, setup: Setup) -> Runnable[Any, AIMessage]:
    asked = model_named(name)
    if setup.tools:
        return asked.bind_tools(setup.tools, **setup.settings)
    return asked.bind(**setup.settings)


class RecordedModel(BaseChatModel):
    """A model whose turns are steps of the run."""

    model: str
    """As the worker finds it."""
    own: frozenset[str] | None = frozenset()
    """The tools that may be offered beside the run's; ``None``: they were looked at."""
    turn_timeout: timedelta
    cache: Any = False

    @property
    def _llm_type(self) -> str:
        return FRAMEWORK

    def bind_tools(
        self, tools: Sequence[Any], *, tool_choice: Any = None, **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Return the model with tools that it may call. Raises ``LangChainException``."""
        if self.own is not None and current_steps() is not None:
            for tool in tools:
                _refuse_tool(tool, self.own)
        offered = [tool if _is_hosted(tool) else convert_to_openai_tool(tool) for tool in tools]
        if tool_choice is not None:
            kwargs["tool_choice"] = tool_choice
        return self.bind(tools=offered, **kwargs)

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        raise LangChainException("await it, with ainvoke: a turn is a step of the run")

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        **kwargs: Any,
    ) -> ChatResult:
        offered = kwargs.pop("tools", [])
        if stop is not None:
            kwargs["stop"] = stop
        setup = Setup(tools=offered, settings=kwargs)
        if current_steps() is None:
            said = await bind_model(self.model, setup).ainvoke(messages)
        else:
            said = await self._take_turn(messages, setup)
        return ChatResult(generations=[ChatGeneration(message=said)])

    async def _take_turn(self, messages: Sequence[BaseMessage], setup: Setup) -> AIMessage:
        steps, graph = _require_graph()
        graph.own |= self.own or set()
        try:
            written = setup.model_dump_json()
        except PydanticSerializationError as error:
            raise LangChainException(f"a setting of the model is no JSON: {error}") from error
        hosted = [one for one in setup.tools if one.get("type") != "function"]
        calls.refuse_secrets(LangChainException, setup.settings, hosted)
        known_by = to_json([*_list_said(messages, graph.ours)], fallback=repr).decode()
        task = _find_task()
        if (turn := graph.said_before(task, known_by)) is not None:
            return turn.message.model_copy()
        said, turn_id = await steps.turn(
            FRAMEWORK,
            self.model,
            written,
            [_write_message(one) for one in messages],
            known_by=known_by,
            timeout=self.turn_timeout,
            foreign=bool(hosted),
        )
        response: AIMessage = MESSAGE.validate_json(said)
        sound, broken = response.tool_calls, response.invalid_tool_calls
        asked = [
            *((one["id"], one["name"], None) for one in sound),
            *(
                (one["id"], one["name"] or "", f"{calls.NO_OBJECT}{plain(one['args'], 200)}")
                for one in broken
            ),
        ]
        there = {one["function"]["name"] for one in setup.tools if one.get("type") == "function"}
        placed = await calls.place_calls(steps, turn_id, asked, there)
        for one in placed:
            if one.refused is not None:
                graph.told[one.step_id] = to_json({"failed": one.refused}).decode()
        # LangChain would take a turn with nothing but broken calls for the agent's last one.
        args = [*(call["args"] for call in sound), *({} for _ in broken)]
        every = [
            tool_call(name=name, args=given, id=one.call_id)
            for (_, name, _), given, one in zip(asked, args, placed, strict=True)
        ]
        response = response.model_copy(update={"tool_calls": every, "invalid_tool_calls": []})
        graph.turns[task].append(GraphTurn(known_by, response))
        return response.model_copy()

    def astream(self, *args: Any, **kwargs: Any) -> Any:
        if current_steps() is not None:
            raise LangChainException("inside a run use ainvoke(); a turn is not streamed")
        return super().astream(*args, **kwargs)


def _write_message(message: BaseMessage) -> str:
    """Return a message as JSON, without an id that is made by chance."""
    written = MESSAGE.dump_python(message, mode="json", fallback=repr)
    if not isinstance(message, AIMessage):  # theirs come from the turn
        written.pop("id", None)
    return to_json(written).decode()


def _list_said(messages: Sequence[BaseMessage], ours: Set[str]) -> Iterator[Any]:
    """Yield what a person or the model has said: not what the run's tools have returned.

    What people have answered, rejected or changed comes back as a tool's message, too.
    """
    for one in messages:
        returned = isinstance(one, ToolMessage) and one.name in ours
        if not returned or calls.is_told_by_people(one.content):
            made = getattr(one, "tool_calls", ())
            yield one.type, one.content, [(call["name"], call["args"]) for call in made]


def _is_hosted(tool: Any) -> bool:
    return isinstance(tool, dict) and tool.keys().isdisjoint(_FUNCTION)


def _refuse_tool(tool: Any, own: Collection[str]) -> None:
    """Refuse a tool that nobody would keep from acting twice. Raises ``LangChainException``."""
    if _is_hosted(tool):
        name = str(tool.get("type") or tool.get("name") or next(iter(tool), ""))
        if name not in own:
            raise LangChainException(calls.provider_tool(name, "own=[...]"))
    elif isinstance(tool, BaseTool) or (callable(tool) and not isinstance(tool, type)):
        name = str(getattr(tool, "name", None) or getattr(tool, "__name__", ""))
        if name not in own:
            raise LangChainException(calls.own_tool(name, "own=[...]"))


def explain_unrecorded(what: str) -> str:
    """Return why a model is refused that is none of ours."""
    return (
        f"{what} records no turns: name it by model(...) of surehand.agents.langchain, such as"
        " model('openai:gpt-5') or model('module:name')"
    )


def _find_task() -> str:
    """Return the task of the outermost graph: what is inside of it runs again with it."""
    return str(ensure_config().get("configurable", {}).get("checkpoint_ns", "")).split("|")[0]


async def _on_the_runs_thread(
    threaded: Callable[..., Awaitable[Any]],
    context: Any,
    function: Callable[..., Any],
    /,
    *args: Any,
    **more: Any,
) -> Any:
    if current_steps() is None:
        return await threaded(context, function, *args, **more)
    return context.run(function, *args, **more)


# LangChain has LangSmith look at each call of a middleware, in a thread, also without traces.
langsmith.set_runtime_overrides(aio_to_thread=_on_the_runs_thread)


def _require_graph() -> tuple[StepMaker, Graph]:
    steps = current_steps()
    if steps is None:
        raise LangChainException(calls.OUTSIDE)
    # Its errors reach the run's code: nothing is mended by trying that again.
    steps.fails_on = (LangChainException,)
    graph = GRAPH.get()
    if graph is None:
        raise LangChainException(
            "inside a run a graph is run by invoke(graph, ...) of surehand.agents.langgraph"
        )
    return steps, graph


#: What providers' packages, and LangChain's own errors, call the same.
_TIMEOUTS: Final = {"TimeoutException", "APITimeoutError", "ModelTimeoutError"}
_UNREACHED: Final = {"APIConnectionError", "ModelConnectionError"}


async def ask(asked: TurnRequest) -> Said:
    """Ask a model. Raises ``ToolFault``."""
    setup = Setup.model_validate_json(asked.setup)
    messages = [MESSAGE.validate_json(message) for message in asked.messages]
    try:
        model = bind_model(asked.model, setup)
    except Exception as error:
        raise Permanent(f"model {asked.model!r}: {type(error).__name__}: {error}") from error
    try:
        response = await model.ainvoke(messages)
    except Exception as error:  # each provider's package raises its own
        raise _classify_error(error) from error
    return Said(
        response=MESSAGE.dump_json(response, fallback=repr).decode(),
        line=_summarize_turn(response),
        tokens=usage["total_tokens"] if (usage := response.usage_metadata) else 0,
        money=_price_response(asked.model, response),
        input_tokens=usage["input_tokens"] if usage else None,
        output_tokens=usage["output_tokens"] if usage else None,
    )


def _price_response(name: str, response: AIMessage) -> Decimal:
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
    return calls.price_turn(said.get("model_provider") or provider, asked, usage)


def _classify_error(error: Exception) -> Exception:
    text = f"{type(error).__name__}: {error}"
    response = getattr(error, "response", None)
    headers = getattr(response, "headers", None) or {}
    if isinstance(error, exceptions.ModelRateLimitError):
        return calls.make_rate_limited(text, headers.get("retry-after"))
    for status in (getattr(error, "status_code", None), getattr(response, "status_code", None)):
        if isinstance(status, int):
            return calls.read_status(text, status, headers.get("retry-after"))
    # A provider's package has no status then: it was not reached, or did not answer in time.
    kinds = {one.__name__ for one in type(error).__mro__}
    if isinstance(error, TimeoutError) or kinds & _TIMEOUTS:
        return Transient(text)
    if isinstance(error, ConnectionError | httpx.TransportError) or kinds & _UNREACHED:
        return DependencyDown(text)
    if isinstance(error, exceptions.ModelAPIError | exceptions.OutputParserException):
        return Transient(text)  # another answer may make sense
    return Permanent(text)


def _summarize_turn(response: AIMessage) -> str:
    said = [response.text, *(f"calls {call['name']}" for call in response.tool_calls)]
    return "; ".join(filter(None, said))
