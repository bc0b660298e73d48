"""After it has waited for a lock, a transaction writes and judges by the clock of then.

Only PostgreSQL lets a transaction wait after it has begun. Who holds the lock reads the clock, or
moves it, while the other waits: nothing here depends on how long that takes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar

import pytest
from sqlalchemy import select, text

from surehand.activities.effects.recorder import Done
from surehand.activities.ledger.core import transaction
from surehand.activities.ledger.core.engine import read_clock
from surehand.activities.ledger.core.store import Ledger, Transaction, open_ledger
from surehand.activities.ledger.core.tables import approvals, effects, interventions, runs
from surehand.activities.ledger.effects import claims, compensations, reconcile
from surehand.activities.ledger.steps import entries
from surehand.activities.tools.tool import NotFound, ToolContext
from tests.ledger.attempts import Payment, Provider, effect_call, looked_up, request_for
from tests.ledger.databases import Database
from tests.ledger.scene import AT_ONCE, LEASE, NOW, OTHER_RUN, RUN, STEP, TIMEOUT, WINDOW, Scene

pytestmark = pytest.mark.postgres
T = TypeVar("T")
_numbers = itertools.count(1)
_MS: Final = timedelta(milliseconds=1)
#: How far the clock is to go on while a transaction waits.
WHILE: Final = 50
CLOCK: Final = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"

Locked = Callable[[Transaction], Any]


@pytest.fixture(scope="module")
async def ledger(postgres_database: Database) -> AsyncIterator[Ledger]:
    async with open_ledger(postgres_database.url) as ledger:
        yield ledger


@pytest.fixture
def scene(ledger: Ledger) -> Scene:
    return Scene.begin(ledger, f"waited-{next(_numbers)}")


async def until(tx: Transaction, sql: str, reached: Callable[[int], bool]) -> int:
    """Ask the database until it answers as wanted, and return the answer."""
    async with asyncio.timeout(30):
        while True:
            answer = int((tx.connection.execute(text(sql))).scalar_one())
            if reached(answer):
                return answer
            await asyncio.sleep(0)


@asynccontextmanager
async def waiting(
    scene: Scene, lock: Locked, work: Callable[[], Coroutine[Any, Any, T]]
) -> AsyncIterator[tuple[Transaction, asyncio.Task[T]]]:
    """Hold a lock, have ``work`` wait for it, and let go of it at the end of the block."""
    with scene.ledger.transaction(scene.tenant) as holder:
        lock(holder)
        task = asyncio.create_task(work())
        await until(holder, "SELECT count(*) FROM pg_locks WHERE NOT granted", lambda n: n > 0)
        began = await clock(holder)
        await until(holder, CLOCK, lambda now: now > began + WHILE)
        yield holder, task


def step_lock(tx: Transaction) -> None:
    tx.lock_step(RUN, STEP)


def key_lock(tx: Transaction) -> None:
    tx.lock_key("payments.refund", "refund:order-1001")


def row_lock(tx: Transaction) -> None:
    tx.one(select(effects).where(effects.c.tenant_id == tx.tenant).with_for_update())


def approval_lock(tx: Transaction) -> None:
    tx.one(select(approvals).where(approvals.c.tenant_id == tx.tenant).with_for_update())


def run_lock(tx: Transaction) -> None:
    tx.one(
        select(runs.c.seq)
        .where(runs.c.tenant_id == tx.tenant, runs.c.run_id == RUN)
        .with_for_update()
    )


async def clock(tx: Transaction) -> int:
    return await until(tx, CLOCK, lambda _: True)


@pytest.mark.parametrize("lock", [step_lock, key_lock, row_lock, approval_lock])
async def test_a_claims_times_count_from_after_its_wait(scene: Scene, lock: Locked) -> None:
    call = scene.call()
    if lock is row_lock:
        scene.failed(call)
    call = scene.approved(scene.call(attempt=2))

    async with waiting(scene, lock, lambda: asyncio.to_thread(scene.claim, call)) as (holder, task):
        let_go = await clock(holder)
    result = await task

    assert isinstance(result, entries.Claimed)
    lease, deadline = result.entry.lease_until_ms or 0, result.entry.deadline_ms or 0
    assert lease - LEASE // _MS >= let_go
    assert deadline - TIMEOUT // _MS >= let_go


@pytest.mark.parametrize("lock", [step_lock, key_lock, row_lock, approval_lock])
async def test_an_approval_that_expires_while_its_claim_waits_is_refused(
    scene: Scene, lock: Locked, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lock is row_lock:
        scene.failed(scene.call())
    call = scene.approved(scene.call(attempt=2))

    async with waiting(scene, lock, lambda: asyncio.to_thread(scene.claim, call)) as (_, task):
        pass_time(monkeypatch)
    result = await task

    assert isinstance(result, entries.ApprovalRefused)
    assert "expired" in result.reason
    assert (scene.row(approvals))["consumed_entry"] is None
    assert scene.rows(effects, state="claimed") == []


async def test_a_late_decision_is_refused(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    call = scene.ask_approval(scene.call())

    async with waiting(scene, approval_lock, lambda: asyncio.to_thread(scene.decide, call)) as (
        _,
        task,
    ):
        pass_time(monkeypatch)

    assert (await task).code == "expired"
    assert (scene.row(approvals))["state"] != "approved"


async def test_a_lease_that_runs_out_while_another_claim_waits_is_over_for_it(scene: Scene) -> None:
    lease = timedelta(milliseconds=WHILE)
    scene.claimed(scene.call(lease=lease))

    late = partial(asyncio.to_thread, scene.claim, scene.call(run_id="z"))
    async with waiting(scene, key_lock, late) as (_, task):
        pass

    assert not isinstance(await task, entries.Held)


def pass_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the window of every request be over for whoever reads the clock from now on."""
    later = int(WINDOW / _MS)
    monkeypatch.setattr(transaction, "read_clock", lambda of: read_clock(of) + later)


