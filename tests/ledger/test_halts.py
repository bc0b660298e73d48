"""Halts: no claim begins once one has committed, and what has a time limit does not run out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from surehand.activities.ledger.approvals.waiting import list_waiting
from surehand.activities.ledger.core.statements import delete_rows, update_rows
from surehand.activities.ledger.core.store import Ledger, open_ledger
from surehand.activities.ledger.core.tables import effects, halts
from surehand.activities.ledger.effects import claims
from surehand.activities.ledger.halts import (
    Halt,
    Halted,
    HaltError,
    HaltStands,
    halt_calls,
    lift_halt,
    list_under_way,
    require_may_read,
    stood_still,
)
from surehand.activities.ledger.history.audit import verify_story
from surehand.activities.ledger.steps.entries import ApprovalRefused, Claimed
from tests.ledger.databases import Database, until_one_waits
from tests.ledger.people import ADMINISTRATOR, administration
from tests.ledger.scene import LEASE, NOW, RUN, WINDOW, Scene

WORKERS = 6
LATER = timedelta(minutes=30)
TOOL = "payments.refund"


@pytest.fixture(scope="module")
async def workers(database: Database) -> AsyncIterator[list[Ledger]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(open_ledger(database.url)) for _ in range(WORKERS)]


def halt(scene: Scene, after: timedelta = NOW, **scope: Any) -> Halt:
    with scene.tx(after) as tx:
        return halt_calls(tx, "oscar", "it pays twice", **scope)


def lift(scene: Scene, made: Halt, after: timedelta = NOW) -> Halt:
    with administration(scene) as tx:
        tx.now_ms += after // timedelta(milliseconds=1)
        return lift_halt(tx, made.halt_id, ADMINISTRATOR)


@pytest.mark.parametrize(
    ("scope", "run_id", "stops"),
    [
        ({}, RUN, True),
        ({"tool": TOOL}, RUN, True),
        ({"tool": "mail.send"}, RUN, False),
        ({"run_id": RUN}, RUN, True),
        ({"run_id": RUN}, f"{RUN}~pay", True),
        ({"run_id": RUN}, f"{RUN}0", False),
        ({"run_id": RUN, "tool": "mail.send"}, RUN, False),
    ],
)
def test_a_call_that_a_halt_covers_is_not_claimed(
    scene: Scene, scope: dict[str, Any], run_id: str, stops: bool
) -> None:
    if run_id != RUN:
        scene.open_run(run_id)
    made = halt(scene, **scope)
    result = scene.claim(scene.call(run_id=run_id))

    assert isinstance(result, Halted if stops else Claimed)
    assert len(scene.rows(effects)) == (not stops)
    assert made.covers(TOOL, run_id) is stops
    if stops:
        assert scene.claim(scene.call(run_id=run_id)) == Halted(made, TOOL)
        [told] = scene.events(run_id, "call.halted")  # once, however often it looks
        assert told["body"]["halt_id"] == made.halt_id
        lift(scene, made)
        assert scene.claimed(scene.call(run_id=run_id))


def test_another_tenant_goes_on(scene: Scene, other: Scene) -> None:
    halt(scene)
    assert other.claimed(other.call())


def test_a_claim_in_the_transaction_of_an_outcome_stops_as_well(scene: Scene) -> None:
    halt(scene)
    with scene.tx() as tx:
        assert claims.claim_at_once(tx, scene.call()) is None


def test_a_call_that_may_be_repeated_is_not_while_it_is_halted(scene: Scene) -> None:
    call = scene.call()
    scene.failed(call)
    made = halt(scene)

    assert isinstance(scene.claim(call), Halted)
    lift(scene, made)
    assert scene.claimed(call).calls == 2


def test_a_read_and_a_turn_do_not_begin(scene: Scene) -> None:
    made = halt(scene, tool="orders.read")
    with scene.tx() as tx:
        tx.share_calls()
        require_may_read(tx, "mail.read", RUN)
        with pytest.raises(HaltStands, match=r"halted by oscar \(calls of orders.read\): it pays"):
            require_may_read(tx, "orders.read", RUN)
    lift(scene, made)
    with scene.tx() as tx:
        tx.share_calls()
        require_may_read(tx, "orders.read", RUN)


@pytest.mark.parametrize("undo_too", [False, True])
def test_what_undoes_effects_goes_on_or_waits_as_said(scene: Scene, undo_too: bool) -> None:
    entry = scene.committed(scene.call())
    halt(scene, undo_too=undo_too)

    assert isinstance(scene.claim(scene.undo(entry)), Halted if undo_too else Claimed)


def test_what_was_claimed_before_is_listed_until_its_outcome_is_there(scene: Scene) -> None:
    first, second = scene.call(), scene.call(key="other", step_id="second")
    entry, doubt = scene.claimed(first), scene.in_doubt(second)
    made = halt(scene)

    def under_way() -> dict[str, str]:
        with scene.tx() as tx:
            return {one["entry_id"]: one["state"] for one in list_under_way(tx, made)}

    assert under_way() == {entry.entry_id: "claimed", doubt.entry_id: "in_doubt"}
    scene.commit(first, entry)
    assert under_way() == {doubt.entry_id: "in_doubt"}


async def test_a_halt_waits_for_the_claim_that_is_being_made(
    scene: Scene, workers: list[Ledger]
) -> None:
    """Otherwise a claim could commit behind a halt that it has not seen."""
    with scene.tx() as tx:
        assert isinstance(claims.claim_effect(tx, scene.call()), Claimed)
        halting = asyncio.create_task(asyncio.to_thread(halt, Scene(workers[0], scene.tenant)))
        if tx.dialect == "postgresql":
            await until_one_waits(tx)
        assert not halting.done()
    made = await halting
    with scene.tx() as tx:
        assert len(list_under_way(tx, made)) == 1


async def test_of_claims_at_full_speed_none_is_made_behind_a_halt(
    scene: Scene, workers: list[Ledger]
) -> None:
    number = 0

    async def claim_until_halted(worker: Scene, name: int) -> None:
        nonlocal number
        while True:
            number += 1
            call = worker.call(key=f"k-{number}", step_id=f"s-{name}", lease=LEASE)
            if isinstance(await asyncio.to_thread(worker.claim, call), Halted):
                return

    for round_ in range(10):
        claiming = [
            asyncio.create_task(claim_until_halted(Scene(one, scene.tenant), n))
            for n, one in enumerate(workers)
        ]
        target = len(scene.rows(effects)) + 3 * (round_ + 1)
        while len(await asyncio.to_thread(scene.rows, effects)) < target:
            pass
        made = await asyncio.to_thread(halt, scene)
        at_halt = len(await asyncio.to_thread(scene.rows, effects))
        await asyncio.gather(*claiming)

        assert len(scene.rows(effects)) == at_halt
        lift(scene, made)


def test_a_request_does_not_run_out_while_calls_are_halted(scene: Scene) -> None:
    gated = scene.ask_approval(scene.call(), expires_in=WINDOW)
    made = halt(scene, LATER)

    assert scene.close(gated, "expired", 3 * WINDOW) == "pending"
    with scene.tx(3 * WINDOW) as tx:
        assert [row["approval_id"] for row in list_waiting(tx, most=5).rows] == [gated.approval_id]
    lift(scene, made, 4 * WINDOW)
    # Half an hour of it was over at the halt, and as much is left behind it.
    assert scene.close(gated, "expired", 4 * WINDOW + timedelta(minutes=29)) == "pending"
    late = 4 * WINDOW + timedelta(minutes=20)
    assert scene.decide(gated, after=late).code == "accepted"
    assert scene.claimed(gated, late)
    assert verify_story(scene.events()) is None
    with scene.tx(4 * WINDOW + timedelta(minutes=31)) as tx:
        assert list_waiting(tx, most=5).rows == []


def test_a_request_runs_out_behind_a_halt_and_beside_one(scene: Scene) -> None:
    gated = scene.ask_approval(scene.call(), expires_in=WINDOW)
    halt(scene, tool="mail.send")
    made = halt(scene, LATER)
    lift(scene, made, WINDOW)

    late = WINDOW + timedelta(minutes=31)
    assert scene.decide(gated, after=late).code == "expired"
    approved = scene.approved(scene.call(key="other", step_id="other"), expires_in=WINDOW)
    assert isinstance(scene.claim(approved, late), ApprovalRefused)


def test_halts_that_overlap_count_once(scene: Scene) -> None:
    hour = timedelta(hours=1)
    first, second = halt(scene, hour), halt(scene, 2 * hour)
    lift(scene, first, 3 * hour)
    lift(scene, second, 5 * hour)
    with scene.tx(9 * hour) as tx:
        assert stood_still(tx, TOOL, RUN, 0) == pytest.approx(4 * 3_600_000, abs=60_000)
        now = tx.now_ms
        assert stood_still(tx, TOOL, RUN, now - 5 * 3_600_000) == pytest.approx(
            3_600_000, abs=60_000
        )


def test_only_an_administrator_lifts_a_halt(scene: Scene) -> None:
    made = halt(scene)
    if scene.ledger.engine.dialect.name == "postgresql":
        with pytest.raises(DBAPIError, match="permission denied"), scene.tx() as tx:
            lift_halt(tx, made.halt_id, "a worker")
    lift(scene, made)
    with pytest.raises(HaltError, match=f"{made.halt_id} was lifted already, by root"):
        lift(scene, made)
    with pytest.raises(HaltError, match="there is no halt 'none'"), administration(scene) as tx:
        lift_halt(tx, "none", ADMINISTRATOR)


def test_a_halt_is_neither_changed_nor_taken_back(scene: Scene) -> None:
    made = halt(scene)

    def change(**values: Any) -> None:
        with pytest.raises(DBAPIError), administration(scene) as tx:
            tx.execute(update_rows(halts).values(values))

    for values in ({"reason": "none"}, {"tool": "other"}, {"halted_by": "nobody"}):
        change(**values)
    with pytest.raises(DBAPIError), administration(scene) as tx:
        tx.execute(delete_rows(halts))
    lift(scene, made)
    change(lifted_ms=None, lifted_by=None)
    assert scene.row(halts)["lifted_by"] == ADMINISTRATOR
