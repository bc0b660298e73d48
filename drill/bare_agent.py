"""Runs an agent as it is, without Surehand, and counts its calls: one half of ``try``.

``python -m surehand.drill.bare_agent SPEC`` runs it in a process of its own, which kills itself at
the point that the file names. Started again without one, it resumes the agent in the way that its
framework documents. No tool is called but those that the user has named as reads: each other call
is counted in a file, and answered with a text. What cannot be counted is refused before it runs.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, JsonValue, TypeAdapter
from pydantic_core import to_jsonable_python

from surehand.agents.calls import find_framework
from surehand.process.exits import WrongUse
from surehand.process.settings import load_named

#: Where a call is killed: before its effect; behind it, with the answer on its way; and when the
#: agent has the answer, and makes its next call or ends.
BEFORE, DURING, AFTER = POINTS = ("before", "during", "after")
#: What a write that was not made is said to have returned.
MADE: Final = "done"
#: The variable by which an adopted agent's worker finds its ``BareRun``.
ADOPTED: Final = "ADOPTED_AGENT"
#: In a run's folder: its effects, all of its calls, and its end.
WORLD, CALLS, END = "world.jsonl", "calls.jsonl", "end.json"


#: Answers the call of a tool with these params, which the function given makes for real.
ToolCaller = Callable[[str, dict[str, Any], Callable[[], Awaitable[Any]]], Awaitable[Any]]


class AgentTool(BaseModel):
    """A tool that an agent has."""

    name: str
    description: str = ""
    params_schema: dict[str, Any]
    reads: bool


class CountedCall(BaseModel):
    """A call that an agent has made, and what it was told."""

    tool: str
    params: dict[str, Any]
    reads: bool
    answer: JsonValue = None
    key: str = ""
    """Of a call that Surehand made: its idempotency key."""
    run: str = ""
    """Of such a call: the run."""

    @property
    def content(self) -> str:
        """What is called, and with what."""
        return json.dumps([self.tool, self.params], sort_keys=True)


class Agent(BaseModel):
    """The agent that is tried, and what is known of it."""

    name: str
    """Where it is: ``module:name``."""
    functions: str = ""
    """The module with the tools of an agent that is a function."""
    input: JsonValue
    reads: list[str] = []
    """Its tools that are called."""
    answers: dict[str, JsonValue] = {}
    """What writes are answered with, by tool."""
    tools: dict[str, AgentTool] = {}
    calls: list[CountedCall] = []
    """Of the run that nothing happened to. Its reads are not made again."""

    def find_answer(self, call: CountedCall, number: int = 0) -> CountedCall | None:
        """Return the same call, the n-th of its kind, in the run that nothing happened to."""
        same = [one for one in self.calls if one.content == call.content]
        return same[min(number, len(same) - 1)] if same else None


class BareRun(BaseModel):
    """One run of an agent, in a folder of its own."""

    agent: Agent
    folder: Path
    kill_call: int = 0
    """Counted from 1; 0: none."""
    kill_point: str = ""


class BareEnd(BaseModel):
    """How a run has ended."""

    framework: str
    resumes: str
    """How it goes on after a crash."""
    tools: dict[str, AgentTool]


def note_call(path: Path, call: CountedCall) -> None:
    """Append a call to a file, at once: whoever is killed behind it has made it."""
    line = f"{call.model_dump_json()}\n".encode()
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line)
    finally:
        os.close(file)


def read_calls(path: Path) -> list[CountedCall]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [CountedCall.model_validate_json(line) for line in lines]


@dataclass
class CallCounter:
    """Stands in for the tools of an agent."""

    run: BareRun
    tools: dict[str, AgentTool] = field(default_factory=dict)
    _asked: Counter[str] = field(default_factory=Counter)
    _dies_next: bool = False
    _one: threading.Lock = field(default_factory=threading.Lock)

    def offer(self, name: str, description: str | None, schema: dict[str, Any]) -> None:
        """Take down a tool that the agent has."""
        self.tools[name] = AgentTool(
            name=name,
            description=description or "",
            params_schema=schema,
            reads=name in self.run.agent.reads,
        )

    def end(self) -> None:
        """Die behind the last call, if that is the place."""
        if self._dies_next:
            _die()

    def _begin(self, tool: str, params: Any) -> tuple[int, CountedCall, bool]:
        """Return a call's number, the call, and whether its answer has to be asked for."""
        self.end()
        plain = to_jsonable_python(params, fallback=repr)
        call = CountedCall(tool=tool, params=plain, reads=self.tools[tool].reads)
        with self._one:
            asked = self._asked[call.content]
            self._asked[call.content] += 1
        before = self.run.agent.find_answer(call, asked)
        # Not by its place: the calls of one turn come in any order.
        number = next((n for n, one in enumerate(self.run.agent.calls, 1) if one is before), 0)
        self._die_at(number, BEFORE)
        answer = self.run.agent.answers.get(tool, MADE) if before is None else before.answer
        call = call.model_copy(update={"answer": answer})
        return number, call, call.reads and before is None

    def _end(self, number: int, call: CountedCall, answer: Any) -> Any:
        call = call.model_copy(update={"answer": to_jsonable_python(answer, fallback=repr)})
        if not call.reads:
            note_call(self.run.folder / WORLD, call)
        note_call(self.run.folder / CALLS, call)
        self._die_at(number, DURING)
        self._dies_next |= (number, AFTER) == (self.run.kill_call, self.run.kill_point)
        return call.answer

    def _die_at(self, number: int, point: str) -> None:
        if (number, point) == (self.run.kill_call, self.run.kill_point):
            _die()

    async def call(self, tool: str, params: Any, real: Callable[[], Awaitable[Any]]) -> Any:
        """Answer a call that an agent makes; a read is made, if its answer is not known."""
        number, call, asked = self._begin(tool, params)
        return self._end(number, call, await real() if asked else call.answer)

    def call_blocking(self, tool: str, params: Any, real: Callable[[], Any]) -> Any:
        """Answer a call of a function that is not async."""
        number, call, asked = self._begin(tool, params)
        return self._end(number, call, real() if asked else call.answer)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run_bare(run: BareRun) -> BareEnd:
    """Run an agent to its end, or resume it. Raises ``WrongUse``, and what the agent raises."""
    counter = CallCounter(run)
    if run.agent.functions:
        replace_functions(run.agent, counter.offer, counter.call)
    found = load_named(run.agent.name)
    framework = framework_of(found)
    try:
        resumes = asyncio.run(_RUN[framework](found, counter))
    finally:
        unknown = [name for name in run.agent.reads if name not in counter.tools]
        if unknown and counter.tools:  # it has met others, and its answers are no reads' answers
            has = ", ".join(counter.tools)
            raise WrongUse(
                f"--reads {unknown[0]}: {run.agent.name} has no such tool (it has {has})"
            )
    counter.end()
    return BareEnd(framework=framework, resumes=resumes, tools=counter.tools)


