"""Guarantee G1 across runs: a business key is used once, whichever run asks and however often."""

from __future__ import annotations

import asyncio

import pytest

from surehand.workflows.contracts.runs import RunResult
from surehand.workflows.contracts.states import RunState
from tests.e2e.runs import Run, decision_on, example_plan, states, step, timeline
from tests.e2e.stage import Stage
from tests.ledger_databases import DATABASES

pytestmark = pytest.mark.guarantee("G1")


@pytest.mark.parametrize("database", DATABASES)
async def test_a_second_run_for_the_same_order_refunds_nothing_and_asks_nobody(
    stage: Stage, order_id: str
) -> None:
    plan = example_plan("refund.yaml", order_id=order_id)
    async with stage.worker_here():
        first = await stage.start(plan)
        await first.approve()
        made = await first.result()
        second = await stage.start(plan)
        again = await second.result()
        view = await second.view()

    assert again.state is RunState.COMPLETED
    counts = stage.shop.counts(order_id)
    assert (counts["refunds"], counts["restocks"], counts["mails"]) == (1, 1, 1)
    assert stage.approval_rows(second) == []
    for step_id in ("refund", "restock", "mail"):
        replayed = step(again, step_id)
        assert (replayed.replayed, replayed.made_by) == (True, first.run_id)
        assert replayed.output == step(made, step_id).output
        assert f"made by run {first.run_id}" in timeline(view, step_id)
    assert await stage.effects(second) == []
    replays = await stage.events(second, "effect.replayed")
    assert {event["body"]["made_by"] for event in replays} == {first.run_id}


async def test_a_second_run_does_not_undo_what_the_first_has_made(
    stage: Stage, order_id: str
) -> None:
    async with stage.worker_here():
        first = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await first.approve()
        await first.result()
        second = await stage.start(example_plan("refund_fails.yaml", order_id=order_id))
        failed = await second.result()

    assert failed.state is RunState.FAILED
    assert states(failed)["close"] == "failed"
    counts = stage.shop.counts(order_id)
    assert (counts["refunds"], counts["refund_cancellations"]) == (1, 0)
    assert (counts["restocks"], counts["restock_undos"]) == (1, 0)
    assert set((await stage.effect_states(first)).values()) == {"committed"}


async def test_a_second_run_with_another_amount_is_refused_as_a_mismatch(
    stage: Stage, order_id: str
) -> None:
    async with stage.worker_here():
        first = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await first.approve()
        await first.result()
        plan = example_plan("refund.yaml", order_id=order_id).model_dump(mode="json")
        plan["steps"][2]["params"]["amount"] = "1.00"
        second = await stage.start(type(example_plan("refund.yaml")).model_validate(plan))
        await second.approve()
        refused = await second.result()

    assert refused.state is RunState.FAILED
    assert "ParamsMismatch" in (step(refused, "refund").error or "")
    assert stage.shop.counts(order_id)["refunds"] == 1
    assert [event["body"]["rule"] for event in await stage.events(second, "effect.refused")] == [
        "Mismatch"
    ]


@pytest.mark.parametrize("database", DATABASES)
async def test_two_runs_that_claim_one_key_at_the_same_moment_make_one_call(
    stage: Stage, order_id: str
) -> None:
    # Answered late, so that the second run meets the first one's claim and not its receipt.
    stage.shop.fault("refunds", ignore_keys=True, delay_after_s=1)
    plan = example_plan("refund.yaml", order_id=order_id)
    async with stage.worker_here():
        runs = [await stage.start(plan) for _ in range(2)]
        requests = [await run.asks() for run in runs]
        await asyncio.gather(
            *(run.send(decision_on(one)) for run, one in zip(runs, requests, strict=True))
        )
        results = [await run.result() for run in runs]

    assert [result.state for result in results] == [RunState.COMPLETED] * 2
    counts = stage.shop.counts(order_id)
    assert (counts["refunds"], counts["restocks"], counts["mails"]) == (1, 1, 1)
    (maker, _), (other, replayed) = maker_first(runs, results)
    assert step(replayed, "refund").made_by == maker.run_id
    assert len(await stage.events(maker, "approval.consumed")) == 1
    assert await stage.events(other, "approval.consumed") == []


def maker_first(runs: list[Run], results: list[RunResult]) -> list[tuple[Run, RunResult]]:
    pairs = list(zip(runs, results, strict=True))
    return sorted(pairs, key=lambda pair: step(pair[1], "refund").replayed)
