"""pydantic-ai: the capability that makes an agent's turns and tool calls steps of a run.

Its hooks run in workflow code, on every replay: they do nothing but make steps. ``ask`` is the
activity's side of a turn.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence, Set
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final

import anyio._backends._asyncio  # noqa: F401  # lazily imported, it would be in a workflow
from pydantic import BaseModel, TypeAdapter
from pydantic_ai import Agent, UsageLimits, exceptions
from pydantic_ai._utils import disable_threads  # no public name does it
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.capabilities.abstract import WrapRunHandler, leaf_capabilities
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse, infer_model
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import (
    DeferredToolRequests,
    DeferredToolResults,
    RunContext,
    ToolDefinition,
    ToolDenied,
)
from pydantic_ai.toolsets import AbstractToolset
from pydantic_ai.toolsets.abstract import ToolsetTool
from pydantic_core import SchemaValidator, core_schema, to_json
from temporalio import workflow
from temporalio.exceptions import FailureError

from surehand.activities.effects.model_turns import Said, TurnRequest
from surehand.activities.tools import failures
from surehand.agents import calls
from surehand.workflows.plan.plan import Plan
from surehand.workflows.run.code_run import TURN_TIMEOUT, StepFailed, StepMaker, current_steps

FRAMEWORK: Final = "pydantic-ai"
RESPONSE: Final[TypeAdapter[ModelResponse]] = TypeAdapter(ModelResponse)
_MESSAGE: Final[TypeAdapter[ModelMessage]] = TypeAdapter(ModelMessage)
#: What a model gives a tool; whether it fits the tool is found where it is called.
_OBJECT: Final = SchemaValidator(core_schema.dict_schema(core_schema.str_schema()))
_OURS: Final = "surehand"
#: Turns in a row that make no sense; then the run fails.
MOST_MISTAKES: Final = 3
_Carried: Final[TypeAdapter[list[str]]] = TypeAdapter(list[str])
#: Whether a run with a long history goes on in another execution, between two turns.
_CONTINUED: Final[ContextVar[bool]] = ContextVar("surehand_continued", default=False)
#: Agents that this code is inside of.
_DEPTH: Final[ContextVar[int]] = ContextVar("surehand_depth", default=0)


class Setup(BaseModel):
    """What a turn is asked with, beside its messages."""

    settings: dict[str, Any] | None
    parameters: ModelRequestParameters


class Surehand(AbstractCapability[Any]):
    """Makes what an agent does steps of the run that it is run in.

    Outside of a run its tools refuse to be called: without a ledger nothing would keep them from
    paying twice.

    Example:
        >>> agent = Agent(
        ...     "anthropic:claude-sonnet-4-5",
        ...     instructions="Refund what the customer asks for, if the order allows it.",
        ...     capabilities=[Surehand(["orders.read", "payments.refund"])],
        ... )
    """

    id: str | None = _OURS

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
            own: Tools of the agent itself that may be called as well. They run in workflow code,
                anew in each replay: they may calculate, ask, and nothing else. Also the kinds of
                tools at the model's provider, such as ``web_search``: they may read.
            model: Where the worker finds a model that has no id, as ``module:name``: the model, or
                an agent that has it. By default the model's id.
            turn_timeout: How long one attempt at a turn may take.
        """
        self._tools = tuple(tools)
        self._human = calls.HUMAN_TOOLS if human else {}
        self._own = frozenset(own)
        self._model = model
        self._turn_timeout = turn_timeout

    def get_toolset(self) -> AbstractToolset[Any]:
        return _RunTools(self._tools, self._human)

    def get_wrapper_model(self, model: Model) -> Model:
        """Return the model as one whose turns are recorded."""
        name = self._model or model.model_id
        return _RecordedModel(model, name, self._own, self._human.keys(), self._turn_timeout)

    def get_default_run_id(self) -> str | None:
        steps = current_steps()
        return None if steps is None else str(workflow.uuid4())

    def get_default_conversation_id(self, run_id: str) -> str | None:
        return None if current_steps() is None else run_id

    def get_run_clock(self) -> Any:
        return None if current_steps() is None else workflow.now

    async def prepare_tools(
        self, ctx: RunContext[Any], tool_defs: list[ToolDefinition]
    ) -> list[ToolDefinition]:
        """Refuse tools that nobody would keep from acting twice."""
        if current_steps() is None:
            return tool_defs
        for tool in tool_defs:
            if tool.toolset_id != _OURS and tool.name not in self._own:
                raise exceptions.UserError(calls.own_tool(tool.name, "Surehand(own=[...])"))
        return tool_defs

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Ask a human what the agent's own tools have deferred."""
        steps = current_steps()
        if steps is None:
            return None
        approvals, answers = dict[str, bool | ToolDenied](), dict[str, Any]()
        for call in requests.approvals:
            given = (call.tool_name, call.args_as_json_str(), call.tool_call_id)
            why_not = await calls.ask_to_call(steps, *given)
            approvals[call.tool_call_id] = True if why_not is None else ToolDenied(why_not)
        for call in requests.calls:
            question = calls.question_of(f"{call.tool_name}: {call.args_as_json_str()}")
            step_id = steps.places.get(call.tool_call_id)
            answers[call.tool_call_id] = await steps.ask(question, id=step_id)
        return requests.build_results(approvals=approvals, calls=answers)

    async def wrap_run(self, ctx: RunContext[Any], *, handler: WrapRunHandler) -> Any:
        """Keep an agent's code on the workflow's one thread."""
        if current_steps() is None:
            return await handler()
        token = _DEPTH.set(_DEPTH.get() + 1)
        try:
            with disable_threads():
                return await handler()
        finally:
            _DEPTH.reset(token)

    async def on_run_error(self, ctx: RunContext[Any], *, error: BaseException) -> Any:
        """Have the run fail where the agent has; otherwise Temporal would try its code for ever."""
        ends = isinstance(error, Exception) and not isinstance(error, StepFailed | FailureError)
        if current_steps() is not None and ends:
            # Whatever it is: what the model has said is recorded, and would lead to it again.
            raise StepFailed(f"{type(error).__name__}: {error}", called=False) from error
        raise error


