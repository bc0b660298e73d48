"""Approvals of what agents call, and the steps of their calls: cases that others have reported.

An edit that changes the tool: langchain#40166. An approved tool that runs again in a later turn:
agent-framework#6851, #6828. Approvals that leak between siblings: openai-agents-python#4413, #4414.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from surehand.workflows.contracts.runs import RunResult
from surehand.workflows.contracts.states import RunState
from surehand.workflows.plan.plan import Plan
from tests.e2e.messages import answered
from tests.e2e.runs import decision_on, states, step
from tests.e2e.stage import Stage
from tests.e2e.test_agents import EACH, FRAMEWORKS, settings, turns
from tests.variants.agents_drill import paying

pytestmark = pytest.mark.guarantee("G3")


def driven(framework: str, agent: str, order_id: str, count: Path, **more: Any) -> Plan:
    given = {"agent": agent, "order_id": order_id, "count": str(count), **more}
    return Plan.model_validate({"code": FRAMEWORKS[framework][0], "input": given})


def tools_of(result: RunResult) -> dict[str, str]:
    """Return the tool of each step that is no turn."""
    return {one.id: one.tool for one in result.steps if one.tool != "model"}


@EACH
async def test_two_calls_of_one_turn_with_one_call_id_are_two_steps(
    stage: Stage, order_id: str, count: Path, framework: str
) -> None:
    async with stage.worker_here(**settings(framework)):
        run = await stage.start(driven(framework, "repeater", order_id, count))
        await run.decide(decision_on(await run.asks("turn-1.2")))
        result = await run.result()
    assert result.state is RunState.COMPLETED, result.error
    assert tools_of(result) == {"turn-1.1": "orders.read", "turn-1.2": "payments.refund"}
    assert set(states(result).values()) == {"succeeded"}
    read, paid = json.loads(str(result.output))
    assert ("customer" in str(read), "refund_id" in str(paid)) == (True, True)
    assert (turns(count), stage.shop.counts(order_id)["refunds"]) == (2, 1)


@EACH
async def test_a_call_is_made_as_its_own_step_though_another_agent_has_used_its_call_id(
    stage: Stage, order_id: str, count: Path, framework: str
) -> None:
    """The first call of a turn is an agent, whose calls have the ids of the calls beside it."""
    given = driven(framework, "supervisor", order_id, count, one_by_one=True)
    async with stage.worker_here(**settings(framework)):
        run = await stage.start(given)
        await run.decide(decision_on(await run.asks("turn-1.2")))
        result = await run.result()
    assert result.state is RunState.COMPLETED, result.error
    assert tools_of(result) == {
        "turn-2.1": "orders.read",
        "turn-3.1": "orders.read",
        "turn-1.2": "payments.refund",
    }
    assert set(states(result).values()) == {"succeeded"}
    assert (turns(count), stage.shop.counts(order_id)["refunds"]) == (5, 1)


@EACH
async def test_an_approval_of_one_agents_call_is_none_of_its_siblings(
    stage: Stage, count: Path, framework: str
) -> None:
    """Two agents side by side call the same tool with the same call id."""
    paid, kept = (stage.shop.new_order() for _ in range(2))
    async with stage.worker_here(**settings(framework)):
        run = await stage.start(driven(framework, "overseer", f"{kept} {paid}", count))
        view = await run.until(lambda seen: len(seen.pending) == 2)
        asked = {str(one.params["order_id"]): one for one in view.pending}
        await run.decide(decision_on(asked[paid]))
        view = await run.until(
            lambda seen: any(one.state.value == "succeeded" for one in seen.result.steps[3:])
        )
        assert [one.approval_id for one in view.pending] == [asked[kept].approval_id]
        await run.decide(decision_on(asked[kept], outcome="reject", reason="keep it"))
        result = await run.result()
    assert result.state is RunState.COMPLETED, result.error
    assert [stage.shop.counts(one)["refunds"] for one in (paid, kept)] == [1, 0]
    told = json.loads(str(result.output))
    assert ("keep it" in str(told[0]), "refund_id" in str(told[1])) == (True, True)
    said = {row["step_id"]: str(row["output"]) for row in stage.step_rows(run)}
    for order_id, request in asked.items():
        assert order_id in said[request.step_id.partition(".")[0]]
    assert step(result, asked[paid].step_id).state == "succeeded"
    assert step(result, asked[kept].step_id).state != "succeeded"
    assert turns(count) == 6


@pytest.mark.parametrize(
    ("framework", "agent"),
    [
        ("pydantic-ai", "redirected"),
        ("langchain", "redirected"),
        ("langchain", "redirected_inside"),
    ],
)
async def test_a_call_whose_tool_is_changed_on_its_way_passes_the_gate_of_that_tool(
    stage: Stage, order_id: str, count: Path, framework: str, agent: str
) -> None:
    async with stage.worker_here(**settings(framework)):
        run = await stage.start(driven(framework, agent, order_id, count))
        request = await run.asks("turn-1.1")
        assert (request.tool, stage.shop.counts(order_id)["refunds"]) == ("payments.refund", 0)
        await run.decide(decision_on(request))
        result = await run.result()
    assert result.state is RunState.COMPLETED, result.error
    assert set(tools_of(result).values()) == {"payments.refund"}
    assert stage.shop.counts(order_id)["refunds"] == 1


@EACH
async def test_an_approved_call_is_not_made_again_in_a_later_turn(
    stage: Stage, order_id: str, count: Path, framework: str
) -> None:
    given = driven(framework, "refunds", order_id, count, later="Thanks. Anything else?")
    async with stage.worker_here(**settings(framework)):
        run = await stage.start(given)
        await run.decide(decision_on(await run.asks("turn-2.1")))
        result = await run.result()
    assert result.state is RunState.COMPLETED, result.error
    assert list(tools_of(result).values()) == ["orders.read", "payments.refund"]
    assert len(stage.approval_rows(run)) == 1
    assert (turns(count), stage.shop.counts(order_id)["refunds"]) == (4, 1)


@pytest.mark.parametrize("agent", ["asked_first", "asked_inside", "asked_each"])
async def test_what_a_reviewer_of_langchain_has_edited_is_what_is_asked_for_and_made(
    stage: Stage, order_id: str, count: Path, agent: str
) -> None:
    """Its middleware may stand before ours or behind, and ask of a turn or of each call."""
    edited = {**paying(order_id), "amount": "20.00"}
    decision = {"type": "edit", "edited_action": {"name": "payments_refund", "args": edited}}
    async with stage.worker_here(**settings("langchain")):
        run = await stage.start(driven("langchain", agent, order_id, count))
        await run.in_state(RunState.WAITING_INPUT)
        answer = decision if agent == "asked_each" else {"decisions": [decision]}
        await answered(run, answer=answer)
        request = await run.asks("turn-1.1")
        assert request.params["amount"] == "20.00"
        await run.decide(decision_on(request))
        result = await run.result()
    assert result.state is RunState.COMPLETED, result.error
    assert [one["amount"] for one in stage.shop.world(order_id)["refunds"]] == ["20.00"]
    assert turns(count) == 2


@pytest.mark.parametrize("agent", ["swapped_first", "swapped_inside"])
async def test_a_reviewer_of_langchain_cannot_put_a_tool_of_the_run_in_the_place_of_another(
    stage: Stage, order_id: str, count: Path, agent: str
) -> None:
    action = {"name": "payments_refund", "args": paying(order_id)}
    async with stage.worker_here(**settings("langchain")):
        run = await stage.start(driven("langchain", agent, order_id, count))
        await run.in_state(RunState.WAITING_INPUT)
        decision = {"type": "edit", "edited_action": action}
        await answered(run, answer={"decisions": [decision]})
        result = await run.result()
    assert result.state is RunState.FAILED
    assert "payments_refund" in (result.error or "")
    assert (stage.approval_rows(run), stage.shop.counts(order_id)["refunds"]) == ([], 0)


async def test_a_call_that_openais_sdk_finds_changed_is_not_made(
    stage: Stage, order_id: str, count: Path
) -> None:
    async with stage.worker_here(**settings("openai-agents")):
        run = await stage.start(driven("openai-agents", "redirected", order_id, count))
        result = await run.result()
    assert result.state is RunState.FAILED
    assert "reused a tool call ID" in (result.error or "")
    assert (stage.approval_rows(run), stage.shop.counts(order_id)["refunds"]) == ([], 0)
