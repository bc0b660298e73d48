"""People are told by a real worker, and no run waits for that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.tables import notifications
from surehand.workflows.contracts.approvals import Decision, DecisionOutcome
from surehand.workflows.contracts.base import RunState
from surehand.workflows.plan.plan import Plan
from tests.e2e.runs import failing_plan, refund_plan
from tests.e2e.stage import SHOP_TOOLS, Stage
from tests.e2e.stopped_runs import reconciled, terminated
from tests.notifiers.receiver import Receiver, documents, receiving

HANGS = "tests.variants.hangs:notifier"
Told = list[dict[str, Any]]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving(Receiver()) as one:
        yield one


async def told(receiver: Receiver, type_: str, count: int = 1) -> Told:
    """Wait until the receiver has got so many of a type, and return their data."""

    def enough(got: Told) -> bool:
        return len(documents(got, type_)) >= count

    return documents(await asyncio.to_thread(receiver.wait, enough), type_)


def rows(stage: Stage) -> dict[str, dict[str, Any]]:
    """The outbox of the default tenant, by channel."""
    with stage.ledger.transaction(stage.tenant) as tx:
        return {row["channel"]: row for row in tx.all(rows_of(notifications))}


async def test_hung_notifiers_delay_nobody(stage: Stage, order_id: str, receiver: Receiver) -> None:
    names = f"webhook,{HANGS}"
    with stage.worker(notify=names, log_level="debug", **receiver.settings()) as worker:
        run = await stage.start(refund_plan(order_id))
        [asked] = await told(receiver, "approval.requested")
        await asyncio.to_thread(worker.wait_said, "hangs from here on")
        await run.send(
            Decision(
                approval_id=asked["subject"],
                params_hash=asked["params_hash"],
                outcome=DecisionOutcome.APPROVE,
                approver="ann",
            )
        )
        await run.completed()
        log = worker.output()

    found = rows(stage)
    assert {name: row["state"] for name, row in found.items()} == {
        "webhook": "sent",
        HANGS: "pending",
    }
    assert asked["asked_by"] == ["uma"]
    assert f"python starter.py show {run.run_id}" in asked["commands"]
    assert f"webhook (http://{urlsplit(receiver.url).netloc})" in log
    assert urlsplit(receiver.url).path not in log
    assert receiver.secret not in log


async def test_people_are_told_of_stops(stage: Stage, order_id: str, receiver: Receiver) -> None:
    mail = refund_plan(order_id).model_dump(mode="json")["steps"][-1]
    fails: dict[str, Any] = failing_plan(order_id).model_dump(mode="json")
    fails["steps"].insert(4, mail | {"id": "told"})
    strict = {"id": "it", "tool": "orders.read_strict", "params": {"order_id": order_id}}
    tools = f"{SHOP_TOOLS},tests.variants.hangs"
    with stage.worker(notify="webhook", tool_modules=tools, **receiver.settings()):
        paused = await stage.start(Plan.model_validate({"steps": [strict]}))
        [lacking] = await told(receiver, "permission.needed")
        stopped = await terminated(stage, order_id)
        while not documents(receiver.got, "run.stopped"):
            await reconciled(stage)
        failing = await stage.start(Plan.model_validate(fails))
        result = await failing.result()
        [left] = await told(receiver, "effect.uncompensated")
        await paused.handle.terminate()

    assert lacking["what"] == "uma has no permission orders"
    assert lacking["commands"][1] == f"python starter.py resume {paused.run_id}"
    [end] = documents(receiver.got, "run.stopped")
    assert end["subject"] == stopped.run_id
    assert end["commands"][-1] == f"python starter.py unwind {stopped.run_id}"
    assert result.state is RunState.FAILED
    assert [left["subject"]] == [view.entry_id for view in result.uncompensated]