async def run_agent(steps: StepMaker, plan: Plan) -> Any:
    """Run the agent of a plan to its end, and return its output. Raises ``StepFailed``."""
    agent = _agent_of(plan)
    before = [
        _MESSAGE.validate_json(text) for text in _Carried.validate_python(steps.carried or [])
    ]
    prompt = None if before else calls.prompt_of(plan)
    unlimited = UsageLimits(request_limit=None)  # the run has a budget
    _CONTINUED.set(True)
    result = await agent.run(prompt, message_history=before or None, usage_limits=unlimited)
    return result.output


def _agent_of(plan: Plan) -> Agent[Any, Any]:
    if plan.agent is not None:
        found = calls.named(plan.agent)
        if not isinstance(found, Agent):
            raise StepFailed(f"{plan.agent} is no agent of {FRAMEWORK}", called=False)
        if not any(isinstance(one, Surehand) for one in leaf_capabilities(found.root_capability)):
            reason = f"{plan.agent} has no capability Surehand([...]): it would make no steps"
            raise StepFailed(reason, called=False)
        return found
    assert plan.model is not None
    model = calls.named(plan.model)
    tools = Surehand(plan.tools, human=True, model=plan.model)
    try:
        return Agent(
            model if isinstance(model, Model) else infer_model(plan.model),
            name=plan.name,
            retries=MOST_MISTAKES - 1,
            capabilities=[tools],
        )
    except (exceptions.UserError, ValueError, ImportError) as error:
        raise StepFailed(f"model {plan.model!r}: {error}", called=False) from error


