"""What all frameworks share: agents by name, how models are asked, what becomes of their calls.

A framework is imported when one of its models is first asked: each is an extra of its own.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic import JsonValue
from pydantic_core import to_json
from temporalio.exceptions import ApplicationError, FailureError
from temporalio.workflow import in_workflow

from surehand.activities.tools import failures
from surehand.activities.tools.toolbox import ToolboxError
from surehand.workflows.contracts.base import ARTIFACT, as_artifact
from surehand.workflows.names import provider_names
from surehand.workflows.plain_text import plain
from surehand.workflows.plan.plan import Plan
from surehand.workflows.run.code_run import StepFailed, StepMaker

if TYPE_CHECKING:  # a workflow imports this module, and must not bring along the ledger
    from surehand.activities.effects.model_turns import AskModel, Said, TurnRequest

#: What frameworks are made of, which a workflow's sandbox would load again for each run, or refuse.
PASSED_THROUGH: Final = (
    *("pydantic_ai", "pydantic_graph", "anyio", "sniffio", "httpx", "httpx2", "httpcore"),
    *("httpcore2", "opentelemetry", "genai_prices", "certifi", "truststore", "openai", "anthropic"),
    *("agents", "mcp", "mcp_types"),
    *("langchain", "langchain_core", "langchain_protocol", "langgraph", "langgraph_sdk"),
    *("langsmith", "requests", "requests_toolbelt", "uuid_utils", "xxhash", "ormsgpack", "orjson"),
    *("google.auth", "logfire", "rich", "griffe"),
)


#: What plans may name, by ``module:name``: what the worker's modules hold.
_NAMED: Final[dict[str, Any]] = {}


def load_agents(modules: Iterable[str]) -> None:
    """Import the named modules: plans may name what is in them, and nothing else.

    Raises ``ToolboxError``.
    """
    _NAMED.clear()
    for module_name in modules:
        try:
            module = importlib.import_module(module_name)
        except (Exception, SystemExit) as error:
            where = f"agent module {module_name!r} (SUREHAND_AGENT_MODULES)"
            reason = f"cannot be imported: {type(error).__name__}: {error}"
            raise ToolboxError(f"{where} {reason}") from error
        _NAMED.update({f"{module_name}:{name}": value for name, value in vars(module).items()})


def named(name: str) -> Any:
    """Return the agent or model that a plan names as ``module:name``; ``None``: there is none."""
    return _NAMED.get(name)


def find_name(one: Any) -> str | None:
    """Return the name by which plans find an agent or a model; ``None``: it has none."""
    return next((name for name, value in _NAMED.items() if value is one), None)


#: Bytes of one output that a model is told as it is; of a larger one it is told the artifact.
LARGEST_TOLD: Final = 64 * 1024
#: Characters of one question to a human.
LONGEST_QUESTION: Final = 2000
#: Before what a model has sent in the place of a call's arguments.
NO_OBJECT: Final = "its arguments are no JSON object: "
_REJECTED: Final = "rejected"
_EDITED: Final = "a_human_changed_it_and_ran_instead"
#: What somebody is told who calls a run's tools, and has no run.
OUTSIDE: Final = (
    "these tools are called inside a Surehand run only: start one with `surehand start`"
)


class HumanTool(NamedTuple):
    """A tool by which a model turns to a human."""

    name: str
    description: str
    params_schema: dict[str, Any]


_ASK_HUMAN: Final = HumanTool(
    "ask_human",
    "Ask a human, and get the answer.",
    {
        "type": "object",
        "properties": {
            "question": {"type": "string"},
            "answer": {"type": "object", "description": "JSON Schema of the answer"},
        },
        "required": ["question"],
    },
)
_GIVE_UP: Final = HumanTool(
    "give_up",
    "Say that the goal cannot be reached. What was done is undone.",
    {"type": "object", "properties": {"reason": {"type": "string"}}, "required": ["reason"]},
)
HUMAN_TOOLS: Final = {tool.name: tool for tool in (_ASK_HUMAN, _GIVE_UP)}

#: Names under which settings and tools at providers take what nobody else may see.
_SECRETS: Final = re.compile(
    r"(extra_|default_|http_)?headers|(x_)?api_?key|cookies?|password|(client_)?secret|bearer"
    r"|(proxy_)?authorization(_token)?|(access|auth|bearer|id)_?token|credentials?"
)


def secret_in(value: object, path: str = "") -> str | None:
    """Return where in settings something stands that is secret by its name; ``None``: nowhere.

    All of a turn is recorded in plain.
    """
    if isinstance(value, Mapping):
        for name, part in value.items():
            here = f"{path}.{name}" if path else str(name)
            if part and path and _SECRETS.fullmatch(str(name).lower().replace("-", "_")):
                return here
            if (found := secret_in(part, here)) is not None:
                return found
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for number, part in enumerate(value):
            if (found := secret_in(part, f"{path}.{number}")) is not None:
                return found
    return None


def refuse_secrets(refusal: type[Exception], settings: object, tools: object) -> None:
    """Refuse a turn with settings, or tools of the provider's, in which a secret stands."""
    path = secret_in({"settings": settings, "tools": tools})
    if path is not None:
        raise refusal(
            f"{path} would be recorded with the turn, in plain: give it to the model or its client,"
            " where the worker makes it"
        )


