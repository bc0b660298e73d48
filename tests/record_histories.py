"""Records histories of real runs, and a ledger: ``python -m tests.record_histories [NAME ...]``.

A recorded history is never recorded anew to make a test pass: it stands for the runs that are
parked somewhere while a new version is deployed. Delete one only when no such run can exist. From
0.1.0 on the same is true of the ledger: a release adds one beside it, if it has changed tables.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

from temporalio.client import Client, WorkflowFailureError
from temporalio.contrib.pydantic import pydantic_data_converter

from surehand.activities.ledger.core.migrate import migrate
from surehand.activities.ledger.core.store import open_ledger
from surehand.activities.worker.crash_points import CrashPoint
from surehand.process.dev_server import DevServer
from surehand.process.exits import leave
from surehand.workflows.contracts.base import RunState
from surehand.workflows.plan.plan import Plan
from tests.e2e.model_scripts import driven
from tests.e2e.plans import NEITHER, UNGATED
from tests.e2e.runs import Run, decision_on, failing_plan, refund_plan
from tests.e2e.stage import Stage
from tests.shop_process import ShopProcess

FOLDER: Final = Path(__file__).parent / "e2e" / "histories"
#: The SQL that makes a ledger with these scenes' runs again.
LEDGER: Final = FOLDER / "ledger.sql"
SCENES_OF_LEDGER: Final = ("completed", "compensated", "rejected", "settled_by_a_human", "parked")


async def completed(stage: Stage) -> Run:
    async with stage.worker_here():
        run = await stage.start(refund_plan(stage.shop.new_order()))
        await run.approve()
        await run.result()
    return run


async def parked(stage: Stage) -> Run:
    """A run that waits for an approval, with refused decisions behind it and one held."""
    async with stage.worker_here():
        run = await stage.start(refund_plan(stage.shop.new_order()))
        request = await run.asks()
        await run.decide(decision_on(request, params_hash="sha256:" + "0" * 64))
        await run.decide("nonsense")
        await run.decide(decision_on(request, approval_id=f"{run.run_id}/mail/1"))
    return run


async def rejected(stage: Stage) -> Run:
    async with stage.worker_here():
        plan = refund_plan(stage.shop.new_order())
        steps = (plan.steps[3].model_copy(update={"after": ("order",)}), *plan.steps[:3])
        run = await stage.start(plan.model_copy(update={"steps": (*steps[1:], steps[0])}))
        await run.decide(decision_on(await run.asks(), outcome="reject", reason="too much"))
        await run.result()
    return run


async def compensated(stage: Stage) -> Run:
    async with stage.worker_here():
        run = await stage.start(failing_plan(stage.shop.new_order()))
        await run.approve()
        await run.result()
    return run


async def crashed_and_recovered(stage: Stage) -> Run:
    with stage.worker(crash_at=f"payments.refund:{CrashPoint.AFTER_CALL}") as doomed:
        doomed.wait_ready()
        run = await stage.start(refund_plan(stage.shop.new_order()))
        await run.approve()
        doomed.wait_killed()
    async with stage.worker_here():
        await run.result()
    return run


async def settled_by_a_human(stage: Stage) -> Run:
    stage.shop.fault("refunds", fail="drop_before", times=1)
    async with stage.worker_here(tool_modules=NEITHER):
        run = await stage.start(refund_plan(stage.shop.new_order()))
        await run.approve()
        [question] = (await run.in_state(RunState.NEEDS_INTERVENTION)).result.waiting_for
        await stage.no_call_may_arrive(run)
        await run.resolve(intervention_id=question.id, outcome="not_happened")
        await run.result()
    return run


async def continued(stage: Stage) -> Run:
    """The newest execution of a run that has continued as new while it waited for an approval."""
    async with stage.worker_here():
        plan = refund_plan(stage.shop.new_order())
        run = await stage.start(plan, continue_after=40)
        request = await run.asks()
        for _ in range(3):
            await run.decide(decision_on(request, params_hash="sha256:" + "0" * 64))
        await run.decide(decision_on(request))
        await run.result()
    return run


async def cancelled(stage: Stage) -> Run:
    """Cancelled while its restock is under way, after its refund."""
    stage.shop.fault("restocks", delay_after_s=1)
    async with stage.worker_here():
        run = await stage.start(refund_plan(stage.shop.new_order()))
        await run.approve()
        await run.until(lambda view: view.result.steps[3].state == "running")
        await run.cancel(reason="changed my mind")
        await run.result()
    return run


async def cancelled_by_temporal(stage: Stage) -> Run:
    async with stage.worker_here():
        run = await stage.start(refund_plan(stage.shop.new_order()))
        await run.asks()
        await run.handle.cancel()
        with suppress(WorkflowFailureError):
            await run.handle.result()
    return run


async def made_by_code(stage: Stage) -> Run:
    async with stage.worker_here(workflow_modules="surehand.examples.late_orders"):
        orders = [stage.shop.new_order() for _ in range(2)]
        given = {"code": "LateOrders", "input": {"orders": orders}}
        run = await stage.start(Plan.model_validate(given))
        await run.decide(decision_on(await run.asks(f"refund-{orders[0]}")))
        await run.decide(decision_on(await run.asks(f"refund-{orders[1]}"), outcome="reject"))
        await run.in_state(RunState.WAITING_INPUT)
        await run.handle.execute_update("answer", {"actor": "ann", "answer": True})
        await run.result()
    return run


async def driven_by_a_model(stage: Stage) -> Run:
    order_id = stage.shop.new_order()
    read = {"do": "call", "tool": "orders.read", "params": {"order_id": order_id}}
    script = [read, {"do": "ask", "question": "Is it damaged?"}, "finish with all"]
    async with stage.worker_here(agent_modules="tests.variants.model"):
        stage.folder.mkdir(exist_ok=True)
        run = await stage.start(driven(stage.folder, *script, tools=["orders.*"]))
        await run.in_state(RunState.WAITING_INPUT)
        await run.handle.execute_update("answer", {"actor": "ann", "answer": "yes"})
        await run.result()
    return run


async def limited(stage: Stage) -> Run:
    """A run whose first step has taken too long, and that goes on."""
    stage.shop.fault("orders", fail="before", status=503)
    first = {"tool": "orders.read", "time_limit": "1s", "on_failure": "continue"}
    async with stage.worker_here():
        steps = [{**first, "params": {"order_id": stage.shop.new_order()}}, {"ask": "Go on?"}]
        run = await stage.start(Plan.model_validate(steps))
        await run.in_state(RunState.WAITING_INPUT)
        await run.handle.execute_update("answer", {"actor": "ann", "answer": "yes"})
        await run.result()
    return run


async def continued_by_a_model(stage: Stage) -> Run:
    """The newest execution of a model's run that has continued as new between its turns."""
    order_id = stage.shop.new_order()
    read = {"do": "call", "tool": "orders.read", "params": {"order_id": order_id}}
    script = [read, read, read, read, "finish with all"]
    async with stage.worker_here(agent_modules="tests.variants.model"):
        stage.folder.mkdir(exist_ok=True)
        plan = driven(stage.folder, *script, tools=["orders.*"])
        run = await stage.start(plan, continue_after=40)
        await run.result()
    return run


