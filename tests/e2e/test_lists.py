"""Lists and resources in whole runs: each call is one of its own."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest
from temporalio.client import WorkflowExecutionStatus

from surehand.activities.ledger.core.store import RunNotFound
from surehand.activities.worker.crash_points import CrashPoint
from surehand.activities.worker.watchdog import EXIT_CODE
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.runs import Amend
from surehand.workflows.contracts.steering import PauseRun, ResumeRun, Verb
from surehand.workflows.plan.plan import Plan
from tests.e2e.executions import executions
from tests.e2e.messages import told
from tests.e2e.plans import UNGATED, mail_step, plan, refund_step
from tests.e2e.runs import Run, decision_on, states, step, until
from tests.e2e.stage import Stage
from tests.e2e.test_continuing import SOON
from tests.e2e.test_pause import called
from tests.variants import account
from tests.variants.account import Visit

ITEMS = 5


def new_orders(stage: Stage, number: int = ITEMS) -> list[str]:
    return [stage.shop.new_order() for _ in range(number)]


def refunds(orders: list[str], **changes: Any) -> Plan:
    """Return a plan that pays each order back, one after another, and then looks at the last."""
    pay = refund_step("${item}", for_each="${input.orders}", **changes)
    look = {"id": "look", "tool": "orders.read"}
    last = f"${{refund.{len(orders) - 1}.order_id}}"
    return plan(pay, {**look, "params": {"order_id": last}}, input={"orders": orders})


def made(stage: Stage, orders: list[str]) -> list[tuple[int, int]]:
    """Return how often each was paid back, and taken back."""
    return [stage.paid(order) for order in orders]


async def at_its_second_item(stage: Stage, mode: str, orders: list[str]) -> Run:
    """Return a run that is at the second item of its list, whose call lasts a while."""
    asked = stage.shop.requests("refunds")["received"]
    stage.shop.fault("refunds", delay_after_s=1)
    run = await stage.start(refunds(orders), durability=mode)
    await asyncio.to_thread(stage.shop.wait_requests, "refunds", asked + 2)
    return run


async def test_items_that_follow_one_another_are_one_batch(stage: Stage) -> None:
    orders = new_orders(stage)
    run, result = await stage.play(refunds(orders), durability="exit", tool_modules=UNGATED)

    assert (result.state, made(stage, orders)) == (RunState.COMPLETED, [(1, 0)] * ITEMS)
    outputs = step(result, "refund").output
    assert [output["order_id"] for output in outputs] == orders  # type: ignore[index,call-overload,union-attr]
    found = await called(run)
    # The items; and the step behind them, which nothing follows.
    assert (found["execute_tools"], found["local"]) == (1, 1)


@pytest.mark.crash
@pytest.mark.parametrize(
    ("mode", "point"),
    [
        ("sync", CrashPoint.AFTER_CALL),
        ("async", CrashPoint.BEFORE_REPORT),
        ("exit", CrashPoint.AFTER_CALL),
        ("exit", CrashPoint.BEFORE_REPORT),
    ],
)
async def test_a_kill_at_an_item_doubles_none(stage: Stage, mode: str, point: CrashPoint) -> None:
    orders = new_orders(stage)
    run = await stage.die_at(
        f"payments.refund:{point}", refunds(orders), durability=mode, tool_modules=UNGATED
    )
    result = await stage.finish(run, tool_modules=UNGATED)

    assert (result.state, made(stage, orders)) == (RunState.COMPLETED, [(1, 0)] * ITEMS)


@pytest.mark.parametrize("broken", [False, True])
async def test_a_list_fails_as_people_want_only_if_each_failing_item_was_rejected(
    stage: Stage, broken: bool
) -> None:
    orders = [stage.shop.new_order(), "no-such-order"]
    async with stage.worker_here():
        run = await stage.start(refunds(orders, parallel=2))
        view = await run.until(lambda view: len(view.pending) == 2)
        first, second = sorted(view.pending, key=lambda one: one.params["order_id"] != orders[0])
        # The other one fails first, or says no as well.
        await run.decide(decision_on(second, outcome="approve" if broken else "reject"))
        await run.until(lambda view: len(view.pending) == 1)
        await run.decide(decision_on(first, outcome="reject"))
        result = await run.result()
        shown = await run.handle.describe()

    assert (result.state, made(stage, orders[:1])) == (RunState.FAILED, [(0, 0)])
    assert shown.status is (
        WorkflowExecutionStatus.FAILED if broken else WorkflowExecutionStatus.COMPLETED
    )


@pytest.mark.parametrize("mode", ["sync", "exit"])
async def test_a_pause_stops_a_list_between_its_items(stage: Stage, mode: str) -> None:
    orders = new_orders(stage)
    async with stage.worker_here(tool_modules=UNGATED):
        run = await at_its_second_item(stage, mode, orders)
        await told(run, Verb.PAUSE, PauseRun(actor="olga"))
        await run.in_state(RunState.PAUSED_USER)
        paused = made(stage, orders)
        await told(run, Verb.RESUME, ResumeRun(actor="olga"))
        result = await run.result()

    assert paused[0] == (1, 0)
    assert paused[-1] == (0, 0)
    assert (result.state, made(stage, orders)) == (RunState.COMPLETED, [(1, 0)] * ITEMS)


@pytest.mark.parametrize("mode", ["async", "exit"])
async def test_a_cancel_undoes_done_items_and_begins_no_other(stage: Stage, mode: str) -> None:
    orders = new_orders(stage)
    async with stage.worker_here(tool_modules=UNGATED):
        run = await at_its_second_item(stage, mode, orders)
        await run.cancel(mode="compensate")
        result = await run.result()

    assert result.state is RunState.CANCELLED
    counts = made(stage, orders)
    assert (counts[0], counts[-1]) == ((1, 1), (0, 0))
    assert all(done == undone for done, undone in counts)
    assert result.uncompensated == []


@pytest.mark.parametrize(
    ("mode", "parallel"), [("sync", 3), ("async", 1), ("exit", 1), ("exit", 3)]
)
async def test_a_list_is_continued_in_its_middle(stage: Stage, mode: str, parallel: int) -> None:
    # So many that `exit`, which reports on a hundred at once, has several reports, too.
    alone = {"sync": 12, "async": 110, "exit": 250}
    orders = new_orders(stage, 12 if parallel > 1 else alone[mode])
    async with stage.worker_here(tool_modules=UNGATED):
        pay = refunds(orders, parallel=parallel)
        run = await stage.start(pay, durability=mode, continue_after=SOON)
        result = await run.result()
        # Where calls are reported together, it depends on how quick they are.
        assert mode != "sync" or len(await executions(stage, run)) >= 2

    assert result.state is RunState.COMPLETED
    assert [one for one, _ in made(stage, orders)] == [1] * len(orders)
    assert len(step(result, "refund").output) == len(orders)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["sync", "exit"])
async def test_another_plan_waits_for_the_list_that_is_under_way(stage: Stage, mode: str) -> None:
    orders = new_orders(stage)
    async with stage.worker_here(tool_modules=UNGATED):
        run = await at_its_second_item(stage, mode, orders)
        old = refunds(orders)
        new = old.model_copy(update={"steps": old.steps[:1]})
        await told(run, Verb.AMEND, Amend(actor="olga", plan=new, based_on=1))
        result = await run.result()
        view = await run.view()

    assert (result.state, view.plan_version) == (RunState.COMPLETED, 2)
    assert made(stage, orders) == [(1, 0)] * ITEMS
    assert "look" not in states(result)


@pytest.mark.parametrize(("mode", "continue_after"), [("sync", SOON), ("exit", None)])
async def test_a_list_goes_on_with_its_items_though_they_are_read_again(
    stage: Stage, tmp_path: Path, mode: str, continue_after: int | None
) -> None:
    orders = new_orders(stage, 12)
    file = tmp_path / "orders"
    file.write_text(" ".join(orders))
    read = {"id": "open", "tool": "gates.orders", "params": {"file": str(file)}}
    mail = mail_step("${item}", "notice", id="mail", for_each="${open.orders}")
    # It is what has them read again: nothing else is made of them any more.
    last = {"id": "last", "tool": "orders.read", "params": {"order_id": "${open.orders.0}"}}
    asked = stage.shop.requests("mails")["received"]
    stage.shop.fault("mails", delay_after_s=1)
    async with stage.worker_here(tool_modules="tests.variants.gates"):
        run = await stage.start(
            plan(read, mail, last), durability=mode, continue_after=continue_after
        )
        await asyncio.to_thread(stage.shop.wait_requests, "mails", asked + 2)
        await told(run, Verb.PAUSE, PauseRun(actor="olga"))
        await run.in_state(RunState.PAUSED_USER)
        stage.shop.clear_faults()
        file.write_text(" ".join(orders[1:]))
        await told(run, Verb.RESUME, ResumeRun(actor="olga"))
        result = await run.result()

    assert result.state is RunState.COMPLETED
    assert [stage.shop.counts(order)["mails"] for order in orders] == [1] * 12


# Lists of plans that make lists of plans: a run's room ends, and it unwinds and says why.
TOOLS: Final = "tests.variants.amounts"


def counting(many: int, **then: Any) -> list[dict[str, Any]]:
    """Steps that make a list at run time, and do something for each of it."""
    return [
        {"id": "all", "tool": "numbers.upto", "params": {"many": many}},
        {"id": "each", "for_each": "${all}", **then},
    ]


async def test_nested_lists_end_where_no_room_is_left(stage: Stage, order_id: str) -> None:
    leaf = {"tool": "numbers.upto", "params": {"many": 1}}
    inner = {"plan": {"steps": counting(900, **leaf)}}
    async with stage.worker_here(tool_modules=TOOLS):
        run = await stage.start(plan(refund_step(order_id), *counting(200, **inner)))
        await run.decide(decision_on(await run.asks()))
        result = await run.result()

    assert result.state is RunState.FAILED
    assert "100,000 steps with all runs inside it" in (result.error or "")
    assert "a list of 900 is too much" in (step(result, "each[0]").error or "")
    assert stage.paid(order_id) == (1, 1)
    assert {view.child for view in result.steps if view.child} == {f"{run.run_id}~each[0]"}


ACCOUNT = "tests.variants.account"


@pytest.fixture
def visit(tmp_path: Path) -> Visit:
    folder = tmp_path / "account"
    folder.mkdir()
    return Visit(folder=str(folder))


def resource_plan(tool: str, visit: Visit) -> Plan:
    step = {"id": "it", "tool": tool, "params": visit.model_dump()}
    return Plan.model_validate({"steps": [step]})


async def begun(visit: Visit, run: Run) -> None:
    """Wait until the account has seen a run's call begin."""

    async def look() -> list[str]:
        return account.record(visit)

    await until(look, lambda seen: f"begins {run.run_id}" in seen)


