"""Agents of each framework: a turn is asked once, what they call happens once, as approved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.runs import RunResult
from surehand.workflows.plan.plan import Plan
from tests.e2e.executions import reset_before
from tests.e2e.messages import answered
from tests.e2e.runs import decision_on, states, step, until
from tests.e2e.stage import Stage
from tests.e2e.test_cancel import cancelled_by_temporal
from tests.variants.agent_scripts import MANY, paying

#: By framework: the workflow whose steps its agents make, and the settings of a worker for it.
FRAMEWORKS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "pydantic-ai": (
        "Agent",
        {"workflow_modules": "tests.e2e.agents_code", "agent_modules": "tests.variants.agents"},
    ),
    "openai-agents": (
        "OpenAIAgent",
        {
            "workflow_modules": "tests.e2e.openai_agents_code",
            "agent_modules": "tests.variants.openai_agents",
        },
    ),
    "langchain": (
        "LangChainAgent",
        {
            "workflow_modules": "tests.e2e.langchain_code",
            "agent_modules": "tests.variants.langchain_agents",
        },
    ),
}
EACH: Final = pytest.mark.parametrize("framework", FRAMEWORKS)
G3: Final = pytest.mark.guarantee("G3")


def turns(count: Path) -> int:
    return count.stat().st_size


def settings(framework: str) -> dict[str, Any]:
    return FRAMEWORKS[framework][1]


def driven(framework: str, agent: str, order_id: str, count: Path, **more: Any) -> Plan:
    given = {"agent": agent, "order_id": order_id, "count": str(count), **more}
    return Plan.model_validate({"code": FRAMEWORKS[framework][0], "input": given})


@EACH
async def test_a_human_looks_before_and_behind_a_turn_and_it_is_asked_once(
    stage: Stage, order_id: str, count: Path, framework: str
) -> None:
    given = driven(framework, "refunds", order_id, count)
    looks = given.interrupts.model_copy(update={"before": ("turn-2",), "after": ("turn-2",)})
    async with stage.worker_here(**settings(framework)):
        run = await stage.start(given.model_copy(update={"interrupts": looks}))
        await run.in_state(RunState.WAITING_INPUT)
        assert turns(count) == 1
        await answered(run, answer="accept")
        await until(lambda: turns(count), lambda asked: asked == 2)
        await run.in_state(RunState.WAITING_INPUT)
        await answered(run, answer="accept")
        await run.approve()
        await run.completed()
    assert (turns(count), stage.shop.counts(order_id)["refunds"]) == (3, 1)


#: Where the worker dies, and how often the model is asked then.
DEATHS: Final = {
    "model:before_claim@turn-2": 3,
    # Said and not recorded: nobody knows of it, so it is asked again.
    "model:after_call@turn-2": 4,
    "model:before_report@turn-2": 3,
    "payments.refund:after_call": 3,
    "payments.refund:before_report": 3,
}
#: All of one framework; of the others, where the next worker has most to find out.
HARDEST: Final = ("model:after_call@turn-2", "payments.refund:after_call")


@pytest.mark.crash
@pytest.mark.parametrize(
    ("framework", "crash_at", "asked"),
    [
        pytest.param(
            framework,
            crash_at,
            asked,
            marks=()
            if framework == "pydantic-ai" or crash_at in HARDEST
            else pytest.mark.exhaustive,
        )
        for framework in FRAMEWORKS
        for crash_at, asked in DEATHS.items()
    ],
)
async def test_a_turn_that_is_recorded_is_not_asked_again_wherever_the_worker_dies(
    stage: Stage, order_id: str, count: Path, framework: str, crash_at: str, asked: int
) -> None:
    with stage.ready_worker(**settings(framework), crash_at=crash_at) as doomed:
        run = await stage.start(driven(framework, "refunds", order_id, count))
        if crash_at.startswith("payments"):
            await run.approve()
        doomed.wait_killed()
    async with stage.worker_here(**settings(framework)):
        if not crash_at.startswith("payments"):
            await run.approve()
        await run.completed()
    assert (turns(count), stage.shop.counts(order_id)["refunds"]) == (asked, 1)


@EACH
async def test_a_run_that_is_reset_asks_no_turn_again(
    stage: Stage, order_id: str, count: Path, framework: str
) -> None:
    async with stage.worker_here(**settings(framework)):
        run = await stage.start(driven(framework, "refunds", order_id, count))
        await run.approve()
        first = await run.result()
        again = await reset_before(stage, run, "take_turn", 1)
        result = await again.result()
    assert result.output == first.output
    assert (turns(count), stage.shop.counts(order_id)["refunds"]) == (3, 1)


@EACH
async def test_a_run_that_is_cancelled_does_not_wait_for_its_model(
    stage: Stage, order_id: str, count: Path, framework: str
) -> None:
    # It never gives its first answer.
    async with stage.worker_here(**settings(framework)):
        run = await stage.start(driven(framework, "halting", order_id, count))
        await until(lambda: turns(count) if count.exists() else 0, bool)
        await run.cancel()
        result = await run.result()
    turn = step(result, "turn-1")
    assert (result.state, turn.state) == (RunState.CANCELLED, "failed")
    assert "cancelled before it had an answer" in (turn.error or "")
    assert [row["error_class"] for row in stage.step_rows(run)] == ["cancelled"]
    assert turns(count) == 1


async def test_temporal_cancels_a_waiting_turn(stage: Stage, order_id: str, count: Path) -> None:
    async with stage.worker_here(**settings("pydantic-ai")):
        run = await stage.start(driven("pydantic-ai", "halting", order_id, count))
        await until(lambda: turns(count) if count.exists() else 0, bool)
        await run.handle.cancel()
        await cancelled_by_temporal(run)
    assert turns(count) == 1


async def test_agents_in_parallel_have_own_time(stage: Stage, order_id: str, count: Path) -> None:
    async with stage.worker_here(**settings("pydantic-ai")):
        run = await stage.start(driven("pydantic-ai", "storyteller+hasty", order_id, count))
        result = await run.result()
        times = list[str]()
        async for event in run.handle.fetch_history_events():
            scheduled = event.activity_task_scheduled_event_attributes
            if scheduled.activity_type.name == "take_turn":
                [call] = await stage.client.data_converter.decode(scheduled.input.payloads)
                times.append(call["tool"]["timeout"])
    assert result.state is RunState.COMPLETED, result.error
    assert sorted(times) == ["PT1M", "PT5M"]


@EACH
@pytest.mark.parametrize(
    ("answer", "comes_to"),
    [
        (True, (RunState.COMPLETED, "told: True", None)),
        (False, (RunState.FAILED, None, "the model gives up: nobody wants it")),
    ],
)
async def test_an_agent_asks_a_human_and_gives_up_where_it_may(
    stage: Stage, order_id: str, count: Path, framework: str, answer: bool, comes_to: Any
) -> None:
    async with stage.worker_here(**settings(framework)):
        run = await stage.start(driven(framework, "asker", order_id, count))
        view = await run.in_state(RunState.WAITING_INPUT)
        await run.handle.execute_update("answer", {"actor": "ann", "answer": answer})
        result = await run.result()
    assert [one.question for one in view.interrupts] == ["Pay it back?"]
    assert states(result)["turn-1.1"] == "succeeded"
    assert (result.state, result.output, result.error) == comes_to
    assert turns(count) == 2


@pytest.mark.parametrize(
    ("framework", "agent", "reason"),
    [
        ("pydantic-ai", "careless", "tool 'pay_at_once' is the agent's own"),
        ("openai-agents", "careless", "tool 'pay_at_once' is the agent's own"),
        ("openai-agents", "searcher", "tool 'web_search' is run by the provider"),
        ("openai-agents", "unrecorded", "has a model that records no turns"),
        ("langchain", "careless", "tool 'pay_at_once' is the agent's own"),
        ("langchain", "searcher", "tool 'web_search' is run by the provider"),
        ("langchain", "unrecorded", "the agent's model records no turns"),
        ("pydantic-ai", "secretive", "settings.extra_headers would be recorded with the turn"),
        ("openai-agents", "secretive", "settings.extra_headers would be recorded with the turn"),
        ("pydantic-ai", "two_servers", "tools.0.authorization_token would be recorded"),
        ("openai-agents", "two_servers", "tools.0.tool_config.authorization would be recorded"),
        ("langchain", "secretive", "settings.extra_headers would be recorded with the turn"),
    ],
)
async def test_a_tool_a_model_or_a_secret_that_no_run_may_have_is_refused_inside_a_run(
    stage: Stage, order_id: str, count: Path, framework: str, agent: str, reason: str
) -> None:
    _, result = await stage.play(driven(framework, agent, order_id, count), **settings(framework))
    assert result.state is RunState.FAILED
    assert reason in (result.error or "")
    assert "s3cr3t" not in result.model_dump_json()
    assert not count.exists()


@pytest.mark.parametrize(
    "framework", ["pydantic-ai", pytest.param("langchain", marks=pytest.mark.exhaustive)]
)
async def test_turns_add_no_more_to_the_history_at_the_end_than_at_the_beginning(
    stage: Stage, order_id: str, count: Path, framework: str
) -> None:
    async with stage.worker_here(**settings(framework)):
        run = await stage.start(driven(framework, "talker", order_id, count))
        result = await run.result(timeout_s=240)
        sizes = list[int]()
        async for event in run.handle.fetch_history_events():
            scheduled = event.activity_task_scheduled_event_attributes
            if scheduled.activity_type.name == "take_turn":
                sizes.append(scheduled.input.ByteSize())
        described = await run.handle.describe()
    assert result.state is RunState.COMPLETED, result.error
    assert turns(count) == MANY + 1
    # 200 turns come to less than 5 MB.
    assert described.raw_description.workflow_execution_info.history_size_bytes < 25_000 * MANY
    # The first brings settings and tools; each other one its own messages and no earlier ones.
    assert max(sizes[1:]) <= 1.1 * min(sizes[1:])


# Approvals of what agents call, and the steps of their calls: cases that others have reported.


def tools_of(result: RunResult) -> dict[str, str]:
    """Return the tool of each step that is no turn."""
    return {one.id: one.tool for one in result.steps if one.tool != "model"}


@G3
@EACH
async def test_two_calls_of_one_turn_with_one_call_id_are_two_steps(
    stage: Stage, order_id: str, count: Path, framework: str
) -> None:
    async with stage.worker_here(**settings(framework)):
        run = await stage.start(driven(framework, "repeater", order_id, count))
        await run.decide(decision_on(await run.asks("turn-1.2")))
        result = await run.completed()
    assert tools_of(result) == {"turn-1.1": "orders.read", "turn-1.2": "payments.refund"}
    assert set(states(result).values()) == {"succeeded"}
    read, paid = json.loads(str(result.output))
    assert ("customer" in str(read), "refund_id" in str(paid)) == (True, True)
    assert (turns(count), stage.shop.counts(order_id)["refunds"]) == (2, 1)


@G3
@EACH
async def test_a_call_is_made_as_its_own_step_though_another_agent_has_used_its_call_id(
    stage: Stage, order_id: str, count: Path, framework: str
) -> None:
    """The first call of a turn is an agent, whose calls have the ids of the calls beside it."""
    given = driven(framework, "supervisor", order_id, count, one_by_one=True)
    async with stage.worker_here(**settings(framework)):
        run = await stage.start(given)
        await run.decide(decision_on(await run.asks("turn-1.2")))
        result = await run.completed()
    assert tools_of(result) == {
        "turn-2.1": "orders.read",
        "turn-3.1": "orders.read",
        "turn-1.2": "payments.refund",
    }
    assert set(states(result).values()) == {"succeeded"}
    assert (turns(count), stage.shop.counts(order_id)["refunds"]) == (5, 1)


@G3
@EACH
async def test_siblings_share_no_approval(stage: Stage, count: Path, framework: str) -> None:
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
        result = await run.completed()
    assert [stage.shop.counts(one)["refunds"] for one in (paid, kept)] == [1, 0]
    told = json.loads(str(result.output))
    assert ("keep it" in str(told[0]), "refund_id" in str(told[1])) == (True, True)
    said = {row["step_id"]: str(row["output"]) for row in stage.step_rows(run)}
    for order_id, request in asked.items():
        assert order_id in said[request.step_id.partition(".")[0]]
    assert step(result, asked[paid].step_id).state == "succeeded"
    assert step(result, asked[kept].step_id).state != "succeeded"
    assert turns(count) == 6


@G3
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
        result = await run.completed()
    assert set(tools_of(result).values()) == {"payments.refund"}
    assert stage.shop.counts(order_id)["refunds"] == 1


@G3
@EACH
async def test_an_approved_call_is_not_made_again_in_a_later_turn(
    stage: Stage, order_id: str, count: Path, framework: str
) -> None:
    given = driven(framework, "refunds", order_id, count, later="Thanks. Anything else?")
    async with stage.worker_here(**settings(framework)):
        run = await stage.start(given)
        await run.decide(decision_on(await run.asks("turn-2.1")))
        result = await run.completed()
    assert list(tools_of(result).values()) == ["orders.read", "payments.refund"]
    assert len(stage.approval_rows(run)) == 1
    assert (turns(count), stage.shop.counts(order_id)["refunds"]) == (4, 1)


@G3
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
        await run.completed()
    assert [one["amount"] for one in stage.shop.world(order_id)["refunds"]] == ["20.00"]
    assert turns(count) == 2


@G3
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


@G3
async def test_openai_changed_calls_are_not_made(stage: Stage, order_id: str, count: Path) -> None:
    run, result = await stage.play(
        driven("openai-agents", "redirected", order_id, count), **settings("openai-agents")
    )
    assert result.state is RunState.FAILED
    assert "reused a tool call ID" in (result.error or "")
    assert (stage.approval_rows(run), stage.shop.counts(order_id)["refunds"]) == ([], 0)
