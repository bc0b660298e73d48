"""Whatever a tool does, its step ends: nothing is retried for ever and nothing gets stuck."""

from __future__ import annotations

import resource

import pytest

from surehand.activities.worker.watchdog import EXIT_CODE
from surehand.workflows.contracts.base import RunState
from tests.e2e.kinds import one_of_each
from tests.e2e.plans import plan
from tests.e2e.runs import Run, refund_plan, step
from tests.e2e.stage import SHOP_TOOLS, Stage
from tests.ledger_databases import DATABASES
from tests.variants import odd

ODD = "tests.variants.odd"
#: Retried as often as ever, without the pauses.
QUICK = {
    "retries_transient": "1ms,1ms,1ms",
    "retries_dependency_down": "1ms,1ms",
    "retries_in_doubt": "1ms,1ms,1ms",
}


@pytest.fixture(autouse=True)
def anew() -> None:
    odd.CALLS.clear()


async def asks_a_human(stage: Stage, run: Run) -> None:
    question = await run.asks_a_human()
    assert set((await stage.effect_states(run)).values()) == {"in_doubt"}
    await run.resolve(intervention_id=question.id, outcome="happened", evidence="bank statement")


async def test_a_read_longer_than_the_heartbeat_timeout_is_made_once(stage: Stage) -> None:
    _, result = await stage.play(plan({"id": "it", "tool": "read.slow"}), tool_modules=ODD, **QUICK)
    assert result.state is RunState.COMPLETED
    assert step(result, "it").attempts == 1
    assert odd.CALLS["read.slow"] == 1


@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize("tool", ["read.no", "write.no"])
async def test_a_no_that_no_database_can_store_is_still_a_no(stage: Stage, tool: str) -> None:
    _, result = await stage.play(
        plan({"id": "it", "tool": tool, "on_no": "continue"}), tool_modules=ODD, **QUICK
    )
    assert result.state is RunState.COMPLETED
    assert "the provider said" in str(step(result, "it").output)
    assert step(result, "it").attempts == 1


@pytest.mark.parametrize(
    "tool", ["write.cancels", "write.unfound", "write.unasked", "write.lost-then-down"]
)
async def test_a_write_without_a_word_ends_with_a_human(stage: Stage, tool: str) -> None:
    async with stage.worker_here(tool_modules=ODD, **QUICK):
        run = await stage.start(plan({"id": "it", "tool": tool}))
        await asks_a_human(stage, run)
        await run.completed()
    assert await stage.effect_states(run) == {tool: "committed"}


async def test_a_read_that_cancels_itself_fails_after_as_many_tries_as_any(stage: Stage) -> None:
    _, result = await stage.play(
        plan({"id": "it", "tool": "read.cancels"}), tool_modules=ODD, **QUICK
    )
    assert result.state is RunState.FAILED
    assert step(result, "it").attempts == 1 + 3


@pytest.mark.parametrize("tool", ["write.nan", "write.bytes"])
async def test_an_output_that_is_no_json_is_recorded(stage: Stage, tool: str) -> None:
    run, result = await stage.play(plan({"id": "it", "tool": tool}), tool_modules=ODD, **QUICK)
    assert result.state is RunState.COMPLETED
    assert step(result, "it").attempts == 1
    assert await stage.effect_states(run) == {tool: "committed"}


async def test_params_with_aliases_reach_the_receipt(stage: Stage) -> None:
    async with stage.worker_here(tool_modules=ODD, **QUICK):
        call = {"id": "it", "tool": "write.aliased", "params": {"order-id": "1001"}}
        run = await stage.start(plan(call))
        request = await run.approve()
        await run.completed()
    assert request.params == {"order_id": "1001"}
    [entry] = await stage.effects(run)
    assert (entry["key"], entry["receipt"]) == ("order-1001", "1001")


# A call that cannot be stopped at its deadline takes its worker down, before it does harm (G1).


@pytest.mark.crash
@pytest.mark.parametrize("what", ["refund", "read"])
async def test_a_blocking_tool_ends_its_worker(stage: Stage, order_id: str, what: str) -> None:
    with stage.ready_worker(tool_modules=f"tests.variants.{what}_blocks") as blocked:
        run = await stage.start(refund_plan(order_id))
        if what == "refund":
            await run.approve()
        assert blocked.wait_exit() == EXIT_CODE
    with stage.worker(tool_modules=SHOP_TOOLS):
        if what == "read":
            await run.approve()
        await run.completed()

    assert stage.shop.counts(order_id)["refunds"] == 1


# G1, G2, G5: a worker with a memory limit that a tool meets in the middle of its call.


#: What the worker may take beyond what it has when it is ready.
MORE = 2 * 1024**3  # bytes


async def test_lost_memory_repeats_reads_and_no_paid_refund(stage: Stage, order_id: str) -> None:
    stage.shop.fault("refunds", ignore_keys=True)
    before = stage.shop.requests("refunds")["received"]
    with stage.ready_worker(tool_modules="tests.variants.hungry") as worker:
        worker.limit(resource.RLIMIT_AS, worker.memory() + MORE)
        run = await stage.start(refund_plan(order_id))
        await run.approve()
        result = await run.result()
        assert worker.stop() == 0  # nobody but the tools has suffered

    assert result.state is RunState.COMPLETED
    assert stage.shop.requests("refunds")["received"] == before + 1
    await one_of_each(stage, run, order_id)
    assert step(result, "order").attempts == step(result, "refund").attempts == 2
    short = [row for row in stage.step_rows(run) if row["error"] is not None]
    assert {row["step_id"]: (row["attempt"], row["error"].split()[0]) for row in short} == {
        "order": (1, "MemoryError"),
        "refund": (1, "MemoryError"),
    }
    [found] = await stage.events(run, "recovery.verified")
    assert found["step_id"] == "refund"
