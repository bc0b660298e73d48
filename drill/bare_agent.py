"""Runs an agent as it is, without Surehand, and counts its calls: the other half of ``try``.

``python -m surehand.drill.bare_agent SPEC`` runs it in a process of its own, which kills itself at
the point that the file names. Started again without one, it resumes the agent in the way that its
framework documents. No write is made: each is counted in a file, and answered with a text.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, JsonValue, TypeAdapter
from pydantic_core import to_jsonable_python

#: Where a call is killed: before its effect; behind it, with the answer on its way; and when the
#: agent has the answer, and makes its next call or ends.
BEFORE, DURING, AFTER = POINTS = ("before", "during", "after")
#: What a tool is called that changes nothing, if nobody has said what its effect is.
_READS: Final = re.compile(r"(?i)(.*[._])?(get|list|find|search|read|look|show|check|fetch|query)")
#: What a write that was not made is said to have returned.
MADE: Final = "done"


class AgentTool(BaseModel):
    """A tool that an agent has."""

    name: str
    description: str = ""
    params_schema: dict[str, Any] = {"type": "object", "additionalProperties": True}
    reads: bool


class CountedCall(BaseModel):
    """A call that an agent has made, and what it was told."""

    tool: str
    params: dict[str, Any]
    reads: bool
    answer: JsonValue = None
    key: str = ""
    """Of a call that Surehand made: its idempotency key, and the run."""
    run: str = ""


class Agent(BaseModel):
    """The agent that is tried, and what is known of it."""

    name: str
    """Where it is: ``module:name``."""
    functions: str = ""
    """The module with the tools of an agent that is a function."""
    input: JsonValue
    reads: list[str] = []
    answers: dict[str, JsonValue] = {}
    """What writes are answered with, by tool."""
    tools: dict[str, AgentTool] = {}
    calls: list[CountedCall] = []
    """Of the run that nothing happened to. Its reads are not made again."""

    def find_answer(self, tool: str, params: dict[str, Any]) -> CountedCall | None:
        """Return the same call in the run that nothing happened to."""
        same = (one for one in self.calls if (one.tool, one.params) == (tool, params))
        return next(same, None)


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


#: In a run's folder: its effects, all of its calls, and its end.
WORLD, CALLS, END = "world.jsonl", "calls.jsonl", "end.json"


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


class CallCounter:
    """Stands in for the tools of an agent."""

    def __init__(self, run: BareRun) -> None:
        self.run = run
        self.tools: dict[str, AgentTool] = {}
        self._number = 0
        self._dies_next = False

    def offer(self, name: str, description: str | None, schema: dict[str, Any]) -> None:
        agent = self.run.agent
        reads = name in agent.reads if agent.reads else bool(_READS.match(name))
        self.tools[name] = AgentTool(
            name=name, description=description or "", params_schema=schema, reads=reads
        )

    def end(self) -> None:
        """Die behind the last call, if that is the place."""
        if self._dies_next:
            _die()

    def _begin(self, tool: str, params: Any) -> CountedCall:
        self.end()
        self._number += 1
        self._die_at(BEFORE)
        plain = to_jsonable_python(params, fallback=repr)
        return CountedCall(tool=tool, params=plain, reads=self.tools[tool].reads)

    def _answer(self, call: CountedCall) -> CountedCall | None:
        """Return the call with its answer; ``None``: it is a read, and has to be made."""
        before = self.run.agent.find_answer(call.tool, call.params)
        if call.reads and before is None:
            return None
        answer = self.run.agent.answers.get(call.tool, MADE) if before is None else before.answer
        return call.model_copy(update={"answer": answer})

    def _note(self, call: CountedCall) -> Any:
        if not call.reads:
            note_call(self.run.folder / WORLD, call)
        note_call(self.run.folder / CALLS, call)
        self._die_at(DURING)
        self._dies_next = (self._number, AFTER) == (self.run.kill_call, self.run.kill_point)
        return call.answer

    def _die_at(self, point: str) -> None:
        if (self._number, point) == (self.run.kill_call, self.run.kill_point):
            _die()

    async def call(self, tool: str, params: Any, real: Callable[[], Awaitable[Any]]) -> Any:
        """Make a call that an agent asks for: a read as it is, a write by counting it."""
        call = self._begin(tool, params)
        answered = self._answer(call)
        if answered is None:
            answered = call.model_copy(update={"answer": _to_json(await real())})
        return self._note(answered)

    def call_blocking(self, tool: str, params: Any, real: Callable[[], Any]) -> Any:
        """Make a call of a function that is not async."""
        call = self._begin(tool, params)
        answered = self._answer(call)
        if answered is None:
            answered = call.model_copy(update={"answer": _to_json(real())})
        return self._note(answered)

    def replace_function(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return what stands in for a function."""
        signature = inspect.signature(function)

        def bind(args: Any, named: Any) -> dict[str, Any]:
            return bind_params(signature, args, named)

        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def replaced(*args: Any, **named: Any) -> Any:
                return await self.call(name, bind(args, named), lambda: function(*args, **named))

            return replaced

        @wraps(function)
        def replaced_blocking(*args: Any, **named: Any) -> Any:
            return self.call_blocking(name, bind(args, named), lambda: function(*args, **named))

        return replaced_blocking


