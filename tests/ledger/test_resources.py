"""Calls that name a resource: what the activities hold, wait for, lose and give back."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from pydantic import BaseModel
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from surehand.activities.effects import leases as leases_module
from surehand.activities.effects.compensation import CompensationActivities
from surehand.activities.effects.leases import keep_freeing
from surehand.activities.effects.tool_calls import ToolActivities
from surehand.activities.ledger.core.tables import effects, leases
from surehand.activities.ledger.effects import resource_leases as lease_rows
from surehand.activities.ledger.effects.resource_leases import LeaseRequest
from surehand.activities.tools.failures import Permanent
from surehand.activities.tools.tool import Dedupes, Tool, ToolContext, Undo
from surehand.activities.tools.toolbox import READ, WRITE, tool
from surehand.activities.worker.context import WorkerContext, keep_alive
from surehand.workflows.contracts.effects import Compensate, CompensationOutcome
from surehand.workflows.contracts.tools import Batch, Succeeded, ToolCall, ToolReport
from surehand.workflows.names import PAUSES, ErrorType
from tests.ledger.attempts import reconciled, worker_of
from tests.ledger.rows import change
from tests.ledger.scene import OTHER_RUN, RUN, Scene

T = TypeVar("T")

HOUR = timedelta(hours=1)
NOW = timedelta(0)


class Account(BaseModel):
    account: str = "7"


class Bank:
    """An outside system; a call to it lasts until it is told to end."""

    def __init__(self) -> None:
        self.begun: list[ToolContext] = []
        self.begins = asyncio.Event()
        self.may_end = asyncio.Event()
        self.stopped = False

    async def call(self, params: Account, ctx: ToolContext) -> str:
        """Do it."""
        self.begun.append(ctx)
        self.begins.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.stopped = True
            raise
        return "done"

    def tool(self, name: str = "bank.pay", **options: Any) -> Tool:
        how: dict[str, Any] = {"effect": WRITE, "dedupes": Dedupes(HOUR)}
        if options.get("effect") is READ:
            how = {}
        elif "compensate" not in options:
            how["irreversible"] = True
        named = {"resource": lambda p: f"account:{p.account}", **how, **options}
        return tool(name, **named)(self.call)


@pytest.fixture
async def bank() -> Bank:
    return Bank()


@pytest.fixture
def scene(scene: Scene) -> Scene:
    scene.open_run(OTHER_RUN)
    return scene


@pytest.fixture(autouse=True)
def waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases_module, "_WAIT", NOW)


@dataclasses.dataclass(frozen=True)
class Worker:
    """Runs activities as Temporal does, without a server."""

    scene: Scene
    context: WorkerContext

    async def call(self, loaded: Tool, run_id: str = RUN, step_id: str = "pay") -> ToolReport:
        sent = ToolCall(
            tenant=self.scene.tenant,
            run_id=run_id,
            step_id=step_id,
            plan_version=1,
            user="ada",
            tool=loaded.spec(),
            params={"account": "7"},
        )
        execute = ToolActivities(self.context).execute_tools
        report = await attempt(run_id, execute(Batch(first=sent)))
        return report.steps[0].report

    async def compensate(self, step_id: str = "pay") -> CompensationOutcome:
        [made] = self.scene.rows(effects, run_id=RUN, step_id=step_id, undoes=None)
        asked = Compensate(
            tenant=self.scene.tenant,
            run_id=RUN,
            step_id=step_id,
            entry_id=made["entry_id"],
            user="ada",
        )
        run = CompensationActivities(self.context).compensate
        return (await attempt(RUN, run(asked))).outcome


async def attempt(run_id: str, work: Coroutine[Any, Any, T]) -> T:
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(
        environment.info, workflow_run_id="first", activity_id=run_id
    )
    return await environment.run(keep_alive, work)


def worker(scene: Scene, *tools: Tool) -> Worker:
    return Worker(scene, worker_of(scene, *tools))


def told(scene: Scene, run_id: str = RUN) -> list[str]:
    """What a run's events tell of resources, and of what was done with them held."""
    wanted = ("resource.", "effect.", "step.")
    return [row["type"] for row in scene.events(run_id) if row["type"].startswith(wanted)]


