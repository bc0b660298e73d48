"""Halts: no claim begins once one has committed, and what has a time limit does not run out."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError
from temporalio.exceptions import ApplicationError

from surehand.activities.effects.recorder import Done
from surehand.activities.ledger.approvals.decisions import lift_halt
from surehand.activities.ledger.approvals.waiting import list_waiting
from surehand.activities.ledger.core.statements import delete_rows, insert_row, update_rows
from surehand.activities.ledger.core.store import Ledger, Transaction
from surehand.activities.ledger.core.tables import approvals, effects, halts, interventions
from surehand.activities.ledger.effects import claims
from surehand.activities.ledger.effects.reconcile import after_not_found
from surehand.activities.ledger.halts import (
    LOOK,
    Halt,
    Halted,
    HaltError,
    HaltStands,
    halt_calls,
    list_halts,
    list_under_way,
    require_may_read,
    stood_still,
)
from surehand.activities.ledger.history.audit import first_unproven
from surehand.activities.ledger.outbox.notification_rows import write_reminders
from surehand.activities.ledger.runs.steering import record_interrupt
from surehand.activities.ledger.steps.entries import ApprovalRefused, Claimed, Doubtful
from surehand.activities.tools.failures import OutcomeUnknown, Transient
from surehand.activities.tools.tool import NotFound
from surehand.verify import verify_story
from surehand.workflows.contracts.steering import Interrupt, InterruptKind, RecordInterrupt
from surehand.workflows.contracts.tools import Recovery
from tests.ledger.attempts import Provider, effect_call, looked_up, request_for, time_passes
from tests.ledger.databases import until_one_waits
from tests.ledger.people import ADMINISTRATOR, administration
from tests.ledger.scene import AT_ONCE, LEASE, NOW, RECOVERY_LIMIT, RUN, WINDOW, Scene
from tests.ledger.standing import ask, granted

LATER = timedelta(minutes=30)
TOOL = "payments.refund"


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


@pytest.mark.parametrize("again", [False, True], ids=["first", "after a lookup"])
async def test_a_halt_waits_for_the_claim_that_is_being_made(
    scene: Scene, workers: list[Ledger], again: bool
) -> None:
    """Otherwise a claim could commit behind a halt that it has not seen."""
    call = scene.call(timeout=NOW, settle=AT_ONCE)
    doubt = scene.in_doubt(call) if again else None
    with scene.tx(LATER) as tx:
        if doubt is None:
            claimed = claims.claim_effect(tx, call)
        else:
            claimed = after_not_found(tx, replace(call, attempt=2), doubt, forward=True)
        assert isinstance(claimed, Claimed)
        halting = asyncio.create_task(asyncio.to_thread(halt, Scene(workers[0], scene.tenant)))
        if tx.dialect == "postgresql":
            await until_one_waits(tx)
        assert not halting.done()
    made = await halting
    with scene.tx() as tx:
        assert [one["state"] for one in list_under_way(tx, made)] == ["claimed"]


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

    for round_ in range(5):
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


def test_what_is_in_doubt_is_recovered_after_a_halt_as_before_it(scene: Scene) -> None:
    """Otherwise a human would be asked of each call that was cut off before a longer halt."""
    call = scene.call(recovery=Recovery.DEDUPES, window=WINDOW)
    scene.in_doubt(call)
    made = halt(scene)

    assert isinstance(scene.claim(call, LATER), Halted)
    lift(scene, made, LATER)
    assert isinstance(scene.claim(call, LATER + 2 * RECOVERY_LIMIT), Doubtful)
    assert scene.claimed(call, LATER + RECOVERY_LIMIT / 2).calls == 2


async def test_a_halt_is_no_reason_to_give_up_on_lookups(scene: Scene) -> None:
    provider = Provider([OutcomeUnknown("no answer"), {"id": "r-1"}])
    loaded = provider.tool(lookup=looked_up(NotFound()), settle=AT_ONCE)
    with pytest.raises(ApplicationError):
        await effect_call(scene, loaded, request_for(scene, loaded)).run()
    made = _halted_since(scene, LATER)
    _set_back(scene, "recovering_ms", LATER)
    time_passes(scene)

    second = request_for(scene, loaded, attempt=2)
    assert isinstance(await effect_call(scene, loaded, second).run(), Halted)
    lift(scene, made)
    third = request_for(scene, loaded, attempt=3)
    assert isinstance(await effect_call(scene, loaded, third).run(), Done)
    assert scene.rows(interventions) == []


@pytest.mark.parametrize("undo_too", [False, True])
async def test_an_undo_that_was_halted_is_retried_as_long_as_any(
    scene: Scene, undo_too: bool
) -> None:
    provider = Provider([Transient("no route")])
    loaded = provider.tool(name="payments.charge", recovery="human")
    entry = scene.committed(scene.call())
    key, undone = f"undo:{entry.entry_id}", entry.entry_id
    undo = request_for(scene, loaded, tool=loaded.name, key=key, undoes=undone)
    scene.failed(undo)
    _set_back(scene, "first_call_ms", LATER)
    lift(scene, _halted_since(scene, LATER, undo_too=undo_too))

    with pytest.raises(ApplicationError) as failed:
        await effect_call(scene, loaded, replace(undo, attempt=2)).run()
    assert failed.value.non_retryable is not undo_too


def _halted_since(scene: Scene, since: timedelta, **scope: Any) -> Halt:
    """Insert a halt that was made that long ago; a trigger would refuse it."""
    trigger, on_sqlite = "halts_as_of_now", scene.ledger.engine.dialect.name == "sqlite"
    with administration(scene) as tx:
        run, made = tx.connection.exec_driver_sql, ""
        if on_sqlite:
            made = run(f"SELECT sql FROM sqlite_master WHERE name = '{trigger}'").scalar_one()
        run(
            f"DROP TRIGGER {trigger}"
            if on_sqlite
            else f"ALTER TABLE halts DISABLE TRIGGER {trigger}"
        )
        tx.execute(_old_halt(tx, since, **scope))
        run(made if on_sqlite else f"ALTER TABLE halts ENABLE TRIGGER {trigger}")
        return list_halts(tx)[0]


def _old_halt(tx: Transaction, since: timedelta, **scope: Any) -> Any:
    began = tx.now_ms - since // timedelta(milliseconds=1)
    values = {"reason": "it pays twice", "halted_by": "oscar", "undo_too": False, **scope}
    return insert_row(halts, halt_id="halt-old", halted_ms=began, **values)


def test_nobody_dates_a_halt_back_and_prolongs_what_is_over(scene: Scene) -> None:
    with pytest.raises(DBAPIError, match="calls are halted as of now"), scene.tx() as tx:
        tx.execute(_old_halt(tx, timedelta(minutes=2)))
    assert scene.rows(halts) == []


def _set_back(scene: Scene, column: str, by: timedelta) -> None:
    with scene.tx() as tx:
        began = tx.now_ms - by // timedelta(milliseconds=1)
        known = effects.c[column].is_not(None)
        tx.execute(update_rows(effects).where(known).values({column: began}))


def test_a_question_that_is_nearly_over_is_looked_at_no_more_often_than_a_call(
    scene: Scene,
) -> None:
    """Its time stands still: each look would come again after the little that is left."""
    second = timedelta(seconds=1)

    def record(what: str, after: timedelta) -> timedelta | None:
        with scene.tx(after) as tx:
            asked = RecordInterrupt(tenant=scene.tenant, run_id=RUN, interrupt=question, what=what)
            return record_interrupt(tx, asked)

    with scene.tx() as tx:
        expires_at = datetime.fromtimestamp(tx.now_ms / 1000, UTC) + LATER
    question = Interrupt(
        interrupt_id="go.1",
        step_id="go",
        kind=InterruptKind.ASK,
        question="Go?",
        expires_at=expires_at,
    )
    record("opened", NOW)
    made = halt(scene, LATER - second)

    assert record("expired", LATER) == LOOK
    assert record("expired", 2 * LATER) == LOOK
    lift(scene, made, 2 * LATER)
    left = record("expired", 2 * LATER)
    assert left is not None
    assert left <= second


def test_nobody_is_reminded_of_what_is_halted(scene: Scene) -> None:
    hour = timedelta(hours=1)
    scene.ask_approval(scene.call(), expires_in=8 * hour, remind_every=hour)
    other = scene.call(tool="mail.send", key="other", step_id="other")
    scene.ask_approval(other, expires_in=8 * hour, remind_every=hour)
    made = halt(scene, tool=TOOL)

    def remind(after: timedelta) -> int:
        with scene.tx(after) as tx:
            return write_reminders(tx, tx.now_ms)

    assert remind(1.5 * hour) == 1
    lift(scene, made)
    assert remind(1.5 * hour) == 1


async def test_an_audit_finds_an_approval_that_no_halt_has_prolonged(scene: Scene) -> None:
    gated = scene.approved(scene.call(), expires_in=WINDOW)
    made = halt(scene, LATER)
    lift(scene, made, 2 * WINDOW)
    assert scene.claimed(gated, 2 * WINDOW + timedelta(minutes=10))
    events = scene.events()

    assert await scene.ledger.transact(scene.tenant, first_unproven, RUN, events) is None
    [used] = [one for one in events if one["type"] == "approval.consumed"]
    used["body"]["halted_ms"] += 3 * 3_600_000
    found = await scene.ledger.transact(scene.tenant, first_unproven, RUN, events)
    assert found is not None
    assert found.reason.endswith("was used after it had expired: calls were not halted for so long")


@pytest.mark.parametrize("tool", [TOOL, "mail.send"])
def test_a_standing_approval_stands_still_while_calls_of_its_tool_are_halted(
    scene: Scene, tool: str
) -> None:
    granted(scene, "ann", until=WINDOW)
    made = halt(scene, LATER, tool=tool)
    lift(scene, made, 3 * WINDOW)
    # Half an hour of it is left behind the halt.
    late, over = 3 * WINDOW + timedelta(minutes=29), 3 * WINDOW + timedelta(minutes=31)
    for step_id, after, votes in (("late", late, tool == TOOL), ("over", over, False)):
        asked = ask(scene, step_id=step_id, after=after)
        row = scene.row(approvals, approval_id=asked.approval_id)
        assert row["state"] == ("approved" if votes else "pending")


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
        with pytest.raises(DBAPIError, match="permission denied"), scene.tx() as tx:
            # It would say that calls have been halted all the time, and prolong what is over.
            tx.execute(insert_row(halts, **vars(replace(made, halt_id="halt-2", lifted_ms=1))))
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