FUNCTION: Final = "a function"


def framework_of(agent: Any) -> str:
    """Return the framework of an agent. Raises ``WrongUse``."""
    if (found := find_framework(agent)) is not None:
        return found
    if inspect.iscoroutinefunction(agent):
        return FUNCTION
    kinds = "an agent of pydantic-ai or of the OpenAI Agents SDK, a graph, or an async function"
    raise WrongUse(f"it is a {type(agent).__name__}, and has to be {kinds}")


def replace_functions(
    agent: Agent,
    offer: Callable[[str, str | None, dict[str, Any]], None],
    call: ToolCaller,
) -> None:
    """Let ``call`` stand in for the functions of the agent's module of tools, wherever they are.

    Raises ``WrongUse``.
    """
    where = agent.functions
    try:
        module = importlib.import_module(where)
    except Exception as error:
        raise WrongUse(f"--tools {where}: {type(error).__name__}: {error}") from error
    for name, function in list(vars(module).items()):
        own = str(getattr(function, "__module__", "")).split(".")[0] == where.split(".")[0]
        if name.startswith("_") or not own or f"{where}:{name}" == agent.name:
            continue
        if inspect.iscoroutinefunction(function):
            given = inspect.signature(function).parameters
            schema = TypeAdapter(function).json_schema()
            if schema.get("type") != "object":
                schema = {"type": "object", "properties": {one: {} for one in given}}
            offer(name, inspect.getdoc(function), schema)
            _put_everywhere(function, _replace_function(name, function, call))
        elif callable(function) and not inspect.isclass(function):
            raise WrongUse(f"{where}:{name} is no async function, so its calls cannot be counted")


