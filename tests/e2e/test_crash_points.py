"""The crash matrix of ``payments.refund`` (G1, G2, G5, G6): killed anywhere, one refund.

The other steps, two workers at once and PostgreSQL are sampled below.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from surehand.activities.ledger.history.audit import verify_run
from surehand.activities.ledger.history.reads import chain_of
from surehand.activities.worker.crash_points import READ_POINTS, CrashPoint
from surehand.verify import verify_chain
from surehand.workflows.contracts.base import RunState
from surehand.workflows.plan.plan import Durability
from tests.e2e.kinds import (
    CERTAIN,
    DEDUPES,
    LOOKUP,
    NEITHER,
    SHOPS,
    human_settles_refund,
    one_approval_was_enough,
    one_of_each,
)
from tests.e2e.plans import plan
from tests.e2e.runs import Run, decision_on, refund_plan, states, step
from tests.e2e.stage import Stage
from tests.ledger.test_events import rechained
from tests.pairwise import Case, pairwise

pytestmark = pytest.mark.crash

#: A call that is killed on its way: the shop answers late, or applies it when the next attempt has
#: already looked (a dead worker is noticed after three seconds).
SLOW: dict[str, dict[str, Any]] = {"answered late": {"delay_after_s": 1}}
SLOW["applied late"] = {"delay_before_s": 4}

FAST = CrashPoint.AFTER_CALL  # the worst one: done, and nobody but the shop knows
POINTS = [
    pytest.param(point, {}, id=point.value, marks=[pytest.mark.fast] * (point is FAST))
    for point in CrashPoint
    if point is not CrashPoint.DURING_CALL
] + [
    pytest.param(CrashPoint.DURING_CALL, slow, id=f"during_call, {name}")
    for name, slow in SLOW.items()
]


async def killed_at(
    stage: Stage, order_id: str, point: CrashPoint, tools: str, slow: dict[str, Any]
) -> Run:
    """Start a run whose worker is killed at a point of its refund; returns when it is dead."""
    stage.shop.fault("refunds", **(SHOPS[tools] | slow))
    crash_at = f"payments.refund:{point}"
    run = await stage.die_at(crash_at, refund_plan(order_id), approve=True, tool_modules=tools)
    return run


@pytest.mark.parametrize(
    "tools",
    [
        pytest.param(DEDUPES, id="dedupes", marks=pytest.mark.guarantee("G1")),
        pytest.param(LOOKUP, id="lookup", marks=pytest.mark.guarantee("G2")),
    ],
)
@pytest.mark.parametrize(("point", "slow"), POINTS)
async def test_a_worker_killed_at_any_point_leaves_one_refund_and_a_completed_run(
    stage: Stage, order_id: str, point: CrashPoint, slow: dict[str, Any], tools: str
) -> None:
    run = await killed_at(stage, order_id, point, tools, slow)
    result = await stage.finish(run, tool_modules=tools)

    assert result.state is RunState.COMPLETED
    await one_of_each(stage, run, order_id)
    assert step(result, "refund").attempts > 1


@pytest.mark.parametrize("point", ["after_outcome", "before_report"])
async def test_nobody_is_asked_about_a_call_that_no_worker_had_begun(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    monkeypatch.setenv("BILLS_FILE", str(paid := tmp_path / "paid"))
    tools = {"tool_modules": "tests.variants.bills"}
    bills = [{"id": f"b{n}", "tool": "bills.pay", "params": {"bill": f"{n}"}} for n in range(3)]
    run = await stage.die_at(f"bills.pay:{point}@b1", plan(*bills), durability="exit", **tools)
    result = await stage.finish(run, **tools)

    assert (result.state, stage.intervention_rows(run)) == (RunState.COMPLETED, [])
    assert paid.read_text().split() == ["0", "1", "2"]


@pytest.mark.guarantee("G2")
@pytest.mark.parametrize(
    ("point", "slow", "happened"),
    [
        pytest.param(CrashPoint.AFTER_CLAIM, {}, False, id="after_claim"),
        *(
            pytest.param(CrashPoint.DURING_CALL, slow, True, id=f"during_call, {name}")
            for name, slow in SLOW.items()
        ),
        pytest.param(CrashPoint.AFTER_CALL, {}, True, id="after_call", marks=pytest.mark.fast),
    ],
)
async def test_a_tool_without_recovery_asks_a_human_and_follows_the_answer(
    stage: Stage, order_id: str, point: CrashPoint, slow: dict[str, Any], happened: bool
) -> None:
    run = await killed_at(stage, order_id, point, NEITHER, slow)
    async with stage.worker_here(tool_modules=NEITHER):
        answer = await human_settles_refund(stage, run, order_id)
        await run.completed()

    assert stage.shop.counts(order_id)["refunds"] == 1
    [row] = stage.intervention_rows(run)
    assert answer == ("happened" if happened else "not_happened")
    assert (row["state"], row["outcome"], row["actor"]) == ("settled", answer, "oscar")
    await one_approval_was_enough(stage, run)


@pytest.mark.fast
@pytest.mark.guarantee("G6")
async def test_a_killed_workers_chain_leaves_nothing_out(stage: Stage, order_id: str) -> None:
    run = await killed_at(stage, order_id, CrashPoint.AFTER_CALL, LOOKUP, {})
    before = [event["hash"] for event in await stage.events(run)]
    async with stage.worker_here():
        await run.result()

    events, entries, head = await stage.ledger.transact(stage.tenant, chain_of, run.run_id)
    assert [event["hash"] for event in events][: len(before)] == before
    heads = [head, *await run.heads()]
    assert verify_run(events, entries, heads) is None
    told = [event["type"] for event in events if event["step_id"] == "refund"]
    assert (told.count("effect.claimed"), told.count("effect.committed")) == (1, 1)
    last = events[len(before) - 1]
    assert (last["type"], last["step_id"]) == ("effect.claimed", "refund")
    without = rechained([event for event in events if event is not last])
    assert verify_chain(without) is None
    assert verify_chain(without, heads) is not None


@pytest.mark.parametrize("tools", [DEDUPES, LOOKUP], ids=["dedupes", "lookup"])
async def test_five_kills_use_up_no_retries(stage: Stage, order_id: str, tools: str) -> None:
    stage.shop.fault("refunds", **SHOPS[tools])
    run = await stage.start(refund_plan(order_id))
    # What was found by a lookup is recorded without a call, so such a worker is killed before.
    later = CrashPoint.AFTER_CALL if tools == DEDUPES else CrashPoint.BEFORE_CLAIM
    for kill in range(5):
        crash_at = f"payments.refund:{later if kill else CrashPoint.AFTER_CALL}"
        with stage.ready_worker(tool_modules=tools, crash_at=crash_at) as doomed:
            if kill == 0:
                await run.send(decision_on(await run.asks()))
            doomed.wait_killed()
    result = await stage.finish(run, tool_modules=tools)

    assert result.state is RunState.COMPLETED
    assert states(result)["refund"] == "succeeded"
    assert step(result, "refund").attempts >= 6
    assert stage.shop.counts(order_id)["refunds"] == 1
    await one_approval_was_enough(stage, run)


# A pairwise sample of the interrupt matrix of ``refund.yaml`` (G1, G2, G5).


@dataclass(frozen=True)
class Call:
    """The call whose worker dies."""

    step: str
    tool: str
    modules: str = LOOKUP
    reads: bool = False

    def __str__(self) -> str:
        return f"{self.step}-{self.modules.rpartition('_')[2]}" if self.is_refund else self.step

    @property
    def is_refund(self) -> bool:
        return self.step == "refund"


REFUNDS: Final = [Call("refund", "payments.refund", kind) for kind in (LOOKUP, DEDUPES, NEITHER)]
CALLS: Final = [
    Call("order", "orders.read", reads=True),
    *REFUNDS,
    Call("restock", "inventory.restock"),
    Call("mail", "mail.send"),
]
ALONE, BOTH_ARMED = "one worker, then another", "two workers at once"
MODES: Final = list(Durability)
FACTORS: Final = (CALLS, list(CrashPoint), ("sqlite", "postgresql"), (ALONE, BOTH_ARMED), MODES)
PLAYED_ELSEWHERE: Final = [
    (call, point, "sqlite", ALONE, Durability.SYNC)
    for call in REFUNDS
    for point in CrashPoint
    if call.modules != NEITHER or point not in CERTAIN
]


def possible(case: Case) -> bool:
    """A restock is settled as a refund by its lookup is, a mail as one by its key: not in doubt."""
    call, point, *_ = case
    if call.reads:
        return point in READ_POINTS
    return call.is_refund or point not in CERTAIN


def parameters() -> list[object]:
    found = []
    for call, point, database, workers, mode in pairwise(FACTORS, possible, PLAYED_ELSEWHERE):
        marks = [pytest.mark.postgres] if database == "postgresql" else []
        name = f"{call}, {point}, {database}, {workers}, {mode}"
        found.append(pytest.param(call, point, database, workers, mode, id=name, marks=marks))
    return found


@pytest.mark.parametrize(("call", "point", "database", "workers", "mode"), parameters())
async def test_a_worker_killed_at_any_step_leaves_one_effect_of_each_kind(
    stage: Stage, order_id: str, call: Call, point: CrashPoint, workers: str, mode: Durability
) -> None:
    stage.shop.fault("refunds", **SHOPS[call.modules])
    stage.shop.fault("restocks", ignore_keys=True)
    stage.shop.fault("mails", ignore_lookup=True)
    settings = {
        "tool_modules": call.modules,
        "crash_at": f"{call.tool}:{point}@{call.step}",
        "crash_once": str(stage.folder / "crashed"),
    }
    async with AsyncExitStack() as running:
        armed = [
            running.enter_context(stage.worker(**settings))
            for _ in range(2 if workers == BOTH_ARMED else 1)
        ]
        for worker in armed:
            worker.wait_ready()
        plan = refund_plan(order_id)
        run = await stage.start(plan, durability=mode)
        approving = asyncio.create_task(run.approve())
        if workers == ALONE:
            await asyncio.to_thread(armed[0].wait_killed)
            await running.enter_async_context(stage.worker_here(tool_modules=call.modules))
        await approving
        asked = call.modules == NEITHER and point not in CERTAIN
        if asked:
            await human_settles_refund(stage, run, order_id)
        result = await run.result()
        assert sum(worker.killed for worker in armed) == 1

    assert result.state is RunState.COMPLETED
    if mode is Durability.SYNC:  # elsewhere a crash may begin the counting anew
        view = step(result, call.step)
        assert view.attempts > 1 or (view.replayed and call.reads)  # recorded: not read again
    await one_of_each(stage, run, order_id)
    assert len(stage.intervention_rows(run)) == asked