def lose(scene: Scene) -> None:
    """Have every lease run out, and somebody else take it."""
    lost = {"fencing_token": leases.c.fencing_token + 1, "holder": "another"}
    change(scene, leases, **lost, run_id=OTHER_RUN)


async def test_a_write_holds_its_resource_all_along(scene: Scene, bank: Bank) -> None:
    pay = bank.tool()
    bank.may_end.set()

    await worker(scene, pay).call(pay)

    assert told(scene) == [
        "resource.acquired",
        "effect.claimed",
        "effect.committed",
        "resource.released",
    ]
    assert (scene.row(leases))["holder"] is None
    assert bank.begun[0].fencing_tokens == {"account:7": 1}


@pytest.mark.parametrize("second", [WRITE, READ])
async def test_a_held_resource_refuses_others(scene: Scene, bank: Bank, second: Any) -> None:
    pay = bank.tool()
    idle = Bank()
    idle.may_end.set()
    other = idle.tool("bank.other", effect=second)
    here = worker(scene, pay, other)
    first = asyncio.create_task(here.call(pay))
    await bank.begins.wait()

    with pytest.raises(ApplicationError) as refused:
        await here.call(other, OTHER_RUN)

    assert (refused.value.type, refused.value.non_retryable) == ("ResourceBusy", False)
    assert refused.value.next_retry_delay == PAUSES[ErrorType.RESOURCE_BUSY]
    assert f"'account:7' is held by step pay of run {RUN}" in refused.value.message
    assert told(scene, OTHER_RUN) == ["resource.waited", "resource.refused"]
    assert scene.rows(effects, run_id=OTHER_RUN) == []
    assert idle.begun == []
    bank.may_end.set()
    await first
    assert isinstance((await here.call(other, OTHER_RUN)).outcome, Succeeded)
    assert len(idle.begun) == 1


async def test_an_attempt_that_may_wait_gets_the_resource_when_it_is_free(
    scene: Scene, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases_module, "_LOOK_FREE_EVERY", 0.01)
    monkeypatch.setattr(leases_module, "_WAIT", HOUR)
    pay = bank.tool()
    here = worker(scene, pay)
    first = asyncio.create_task(here.call(pay))
    await bank.begins.wait()

    second = asyncio.create_task(here.call(pay, RUN, "again"))
    while "resource.waited" not in told(scene):
        await asyncio.sleep(0)
    assert len(bank.begun) == 1
    bank.may_end.set()
    await asyncio.gather(first, second)

    (_, acquired) = scene.events(type_="resource.acquired")
    assert acquired["step_id"] == "again"
    assert "waited_ms" in acquired["body"]


