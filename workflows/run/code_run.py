"""Runs whose steps are made by code: your own workflow, over the same step engine.

Calls, approvals, questions, budgets, pauses, compensation: all of it holds as in a plan. The code
decides what comes next, as any Temporal workflow does: by what its steps have returned only.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal

from pydantic import ConfigDict, JsonValue, TypeAdapter, ValidationError
from temporalio import workflow
from temporalio.exceptions import ApplicationError, FailureError

from surehand.workflows import ports
from surehand.workflows.canonical_json import canonical_json
from surehand.workflows.contracts.base import ReadArtifact, StepState, as_artifact
from surehand.workflows.contracts.runs import RecordValue, RunResult, StepView
from surehand.workflows.contracts.tools import (
    MODEL,
    Conversation,
    DescribeTools,
    Effect,
    ModelSaid,
    ModelTurn,
    Recovery,
    ToolDefinition,
    ToolSpec,
    text_digest,
)
from surehand.workflows.names import ErrorType
from surehand.workflows.plan.plan import RECORDING, STEP_FORM, Plan, Step
from surehand.workflows.plan.references import in_words
from surehand.workflows.ports import record_call
from surehand.workflows.run.agent_run import BaseRun
from surehand.workflows.run.run_records import StepFailed, reason_of

__all__ = ["CodeRun", "StepFailed", "StepMaker"]

#: By the execution and the step. This module is not loaded again in the workflow's sandbox, so the
#: activity, which runs on the same worker, finds what the workflow has put here.
_OFFERED: Final[dict[str, Callable[[], Any]]] = {}


@contextmanager
def offer_function(
    workflow_run_id: str, step_id: str, function: Callable[[], Any]
) -> Iterator[str]:
    """Offer a function for as long as its value is waited for; yields the key to it."""
    key = f"{workflow_run_id}/{step_id}"
    _OFFERED[key] = function
    try:
        yield key
    finally:
        # The same run may have been taken into memory again meanwhile, and offer it again.
        if _OFFERED.get(key) is function:
            del _OFFERED[key]


def find_offered(key: str) -> Callable[[], Any] | None:
    return _OFFERED.get(key)


#: What an id made from a tool's name may have.
_NO_ID: Final = re.compile(r"[^A-Za-z0-9_-]")
#: NaN and infinity stay what they are, and are refused: they must not become ``null``.
_ANYTHING: Final[TypeAdapter[Any]] = TypeAdapter(
    Any, config=ConfigDict(ser_json_inf_nan="constants")
)
FailsOn = tuple[type[BaseException], ...]
#: How long a model may take for one turn.
TURN_TIMEOUT: Final = timedelta(minutes=5)
#: The step maker of the run that this code is of; agents find it here.
_CURRENT: Final[ContextVar[StepMaker | None]] = ContextVar("surehand_steps", default=None)


def current_steps() -> StepMaker | None:
    """Return what makes the steps of the run that this code is of; ``None``: it is of none."""
    return _CURRENT.get()


class CodeRun(BaseRun):
    """What a workflow class of your own begins from; see ``examples/late_orders.py``.

    Its ``run`` hands on to ``drive_code``. How its signals, updates and queries are called is the
    same as for runs of plans.

    Example:
        >>> class Refunds(CodeRun):  # with workflow.defn above it, and workflow.run above run
        ...     async def run(self, request: StartRun) -> RunResult:
        ...         return await self.drive_code(self.steps)
        ...     async def steps(self, steps: StepMaker) -> JsonValue:
        ...         return await steps.call("orders.read", {"order_id": steps.input["order_id"]})
    """

    async def drive_code(self, code: Callable[[StepMaker], Awaitable[JsonValue]]) -> RunResult:
        """Have code make the steps of this run; what it returns is the ``output`` of the result.

        Raises:
            ApplicationError: As a run of a plan ends.
        """

        async def forward() -> str | None:
            return await self._forward(code)

        return await self.drive(forward)

    async def _forward(self, code: Callable[[StepMaker], Awaitable[JsonValue]]) -> str | None:
        data, maker = self._data, StepMaker(self)
        _CURRENT.set(maker)
        body = asyncio.ensure_future(code(maker))
        failure: str | None = None
        try:
            await workflow.wait_condition(
                lambda: body.done() or data.cancel is not None or maker.over is not None
            )
            if body.done() and data.cancel is None:
                failure = await self._to_its_end(body, maker)
        except asyncio.CancelledError:
            self._note_cancellation()
        # A call under way ends and is recorded; a wait for a human ends at once.
        data.stopping = True
        body.cancel()
        maker.cancel()
        await self._finish_despite_cancel(
            workflow.wait_condition(lambda: body.done() and maker.idle)
        )
        return failure or maker.over

    async def _to_its_end(self, body: asyncio.Future[JsonValue], maker: StepMaker) -> str | None:
        """Wait for what the code has begun and not waited for; returns why the run has failed."""
        failure = _failure_of(body, maker.fails_on)
        if failure is not None:
            if not body.cancelled() and isinstance(error := body.exception(), StepFailed):
                self._note_failure(error)
            return failure
        maker.returned = True
        await workflow.wait_condition(lambda: maker.idle or self._data.cancel is not None)
        if maker.over is not None or self._is_cancelled():
            return maker.over
        try:
            output = _to_json(body.result(), "what the code returns")
        except ApplicationError as error:
            return error.message  # what was done for it is undone
        try:
            # It is asked again once a human has taken note of what was undone.
            while not await self._try_to_complete():
                if self._is_cancelled():
                    return None
            self._data.output = output
        except StepFailed as lost:
            return lost.reason
        return None

    def _is_cancelled(self) -> bool:
        return self._data.cancel is not None


def _failure_of(body: asyncio.Future[JsonValue], fails_on: FailsOn) -> str | None:
    error = None if body.cancelled() else body.exception()
    if error is None:
        return "the code has cancelled itself" if body.cancelled() else None
    reason = _given_up(error, fails_on)
    if reason is None:
        # An ordinary exception is a mistake in the code: Temporal tries the workflow task again
        # until somebody has mended it, and nothing is undone for it.
        raise error
    return reason


def _given_up(error: BaseException, fails_on: FailsOn) -> str | None:
    """Return why the code gives up; ``None`` for a mistake in it."""
    if isinstance(error, StepFailed):
        return error.reason
    if isinstance(error, ApplicationError):
        return f"{error.message} ({error.type})"
    if isinstance(error, (FailureError, TimeoutError)):
        # Temporal would end the run for one of these, and nothing would be undone.
        return reason_of(error)
    if isinstance(error, BaseExceptionGroup):  # of an asyncio.TaskGroup
        reasons = [_given_up(one, fails_on) for one in error.exceptions]
        return None if None in reasons else "; ".join(filter(None, reasons))
    if isinstance(error, fails_on):
        cause = error.__cause__  # a tool has given up, and the framework says which
        return cause.reason if isinstance(cause, StepFailed) else f"{type(error).__name__}: {error}"
    return None


class StepMaker:
    """Makes the steps of one run.

    A step's id is given, or made from the tool's name: ``refund``, ``refund-2``, ... in the order
    of the calls, which is the same in each replay, also in loops and gathers.

    Example:
        >>> async def pay_all(steps: StepMaker) -> None:
        ...     for order_id in steps.input["orders"]:
        ...         if await steps.ask(f"Pay {order_id} back?", {"type": "boolean"}):
        ...             await steps.call("payments.refund", {"order_id": order_id})
    """

    def __init__(self, run: CodeRun) -> None:
        self._run = run
        self._data = run._data
        self._state = run._data.code
        self._conversations = Conversations()
        self._describing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By tool: of those that are first called at once, one asks."""
        self._defined: dict[tuple[str, ...], list[ToolDefinition]] = {}
        self.running: dict[str, asyncio.Task[JsonValue]] = {}
        """The steps that are under way, by their ids."""
        self.places: dict[str, str] = {}
        """The ids of the steps that models have asked for in this execution, by their call ids."""
        self.fails_on: FailsOn = ()
        """A framework's exceptions that fail the run, where its agents' code raises them."""
        self.returned = False
        """Whether the code has come to its end."""
        self.over: str | None = None
        """Why the run cannot go on, whatever the code does about it."""

    @property
    def input(self) -> dict[str, JsonValue]:
        """What the run was started with."""
        return self._data.request.plan.input

    @property
    def carried(self) -> JsonValue:
        """What the execution before has handed on by ``continue_as_new``; ``None`` in the first."""
        return self._state.handed_on

    @property
    def history_is_long(self) -> bool:
        """Whether it is time to continue as new: the server ends a history of 51,200 events."""
        return self._run._continuing.is_due()

    async def continue_as_new(self, state: JsonValue) -> None:
        """Go on in another execution of this run, which begins the code again.

        Approvals, questions, the saga, budgets: all of the run goes along; of the code only
        ``state``, which is ``carried`` there. The ids of all its steps go along: one that came
        again would be taken for the step that had it. No step may be under way. Returns only if
        there is too much to carry (32 MiB): the code goes on then, and may try again later.
        """
        if not self.idle:
            raise _mistake_in_code("continue_as_new: a step is under way; await it first")
        handed_on = _to_json(state, "what continue_as_new hands on")
        await workflow.wait_condition(lambda: not self.idle or self._run._continuing.is_quiet())
        if not self.idle:
            raise _mistake_in_code(
                "continue_as_new: a step was begun meanwhile; await all steps first"
            )
        before, self._state.handed_on = self._state.handed_on, handed_on
        self._run._continuing.continue_as_new()
        self._state.handed_on = before

    async def call(
        self,
        tool: str,
        params: dict[str, Any] | None = None,
        *,
        id: str | None = None,
        approval: Any = None,
        on_no: Literal["fail", "continue"] = "fail",
        on_failure: Literal["fail", "pause"] = "fail",
        interrupt: Literal["before", "after"] | None = None,
        time_limit: timedelta | None = None,
    ) -> JsonValue:
        """Call a tool, as a step of a plan does, and return its output.

        A call that was begun is brought to its end also when the code stops waiting for it.

        Args:
            params: Its params, as values: nothing in them is read as a reference.
            id: The step's id; ``None`` makes one from the tool's name.
            approval: As in a plan.
            on_no: Whether an answer no fails the step, or is its output (``{"no": ...}``).
            on_failure: Whether a failure is raised here, or shown to a human first.
            interrupt: Where a human looks at it.
            time_limit: How long its calls may take, with their retries and pauses.

        Raises:
            StepFailed: It failed permanently, or was rejected. Caught, the run goes on, unless the
                call is in doubt: then the run fails in any case.
        """
        given = _to_json(params or {}, f"params of {tool}")
        if not isinstance(given, dict):
            raise _mistake_in_code(f"params of {tool}: no mapping of names to values")
        # Each under its own name: what a param is called must not be read as a path.
        facts = {f"p{number}": value for number, value in enumerate(given.values())}
        step = self._new_step(
            *(id, tool.rpartition(".")[2]),
            tool=tool,
            params=dict(zip(given, (f"${{{name}}}" for name in facts), strict=True)),
            approval=approval,
            on_no=on_no,
            on_failure="pause" if on_failure == "pause" else "continue",
            on_reject="skip",
            interrupt=() if interrupt is None else (interrupt,),
            time_limit=time_limit,
        )
        return await self._make_step(step, facts)

    async def turn(
        self,
        framework: str,
        model: str,
        setup: str,
        messages: Sequence[str],
        *,
        known_by: str,
        timeout: timedelta = TURN_TIMEOUT,
        foreign: bool = False,
    ) -> tuple[str, str]:
        """Ask a model; return what it has said, and the step's id. Frameworks' agents do it so.

        What it has said is recorded, and taken ever after: it is not asked again after a crash, by
        a resume, or by a run that was reset. A turn that fails permanently is shown to a human, who
        may have it tried again.

        Args:
            framework: Whose models and messages they are, such as ``pydantic-ai``.
            model: The model, as the framework names it.
            setup: Settings and tools, as the framework writes them in JSON.
            messages: The whole conversation, each message as the framework writes it in JSON.
            known_by: What people and the model have said so far, without what tools have returned:
                a turn that is recorded is known by it.
            timeout: How long one attempt may take.
            foreign: Whether the model's provider may read content from outside for it.

        Raises:
            StepFailed: It has failed permanently, and a human has not had it tried again.
        """
        turn = self._conversations.make_turn(framework, model, setup, messages, known_by)
        given = turn.model_dump(mode="json")
        self._state.turns += 1
        step = self._new_step(
            *(f"turn-{self._state.turns}", ""),
            tool=MODEL,
            params={name: f"${{{name}}}" for name in given},
            on_failure="pause",
        )
        spec = ToolSpec(
            name=MODEL,
            version="1",
            schema_hash="",
            effect=Effect.READ,
            recovery=Recovery.READ,
            timeout=timeout,
            description="a turn of the model",
            foreign=foreign,
        )
        output = await self.content(await self._make_step(step, given, spec))
        try:
            said = ModelSaid.model_validate(output)
        except ValidationError as error:  # skipped, or replaced, by a human
            raise StepFailed(f"{step.id}: there is no turn to go on with", called=False) from error
        self._run._core.add_line(said.line, step.id)
        self._conversations.note_turn(turn, said, messages)
        return said.response, step.id

    async def tools(self, *names: str) -> list[ToolDefinition]:
        """Return what a model has to be told of tools, with the JSON Schemas of params and outputs.

        It is recorded in the run's history, for the same names once in each execution;
        of tools that were loaded since then nothing is told.

        Args:
            names: Names of tools, or patterns with ``*`` and ``?``. Tools that undo others are
                meant by their exact names only.
        """
        async with self._describing[" ".join(names)]:
            if names not in self._defined:
                asked = DescribeTools(plan=self._data.request.plan, defined=names)
                told = await self._run._core.call(ports.DESCRIBE_TOOLS, asked, "define tools")
                if told.problems:
                    raise _mistake_in_code(in_words(told.problems))
                # None that was loaded since: whoever has started the run did not think of it.
                first = self._state.offered.setdefault(" ".join(names), set(told.tools))
                if self._data.request.plan.tools:
                    first &= self._data.tools.keys()
                # What runs is what the model was told of.
                self._data.tools = {**told.tools, **self._data.tools}
                self._defined[names] = [one for one in told.definitions if one.name in first]
        return self._defined[names]

    def edited(self, step_id: str) -> dict[str, JsonValue] | None:
        """Return the params that a human has put in the place of a call's own, if one has."""
        edited = self._data.of_step(step_id).edited
        return None if edited is None else dict(edited)

    async def refuse(self, tool: str, reason: str, *, id: str | None = None) -> None:
        """Tell, as a step and as an event, that a call is not made, and why."""
        step_id = self._new_id(id, tool.rpartition(".")[2])
        self._data.steps[step_id] = StepView(id=step_id, tool=tool, state=StepState.PENDING)
        await self._run._runner.refuse_step(step_id, tool, reason)

    async def ask(
        self,
        question: str,
        answer: dict[str, JsonValue] | None = None,
        *,
        id: str | None = None,
        expires_in: timedelta | None = None,
        otherwise: JsonValue = None,
    ) -> JsonValue:
        """Ask a human and return the answer.

        Args:
            question: As people read it.
            answer: JSON Schema of the answer; ``None`` takes all but an empty one.
            id: The step's id; ``None`` makes one.
            expires_in: How long it waits; ``None``: forever.
            otherwise: What is taken when nobody answers in time; ``None``: the step fails then.

        Raises:
            StepFailed: Nobody has answered in time.
            ApplicationError: ``answer`` is no JSON Schema.
        """
        asked = {
            "question": "${question}",
            "answer": answer or {},
            "expires_in": expires_in,
            "otherwise": otherwise,
        }
        step = self._new_step(id, "ask", ask=asked)
        return await self._make_step(step, {"question": question})

    async def wait(
        self,
        event: str,
        about: str = "",
        *,
        id: str | None = None,
        expires_in: timedelta | None = None,
        otherwise: JsonValue = None,
    ) -> JsonValue:
        """Wait for an event from outside and return its payload; arguments as for ``ask``.

        Raises:
            StepFailed: It has not come in time.
        """
        waited = {"event": event, "about": "${about}", "expires_in": expires_in}
        step = self._new_step(id, "wait", wait={**waited, "otherwise": otherwise})
        return await self._make_step(step, {"about": about})

    async def record(
        self,
        value: Callable[[], JsonValue] | Callable[[], Awaitable[JsonValue]],
        *,
        id: str | None = None,
    ) -> JsonValue:
        """Return what a function returns, the same ever after: for what is random or read once.

        It runs on the worker, outside of the workflow's sandbox, once. After a crash that kept its
        value from being recorded it runs again, so it must have no effect: for that are tools.

        Raises:
            StepFailed: It has raised, or what it returns is no JSON.
        """
        step_id = self._new_id(id, RECORDING)
        self._data.steps[step_id] = StepView(id=step_id, tool=RECORDING, state=StepState.RUNNING)
        return await self._begin_step(step_id, lambda: self._record_value(step_id, value))

    def artifacts(self) -> set[str]:
        """Return the digests of the artifacts that steps of this execution have returned."""
        found = (as_artifact(output) for output in self._data.facts.values())
        return {artifact.sha256 for artifact in found if artifact is not None}

    async def content(self, output: JsonValue) -> JsonValue:
        """Return the value of an output that is an artifact (over 8 KiB); others as they are.

        It waits for as long as the artifact store does not have it.
        """
        artifact = as_artifact(output)
        if artifact is None:
            return output
        asked = ReadArtifact(tenant=self._data.request.tenant, artifact=artifact)
        read = await self._run._core.call(ports.READ_ARTIFACT, asked, "read an artifact")
        return read.value

    def _new_id(self, given: str | None, made_from: str) -> str:
        base = given or _NO_ID.sub("_", made_from)[:50]
        known = self._state.ids
        number = self._state.numbers.get(base, 0) + 1
        if given is not None and (base in known or not re.fullmatch(STEP_FORM, base)):
            reason = "a step of this run has it" if base in known else f"not {STEP_FORM}"
            raise _mistake_in_code(f"step id {base!r}: {reason}")
        while (made := base if number == 1 else f"{base}-{number}") in known:
            number += 1
        self._state.numbers[base] = number
        known.add(made)
        return made

    def _new_step(self, id_: str | None, made_from: str, **fields: Any) -> Step:
        step_id = self._new_id(id_, made_from)
        try:
            return Step.model_validate({"id": step_id, "after": (), **fields})
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise _mistake_in_code(f"step {step_id}: {where}: {first['msg']}") from error

    async def _make_step(
        self, step: Step, facts: dict[str, Any], spec: ToolSpec | None = None
    ) -> JsonValue:
        view = StepView(id=step.id, tool=step.does, state=StepState.PENDING)
        self._data.steps[step.id] = view
        return await self._begin_step(step.id, lambda: self._run_step(step, facts, spec))

    async def _begin_step(
        self, step_id: str, work: Callable[[], Awaitable[JsonValue]]
    ) -> JsonValue:
        task = self.running[step_id] = asyncio.ensure_future(self._to_its_end(step_id, work))
        # First of those that hear of its end: the code may ask at once whether all is idle.
        task.add_done_callback(lambda _: self.running.pop(step_id))
        return await asyncio.shield(task)

    async def _to_its_end(
        self, step_id: str, work: Callable[[], Awaitable[JsonValue]]
    ) -> JsonValue:
        try:
            if self.over is not None or self._data.stopping:
                raise StepFailed(self.over or "the run is ending", called=False)
            return await work()
        except StepFailed as failed:
            # Behind the code's back nobody makes up for it.
            if failed.unsettled or failed.given_up or self.returned:
                self.over = self.over or f"step {step_id}: {failed.reason}"
            raise

    async def _run_step(
        self, step: Step, facts: dict[str, Any], spec: ToolSpec | None
    ) -> JsonValue:
        if step.tool and step.tool != MODEL:
            async with self._describing[step.tool]:
                if step.tool not in self._data.tools:
                    await self._ask_about_tool(step, facts)
        known = self._data.of_step(step.id)
        known.spec = spec
        try:
            await self._run._scheduler.run_one(step, facts)
        finally:
            known.spec = None  # the next execution need not know it
        output: JsonValue = self._data.facts.get(step.id)
        return output

    async def _ask_about_tool(self, step: Step, params: dict[str, Any]) -> None:
        """Get the spec of a tool that this run has not called before, and check the step once."""
        references = {
            name: str(value).replace("${", "${input.", 1) for name, value in step.params.items()
        }
        named = step.model_copy(update={"id": "step", "params": references})
        plan = Plan(name=self._data.request.plan.name, input=params, steps=(named,))
        asked = DescribeTools(plan=plan)
        described = await self._run._core.call(ports.DESCRIBE_TOOLS, asked, f"describe {step.tool}")
        if described.problems:
            why = in_words(described.problems).replace("steps.0 (step).", "")
            raise await self._run._runner.refuse_step(step.id, step.does, why)
        self._data.tools.update(described.tools)

    async def _record_value(self, step_id: str, value: Callable[[], Any]) -> JsonValue:
        data = self._data
        with offer_function(workflow.info().run_id, step_id, value) as key:
            asked = RecordValue(**self._data.ids, step_id=step_id, key=key)
            recorded = await self._run._core.call(
                ports.RECORD_VALUE, asked, step_id, local=record_call(step_id)
            )
        if recorded.problem is not None:
            data.set_step(step_id, StepState.FAILED, error=recorded.problem)
            raise StepFailed(recorded.problem)
        data.facts[step_id] = recorded.value
        self._run._core.set_step(step_id, StepState.SUCCEEDED, output=recorded.value)
        return recorded.value

    @property
    def idle(self) -> bool:
        return not self.running

    def cancel(self) -> None:
        """Cancel what is under way: a call ends and is recorded, a wait ends at once."""
        for task in self.running.values():
            task.cancel()