def bind_params(signature: inspect.Signature, args: Any, named: Any) -> dict[str, Any]:
    """Return the arguments of a call by their names."""
    given = dict(signature.bind(*args, **named).arguments)
    for name, one in signature.parameters.items():
        if one.kind is one.VAR_KEYWORD:
            given |= given.pop(name, {})
    return given


def _to_json(answer: Any) -> Any:
    return to_jsonable_python(answer, fallback=repr)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class NotTried(Exception):
    """An agent cannot be run as it is; the message says why."""


def run_bare(run: BareRun) -> BareEnd:
    """Run an agent to its end, or resume it. Raises ``NotTried``, and what the agent raises."""
    counter = CallCounter(run)
    replace = counter.replace_function
    if run.agent.functions:
        replace_functions(run.agent.functions, counter.offer, replace)
    found = find_agent(run.agent.name)
    match framework_of(found):
        case "pydantic-ai":
            resumes = asyncio.run(_run_pydantic_ai(found, counter))
        case "openai-agents":
            resumes = asyncio.run(_run_openai(found, counter))
        case "langgraph":
            resumes = asyncio.run(_run_langgraph(found, counter))
        case _:
            resumes = "is started again"
            said = found(run.agent.input)
            if inspect.isawaitable(said):
                asyncio.run(_await(said))
    counter.end()
    return BareEnd(framework=framework_of(found), resumes=resumes, tools=counter.tools)


async def _await(given: Awaitable[Any]) -> Any:
    return await given


def find_agent(name: str) -> Any:
    """Return the agent that is at ``module:name``. Raises ``NotTried``."""
    module_name, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise NotTried(f"{name}: {error}") from error
    return found


#: By the package that an agent's class comes from.
_FRAMEWORKS: Final = {"pydantic_ai": "pydantic-ai", "agents": "openai-agents"}
FUNCTION: Final = "a function"


def framework_of(agent: Any) -> str:
    """Return the framework of an agent. Raises ``NotTried``."""
    packages = [one.__module__.partition(".")[0] for one in type(agent).__mro__]
    if "langgraph" in packages:
        return "langgraph"
    found = next((_FRAMEWORKS[one] for one in packages if one in _FRAMEWORKS), None)
    if found is not None:
        return found
    if inspect.isfunction(agent):
        return FUNCTION
    kinds = "an agent of pydantic-ai or the OpenAI Agents SDK, a graph of LangGraph, or a function"
    raise NotTried(f"a {type(agent).__name__} is none of what can be tried: {kinds}")


def replace_functions(
    module_name: str,
    offer: Callable[[str, str | None, dict[str, Any]], None],
    replace: Callable[[str, Callable[..., Any]], Callable[..., Any]],
) -> None:
    """Replace the functions of a module, before another one imports them."""
    module = importlib.import_module(module_name)
    for name, function in list(vars(module).items()):
        own = inspect.isfunction(function) and function.__module__ == module_name
        if own and not name.startswith("_"):
            schema = TypeAdapter(function).json_schema()
            offer(name, inspect.getdoc(function), _as_object(schema, function))
            setattr(module, name, replace(name, function))