async def test_what_a_waiting_attempt_waits_for_is_shown_beside_its_activity(
    scene: Scene, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("surehand.activities.worker.context.HEARTBEAT_EVERY", 0.01)
    monkeypatch.setattr(leases_module, "_WAIT", HOUR)
    pay = bank.tool()
    here = worker(scene, pay)
    first = asyncio.create_task(here.call(pay))
    await bank.begins.wait()
    shown = asyncio.Event()

    def beat(*details: Any) -> None:
        if details == (f"waits: resource 'account:7' is held by step pay of run {RUN}",):
            shown.set()

    monkeypatch.setattr("surehand.activities.worker.context.activity.heartbeat", beat)
    second = asyncio.create_task(here.call(pay, OTHER_RUN))
    await shown.wait()
    bank.may_end.set()
    await asyncio.gather(first, second)


async def test_the_next_attempt_takes_a_dead_calls_resource(scene: Scene, bank: Bank) -> None:
    pay = bank.tool()
    bank.may_end.set()
    with scene.tx() as tx:
        dead = LeaseRequest(scene.tenant, RUN, "pay", "bank.pay", ("account:7",), "dead", 1, HOUR)
        lease_rows.acquire_resources(tx, dead)
    here = worker(scene, pay)

    assert isinstance((await here.call(pay)).outcome, Succeeded)
    with pytest.raises(ApplicationError, match="account:7"):
        await here.call(pay, OTHER_RUN)  # the dead one may be a zombie


@pytest.mark.parametrize("effect", [WRITE, READ])
async def test_a_lost_resource_keeps_the_outcome(
    scene: Scene, bank: Bank, effect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases_module, "_LEASE", HOUR)
    pay = bank.tool(effect=effect)
    here = worker(scene, pay)
    calling = asyncio.create_task(here.call(pay))
    await bank.begins.wait()
    lose(scene)
    bank.may_end.set()

    assert isinstance((await calling).outcome, Succeeded)

    type_ = "effect.committed" if effect is WRITE else "step.succeeded"
    (outcome,) = scene.events(type_=type_)
    assert outcome["body"]["resources_lost"] == ["account:7"]
    assert (scene.row(leases))["holder"] == "another"
    assert "resource.released" not in told(scene)


@pytest.mark.parametrize("effect", [WRITE, READ])
async def test_an_attempt_that_learns_that_it_has_lost_its_resource_stops_its_call(
    scene: Scene, bank: Bank, effect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases_module, "_RENEWALS", 10_000_000)
    monkeypatch.setattr(leases_module, "_LEASE", HOUR)
    pay = bank.tool(effect=effect)
    calling = asyncio.create_task(worker(scene, pay).call(pay))
    await bank.begins.wait()
    lose(scene)

    with pytest.raises(ApplicationError, match="taken over"):
        await calling

    assert bank.stopped
    if effect is WRITE:
        assert (scene.row(effects))["state"] == "in_doubt"


async def test_a_call_whose_resource_was_lost_before_it_began_is_not_made_and_not_in_doubt(
    scene: Scene, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases_module, "_MARGIN", 1)  # all of the lease: it is over at once
    pay = bank.tool()
    here = worker(scene, pay)

    with pytest.raises(ApplicationError) as refused:
        await here.call(pay)

    assert refused.value.type == "ResourceBusy"
    assert bank.begun == []
    assert (scene.row(effects))["state"] == "failed"
    monkeypatch.undo()
    bank.may_end.set()
    assert isinstance((await here.call(pay)).outcome, Succeeded)


async def test_a_call_that_fails_gives_its_resource_back(scene: Scene) -> None:
    async def fail(params: Account, ctx: ToolContext) -> str:
        raise Permanent("no such account")

    how: dict[str, Any] = {"effect": WRITE, "recovery": "human", "irreversible": True}
    refused = tool("bank.refuse", resource=lambda p: ["a", "b"], **how)(fail)

    with pytest.raises(ApplicationError, match="no such account"):
        await worker(scene, refused).call(refused)

    assert {row["resource"]: row["holder"] for row in scene.rows(leases)} == {"a": None, "b": None}


async def test_an_undo_holds_its_own_resource(scene: Scene, bank: Bank) -> None:
    undone = Bank()
    undone.may_end.set()
    undo = Undo("bank.undo", params=lambda params, receipt: params)
    pay = bank.tool(compensate=undo, resource=None)
    here = worker(scene, pay, undone.tool("bank.undo"))
    bank.may_end.set()
    await here.call(pay)
    holding = Bank()
    hold = holding.tool("bank.hold")
    busy = asyncio.create_task(worker(scene, hold).call(hold, OTHER_RUN))
    await holding.begins.wait()

    with pytest.raises(ApplicationError) as refused:
        await here.compensate()
    assert refused.value.type == "ResourceBusy"
    assert undone.begun == []

    holding.may_end.set()
    await busy
    assert await here.compensate() is CompensationOutcome.COMPENSATED
    assert undone.begun[0].fencing_tokens == {"account:7": 2}


async def test_a_worker_frees_its_tenants_resources(
    scene: Scene, other: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of the tenants of all tests it would free one after the other.
    monkeypatch.setattr(scene.ledger, "tenants", {scene.tenant, other.tenant})
    for tenant in (scene, other):
        tenant.hold("account:7")
        change(tenant, leases, lease_until_ms=1)
    stopping = asyncio.Event()
    freeing = asyncio.create_task(keep_freeing(scene.ledger, stopping))

    for tenant in (scene, other):
        while (tenant.row(leases))["holder"] is not None:
            await asyncio.sleep(0.01)
        assert len(tenant.events(type_="resource.freed")) == 1
    stopping.set()
    await freeing


async def test_a_round_of_reconciliation_frees_what_dead_calls_hold(scene: Scene) -> None:
    scene.hold("account:7")
    change(scene, leases, lease_until_ms=1)

    assert (await reconciled(scene, quiet=NOW)).freed == 1