async def read_again(stage: Stage) -> Run:
    """A run that was resumed when what its approval rested on had changed."""
    stage.folder.mkdir(exist_ok=True)
    price = stage.folder / "price"
    price.write_text("10.50")
    given = {"order_id": stage.shop.new_order(), "amount": "${price.amount}", "currency": "EUR"}
    steps = [
        {"id": "price", "tool": "prices.read", "params": {"file": str(price)}},
        {"id": "refund", "tool": "payments.refund", "params": given},
    ]
    async with stage.worker_here(tool_modules="tests.variants.prices"):
        run = await stage.start(Plan.model_validate(steps))
        old = await run.asks()
        await run.handle.execute_update("pause", {"actor": "ann"})
        price.write_text("12.75")
        await run.handle.execute_update("resume", {"actor": "ann"})
        view = await run.until(lambda seen: any(asked != old for asked in seen.pending))
        await run.decide(decision_on(view.pending[0]))
        await run.result()
    return run


async def in_local_calls(stage: Stage) -> Run:
    async with stage.worker_here():
        plan = refund_plan(stage.shop.new_order())
        run = await stage.start(plan, durability="async")
        await run.approve()
        await run.result()
    return run


async def in_batches(stage: Stage) -> Run:
    """Paused after its worker has died in a batch, which is revoked; then a list's items."""
    order_id, orders = stage.shop.new_order(), [stage.shop.new_order() for _ in range(3)]
    params = {"order_id": "${item}", "amount": "120.00", "currency": "EUR"}
    pay = {"id": "refund", "tool": "payments.refund", "params": params}
    steps = [
        {"id": "order", "tool": "orders.read", "params": {"order_id": order_id}},
        {"id": "again", "tool": "orders.read", "params": {"order_id": "${order.order_id}"}},
        {**pay, "for_each": "${input.orders}"},
    ]
    plan = Plan.model_validate({"steps": steps, "input": {"orders": orders}})
    with stage.worker(
        crash_at=f"orders.read:{CrashPoint.AFTER_CALL}", tool_modules=UNGATED
    ) as doomed:
        doomed.wait_ready()
        run = await stage.start(plan, durability="exit")
        doomed.wait_killed()
    await run.handle.signal("pause", {"actor": "ann"})
    async with stage.worker_here(tool_modules=UNGATED):
        await run.in_state(RunState.PAUSED_USER)
        await run.handle.execute_update("resume", {"actor": "ann"})
        await run.result()
    return run


