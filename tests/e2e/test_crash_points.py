"""The crash matrix of ``payments.refund`` (G1, G2, G5): killed anywhere, one refund.

The shop is as mean as the tool allows: where the tool only has a lookup the shop ignores keys, and
where it has nothing the shop does not tell either. So a blind repetition would show as a second
refund in the shop's own count.
"""

from __future__ import annotations

from typing import Any

import pytest

from activities.crashpoints import CrashPoint
from tests.e2e.runs import Run, decision_on, example_plan, states, step
from tests.e2e.stage import SHOP_TOOLS, Stage
from workflows.contracts import RunState

pytestmark = pytest.mark.crash

DEDUPES, LOOKUP = "tests.variants.refund_dedupes", SHOP_TOOLS
NEITHER = "tests.variants.refund_human"
#: How the shop treats keys, by what the refund's tool relies on.
SHOPS: dict[str, dict[str, Any]] = {
    DEDUPES: {"ignore_lookup": True},
    LOOKUP: {"ignore_keys": True},
    NEITHER: {"ignore_keys": True, "ignore_lookup": True},
}
#: A call that is killed on its way: the shop answers late, or applies it when the next attempt has
#: already looked (a dead worker is noticed after three seconds).
SLOW: dict[str, dict[str, Any]] = {"answered late": {"delay_after_s": 1}}
SLOW["applied late"] = {"delay_before_s": 4}

POINTS = [
    pytest.param(point, {}, id=point.value)
    for point in CrashPoint
    if point is not CrashPoint.DURING_CALL
] + [
    pytest.param(CrashPoint.DURING_CALL, slow, id=f"during_call, {name}")
    for name, slow in SLOW.items()
]
#: Killed here, the tool without any recovery leaves nothing unknown: not claimed, or recorded.
CERTAIN = (CrashPoint.BEFORE_CLAIM, CrashPoint.AFTER_OUTCOME, CrashPoint.BEFORE_REPORT)


async def killed_at(
    stage: Stage, order_id: str, point: CrashPoint, tools: str, slow: dict[str, Any]
) -> Run:
    """Start a run whose worker is killed at a point of its refund; returns when it is dead."""
    stage.shop.fault("refunds", **(SHOPS[tools] | slow))
    crash_at = f"payments.refund:{point}"
    with stage.worker(tool_modules=tools, crash_at=crash_at) as doomed:
        doomed.wait_ready()
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await run.approve()
        doomed.wait_killed()
    return run


@pytest.mark.parametrize("tools", [DEDUPES, LOOKUP], ids=["dedupes", "lookup"])
@pytest.mark.parametrize(("point", "slow"), POINTS)
async def test_a_worker_killed_at_any_point_leaves_one_refund_and_a_completed_run(
    stage: Stage, order_id: str, point: CrashPoint, slow: dict[str, Any], tools: str
) -> None:
    run = await killed_at(stage, order_id, point, tools, slow)
    with stage.worker(tool_modules=tools):
        result = await run.result()

    assert result.state is RunState.COMPLETED
    counts = stage.shop.counts(order_id)
    assert (counts["refunds"], counts["mails"], counts["restocks"]) == (1, 1, 1)
    assert set((await stage.effect_states(run)).values()) == {"committed"}
    assert step(result, "refund").attempts > 1
    await one_approval_was_enough(stage, run)


@pytest.mark.postgres
@pytest.mark.parametrize("database", ["postgresql"])
@pytest.mark.parametrize("tools", [DEDUPES, LOOKUP], ids=["dedupes", "lookup"])
@pytest.mark.parametrize("point", [CrashPoint.AFTER_CLAIM, CrashPoint.AFTER_CALL])
async def test_a_killed_worker_leaves_one_refund_in_postgresql_too(
    stage: Stage, order_id: str, point: CrashPoint, tools: str
) -> None:
    run = await killed_at(stage, order_id, point, tools, {})
    with stage.worker(tool_modules=tools):
        result = await run.result()

    assert result.state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["refunds"] == 1
    await one_approval_was_enough(stage, run)


