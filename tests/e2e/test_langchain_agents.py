"""What only agents of one framework do: they interrupt, hand over, and have limits of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from surehand.workflows.contracts.base import RunState, StepState
from surehand.workflows.contracts.runs import RunView
from surehand.workflows.plan.plan import Plan
from tests.e2e.executions import executions
from tests.e2e.messages import answered
from tests.e2e.runs import decision_on, states
from tests.e2e.stage import Stage
from tests.e2e.test_agents import driven, settings, turns

LANGCHAIN: Final = "langchain"
AGENTS: Final = settings(LANGCHAIN)


def planned(agent: str, order_id: str, count: Path, **more: Any) -> Plan:
    named = f"tests.variants.langchain_agents:{agent}"
    plan = {"agent": named, "goal": f"Refund {count} {order_id} please"}
    return Plan.model_validate(plan | more)


async def test_calls_of_one_turn_run_in_parallel(stage: Stage, order_id: str, count: Path) -> None:
    async with stage.worker_here(**AGENTS):
        run = await stage.start(planned("hasty", order_id, count))
        request = await run.asks("turn-1.1")
        # The second call is done while the first one waits for a human.
        await run.until(
            lambda seen: any(
                one.id == "turn-1.2" and one.state is StepState.SUCCEEDED
                for one in seen.result.steps
            )
        )
        await run.decide(decision_on(request, outcome="reject", reason="too much"))
        result = await run.completed()
    assert '{"rejected":"rejected by ann (unverified): too much"}' in str(result.output)
    assert (turns(count), stage.shop.counts(order_id)["refunds"]) == (2, 0)


async def test_interrupted_nodes_repeat_nothing(stage: Stage, order_id: str, count: Path) -> None:
    async with stage.worker_here(**AGENTS):
        run = await stage.start(planned("asks_afterwards", order_id, count))
        await run.decide(decision_on(await run.asks("turn-2.1")))
        await run.in_state(RunState.WAITING_INPUT)
        await run.handle.execute_update("answer", {"actor": "ann", "answer": "yes"})
        result = await run.completed()
    made = ["turn-1", "turn-1.1", "turn-2", "turn-2.1", "turn-3", "ask"]
    assert list(states(result)) == made
    assert (turns(count), stage.shop.counts(order_id)["refunds"]) == (3, 1)


async def test_calls_without_model_are_made_once(stage: Stage, order_id: str, count: Path) -> None:
    async with stage.worker_here(**AGENTS):
        run = await stage.start(planned("without_model", order_id, count))
        await run.decide(decision_on(await run.asks("refund")))
        await run.in_state(RunState.WAITING_INPUT)
        await run.handle.execute_update("answer", {"actor": "ann", "answer": "yes"})
        result = await run.completed()
    assert sorted(states(result)) == ["ask", "refund"]
    assert str(result.output).startswith("yes; ")
    assert stage.shop.counts(order_id)["refunds"] == 1


async def test_calls_with_one_id_stay_apart(stage: Stage, order_id: str, count: Path) -> None:
    _, result = await stage.play(planned("same_ids", order_id, count), **AGENTS)
    assert result.state is RunState.FAILED
    assert "a node makes two calls with the id" in str(result.error)
    assert list(states(result)) == ["read"]
    assert stage.shop.counts(order_id)["refunds"] == 0


@pytest.mark.crash
async def test_kills_behind_interrupts_pay_once(stage: Stage, order_id: str, count: Path) -> None:
    with stage.ready_worker(**AGENTS) as first:
        run = await stage.start(planned("graph", order_id, count))
        await run.in_state(RunState.WAITING_INPUT)
        await run.handle.execute_update("answer", {"actor": "ann", "answer": "yes"})
        request = await run.asks("turn-1.1")
        first.kill()
    async with stage.worker_here(**AGENTS):
        await run.decide(decision_on(request))
        result = await run.completed()
    assert list(states(result)) == ["ask", "turn-1", "turn-1.1", "turn-2"]
    assert str(result.output).endswith("; LATE")
    assert (turns(count), stage.shop.counts(order_id)["refunds"]) == (2, 1)


async def test_a_model_is_told_of_unfit_calls(stage: Stage, order_id: str, count: Path) -> None:
    _, result = await stage.play(planned("stumbler", order_id, count), **AGENTS)
    assert result.state is RunState.COMPLETED, result.error
    assert list(states(result)) == ["turn-1", "turn-1.1", "turn-2", "turn-2.1", "turn-3"]
    assert "none of the tools that this run has: orders_read, payments_refund" in str(result.output)
    assert "no JSON object: {order" in str(result.output)
    assert turns(count) == 3


async def test_a_graph_at_its_limit_fails_the_run(stage: Stage, order_id: str, count: Path) -> None:
    _, result = await stage.play(planned("limited", order_id, count), **AGENTS)
    assert result.state is RunState.FAILED
    assert "GraphRecursionError: Recursion limit of 7" in (result.error or "")
    assert turns(count) == 4


async def test_a_graph_without_invoke_fails(stage: Stage, order_id: str, count: Path) -> None:
    plan = driven(LANGCHAIN, "refunds", order_id, count)
    directly = plan.model_copy(update={"input": {**plan.input, "directly": True}})
    _, result = await stage.play(directly, **AGENTS)
    assert result.state is RunState.FAILED
    assert "run by invoke(graph, ...)" in (result.error or "")
    assert not count.exists()


async def test_traces_that_a_worker_is_set_to_send_are_not_sent_from_a_run(
    stage: Stage, order_id: str, count: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANGSMITH_TRACING", "true")
    monkeypatch.setenv("LANGSMITH_ENDPOINT", "http://127.0.0.1:9")
    async with stage.worker_here(**AGENTS):
        run = await stage.start(driven(LANGCHAIN, "refunds", order_id, count))
        await run.decide(decision_on(await run.asks("turn-2.1")))
        await run.completed()
    assert (turns(count), stage.shop.counts(order_id)["refunds"]) == (3, 1)


async def test_odd_model_json_is_carried_on(stage: Stage, order_id: str, count: Path) -> None:
    async with stage.worker_here(**AGENTS):
        run = await stage.start(planned("odd", order_id, count), continue_after=10)
        await run.decide(decision_on(await run.asks("turn-3.1")))
        result = await run.result()
        histories = await executions(stage, run)
    assert (result.state, result.output) == (RunState.COMPLETED, "paid"), result.error
    assert len(histories) > 1
    assert (turns(count), stage.shop.counts(order_id)["refunds"]) == (4, 1)


OPENAI: Final = "openai-agents"
OPENAI_AGENTS: Final = settings(OPENAI)


def openai_planned(agent: str, order_id: str, count: Path) -> Plan:
    named = f"tests.variants.openai_agents:{agent}"
    return Plan.model_validate({"agent": named, "goal": f"Refund {count} {order_id} please"})


async def test_openai_models_hear_of_unfit_calls(stage: Stage, order_id: str, count: Path) -> None:
    _, result = await stage.play(driven(OPENAI, "stumbler", order_id, count), **OPENAI_AGENTS)
    assert result.state is RunState.COMPLETED, result.error
    assert "no JSON object: {order" in str(result.output)
    assert turns(count) == 3


async def test_an_endless_agent_fails_the_run(stage: Stage, order_id: str, count: Path) -> None:
    _, result = await stage.play(driven(OPENAI, "runner", order_id, count), **OPENAI_AGENTS)
    assert result.state is RunState.FAILED
    assert "MaxTurnsExceeded" in (result.error or "")
    assert turns(count) == 10


async def test_a_handover_outlives_executions(stage: Stage, order_id: str, count: Path) -> None:
    async with stage.worker_here(**OPENAI_AGENTS):
        run = await stage.start(openai_planned("clerk", order_id, count), continue_after=10)
        await run.decide(decision_on(await run.asks("turn-3.1")))
        result = await run.result()
        histories = await executions(stage, run)
    assert (result.state, result.output) == (RunState.COMPLETED, "paid"), result.error
    assert len(histories) > 2
    assert list(states(result)) == ["turn-1", "turn-1.1", "turn-2", "turn-3", "turn-3.1", "turn-4"]
    assert (turns(count), stage.shop.counts(order_id)["refunds"]) == (4, 1)


async def test_an_agent_that_is_a_tool_gives_back(stage: Stage, order_id: str, count: Path) -> None:
    async with stage.worker_here(**OPENAI_AGENTS):
        run = await stage.start(openai_planned("delegator", order_id, count), continue_after=25)
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
    async with stage.worker_here(**OPENAI_AGENTS):
        run = await stage.start(openai_planned(agent, order_id, count))
        if agent == "crier":
            await run.decide(decision_on(await run.asks("turn-1.2")))
        for text, answer in (("late", True), ("lost", False)):
            await run.until(lambda seen, text=text: text in _questions(seen))
            await answered(run, answer=answer)
        result = await run.completed()
    assert "LATE" in str(result.output)
    assert "a human has said no" in str(result.output)
    assert "LOST" not in str(result.output)
    assert stage.shop.counts(order_id)["refunds"] == (1 if agent == "crier" else 0)


def _questions(view: RunView) -> str:
    return " ".join(one.question for one in view.interrupts)