@asynccontextmanager
async def _slow_claim(
    scene: Scene, provider: Provider, lease: timedelta, **changes: Any
) -> AsyncIterator[tuple[Transaction, asyncio.Task[Any]]]:
    """A claim that is held up by its run's row, after it has looked at everything else."""
    loaded = provider.tool(lookup=looked_up(NotFound()), settle=AT_ONCE)
    request = request_for(scene, loaded, lease=lease, **changes)
    attempt = effect_call(scene, loaded, request, lease=lease)
    async with waiting(scene, run_lock, attempt.run) as (holder, task):
        began = await clock(holder)
        await until(holder, CLOCK, lambda now: now > began + lease // _MS)
        yield holder, task


class LeaseSeen(Provider):
    """A provider that notes what is left of the caller's lease when it is called."""

    scene: Scene
    left: int = 0

    async def pay(self, params: Payment, ctx: ToolContext) -> Any:
        with self.scene.tx() as tx:
            row = tx.one(select(effects).where(effects.c.tenant_id == tx.tenant))
            assert row is not None
            self.left = entries.Entry.from_row(row).lease_until_ms or 0
            self.left -= tx.now_ms
        return await super().pay(params, ctx)


async def test_a_slow_claim_gets_a_fresh_lease_before_the_call(scene: Scene) -> None:
    provider = LeaseSeen([{"id": "r-1"}])
    provider.scene = scene

    async with _slow_claim(scene, provider, timedelta(milliseconds=700)) as (_, task):
        pass

    assert isinstance(await task, Done)
    assert provider.left > 0
    assert len(provider.keys) == 1


async def test_a_late_approval_is_not_used(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = Provider([{"id": "r-1"}])
    call = scene.approved(scene.call())
    gate = {"gated": True, "approval_id": call.approval_id}

    lease = timedelta(milliseconds=700)
    async with _slow_claim(scene, provider, lease, **gate) as (_, task):
        pass_time(monkeypatch)
    result = await task

    assert isinstance(result, entries.ApprovalRefused)
    assert provider.keys == []
    assert (scene.row(effects))["state"] == "failed"


async def test_a_claim_after_a_lookup_locks_in_the_order_of_every_claim(scene: Scene) -> None:
    call = scene.approved(scene.call(timeout=NOW, settle=AT_ONCE))
    entry = scene.in_doubt(call)

    def go_on() -> entries.ClaimResult:
        with scene.tx(WINDOW / 2) as tx:
            return reconcile.after_not_found(tx, replace(call, attempt=2), entry, forward=True)

    async with waiting(scene, row_lock, partial(asyncio.to_thread, go_on)) as (other, going_on):
        # As an attempt that claims the entry by its key: it locks the approval second.
        approval_lock(other)

    assert isinstance(await going_on, entries.Claimed)


async def test_nobody_is_asked_about_an_effect_whose_undo_begins_meanwhile(scene: Scene) -> None:
    entry = scene.committed(scene.call())

    def ask() -> entries.Asked | entries.Held | None:
        with scene.tx() as tx:
            return compensations.ask_about_undo(tx, entry, "refused")

    # It has looked for undos to lock before it waits, and has found none.
    async with waiting(scene, row_lock, partial(asyncio.to_thread, ask)) as (other, asking):
        assert isinstance(claims.claim_effect(other, scene.undo(entry)), entries.Claimed)

    assert isinstance(await asking, entries.Held)
    assert scene.rows(interventions) == []


async def test_rows_of_runs_are_locked_in_one_order(scene: Scene) -> None:
    """Else whoever holds the first and wants the second would wait for ever."""
    scene.open_run(OTHER_RUN)

    def work(tx: Transaction) -> None:
        tx.watch(RUN)
        tx.event(OTHER_RUN, "test.second")

    async def write() -> None:
        await scene.ledger.transact(scene.tenant, work)

    async with waiting(scene, run_lock, write) as (holder, task):
        holder.lock_chain(OTHER_RUN)
    await task

    assert len(scene.events(OTHER_RUN, "test.second")) == 1


async def test_whoever_waits_for_a_turn_goes_by_the_clock_of_then(scene: Scene) -> None:
    def take(tx: Transaction) -> int:
        tx.take_turn("principals")
        return tx.now_ms

    work = partial(scene.ledger.transact, scene.tenant, take)
    async with waiting(scene, take, work) as (holder, task):
        let_go = await clock(holder)

    assert await task >= let_go
