"""The activity that asks a model. A turn is a read that is decided once, for the run's whole life.

Asking costs minutes and money, and what comes next was built on the answer. So what is recorded of
a turn is taken also by a run that was reset: it asks again only where it was told something else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

from pydantic import ValidationError
from temporalio import activity

from surehand.activities.artifacts import ArtifactStore, ArtifactUnavailable
from surehand.activities.effects.drafts import follow_progress
from surehand.activities.effects.leases import NO_RESOURCES
from surehand.activities.effects.prepare import PreparedCall, claim_request
from surehand.activities.effects.read import ReadCall
from surehand.activities.effects.tool_calls import ToolActivities
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.run_keys import Hashes
from surehand.activities.tools.call_reports import current_meter
from surehand.activities.tools.failures import Permanent
from surehand.activities.tools.tool import Tool, ToolContext
from surehand.activities.worker.context import Attempt, WorkerContext, again, stop
from surehand.activities.worker.crash_points import CrashPoint
from surehand.activities.worker.telemetry import note_said
from surehand.workflows.contracts.tools import (
    MODEL,
    Conversation,
    Effect,
    ModelSaid,
    ModelTurn,
    ToolCall,
    ToolReport,
)
from surehand.workflows.identity import forward_key, root_run_id, step_key
from surehand.workflows.names import ErrorType
from surehand.workflows.plain_text import clean_text, reasons

#: Conversations that a worker has at hand: of one that it has not, each part is read once.
MOST_AT_HAND: Final = 200
#: Characters of one turn, as its framework writes it.
LARGEST_TURN: Final = 1024 * 1024
#: Characters of what people are shown of a turn.
LONGEST_LINE: Final = 500


@dataclass(frozen=True)
class TurnRequest:
    """What a model is asked, whole."""

    model: str
    setup: str
    """Settings and tools, as the framework writes them in JSON."""
    messages: tuple[str, ...]
    """Each as the framework writes it, in JSON."""


@dataclass(frozen=True)
class Said:
    """What a model has said, and what that cost."""

    response: str
    """As the framework writes it, in JSON."""
    line: str
    """The same in a line for people."""
    tokens: int = 0
    money: Decimal = Decimal(0)
    input_tokens: int | None = None
    """Of the tokens, those that it has read; ``None``: it does not say."""
    output_tokens: int | None = None


#: Asks a model; raises as a tool does (``tools/failures.py``).
AskModel = Callable[[TurnRequest], Awaitable[Said]]


class ModelActivities:
    """``take_turn``."""

    def __init__(
        self, worker: WorkerContext, tools: ToolActivities, frameworks: Mapping[str, AskModel]
    ) -> None:
        """Take turns; ``frameworks`` says how each framework asks its models."""
        self._worker = worker
        self._tools = tools
        self._frameworks = frameworks
        self._conversations = KeptConversations(worker.artifacts)

    @activity.defn(name="take_turn")
    async def take_turn(self, call: ToolCall) -> ToolReport:
        """Ask a model, or return what it has said to just this before."""
        attempt = replace(Attempt.current(), unacknowledged=True)
        return await self._tools.report_call(call, attempt, self._taken(call, attempt))

    async def _taken(self, call: ToolCall, attempt: Attempt) -> ToolReport:
        try:
            turn = ModelTurn.model_validate(call.params)
        except ValidationError as error:
            raise stop(ErrorType.INVALID_PARAMS, "; ".join(reasons(error, MODEL))) from error
        ask = self._frameworks.get(turn.framework)
        if ask is None:
            there = ", ".join(sorted(self._frameworks)) or "none"
            reason = f"no models of {turn.framework!r} can be asked here; those of {there} can"
            raise stop(ErrorType.TOOL_NOT_FOUND, reason)
        try:
            asked, kept = await self._conversations.opened(call, turn)
        except ArtifactUnavailable as error:
            # Nobody was asked, and nothing is wrong with the turn: it waits for the store.
            raise again(ErrorType.ARTIFACT_UNAVAILABLE, str(error)) from error

        async def say(params: Any, ctx: ToolContext) -> dict[str, Any]:
            # What it says is recorded in any case, once it is there.
            with attempt.doing.until_cancelled():
                said = await ask(asked)
            current_meter().add(said.tokens, said.money)
            note_said(said.input_tokens, said.output_tokens)
            if len(said.response) > LARGEST_TURN:
                large = f"it has said {len(said.response)} characters, {LARGEST_TURN} at most"
                raise Permanent(large)
            line = clean_text(said.line, LONGEST_LINE)
            recorded = ModelSaid(
                response=said.response,
                line=line,
                setup=turn.setup,
                conversation=turn.conversation.sha256,
            )
            return recorded.model_dump(mode="json")

        worker = self._worker
        prepared = await worker.ledger.with_keys(
            lambda: _prepared(worker.hashes, call, turn, say), call.params
        )
        request = await worker.ledger.with_keys(
            lambda: claim_request(worker, call, prepared, attempt), prepared.plain
        )
        holders = attempt.unacknowledged_holders()
        answers = call.answered
        read = ReadCall(
            *(worker, prepared.tool, turn, request, NO_RESOURCES, answers), holders, kept
        )
        async with follow_progress(worker, call, attempt):
            outcome = await read.run()
        read.crash(CrashPoint.BEFORE_REPORT)
        return ToolReport(outcome=outcome, foreign=read.heard, head=read.head)


def _prepared(hashes: Hashes, call: ToolCall, turn: ModelTurn, say: Any) -> PreparedCall:
    plain, version = turn.as_recorded(), call.tool.version
    tool = Tool(
        name=MODEL,
        version=version,
        effect=Effect.READ,
        fn=say,
        params_model=ModelTurn,
        timeout=call.tool.timeout,
        schema_hash=call.tool.schema_hash,
    )
    key = forward_key(step_key(call.run_id, call.step_id))
    hashed = hashes.of_params(call.run_id, MODEL, version, plain)
    return PreparedCall(tool, turn, plain, hashed.hash, hashed.salt, key, ())


class KeptConversations:
    """What models have been told, of any run: the newest ones at hand, all of them kept."""

    def __init__(self, artifacts: ArtifactStore) -> None:
        self._artifacts = artifacts
        self._at_hand: OrderedDict[tuple[str, str], tuple[str, ...]] = OrderedDict()

    async def opened(self, of: ToolCall, turn: ModelTurn) -> tuple[TurnRequest, tuple[Kept, ...]]:
        """Return what a turn asks, and what its step is to keep of it."""
        kept = [await self._kept(of, turn.conversation.model_dump(mode="json"))]
        setup = turn.setup_text
        if setup is None:
            setup = await self._read(of, turn.setup)
        else:
            kept.append(await self._kept(of, setup))
        messages = await self._messages(of, turn.conversation)
        return TurnRequest(turn.model, str(setup), messages), tuple(kept)

    async def _messages(self, of: ToolCall, conversation: Conversation) -> tuple[str, ...]:
        name = (root_run_id(of.run_id), conversation.sha256)
        messages = self._at_hand.get(name)
        if messages is None:
            messages = await self._joined(of, conversation)
        self._at_hand[name] = messages
        self._at_hand.move_to_end(name)
        while len(self._at_hand) > MOST_AT_HAND:
            self._at_hand.popitem(last=False)
        return messages

    async def _joined(self, of: ToolCall, conversation: Conversation) -> tuple[str, ...]:
        """Return a conversation's messages, by way of those that it goes on from."""
        parts, messages = [conversation], tuple[str, ...]()
        while (before := parts[-1].before) is not None:
            at_hand = self._at_hand.get((root_run_id(of.run_id), before))
            if at_hand is not None:
                messages = at_hand
                break
            parts.append(Conversation.model_validate(await self._read(of, before)))
        for part in reversed(parts):
            messages = (*messages[: part.keep], *part.messages)
        return messages

    async def _kept(self, of: ToolCall, value: Any) -> Kept:
        """Return a value as an artifact, however small it is: later turns name its digest."""
        kept = await self._artifacts.keep(of.tenant, of.run_id, value)
        if kept.artifact is not None:
            return kept
        return await self._artifacts.keep_in_ledger(of.tenant, of.run_id, value)

    async def _read(self, of: ToolCall, sha256: str) -> Any:
        # Small ones are in the ledger, others in the store; the digest says what is right.
        artifact = await self._artifacts.named(of.run_id, sha256)
        return await self._artifacts.read(of.tenant, of.run_id, artifact)