SCENES: Final[dict[str, Callable[[Stage], Awaitable[Run]]]] = {
    scene.__name__: scene
    for scene in (
        completed,
        parked,
        rejected,
        compensated,
        crashed_and_recovered,
        settled_by_a_human,
        continued,
        cancelled,
        cancelled_by_temporal,
        made_by_code,
        driven_by_a_model,
        limited,
        continued_by_a_model,
        read_again,
        in_local_calls,
        in_batches,
    )
}


def untraced(history: str) -> str:
    """Return a history without tracebacks: replays need none, and they tell where code lay."""

    def cut(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: cut(item) for key, item in value.items() if key != "stackTrace"}
        return [cut(item) for item in value] if isinstance(value, list) else value

    return json.dumps(cut(json.loads(history)), indent=2, ensure_ascii=False) + "\n"


async def record(names: list[str], folder: Path) -> None:
    of_ledger = names == [LEDGER.stem]
    url = f"sqlite:///{folder / 'ledger.db'}"
    migrate(url)
    server = DevServer.start(db_file=folder / "temporal.db", ui_port=None)
    try:
        client = await Client.connect(server.address, data_converter=pydantic_data_converter)
        with ShopProcess(folder / "shop.sqlite") as shop:
            os.environ["SHOP_URL"] = shop.url
            async with open_ledger(url) as ledger:
                for name in SCENES_OF_LEDGER if of_ledger else names:
                    stage = Stage(client, shop, ledger, url, f"queue-{name}", folder / name)
                    run = await SCENES[name](stage)
                    shop.clear_faults()
                    if of_ledger:
                        continue
                    history = await run.handle.fetch_history()
                    (FOLDER / f"{name}.json").write_text(untraced(history.to_json()))
                    print(f"{name}: {len(history.events)} events")
    finally:
        server.stop()
    if of_ledger:
        with closing(sqlite3.connect(folder / "ledger.db")) as rows:
            LEDGER.write_text("\n".join(rows.iterdump()) + "\n", encoding="utf-8")


def main(names: list[str]) -> int:
    """Record the scenes that have no history yet, or those that are named; `ledger`: its rows."""
    FOLDER.mkdir(exist_ok=True)
    known = {name: FOLDER / f"{name}.json" for name in SCENES} | {LEDGER.stem: LEDGER}
    wanted = names or [name for name, file in known.items() if not file.exists()]
    if unknown := set(wanted) - known.keys():
        print(f"unknown: {', '.join(unknown)}; known are {', '.join(known)}", file=sys.stderr)
        return 2
    histories = [name for name in wanted if name != LEDGER.stem]
    for together in filter(None, (histories, [LEDGER.stem] * (LEDGER.stem in wanted))):
        with tempfile.TemporaryDirectory(prefix="surehand-histories-") as folder:
            asyncio.run(record(together, Path(folder)))
    return 0


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
