"""Names of tenants as anybody can send them to the server: one odd one stops nobody else."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.exceptions import ApplicationError

from surehand.activities.ledger.core.store import Ledger
from surehand.activities.worker import rounds
from surehand.activities.worker.rounds import learn
from surehand.workflows.contracts.maintenance import ReconcileLedger, UnwindRun
from surehand.workflows.contracts.runs import StartRun
from surehand.workflows.contracts.states import RunState
from surehand.workflows.names import RECONCILE, TENANT, UNWIND, WORKFLOW
from surehand.workflows.plan.plan import Plan
from tests.e2e.plans import plan
from tests.e2e.runs import until
from tests.e2e.stage import Stage
from tests.e2e.test_opening import refusal

ODD = ["a'b", "..", ".", "a b", "t" * 40]


def asking() -> Any:
    return plan({"id": "go", "ask": "Go on?"})


async def why(handle: Any) -> ApplicationError:
    with pytest.raises(WorkflowFailureError) as failure:
        await handle.result()
    cause = failure.value.cause
    assert isinstance(cause, ApplicationError)
    return cause


@pytest.mark.parametrize("tenant", ODD)
async def test_a_run_of_no_tenant_is_refused_and_nothing_asks_for_it(
    stage: Stage, tenant: str
) -> None:
    run_id = f"{tenant}/{uuid.uuid4().hex}"
    async with stage.worker_here():
        start = StartRun(run_id=run_id, tenant=tenant, user="uma", plan=asking())
        cause = await refusal(stage, run_id, start)
        found = await stage.client.get_workflow_handle(run_id).describe()
    assert (cause.type, "letters, digits" in cause.message) == ("RunIdInvalid", True)
    assert found.typed_search_attributes.get(TENANT) is None
    assert tenant not in stage.ledger.tenants


@pytest.mark.parametrize("tenant", ODD)
async def test_a_round_and_an_unwinding_for_no_tenant_are_refused(
    stage: Stage, tenant: str
) -> None:
    reconcile = ReconcileLedger(tenant=tenant)
    unwinding = UnwindRun(tenant=tenant, run_id=f"{tenant}/run-1", actor="olga")
    async with stage.worker_here():
        for name, asked in ((RECONCILE, reconcile), (UNWIND, unwinding)):
            handle = await stage.client.start_workflow(
                name, asked, id=f"odd-{uuid.uuid4().hex}", task_queue=stage.task_queue
            )
            cause = await why(handle)
            assert (cause.type, "letters, digits" in cause.message) == ("RunIdInvalid", True)


async def test_a_worker_learns_of_tenants_beside_runs_of_odd_names(stage: Stage) -> None:
    """Nobody works on those: they stay open, and are found first."""
    new = f"tenant-{uuid.uuid4().hex[:12]}"
    odd = []
    async with stage.worker_here():
        run = await stage.start(asking(), tenant=new)
        await run.in_state(RunState.WAITING_INPUT)
        for tenant in ("o'dd", "..", "default"):
            named = TypedSearchAttributes([SearchAttributePair(TENANT, f"{tenant}'?")])
            odd.append(
                await stage.client.start_workflow(
                    WORKFLOW, {}, id=f"{tenant}/{uuid.uuid4().hex}", task_queue="nobodys",
                    search_attributes=named,
                )
            )  # fmt: skip
        fresh = Ledger(stage.ledger.engine)

        async def learnt() -> set[str]:
            await learn(stage.client, fresh)
            return fresh.tenants

        assert new in await until(learnt, lambda known: new in known)
        assert fresh.tenants.isdisjoint({"o'dd", ".."})
        for handle in odd:
            await handle.terminate("done with")
        await run.handle.terminate("done with")


# G5: people of every tenant are reminded after a start, however many tenants there are.


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