def _as_object(schema: dict[str, Any], function: Callable[..., Any]) -> dict[str, Any]:
    """Return the schema of a function's arguments as one of an object."""
    if schema.get("type") == "object":
        return schema
    names = inspect.signature(function).parameters
    return {"type": "object", "properties": {name: {} for name in names}}


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

    with agent.override(toolsets=[CountedToolset(one) for one in agent.toolsets], tools=[]):
        await agent.run(counter.run.agent.input)
    return "is started again with the same prompt"


async def _run_openai(agent: Any, counter: CallCounter) -> str:
    import agents
    from agents.memory import SQLiteSession

    from surehand.agents.openai_agents import list_reached_agents

    for one in list_reached_agents(agent):
        for tool in one.tools:
            if isinstance(tool, agents.FunctionTool):
                counter.offer(tool.name, tool.description, tool.params_json_schema)
                tool.on_invoke_tool = _count_invoked(tool, counter)
    session = SQLiteSession("tried", counter.run.folder / "session.sqlite")
    quiet = agents.RunConfig(tracing_disabled=True)
    given: Any = counter.run.agent.input
    await agents.Runner.run(agent, given, session=session, run_config=quiet)
    return "is started again with the same input and its SQLiteSession"


def _count_invoked(tool: Any, counter: CallCounter) -> Callable[..., Awaitable[Any]]:
    real = tool.on_invoke_tool

    async def invoke(context: Any, arguments: str) -> Any:
        params = json.loads(arguments or "{}")
        return await counter.call(tool.name, params, lambda: real(context, arguments))

    return invoke


async def _run_langgraph(graph: Any, counter: CallCounter) -> str:
    for node in list_tool_nodes(graph):
        for tool in node.tools_by_name.values():
            counter.offer(tool.name, tool.description, schema_of(tool))
            replace_tool(tool, counter.replace_function)
    given = graph_input(graph, counter.run.agent.input)
    config = {"configurable": {"thread_id": f"tried-{counter.run.folder.name}"}}
    if _lasts(graph.checkpointer):
        await _resume_graph(graph, given, config)
        return "is invoked with None, by its own checkpointer"
    try:
        from langgraph.checkpoint.sqlite.aio import (  # type: ignore[import-not-found]
            AsyncSqliteSaver,
        )
    except ImportError:
        await graph.ainvoke(given, config)
        return "is invoked again: it has no checkpointer that lasts"
    async with AsyncSqliteSaver.from_conn_string(
        str(counter.run.folder / "checkpoints.sqlite")
    ) as saver:
        await _resume_graph(graph.copy({"checkpointer": saver}), given, config)
    return "is invoked with None, by an AsyncSqliteSaver that it was given"


def _lasts(checkpointer: Any) -> bool:
    from langgraph.checkpoint.memory import InMemorySaver

    return checkpointer is not None and not isinstance(checkpointer, InMemorySaver)


async def _resume_graph(graph: Any, given: Any, config: Any) -> None:
    state = await graph.aget_state(config)
    if not state.created_at:
        await graph.ainvoke(given, config)
    elif state.next:
        await graph.ainvoke(None, config)


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


def replace_tool(
    tool: Any, replace: Callable[[str, Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Put other functions in the place of a tool's, which are given what the model gives."""
    given = schema_of(tool).get("properties", {}).keys()
    real, real_async = tool.func, tool.coroutine

    def call(**params: Any) -> Any:
        return real(**params)

    async def call_async(**params: Any) -> Any:
        return await real_async(**params)

    def only_given(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(**params: Any) -> Any:
            return function(**{name: params[name] for name in params if name in given})

        return called

    tool.response_format = "content"
    if real is not None:
        tool.func = only_given(replace(tool.name, call))
    if real_async is not None:
        tool.coroutine = only_given(replace(tool.name, call_async))


def main(arguments: list[str] | None = None) -> int:
    """Run what a file says."""
    (spec,) = sys.argv[1:] if arguments is None else arguments
    run = BareRun.model_validate_json(Path(spec).read_text(encoding="utf-8"))
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        end = run_bare(run)
    except NotTried as error:
        print(error)
        return 2
    (run.folder / END).write_text(end.model_dump_json(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