class _RecordedModel(WrapperModel):
    """A model whose turns are steps of the run."""

    def __init__(
        self, wrapped: Model, name: str, own: Set[str], human: Set[str], timeout: timedelta
    ) -> None:
        super().__init__(wrapped)
        self._name, self._own, self._human, self._timeout = name, own, human, timeout

    async def __aenter__(self) -> _RecordedModel:
        # The worker opens the model where it asks it.
        return self if current_steps() is not None else await super().__aenter__()

    async def __aexit__(self, *error: Any) -> bool | None:
        return None if current_steps() is not None else await super().__aexit__(*error)

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        steps = current_steps()
        if steps is None:
            return await super().request(messages, model_settings, model_request_parameters)
        # Not inside a tool that has an agent of its own: its conversation is not the run's.
        outermost = _CONTINUED.get() and _DEPTH.get() == 1
        if outermost and steps.history_is_long and steps.idle:
            await steps.continue_as_new([_MESSAGE.dump_json(one).decode() for one in messages])
        for hosted in model_request_parameters.native_tools:
            if hosted.kind not in self._own:
                raise exceptions.UserError(calls.provider_tool(hosted.kind, "Surehand(own=[...])"))
        settings = None if model_settings is None else dict(model_settings)
        setup = Setup(settings=settings, parameters=model_request_parameters)
        native = [asdict(one) for one in model_request_parameters.native_tools]
        calls.refuse_secrets(exceptions.UserError, settings, native)
        tools = model_request_parameters.function_tools
        ours = {tool.name for tool in tools if tool.toolset_id == _OURS} - self._human
        said, turn_id = await steps.turn(
            FRAMEWORK,
            self._name,
            setup.model_dump_json(),
            [_write_message(message) for message in messages],
            known_by=to_json([_list_said(one, ours) for one in messages], fallback=repr).decode(),
            timeout=self._timeout,
            foreign=bool(model_request_parameters.native_tools),
        )
        response = RESPONSE.validate_json(said)
        parts = [part for part in response.parts if isinstance(part, ToolCallPart)]
        asked = [(part.tool_call_id, part.tool_name, None) for part in parts]
        there = {tool.name for tool in (*tools, *model_request_parameters.output_tools)}
        placed = await calls.place_calls(steps, turn_id, asked, there)
        for part, one in zip(parts, placed, strict=True):
            part.tool_call_id = one.call_id
        return response

    @asynccontextmanager
    async def request_stream(self, *args: Any, **kwargs: Any) -> AsyncGenerator[StreamedResponse]:
        if current_steps() is not None:
            raise exceptions.UserError("inside a run use agent.run(); a turn is not streamed")
        async with super().request_stream(*args, **kwargs) as streamed:
            yield streamed


def _write_message(message: ModelMessage) -> str:
    """Return a message as JSON, without the times that a run which was reset would not have."""
    plain = _MESSAGE.dump_python(message, mode="json")
    if plain["kind"] == "request":
        plain.pop("timestamp", None)
        for part in plain["parts"]:
            part.pop("timestamp", None)
    for name in ("run_id", "conversation_id"):
        plain.pop(name, None)
    return to_json(plain).decode()


def _list_said(message: ModelMessage, ours: Set[str]) -> list[Any]:
    """Return what a person or the model has said in a message: not what tools have returned.

    What people have answered, rejected or changed comes back as a tool's return, too.
    """
    parts = [
        part
        for part in message.parts
        if not isinstance(part, ToolReturnPart)
        or part.tool_name not in ours
        or calls.is_said_by_people(part.content)
    ]
    asked = [[p.tool_name, p.args] if isinstance(p, ToolCallPart) else None for p in parts]
    return [
        (part.part_kind, getattr(part, "content", None), call)
        for part, call in zip(parts, asked, strict=True)
    ]


@dataclass
class _RunTools(AbstractToolset[Any]):
    """The run's tools, as an agent sees them, and those by which it turns to a human."""

    patterns: tuple[str, ...]
    human: Mapping[str, calls.HumanTool]

    @property
    def id(self) -> str:
        """Its name among an agent's toolsets."""
        return _OURS

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """Return the tools, as the run's start has recorded them."""
        offered = await calls.offer_tools(_require_steps(), self.patterns)
        if both := sorted(self.human.keys() & offered.keys()):
            raise exceptions.UserError(f"two tools are called {both[0]!r}")
        return {
            name: ToolsetTool(
                toolset=self,
                tool_def=ToolDefinition(
                    name=name, description=one.description, parameters_json_schema=one.params_schema
                ),
                max_retries=1,
                args_validator=_OBJECT,
            )
            for name, one in {**offered, **self.human}.items()
        }

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """Make a call as a step, and return what the model is told of it."""
        steps = _require_steps()
        step_id = steps.places.get(ctx.tool_call_id or "")
        if name in self.human:
            return await calls.call_human(steps, name, tool_args, step_id)
        called = (await calls.offer_tools(steps, self.patterns))[name].name
        return await calls.call_for_model(steps, called, tool_args, step_id)


