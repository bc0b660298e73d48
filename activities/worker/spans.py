"""Spans of tool calls and model turns, by the GenAI conventions; without a tracer they are none.

What is here needs no OpenTelemetry: ``activities/worker/traces.py`` makes real spans of it. No span
has what a call was given, what came of it, or the words of an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Final

from surehand.workflows.canonical_json import digest
from surehand.workflows.contracts.effects import Compensate
from surehand.workflows.contracts.tools import (
    MODEL,
    AnsweredNo,
    HumanNeeded,
    Succeeded,
    ToolCall,
    ToolReport,
)

Value = str | int | bool

EXECUTE_TOOL: Final = "execute_tool"
CHAT: Final = "chat"
INVOKE_AGENT: Final = "invoke_agent"

#: Characters of a model's name.
_LONGEST_NAME: Final = 200
#: What is found out of the call under way while its span is open.
_NOTES: ContextVar[dict[str, Value] | None] = ContextVar("notes", default=None)


def note(found: Mapping[str, Value | None]) -> None:
    """Add attributes to the span that is open; outside of one nothing is noted."""
    notes = _NOTES.get()
    if notes is not None:
        notes |= {name: value for name, value in found.items() if value is not None}


def note_effect(tenant: str, tool: str, key: str) -> None:
    """Note which effect a call is about: the same key has the same hash in every run."""
    note({"surehand.effect.key_hash": digest([tenant, tool, key])})


def note_said(input_tokens: int | None, output_tokens: int | None) -> None:
    """Note what a model says that a turn has used; nothing where it was not asked."""
    used = {"input_tokens": input_tokens, "output_tokens": output_tokens}
    note({f"gen_ai.usage.{name}": tokens for name, tokens in used.items()})


@contextmanager
def noting() -> Iterator[dict[str, Value]]:
    """Keep what is noted in the block."""
    notes: dict[str, Value] = {}
    token = _NOTES.set(notes)
    try:
        yield notes
    finally:
        _NOTES.reset(token)


class Spans:
    """Makes no spans; ``traces.py`` has those who do."""

    def open(
        self, operation: str, name: str, attributes: Mapping[str, Value]
    ) -> AbstractContextManager[None]:
        """Open a span for as long as the block lasts."""
        return nullcontext()

    @contextmanager
    def call(self, call: ToolCall, attempt: int) -> Iterator[None]:
        """Open the span of one attempt of a tool call, or of a model's turn."""
        known: dict[str, Value] = {
            "gen_ai.tool.call.id": call.step_id,
            "surehand.attempt": call.attempts_before + attempt,
            **_of_run(call.tenant, call.run_id, call.step_id),
        }
        if call.approval_id is not None:
            known["surehand.approval.id"] = call.approval_id
        if call.tool.name != MODEL:
            with self.open(EXECUTE_TOOL, call.tool.name, known):
                yield
            return
        del known["gen_ai.tool.call.id"]
        model = str(call.params.get("model", ""))[:_LONGEST_NAME]
        provider = model.partition(":")[0] if ":" in model else call.params.get("framework")
        known["gen_ai.provider.name"] = str(provider)[:_LONGEST_NAME]
        with self.open(CHAT, model, known):
            yield

    @contextmanager
    def undo(self, asked: Compensate, tool: str, attempt: int) -> Iterator[None]:
        """Open the span of one attempt to undo an effect."""
        known: dict[str, Value] = {
            "gen_ai.tool.call.id": asked.step_id,
            "surehand.attempt": attempt,
            "surehand.effect.undoes": asked.entry_id,
            **_of_run(asked.tenant, asked.run_id, asked.step_id),
        }
        with self.open(EXECUTE_TOOL, tool, known):
            yield


def _of_run(tenant: str, run_id: str, step_id: str) -> dict[str, Value]:
    return {
        "gen_ai.conversation.id": run_id,
        "surehand.tenant": tenant,
        "surehand.run.id": run_id,
        "surehand.step.id": step_id,
    }


def note_report(report: ToolReport) -> None:
    """Note how a call has ended, and whether it was there already."""
    outcome = report.outcome
    note({"surehand.outcome": outcome.kind})
    match outcome:
        case Succeeded(replayed=replayed, entry_id=entry_id):
            note({"surehand.replayed": replayed, "surehand.effect.id": entry_id})
        case AnsweredNo(replayed=replayed):
            note({"surehand.replayed": replayed})
        case HumanNeeded(intervention_id=intervention_id):
            note({"surehand.intervention.id": intervention_id})
        case _:
            pass