def _replace_function(
    name: str, function: Callable[..., Any], call: ToolCaller
) -> Callable[..., Awaitable[Any]]:
    signature = inspect.signature(function)

    @wraps(function)
    async def replaced(*args: Any, **named: Any) -> Any:
        params = dict(signature.bind(*args, **named).arguments)
        for one in signature.parameters.values():
            if one.kind is one.VAR_KEYWORD:
                params |= params.pop(one.name, {})
        return await call(name, params, lambda: function(*args, **named))

    return replaced


def _put_everywhere(old: Any, new: Any) -> None:
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is old:
                setattr(module, name, new)


async def _run_function(agent: Any, counter: CallCounter) -> str:
    if not counter.tools:
        raise WrongUse("its tools would be called: name their module with --tools")
    await agent(counter.run.agent.input)
    return "is started again"


async def _run_pydantic_ai(agent: Any, counter: CallCounter) -> str:
    from pydantic_ai.toolsets import WrapperToolset

    class CountedToolset(WrapperToolset[Any]):
        async def get_tools(self, ctx: Any) -> Any:
            found = await super().get_tools(ctx)
            for one in found.values():
                said = one.tool_def
                counter.offer(said.name, said.description, said.parameters_json_schema)
            return found

        async def call_tool(self, name: str, tool_args: Any, ctx: Any, tool: Any) -> Any:
            real = super().call_tool
            return await counter.call(name, tool_args, lambda: real(name, tool_args, ctx, tool))

    counted = [CountedToolset(one) for one in agent.toolsets]
    with agent.override(toolsets=counted, tools=[], native_tools=[]):
        await agent.run(counter.run.agent.input)
    return "is started again with the same prompt"


async def _run_openai(agent: Any, counter: CallCounter) -> str:
    import agents
    from agents.memory import SQLiteSession

    from surehand.agents.openai_agents import list_reached_agents

    reached = list(list_reached_agents(agent))
    for tool in {id(tool): tool for one in reached for tool in one.tools}.values():
        # What an agent that is a tool calls is not looked at.
        if not isinstance(tool, agents.FunctionTool) or tool._is_agent_tool:
            raise WrongUse(f"its tool {tool.name} is no function: it would be called")
        counter.offer(tool.name, tool.description, tool.params_json_schema)
        tool.on_invoke_tool = _count_invoked(tool, counter)
    if any(one.mcp_servers for one in reached):
        raise WrongUse("it has MCP servers: they would be called")
    session = SQLiteSession("tried", counter.run.folder / "session.sqlite")
    quiet = agents.RunConfig(tracing_disabled=True)
    given: Any = counter.run.agent.input
    await agents.Runner.run(agent, given, session=session, run_config=quiet)
    return "is started again with the same input and its SQLiteSession"


def _count_invoked(tool: Any, counter: CallCounter) -> Callable[..., Awaitable[Any]]:
    real = tool.on_invoke_tool

    async def invoke_counted(context: Any, arguments: str) -> Any:
        params = json.loads(arguments or "{}")
        return await counter.call(tool.name, params, lambda: real(context, arguments))

    return invoke_counted