@pytest.mark.parametrize("point", CERTAIN)
async def test_a_tool_without_recovery_needs_nobody_where_the_crash_left_nothing_unknown(
    stage: Stage, order_id: str, point: CrashPoint
) -> None:
    run = await killed_at(stage, order_id, point, NEITHER, {})
    with stage.worker(tool_modules=NEITHER):
        result = await run.result()

    assert result.state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["refunds"] == 1
    assert await stage.intervention_rows(run) == []
    await one_approval_was_enough(stage, run)


@pytest.mark.parametrize(
    ("point", "slow", "happened"),
    [
        pytest.param(CrashPoint.AFTER_CLAIM, {}, False, id="after_claim"),
        *(
            pytest.param(CrashPoint.DURING_CALL, slow, True, id=f"during_call, {name}")
            for name, slow in SLOW.items()
        ),
        pytest.param(CrashPoint.AFTER_CALL, {}, True, id="after_call"),
    ],
)
async def test_a_tool_without_recovery_asks_a_human_and_follows_the_answer(
    stage: Stage, order_id: str, point: CrashPoint, slow: dict[str, Any], happened: bool
) -> None:
    run = await killed_at(stage, order_id, point, NEITHER, slow)
    with stage.worker(tool_modules=NEITHER):
        view = await run.in_state(RunState.NEEDS_INTERVENTION)
        [question] = view.result.waiting_for
        assert (question.kind, question.step_id) == ("intervention", "refund")
        if happened:
            stage.shop.wait_finished("refunds", stage.shop.requests("refunds")["received"])
        assert stage.shop.counts(order_id)["refunds"] <= 1

        if happened:
            [refund] = stage.shop.world(order_id)["refunds"]
            receipt = {name: refund[name] for name in ("order_id", "amount", "currency")}
            answer = {"outcome": "happened", "evidence": "shop's books", "receipt": receipt}
        else:
            answer = {"outcome": "not_happened"}
        await run.resolve(intervention_id=question.id, **answer)
        result = await run.result()

    assert result.state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["refunds"] == 1
    [row] = await stage.intervention_rows(run)
    assert (row["state"], row["outcome"], row["actor"]) == ("settled", answer["outcome"], "oscar")
    await one_approval_was_enough(stage, run)


@pytest.mark.parametrize("tools", [DEDUPES, LOOKUP], ids=["dedupes", "lookup"])
async def test_five_kills_in_the_same_call_use_up_no_retries(
    stage: Stage, order_id: str, tools: str
) -> None:
    stage.shop.fault("refunds", **SHOPS[tools])
    run = await stage.start(example_plan("refund.yaml", order_id=order_id))
    # What was found by a lookup is recorded without a call, so such a worker is killed before.
    later = CrashPoint.AFTER_CALL if tools == DEDUPES else CrashPoint.BEFORE_CLAIM
    for kill in range(5):
        crash_at = f"payments.refund:{later if kill else CrashPoint.AFTER_CALL}"
        with stage.worker(tool_modules=tools, crash_at=crash_at) as doomed:
            doomed.wait_ready()
            if kill == 0:
                await run.send(decision_on(await run.asks()))
            doomed.wait_killed()
    with stage.worker(tool_modules=tools):
        result = await run.result()

    assert result.state is RunState.COMPLETED
    assert states(result)["refund"] == "succeeded"
    assert step(result, "refund").attempts >= 6
    assert stage.shop.counts(order_id)["refunds"] == 1
    await one_approval_was_enough(stage, run)


async def one_approval_was_enough(stage: Stage, run: Run) -> None:
    [approval] = await stage.approval_rows(run)
    assert approval["state"] == "approved"
    consumed = await stage.events(run, "approval.consumed")
    assert len(consumed) == 1
