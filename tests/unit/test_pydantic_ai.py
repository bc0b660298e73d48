"""pydantic-ai: what errors of providers mean for a turn, and what its agents defer."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import exceptions
from pydantic_ai.exceptions import ModelHTTPError, UserError
from pydantic_ai.messages import ModelMessage, ModelRequest, ToolCallPart, UserPromptPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.tools import DeferredToolRequests, ToolDenied
from pydantic_core import to_json

from surehand.activities.effects.model_turns import TurnRequest
from surehand.activities.tools.failures import (
    BEYOND_MEASURE,
    DependencyDown,
    Permanent,
    RateLimited,
    ToolFault,
    Transient,
)
from surehand.agents import pydantic_ai as asking
from surehand.agents.calls import LONGEST_QUESTION
from surehand.agents.pydantic_ai import Setup
from tests.variants import agents

#: As Google names its pause: in the body, of a stream that had begun.
NAMED_IN_BODY = exceptions.ModelRateLimitError("m", "slow down", retry_after=41.5, in_stream=True)


def status(code: int, category: Any = None, **headers: str) -> ModelHTTPError:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return ModelHTTPError.for_category(category, status_code=code, model_name="m", headers=named)


def limited(**headers: str) -> ModelHTTPError:
    return status(429, exceptions.ModelRateLimitError, **headers)


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (status(503, exceptions.ModelUnavailableError), DependencyDown),
        (status(529, exceptions.ModelOverloadedError), DependencyDown),
        (exceptions.ModelOverloadedError("m", "busy", in_stream=True), DependencyDown),
        (exceptions.ModelConnectionError("m", "away"), DependencyDown),
        (status(500, exceptions.ModelServerError), Transient),
        (exceptions.ModelServerError("m", "broken", in_stream=True), Transient),
        (status(408), Transient),
        (status(409), Transient),
        (exceptions.ModelTimeoutError("m", "slow"), Transient),
        (exceptions.ModelRequestTimeout("m", 30), Transient),
        (exceptions.ConcurrencyLimitExceeded("too many wait"), Transient),
        (exceptions.UnexpectedModelBehavior("no answer"), Transient),
        (status(400, exceptions.ModelRequestRejectedError), Permanent),
        (status(401, exceptions.ModelAuthenticationError), Permanent),
        # Waiting does not help, whatever it says.
        (status(429, exceptions.ModelQuotaExceededError, retry_after="7"), Permanent),
        (exceptions.UserError("no such model"), Permanent),
    ],
)
def test_a_providers_error_is_its_failure(error: Exception, fault: type[ToolFault]) -> None:
    assert type(asking._classify_error(error)) is fault


@pytest.mark.parametrize(
    ("error", "pause"),
    [
        (limited(retry_after="7"), timedelta(seconds=7)),
        (limited(retry_after_ms="1500", retry_after="2"), timedelta(seconds=1.5)),
        (limited(retry_after="9" * 20), BEYOND_MEASURE),
        (limited(), timedelta(seconds=30)),
        (status(429, retry_after="7"), timedelta(seconds=7)),
        (NAMED_IN_BODY, timedelta(seconds=41.5)),
    ],
)
def test_a_busy_provider_says_when_to_come_back(error: Exception, pause: timedelta) -> None:
    fault = asking._classify_error(error)
    assert isinstance(fault, RateLimited)
    assert fault.retry_after == pause


def asked(model: str) -> TurnRequest:
    setup = Setup(settings=None, parameters=ModelRequestParameters())
    message = ModelRequest(parts=[UserPromptPart("hi")])
    return TurnRequest(model, setup.model_dump_json(), (to_json(message).decode(),))


@pytest.mark.parametrize(
    ("errors", "fault"),
    [
        ([limited(retry_after="7"), limited(retry_after="9")], RateLimited),
        ([limited(retry_after="9"), status(503, exceptions.ModelUnavailableError)], RateLimited),
        ([status(500, exceptions.ModelServerError)] * 2, Transient),
        ([status(401, exceptions.ModelAuthenticationError)] * 2, Permanent),
    ],
)
async def test_where_each_of_several_models_has_failed_the_longest_pause_counts(
    monkeypatch: pytest.MonkeyPatch, errors: list[Exception], fault: type[ToolFault]
) -> None:
    def failing(error: Exception) -> FunctionModel:
        def fail(messages: list[ModelMessage], info: AgentInfo) -> Any:
            raise error

        return FunctionModel(fail)

    monkeypatch.setattr(asking.calls, "named", lambda name: FallbackModel(*map(failing, errors)))
    with pytest.raises(ToolFault) as raised:
        await asking.ask(asked("any"))
    assert type(raised.value) is fault
    if isinstance(raised.value, RateLimited):
        assert raised.value.retry_after == timedelta(seconds=9)


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
    monkeypatch.setattr(asking, "current_steps", lambda: made)
    return made


def call(**args: Any) -> ToolCallPart:
    return ToolCallPart("discount", args, tool_call_id="call-1")


async def deferred(**requests: Any) -> Any:
    context: Any = None
    asked = DeferredToolRequests(**requests)
    return await asking.Surehand([]).handle_deferred_tool_calls(context, requests=asked)


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
