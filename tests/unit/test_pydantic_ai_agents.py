"""Agents of pydantic-ai: what they defer is asked as it can be shown, and no run is no ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import DeferredToolRequests, ToolDenied

from surehand.agents import pydantic_ai as ours
from surehand.agents.calls import LONGEST_QUESTION
from tests.variants import agents


class Steps:
    """What makes steps: it says yes to what it is asked."""

    def __init__(self) -> None:
        self.places = {"call-1": "turn-1.1"}
        self.asked: list[tuple[str, Any, str | None]] = []

    async def ask(self, question: str, answer: Any = None, *, id: str | None = None) -> Any:
        self.asked.append((question, answer, id))
        return True


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    made = Steps()
    monkeypatch.setattr(ours, "current_steps", lambda: made)
    return made


def call(**args: Any) -> ToolCallPart:
    return ToolCallPart("discount", args, tool_call_id="call-1")


async def deferred(**requests: Any) -> Any:
    context: Any = None
    asked = DeferredToolRequests(**requests)
    return await ours.Surehand([]).handle_deferred_tool_calls(context, requests=asked)


HIDDEN = "order-1\u202e\u200b"
SHOWN = r"order-1\u202e\u200b"


async def test_what_waits_for_a_yes_is_shown_with_all_that_cannot_be_seen(steps: Steps) -> None:
    results = await deferred(approvals=[call(order_id=HIDDEN)])
    question = f'May the agent call discount with {{"order_id":"{SHOWN}"}}?'
    assert steps.asked == [(question, {"type": "boolean"}, "turn-1.1")]
    assert results.approvals == {"call-1": True}


async def test_nobody_says_yes_to_what_is_too_long_to_be_shown(steps: Steps) -> None:
    results = await deferred(approvals=[call(note="x" * LONGEST_QUESTION)])
    assert isinstance(results.approvals["call-1"], ToolDenied)
    assert steps.asked == []


async def test_a_humans_question_is_shown_in_bounds(steps: Steps) -> None:
    await deferred(calls=[call(order_id=HIDDEN, note="x" * LONGEST_QUESTION)])
    [(question, _, step_id)] = steps.asked
    assert (len(question), step_id) == (LONGEST_QUESTION, "turn-1.1")
    assert SHOWN in question


async def test_outside_of_a_run_an_agent_calls_nothing(tmp_path: Path) -> None:
    count = tmp_path / "count"
    for agent in (agents.refunds, agents.asker):
        with pytest.raises(UserError, match="inside a Surehand run only"):
            await agent.run(f"Refund {count} order-1")
    assert not count.exists()


async def test_outside_of_a_run_what_is_deferred_is_left_to_others() -> None:
    assert await deferred(approvals=[call(percent=50)]) is None
