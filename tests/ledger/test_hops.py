"""A transaction is one hop to a thread; its end is known whatever happens to who waits for it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from surehand.activities.effects.drafts import follow_progress
from surehand.activities.ledger.core.engine import CONNECTIONS, FOR_RENEWALS, KEPT_BACK
from surehand.activities.ledger.core.store import (
    Ledger,
    LedgerUnavailable,
    Session,
    Transaction,
    Turn,
    open_ledger,
)
from surehand.activities.ledger.effects import outcomes
from surehand.activities.tools.toolbox import Toolbox
from surehand.activities.worker.context import Attempt, WorkerContext
from surehand.activities.worker.crash_points import Crash
from surehand.workflows.contracts.tools import ToolCall
from tests.ledger.databases import Database, until_one_waits
from tests.ledger.scene import RUN, SPEC, STEP, Scene

LEDGER = Path(__file__).parents[2] / "activities" / "ledger"
#: The door, and what a notifier of the user's own looks like.
AWAITED = {"core/store.py", "outbox/notification.py"}
ENOUGH = 30.0  # seconds
MINUTE = timedelta(minutes=1)
#: Of a statement that does not end; any other ends in time, on a busy machine as well.
LIMIT = timedelta(seconds=1)


class Held:
    """Work that stands still in its thread, with an event written."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()

    def __call__(self, tx: Transaction) -> None:
        tx.event(RUN, "test.held")
        self.begun.set()
        assert self.may_end.wait(ENOUGH)


def test_only_the_ledgers_door_is_async() -> None:
    found = set()
    for file in LEDGER.rglob("*.py"):
        if re.search(r"\basync def\b|\bawait \w", file.read_text()):
            found.add(str(file.relative_to(LEDGER)))

    assert found == AWAITED


async def test_who_is_cancelled_is_told_when_the_transaction_has_committed(scene: Scene) -> None:
    work = Held()
    waiting = asyncio.create_task(scene.ledger.transact(scene.tenant, work))
    await asyncio.to_thread(work.begun.wait, ENOUGH)

    waiting.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    work.may_end.set()

    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(scene.events(type_="test.held")) == 1


async def test_a_session_cancelled_between_statements_leaves_nothing(scene: Scene) -> None:
    inside = asyncio.Event()

    async def work() -> None:
        async with scene.ledger.long_transaction(scene.tenant, RUN, MINUTE) as opened:
            await opened.do(lambda tx: tx.event(RUN, "test.lost"))
            inside.set()
            await asyncio.Event().wait()

    working = asyncio.create_task(work())
    await inside.wait()
    working.cancel()

    with pytest.raises(asyncio.CancelledError):
        await working
    assert scene.events(type_="test.lost") == []


async def test_a_closed_ledger_lets_go_of_all(database: Database, scene: Scene) -> None:
    inside, may_end = asyncio.Event(), asyncio.Event()

    async def work(ledger: Ledger) -> None:
        async with ledger.long_transaction(scene.tenant, RUN, MINUTE) as opened:
            await opened.do(lambda tx: tx.event(RUN, "test.lost"))
            await opened.do(Transaction.write_events)
            inside.set()
            await may_end.wait()

    async with open_ledger(database.url) as ledger:
        working = asyncio.create_task(work(ledger))
        await inside.wait()

    async with open_ledger(database.url, patience=timedelta(milliseconds=100)) as another:
        await another.transact(scene.tenant, lambda tx: tx.event(RUN, "test.kept"))
    may_end.set()
    with pytest.raises(RuntimeError):
        await working
    assert [event["type"] for event in scene.events()][-1] == "test.kept"
    assert scene.events(type_="test.lost") == []


async def test_a_tool_may_have_several_statements_under_way(scene: Scene) -> None:
    async with scene.ledger.long_transaction(scene.tenant, RUN, MINUTE) as opened:
        session = Session(opened)
        numbers = [session.execute(text(f"SELECT {number}")) for number in range(5)]
        found = [result.scalar_one() for result in await asyncio.gather(*numbers)]

    assert found == list(range(5))


async def test_a_left_behind_statement_is_not_made_after_its_end(scene: Scene) -> None:
    left: list[asyncio.Task[object]] = []
    with pytest.raises(ValueError, match="given up"):
        async with scene.ledger.long_transaction(scene.tenant, RUN, MINUTE) as opened:
            session = Session(opened)
            left += [asyncio.create_task(session.execute(text("SELECT 1"))) for _ in range(3)]
            await asyncio.sleep(0)
            raise ValueError("given up")

    ended = await asyncio.gather(*left, return_exceptions=True)
    assert [str(error) for error in ended if isinstance(error, RuntimeError)] == (
        ["the call is over, and so is its transaction"] * 2
    )