async def waits(stage: Stage, visit: Visit, run: Run) -> None:
    """Wait until a run's call waits for the account, or has begun although it should not."""

    async def look() -> list[Any]:
        try:
            waited = await stage.events(run, "resource.waited")
        except RunNotFound:
            return []  # not opened yet
        return [*waited, *account.record(visit)[1:]]

    await until(look, bool)


@pytest.mark.parametrize(
    ("database", "second"),
    [
        ("sqlite", "account.pay"),
        pytest.param("postgresql", "account.read", marks=pytest.mark.postgres),
    ],
)
async def test_runs_on_one_resource_never_overlap(stage: Stage, visit: Visit, second: str) -> None:
    async with stage.worker_here(tool_modules=ACCOUNT):
        first = await stage.start(resource_plan("account.pay", visit))
        await begun(visit, first)
        other = await stage.start(resource_plan(second, visit))
        await waits(stage, visit, other)
        account.let_go(visit)
        results = [await first.result(), await other.result()]

    assert [result.state for result in results] == [RunState.COMPLETED] * 2
    assert account.record(visit) == [
        f"begins {first.run_id}",
        f"ends {first.run_id}",
        f"begins {other.run_id}",
        f"ends {other.run_id}",
    ]


@pytest.mark.crash
async def test_a_dead_workers_resource_is_taken_over_in_time(stage: Stage, visit: Visit) -> None:
    crash_at = "account.pay:during_call"
    first = await stage.die_at(crash_at, resource_plan("account.pay", visit), tool_modules=ACCOUNT)
    account.let_go(visit)
    other = await stage.start(resource_plan("account.pay", visit))
    async with stage.worker_here(tool_modules=ACCOUNT):
        results = [await first.result(), await other.result()]

    assert [result.state for result in results] == [RunState.COMPLETED] * 2
    dead, *others = account.record(visit)
    assert dead == f"begins {first.run_id}"
    assert sorted(others[0::2]) == sorted(f"begins {run.run_id}" for run in (first, other))
    assert [line.replace("begins", "ends") for line in others[0::2]] == others[1::2]
    [held] = (await stage.events(first, "resource.acquired"))[:1]
    [got] = (await stage.events(other, "resource.acquired"))[:1]
    assert got["at"] >= after_the_lease_of(held), "by the database's clock"


def after_the_lease_of(acquired: dict[str, Any]) -> str:
    over = datetime.fromisoformat(acquired["at"]) + account.LEASE
    return over.isoformat(timespec="milliseconds")


@pytest.mark.crash
async def test_a_tool_blocking_past_its_lease_ends_its_worker(stage: Stage, visit: Visit) -> None:
    with stage.ready_worker(tool_modules=ACCOUNT) as blocked:
        first = await stage.start(resource_plan("account.block", visit))
        assert await asyncio.to_thread(blocked.wait_exit) == EXIT_CODE
    await first.handle.terminate()
    account.let_go(visit)
    other = await stage.start(resource_plan("account.pay", visit))
    result = await stage.finish(other, tool_modules=ACCOUNT)

    assert result.state is RunState.COMPLETED
    assert account.record(visit) == [
        f"begins {first.run_id}",
        f"begins {other.run_id}",
        f"ends {other.run_id}",
    ]