def _require_steps() -> StepMaker:
    steps = current_steps()
    if steps is None:
        raise exceptions.UserError(calls.OUTSIDE)
    return steps


async def ask(asked: TurnRequest) -> Said:
    """Ask a model. Raises ``ToolFault``."""
    setup = Setup.model_validate_json(asked.setup)
    messages = [_MESSAGE.validate_json(message) for message in asked.messages]
    model = _model_named(asked.model)
    settings: Any = setup.settings
    try:
        async with model:
            request = (messages, settings, setup.parameters)
            response = await model.request(*request)
    except (
        exceptions.AgentRunError,
        exceptions.UserError,
        exceptions.FallbackExceptionGroup,
    ) as error:
        raise _classify_error(error) from error
    return Said(
        response=RESPONSE.dump_json(response).decode(),
        line=_summarize_turn(response),
        tokens=response.usage.total_tokens,
        input_tokens=response.usage.input_tokens,
        output_tokens=response.usage.output_tokens,
        money=_price_response(response),
    )


def _price_response(response: ModelResponse) -> Decimal:
    try:
        return response.cost().total_price
    except (AssertionError, LookupError, ValueError):
        return Decimal(0)


def _model_named(name: str) -> Model:
    """Return a model by its id, such as ``anthropic:...``, or by where it is: ``module:object``."""
    found = calls.named(name)
    if isinstance(found, Model):
        return found
    try:
        return infer_model(name if found is None else found.model)
    except Exception as error:
        raise failures.Permanent(f"model {name!r}: {type(error).__name__}: {error}") from error


def _classify_error(error: Exception) -> failures.ToolFault:
    text = f"{type(error).__name__}: {error}"
    match error:
        case exceptions.FallbackExceptionGroup():
            # The next attempt asks each of them again: not before the time that one has named.
            return max((_classify_error(one) for one in error.exceptions), key=_rank_patience)
        case exceptions.ModelRateLimitError():
            return failures.RateLimited(text, _make_pause(error.retry_after))
        case exceptions.ModelUnavailableError():
            return failures.DependencyDown(text)
        case exceptions.ModelTimeoutError() | exceptions.ModelRequestTimeout():
            return failures.Transient(text)
        case exceptions.ModelConnectionError():
            return failures.DependencyDown(text)
        case exceptions.ModelQuotaExceededError() | exceptions.ModelRequestRejectedError():
            return failures.Permanent(text)
        case exceptions.ModelHTTPError():
            return calls.read_status(
                text, error.status_code, (error.headers or {}).get("retry-after")
            )
        case exceptions.ModelServerError() | exceptions.ConcurrencyLimitExceeded():
            return failures.Transient(text)
        case exceptions.UnexpectedModelBehavior():
            return failures.Transient(text)  # another answer may make sense
    return failures.Permanent(text)


def _make_pause(seconds: float | None) -> timedelta:
    if seconds is None:
        return calls.PAUSE
    return timedelta(seconds=min(seconds, failures.BEYOND_MEASURE.total_seconds()))


def _rank_patience(fault: failures.ToolFault) -> tuple[int, timedelta]:
    """Return how long to wait after a fault, to be compared with others."""
    longer = (failures.Permanent, failures.Transient, failures.DependencyDown, failures.RateLimited)
    pause = fault.retry_after if isinstance(fault, failures.RateLimited) else None
    return longer.index(type(fault)), pause or timedelta(0)


def _summarize_turn(response: ModelResponse) -> str:
    said = [
        f"calls {part.tool_name}" if isinstance(part, ToolCallPart) else part.content
        for part in response.parts
        if isinstance(part, ToolCallPart | TextPart)
    ]
    return "; ".join(said)