@pytest.mark.postgres
async def test_an_outcome_passes_by_all_other_work(postgres_database: Database) -> None:
    async with open_ledger(postgres_database.url) as ledger:
        scene = Scene.begin(ledger, "passes-by")
        held = [Held() for _ in range(CONNECTIONS)]
        # Their chain is written last: nobody waits for a row of somebody else's.
        others = [asyncio.create_task(ledger.transact(scene.tenant, work)) for work in held]
        for work in held[: CONNECTIONS - KEPT_BACK]:
            await asyncio.to_thread(work.begun.wait, ENOUGH)

        async with asyncio.timeout(ENOUGH):
            await ledger.run_transaction(
                scene.tenant, lambda tx: tx.event(RUN, "test.outcome"), Turn.OUTCOME
            )
        assert not any(task.done() for task in others)

        for work in held:
            work.may_end.set()
        await asyncio.gather(*others)
        assert len(scene.events(type_="test.held")) == CONNECTIONS


@pytest.mark.postgres
async def test_outcomes_held_up_cost_no_other_calls_lease(postgres_database: Database) -> None:
    async with open_ledger(postgres_database.url) as ledger:
        scene, other = Scene.begin(ledger, "held-up"), Scene.begin(ledger, "not-held-up")
        entry = other.claimed(other.call())
        until = other.entry(entry.entry_id).lease_until_ms
        held = [Held() for _ in range(CONNECTIONS)]
        held_up = [
            asyncio.create_task(ledger.run_transaction(scene.tenant, one, Turn.OUTCOME))
            for one in held
        ]
        for one in held[: CONNECTIONS - FOR_RENEWALS]:
            await asyncio.to_thread(one.begun.wait, ENOUGH)

        async with asyncio.timeout(ENOUGH):
            renewed, _ = await ledger.run_transaction(
                other.tenant, lambda tx: outcomes.renew_lease(tx, entry), Turn.RENEWAL, MINUTE
            )
        assert renewed
        assert not any(task.done() for task in held_up)

        for one in held:
            one.may_end.set()
        await asyncio.gather(*held_up)
        assert other.entry(entry.entry_id).lease_until_ms > until


@pytest.mark.postgres
async def test_a_renewal_gives_up_before_its_lease_ends(postgres_database: Database) -> None:
    async with open_ledger(postgres_database.url) as ledger:
        scene = Scene.begin(ledger, "renewal-held-up")
        entry = scene.claimed(scene.call())
        with scene.tx() as tx:
            assert outcomes.still_ours(tx, entry)  # its row is locked
            with pytest.raises(LedgerUnavailable, match="statement timeout"):
                await ledger.run_transaction(
                    scene.tenant,
                    lambda tx: outcomes.renew_lease(tx, entry),
                    Turn.RENEWAL,
                    timedelta(milliseconds=50),
                )


@pytest.mark.postgres
async def test_a_silent_server_is_given_up_and_used_again(postgres_database: Database) -> None:
    """Its process is stopped, and answers neither to what is asked nor to a cancellation."""
    async with open_ledger(postgres_database.url) as ledger:
        scene = Scene.begin(ledger, "falls-silent")
        stopped = list[int]()

        def work(tx: Transaction) -> None:
            pid = int(tx.connection.execute(text("SELECT pg_backend_pid()")).scalar_one())
            tx.event(RUN, "test.lost")
            os.kill(pid, signal.SIGSTOP)
            stopped.append(pid)

        try:
            with pytest.raises(LedgerUnavailable):
                await ledger.run_transaction(scene.tenant, work, Turn.RENEWAL, LIMIT)
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)

        assert stopped
        assert scene.events(type_="test.lost") == []


@pytest.mark.postgres
async def test_a_checkpoint_that_has_taken_long_and_is_there_is_not_called_left_out(
    postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_ledger(postgres_database.url) as ledger:
        scene = Scene.begin(ledger, "took-long")
        second, loop = timedelta(seconds=1), asyncio.get_running_loop()
        worker = WorkerContext(
            *(ledger, Toolbox([]), scene.artifacts, Crash(), 3 * second, second),
            checkpoint_every=timedelta(milliseconds=1),
        )
        named = {"tenant": scene.tenant, "run_id": RUN, "step_id": STEP, "user": "ada"}
        call = ToolCall(**named, plan_version=1, tool=SPEC, params={})

        with capture_logs() as lines:
            async with follow_progress(worker, call, Attempt(1, "call", "call:1")):
                with ledger.transaction(scene.tenant) as holder, monkeypatch.context() as patched:
                    holder.lock_chain(RUN)
                    await until_one_waits(holder)
                    # When it has waited for that long
                    later = loop.time() + 5
                    patched.setattr(loop, "time", lambda: later)
                    for _ in range(10):
                        await asyncio.sleep(0)
                async with asyncio.timeout(ENOUGH):
                    while not scene.events(type_="step.progress"):
                        await asyncio.sleep(0)

        assert "checkpoint.left_out" not in [line["event"] for line in lines]
