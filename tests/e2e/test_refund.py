"""Guarantee G1: the plan completes, and each effect happens once."""

from __future__ import annotations

import pytest

from surehand.workflows.contracts.states import RunState
from tests.e2e.runs import example_plan, states, step
from tests.e2e.stage import Stage
from tests.ledger_databases import DATABASES


@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize("cached", ["0", "1000"], ids=["replayed at each step", "kept in memory"])
async def test_the_refund_plan_makes_one_refund_and_sends_one_mail(
    stage: Stage, order_id: str, cached: str
) -> None:
    with stage.worker(max_cached_workflows=cached) as worker:
        worker.wait_ready()
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        request = await run.approve()
        result = await run.result()
        view = await run.view()

    assert result.state is RunState.COMPLETED
    assert set(states(result).values()) == {"succeeded"}
    assert stage.shop.counts(order_id) == {
        "refunds": 1,
        "refund_cancellations": 0,
        "mails": 1,
        "restocks": 1,
        "restock_undos": 0,
        "ticket_closures": 0,
    }
    entries = {row["tool"]: row for row in await stage.effects(run)}
    assert {tool: (row["state"], row["calls"]) for tool, row in entries.items()} == {
        "payments.refund": ("committed", 1),
        "inventory.restock": ("committed", 1),
        "mail.send": ("committed", 1),
    }
    assert entries["payments.refund"]["key"] == f"refund:{order_id}"
    assert entries["payments.refund"]["params_hash"] == request.params_hash
    assert entries["payments.refund"]["approval_id"] == request.approval_id
    assert step(result, "refund").output == entries["payments.refund"]["receipt"]
    assert view.result == result
    [approval] = stage.approval_rows(run)
    assert approval["consumed_entry"] == entries["payments.refund"]["entry_id"]


async def test_the_end_of_a_run_with_many_effects_can_be_told(
    stage: Stage, order_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of 10,000 effects a list of all took more than the server takes in one message.
    monkeypatch.setattr("surehand.activities.runs.MOST_EFFECTS", 2)
    async with stage.worker_here():
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await run.approve()
        result = await run.result()

    assert result.state is RunState.COMPLETED
    assert [effect.tool for effect in result.effects] == ["inventory.restock", "mail.send"]
    assert result.more_effects == 1
