"""G5: people of every tenant are reminded after a start, however many tenants there are."""

from __future__ import annotations

import pytest

from surehand.activities.ledger.core.store import Ledger
from surehand.activities.worker import rounds
from surehand.workflows.contracts.states import RunState
from surehand.workflows.plan.plan import Plan
from tests.e2e.runs import until
from tests.e2e.stage import Stage


async def test_a_worker_learns_of_tenants_beyond_those_that_a_query_can_leave_out(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "_MOST", 1)
    asks = Plan.model_validate([{"id": "a", "ask": "Go on?"}])
    names = {"t-one", "t-three", "t-two"}
    async with stage.worker_here():
        for name in names:
            run = await stage.start(asks, tenant=name)
            await run.in_state(RunState.WAITING_INPUT)
    # It has worked for one that comes first, and has no run.
    ledger = Ledger(stage.ledger.engine)
    ledger.tenants.add("a-tenant")

    async def learnt() -> set[str]:
        await rounds.learn(stage.client, ledger)
        return names & ledger.tenants

    # The server's list of runs lags a little behind.
    await until(learnt, names.__eq__)