async def _run_langgraph(graph: Any, counter: CallCounter) -> str:
    from langgraph.checkpoint.memory import InMemorySaver

    nodes = list_tool_nodes(graph)
    if not nodes:
        raise WrongUse("it has no ToolNode, so its calls cannot be counted")
    for tool in {id(tool): tool for one in nodes for tool in one.tools_by_name.values()}.values():
        counter.offer(tool.name, tool.description, schema_of(tool))
        _replace_tool(tool, counter)
    given, own = graph_input(graph, counter.run.agent.input), graph.checkpointer
    if own is not None and not isinstance(own, InMemorySaver):
        await _resume_graph(graph, given, counter.run.folder)
        return "is invoked with None, by its own checkpointer"
    try:
        from langgraph.checkpoint.sqlite.aio import (  # type: ignore[import-not-found]
            AsyncSqliteSaver,
        )
    except ImportError:
        await graph.ainvoke(given, {"configurable": {"thread_id": "tried"}})
        return "is invoked again: it has no checkpointer that lasts"
    async with AsyncSqliteSaver.from_conn_string(str(counter.run.folder / "graph.db")) as saver:
        await _resume_graph(graph.copy({"checkpointer": saver}), given, counter.run.folder)
    return "is invoked with None, by an AsyncSqliteSaver that it was given"


async def _resume_graph(graph: Any, given: Any, folder: Path) -> None:
    # The folder above is another one in each comparison; a thread that has ended calls nothing.
    thread = f"{folder.parent.name}-{folder.name}"
    config = {"configurable": {"thread_id": thread}}
    state = await graph.aget_state(config)
    if state.next or not state.created_at:
        await graph.ainvoke(None if state.created_at else given, config)
    await graph.checkpointer.adelete_thread(thread)


def graph_input(graph: Any, given: JsonValue) -> Any:
    """Return what a graph is invoked with: a text is what the user says."""
    if isinstance(given, str) and "messages" in graph.channels:
        return {"messages": [{"role": "user", "content": given}]}
    return given


def list_tool_nodes(graph: Any) -> list[Any]:
    """Return the nodes of a graph, and of the graphs in it, that call tools for a model."""
    from langgraph.prebuilt import ToolNode

    graphs = (graph, *(inner for _, inner in graph.get_subgraphs(recurse=True)))
    bound = (node.bound for one in graphs for node in one.nodes.values())
    return [one for one in bound if isinstance(one, ToolNode)]


def schema_of(tool: Any) -> dict[str, Any]:
    """Return the schema of what a model gives a tool of LangChain's."""
    given = tool.tool_call_schema
    found: dict[str, Any] = given if isinstance(given, dict) else given.model_json_schema()
    return found


def _replace_tool(tool: Any, counter: CallCounter) -> None:
    """Put other functions in the place of a tool's, which are given what the model gives."""
    from langchain_core.tools import StructuredTool

    if not isinstance(tool, StructuredTool):
        raise WrongUse(f"its tool {tool.name} is a {type(tool).__name__}: it would be called")
    given = schema_of(tool).get("properties", {}).keys()
    real: Any = tool.func
    real_async: Any = tool.coroutine

    def select(params: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        return {name: value for name, value in params if name in given}

    def call(**params: Any) -> Any:
        return counter.call_blocking(tool.name, select(params.items()), lambda: real(**params))

    async def call_async(**params: Any) -> Any:
        return await counter.call(tool.name, select(params.items()), lambda: real_async(**params))

    tool.response_format = "content"
    tool.func = None if real is None else call
    tool.coroutine = None if real_async is None else call_async


_RUN: Final[dict[str, Callable[[Any, CallCounter], Coroutine[Any, Any, str]]]] = {
    "pydantic-ai": _run_pydantic_ai,
    "openai-agents": _run_openai,
    "langgraph": _run_langgraph,
    FUNCTION: _run_function,
}


def main(arguments: Sequence[str]) -> int:
    """Run what a file says."""
    (spec,) = arguments
    run = BareRun.model_validate_json(Path(spec).read_text(encoding="utf-8"))
    try:
        end = run_bare(run)
    except WrongUse as error:
        print(error, file=sys.stderr)
        return 2
    (run.folder / END).write_text(end.model_dump_json(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