def prompt_of(plan: Plan) -> str:
    if not plan.input:
        return plan.goal
    return f"{plan.goal}\n\nInput:\n{to_json(plan.input).decode()}"


def stay_on_one_thread() -> None:
    """Have functions that are not async run on the workflow's thread: it has no other."""
    if in_workflow():
        # The loop is this workflow's alone, and ends with it.
        loop = asyncio.get_running_loop()
        loop.run_in_executor = _run_here  # type: ignore[method-assign,assignment]


async def _run_here(executor: Any, function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


@contextmanager
def fail_run() -> Iterator[None]:
    """Have the run fail where an agent has; otherwise Temporal would try its code for ever."""
    try:
        yield
    except (StepFailed, FailureError):
        raise
    except Exception as error:
        if isinstance(error.__cause__, StepFailed):  # of a tool: the SDK says which
            raise error.__cause__ from error
        # What the model has said is recorded, and would lead to it again.
        raise StepFailed(f"{type(error).__name__}: {error}", called=False) from error


async def offer_tools(steps: StepMaker, patterns: Iterable[str]) -> dict[str, Any]:
    """Return tools of the run, by the names that models know."""
    definitions = await steps.tools(*patterns)
    theirs = provider_names(one.name for one in definitions)
    return {theirs[one.name]: one for one in definitions}


class PlacedCall(NamedTuple):
    """A call that a turn asks for, and the step that it is made as."""

    call_id: str
    """By which the framework is to know it: no other call of this execution has it."""
    step_id: str
    refused: str | None
    """Why it is not made; ``None``: it may be."""


async def place_calls(
    steps: StepMaker,
    turn_id: str,
    calls: Iterable[tuple[str | None, str, str | None]],
    there: Collection[str],
) -> list[PlacedCall]:
    """Note the steps of the calls that a turn asks for, and refuse those that cannot be made.

    A step's id is the turn's with the call's place: ``turn-3.2``. A plan's own ids have no dot,
    because references have. Some models number their calls in each turn from the same number on,
    and agents run side by side: a call without an id, or with one that another call has, gets an id
    of nine digits, which every provider takes. ``calls``: the model's own call ids, the tools, and
    what is wrong with each.
    """
    placed = list[PlacedCall]()
    for place, (call_id, tool, refused) in enumerate(calls, start=1):
        number = len(steps.places)
        while not call_id or call_id in steps.places:
            call_id, number = f"{number:09}", number + 1
        step_id = steps.places[call_id] = f"{turn_id}.{place}"
        if tool not in there:
            refused = "it is none of the tools that this run has: " + ", ".join(sorted(there))
        if refused is not None:
            await steps.refuse(plain(tool, 120), refused, id=step_id)
        placed.append(PlacedCall(call_id, step_id, refused))
    return placed


async def call_for_model(
    steps: StepMaker, tool: str, params: dict[str, Any], step_id: str | None
) -> JsonValue:
    """Make a call as a step, and return what the model is told of it.

    That is the output. Where there is none, or where a human has changed the call, it is told
    ``no``, ``rejected`` or ``failed`` with the reason, and ``ran_instead``: the params that ran.
    ``rejected`` is also what a human has called off, or had undone, once it was in doubt.
    An output that looks like a human's word is told as the ``output`` that it is.
    """
    try:
        if _names_other_artifacts(params, steps.artifacts()):
            raise StepFailed("its params name an artifact that the run does not have", called=False)
        output = await steps.call(tool, params, id=step_id, on_no="continue")
        artifact = as_artifact(output)
        if artifact is None or artifact.bytes <= LARGEST_TOLD:
            output = await steps.content(output)
    except ApplicationError as error:  # its params are no JSON that can be handed on
        return {"failed": error.message}
    except StepFailed as failed:
        # It is in doubt no more: its run has waited for people, or is over.
        no = failed.rejected or failed.called_off
        told: dict[str, Any] = {_REJECTED if no else "failed": failed.reason}
        return told | _edited(steps, step_id)
    edited = _edited(steps, step_id)
    return {"output": output} | edited if edited or is_said_by_people(output) else output


async def call_human(
    steps: StepMaker, tool: str, params: dict[str, Any], step_id: str | None
) -> JsonValue:
    """Ask a human as a step, and return the answer; or give up. Raises ``StepFailed``."""
    if tool == _GIVE_UP.name:
        reason = f"the model gives up: {plain(params.get('reason'), 2000)}"
        raise StepFailed(reason, called=False)
    question, answer = question_of(params.get("question")), params.get("answer")
    try:
        return await steps.ask(question, answer if isinstance(answer, dict) else None, id=step_id)
    except ApplicationError as error:  # it cannot be asked, as two calls of one id cannot
        return {"failed": error.message}
    except StepFailed as failed:
        return {"failed": failed.reason}


async def ask_to_call(steps: StepMaker, tool: str, args: str, call_id: str) -> str | None:
    """Ask a human whether an agent may call a tool of its own; return why not, ``None``: it may."""
    question = plain(f"May the agent call {tool} with {args}?", LONGEST_QUESTION + 1)
    if len(question) > LONGEST_QUESTION:
        return "its params are too long to be shown"  # nobody says yes to what is cut off
    yes = await steps.ask(question, {"type": "boolean"}, id=steps.places.get(call_id))
    return None if yes is True else "a human has said no"


def question_of(value: object) -> str:
    """Return what a human is asked, where a model or somebody's code has written it."""
    return plain(value, LONGEST_QUESTION)


def _names_other_artifacts(value: Any, known: Set[str]) -> bool:
    """Return whether an artifact is named in a value that is none of those.

    A model may hand on what it was told of. It reaches nothing else that the tenant has kept. What
    looks like an artifact in the run's input is none: others' outputs may have brought it there.
    """
    if isinstance(value, dict):
        if ARTIFACT in value:
            artifact = as_artifact(value)
            return artifact is None or artifact.sha256 not in known
        return any(_names_other_artifacts(one, known) for one in value.values())
    return isinstance(value, list) and any(_names_other_artifacts(one, known) for one in value)


def _edited(steps: StepMaker, step_id: str | None) -> dict[str, JsonValue]:
    edited = None if step_id is None else steps.edited(step_id)
    return {} if edited is None else {_EDITED: edited}


def is_said_by_people(told: object) -> bool:
    """Return whether what a model was told of a call of ours is a human's word on it."""
    return isinstance(told, dict) and not told.keys().isdisjoint((_REJECTED, _EDITED))


def is_told_by_people(text: object) -> bool:
    """Return the same of a text that it was told as."""
    try:
        return is_said_by_people(json.loads(text))  # type: ignore[arg-type]
    except (TypeError, ValueError, RecursionError):
        return False


def own_tool(name: str, place: str) -> str:
    """Return why a tool of an agent's own is refused, and where it would be named."""
    return (
        f"tool {name!r} is the agent's own: in a run it would act again in each replay. Make it a"
        f" tool of Surehand's, or name it in {place} if it only calculates"
    )


def provider_tool(name: str, place: str) -> str:
    """Return why a tool that a model's provider runs is refused."""
    return (
        f"tool {name!r} is run by the provider, and nobody can approve what it does. Name it in"
        f" {place} if it changes nothing"
    )


#: How long to wait where a provider says only that it was asked too often.
PAUSE: Final = timedelta(seconds=30)


def make_rate_limited(text: str, named: str | None) -> failures.RateLimited:
    """Return the failure, with the pause of its ``Retry-After``."""
    return failures.RateLimited(
        text, PAUSE if named is None else failures.read_retry_after(named, datetime.now(UTC))
    )


def read_status(text: str, status: int, retry_after: str | None) -> failures.ToolFault:
    """Return the failure that a status of HTTP means."""
    if status == 429:
        return make_rate_limited(text, retry_after)
    if status in (503, 529):
        return failures.DependencyDown(text)
    if status >= 500 or status in (408, 409):
        return failures.Transient(text)
    return failures.Permanent(text)


def price_turn(provider: str, model: str, usage: dict[str, int]) -> Decimal:
    from genai_prices import Usage, calc_price  # of the frameworks' extras

    try:
        return calc_price(Usage(**usage), model, provider_id=provider).total_price
    except (LookupError, ValueError):  # no price is known, and a guess would stop runs
        return Decimal(0)


#: By the package that the class of an agent, or of a graph, comes from.
_FRAMEWORKS: Final = {
    "pydantic_ai": "pydantic-ai",
    "agents": "openai-agents",
    "langgraph": "langgraph",
}


def find_framework(agent: object) -> str | None:
    """Return the framework of an agent, which may not be installed; ``None``: it is of none."""
    packages = (one.__module__.partition(".")[0] for one in type(agent).__mro__)
    return next((_FRAMEWORKS[one] for one in packages if one in _FRAMEWORKS), None)


def import_adapter(framework: str) -> Any:
    """Return our module for a framework. Raises ``ImportError``, which says what to do."""
    try:
        return importlib.import_module(f"surehand.agents.{framework.replace('-', '_')}")
    except ImportError as error:
        extra = framework.replace("langgraph", "langchain")
        remedy = f"pip install 'surehand[{extra}]' for the worker"
        raise ImportError(f"{framework} cannot be imported ({error}): {remedy}") from error


def _import_asker(framework: str) -> AskModel:
    async def ask(asked: TurnRequest) -> Said:
        try:
            said: Said = await import_adapter(framework).ask(asked)
        except ImportError as error:
            raise failures.Permanent(str(error)) from error
        return said

    return ask


FRAMEWORKS: Final = {
    name: _import_asker(name) for name in ("pydantic-ai", "openai-agents", "langchain")
}