def _to_json(value: Any, what: str) -> Any:
    try:
        plain = _ANYTHING.dump_python(value, mode="json")
        canonical_json(plain)
    except ValueError as error:
        raise _mistake_in_code(f"{what}: no JSON: {error}") from error
    return plain


def _mistake_in_code(reason: str) -> ApplicationError:
    return ApplicationError(reason, type=ErrorType.PLAN_INVALID, non_retryable=True)


#: Conversations that a run goes on from: those of its agents, which hand over to one another.
_MOST_CONVERSATIONS: Final = 16


@dataclass(frozen=True)
class _Kept:
    sha256: str
    messages: tuple[str, ...]


class Conversations:
    """The conversations of one execution; the next one tells its models everything once more."""

    def __init__(self) -> None:
        self._kept: list[_Kept] = []
        """Those that the worker has; the newest comes last."""
        self._setups: set[str] = set()

    def make_turn(
        self, framework: str, model: str, setup: str, messages: Sequence[str], known_by: str
    ) -> ModelTurn:
        """Return a turn that brings what the worker does not have; as for ``StepMaker.turn``."""
        known = max(
            self._kept, key=lambda kept: _count_shared(kept.messages, messages), default=None
        )
        keep = 0 if known is None else _count_shared(known.messages, messages)
        before = known.sha256 if known is not None and keep else None
        sha256 = text_digest(setup)
        return ModelTurn(
            framework=framework,
            model=model,
            setup=sha256,
            setup_text=None if sha256 in self._setups else setup,
            conversation=Conversation(before=before, keep=keep, messages=list(messages[keep:])),
            known_by=text_digest(known_by),
        )

    def note_turn(self, turn: ModelTurn, said: ModelSaid, messages: Sequence[str]) -> None:
        """Note that a turn was taken: the worker has kept what it brought.

        Only where it has kept just this. A framework may write something else in each replay; and
        a turn that is known from before a reset was told other outputs than this run has read.
        """
        if turn.setup == said.setup:
            self._setups.add(turn.setup)
        if turn.conversation.sha256 != said.conversation:
            return
        kept = _Kept(said.conversation, tuple(messages))
        before = turn.conversation.before
        others = [one for one in self._kept if one.sha256 not in (before, kept.sha256)]
        self._kept = [*others, kept][-_MOST_CONVERSATIONS:]


def _count_shared(known: Sequence[str], messages: Sequence[str]) -> int:
    pairs = zip(known, messages, strict=False)
    return next(
        (n for n, (one, other) in enumerate(pairs) if one != other), min(len(known), len(messages))
    )
