"""What only agents of the OpenAI Agents SDK do: they hand over, and end in ways of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from surehand.workflows.contracts.runs import RunView
from surehand.workflows.contracts.states import RunState
from surehand.workflows.plan.plan import Plan
from tests.e2e.executions import executions
from tests.e2e.messages import answered
from tests.e2e.runs import decision_on, states
from tests.e2e.stage import Stage
from tests.e2e.test_agents import driven, settings, turns

OPENAI: Final = "openai-agents"
AGENTS: Final = settings(OPENAI)


def planned(agent: str, order_id: str, count: Path) -> Plan:
    named = f"tests.variants.openai_agents:{agent}"
    return Plan.model_validate({"agent": named, "goal": f"Refund {count} {order_id} please"})


async def test_a_model_is_told_of_a_tool_that_is_not_there_and_of_params_that_are_no_json(
    stage: Stage, order_id: str, count: Path
) -> None:
    async with stage.worker_here(**AGENTS):
        run = await stage.start(driven(OPENAI, "stumbler", order_id, count))
        result = await run.result()
    assert result.state is RunState.COMPLETED, result.error
    assert "no JSON object: {order" in str(result.output)
    assert turns(count) == 3


async def test_an_agent_that_comes_to_no_end_fails_the_run(
    stage: Stage, order_id: str, count: Path
) -> None:
    async with stage.worker_here(**AGENTS):
        run = await stage.start(driven(OPENAI, "runner", order_id, count))
        result = await run.result()
    assert result.state is RunState.FAILED
    assert "MaxTurnsExceeded" in (result.error or "")
    assert turns(count) == 10


async def test_a_run_that_continues_as_new_goes_on_with_the_agent_that_has_taken_over(
    stage: Stage, order_id: str, count: Path
) -> None:
    async with stage.worker_here(**AGENTS):
        run = await stage.start(planned("clerk", order_id, count), continue_after=10)
        await run.decide(decision_on(await run.asks("turn-3.1")))
        result = await run.result()
        histories = await executions(stage, run)
    assert (result.state, result.output) == (RunState.COMPLETED, "paid"), result.error
    assert len(histories) > 2
    assert list(states(result)) == ["turn-1", "turn-1.1", "turn-2", "turn-3", "turn-3.1", "turn-4"]
    assert (turns(count), stage.shop.counts(order_id)["refunds"]) == (4, 1)


async def test_an_agent_that_is_a_tool_does_not_go_on_in_place_of_the_one_that_has_it(
    stage: Stage, order_id: str, count: Path
) -> None:
    async with stage.worker_here(**AGENTS):
        run = await stage.start(planned("delegator", order_id, count), continue_after=25)
        result = await run.result()
        histories = await executions(stage, run)
    told = (RunState.COMPLETED, "told: seen 6 times")
    assert (result.state, result.output) == told, result.error
    assert len(histories) > 1
    assert turns(count) == 9


@pytest.mark.parametrize("agent", ["shouter", "crier"])
async def test_what_the_sdk_asks_to_have_approved_is_asked_of_a_human_one_by_one(
    stage: Stage, order_id: str, count: Path, agent: str
) -> None:
    """Also where the agent is another one's tool, whose refund waits beside it."""
    async with stage.worker_here(**AGENTS):
        run = await stage.start(planned(agent, order_id, count))
        if agent == "crier":
            await run.decide(decision_on(await run.asks("turn-1.2")))
        for text, answer in (("late", True), ("lost", False)):
            await run.until(lambda seen, text=text: text in _questions(seen))
            await answered(run, answer=answer)
        result = await run.result()
    assert result.state is RunState.COMPLETED, result.error
    assert "LATE" in str(result.output)
    assert "a human has said no" in str(result.output)
    assert "LOST" not in str(result.output)
    assert stage.shop.counts(order_id)["refunds"] == (1 if agent == "crier" else 0)


def _questions(view: RunView) -> str:
    return " ".join(one.question for one in view.interrupts)
