"""Sealed cells: only their own run's key opens them, and only where they were written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import Table, text

from surehand.activities.ledger.core.statements import insert_row, rows_of, update_rows
from surehand.activities.ledger.core.store import Ledger, Transaction, open_ledger
from surehand.activities.ledger.core.tables import (
    effects,
    interventions,
    notifications,
    plans,
    runs,
    steps,
)
from surehand.activities.ledger.effects import claims, outcomes
from surehand.activities.ledger.effects.interventions import must_be_told, tell_replayers
from surehand.activities.ledger.effects.reconcile import settle_intervention
from surehand.activities.ledger.history.reads import chain_of, interventions_of
from surehand.activities.ledger.history.run_display import read_open_doubts
from surehand.activities.ledger.outbox.notification import Facts, Kind
from surehand.activities.ledger.outbox.notification_rows import (
    record_sent,
    take_due,
    write_notification,
)
from surehand.activities.ledger.runs import lifecycle
from surehand.activities.ledger.runs.deletion import hold_run
from surehand.activities.ledger.runs.keys import NotErasable, erase_run
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.entries import (
    NO_IDENTITY,
    Claimed,
    ClaimRequest,
    Committed,
    Mismatch,
)
from surehand.activities.run_keys import Hashes, LedgerKeys
from surehand.process.ciphers import KeyRing, RunKey, new_key
from surehand.process.exits import WrongUse
from surehand.verify import find_erasure, verify_chain
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.effects import Resolution, ResolutionOutcome
from surehand.workflows.contracts.runs import CloseRun
from surehand.workflows.identity import identity_hash, params_hash
from surehand.workflows.payload_codec import KeyErased, NotDecrypted
from tests.ledger.scene import OTHER_RUN, RUN, SPEC, STEP, Scene, call

MARKER: Final = "Ana Silva, 1 Elm Street"
TENANT: Final = "default"
INPUT: Final = {"to": MARKER}


class Keys(LedgerKeys):
    """Keys in a ledger that are never fetched while a transaction is open."""

    fetched = 0

    async def key_of(self, root: str, *, make: bool) -> RunKey:
        assert self.ledger().engine.pool.checkedout() == 0, "a transaction is open"
        self.fetched += 1
        return await super().key_of(root, make=make)


@pytest.fixture
async def sealed(ledger_url: str) -> AsyncIterator[Ledger]:
    """A ledger of a process that has keys, in which two runs are open."""
    async with open_ledger(ledger_url) as ledger:
        ledger.keys = Keys(lambda: ledger, KeyRing([new_key("first")]))
        for run_id in (RUN, OTHER_RUN):
            await ledger.transact(TENANT, opened, run_id)
        yield ledger


def opened(tx: Transaction, run_id: str) -> None:
    scene = Scene(None, TENANT)  # type: ignore[arg-type]
    start = scene.start(run_id)
    plan = start.plan.model_copy(update={"input": INPUT})
    request = start.model_copy(update={"plan": plan})
    asked = lifecycle.OpenRun(request=request, execution="first")
    lifecycle.open_run(tx, asked, {SPEC.name: SPEC}, above="first")


def closed(tx: Transaction, run_id: str) -> None:
    end = CloseRun(tenant=TENANT, run_id=run_id, state=RunState.COMPLETED)
    lifecycle.close_run(tx, end)


def committed(tx: Transaction, request: ClaimRequest) -> None:
    found = claims.claim_effect(tx, request)
    assert isinstance(found, Claimed)
    assert outcomes.commit_effect(tx, request, found.entry, Kept({"sent": MARKER})) is not None


def raw(tx: Transaction, table: Table, column: str, run_id: str) -> Any:
    found = text(f"SELECT {column} FROM {table.name} WHERE run_id = :run_id")
    return tx.connection.execute(found, {"run_id": run_id}).scalar_one()


def put(tx: Transaction, table: Table, column: str, run_id: str, cell: Any) -> None:
    """Write a cell as whoever has stolen the database's password does."""
    written = text(f"UPDATE {table.name} SET {column} = :cell WHERE run_id = :run_id")
    tx.connection.execute(written, {"cell": cell, "run_id": run_id})


async def test_a_value_stands_nowhere_in_the_database(sealed: Ledger, tmp_path: Path) -> None:
    await sealed.transact(TENANT, committed, call(TENANT, params=INPUT))
    found = await sealed.transact(TENANT, lambda tx: tx.one(rows_of(runs, run_id=RUN)))
    [entry] = await sealed.transact(TENANT, lambda tx: tx.all(rows_of(effects, run_id=RUN)))

    assert found is not None and found["input"] == INPUT
    assert (entry["params"], entry["receipt"]) == (INPUT, {"sent": MARKER})
    files = [file for file in tmp_path.rglob("ledger.db*") if file.is_file()]
    assert files and not any(MARKER.encode() in file.read_bytes() for file in files)


async def test_a_cell_that_is_copied_to_another_run_is_refused(sealed: Ledger) -> None:
    def copy(tx: Transaction) -> None:
        put(tx, runs, "input", OTHER_RUN, raw(tx, runs, "input", RUN))

    await sealed.transact(TENANT, copy)
    with pytest.raises(NotDecrypted, match="was sealed for run 'run-1'"):
        await sealed.transact(TENANT, lambda tx: tx.one(rows_of(runs, run_id=OTHER_RUN)))

    def lie(tx: Transaction) -> None:
        stolen = raw(tx, runs, "input", RUN).replace(RUN, OTHER_RUN)
        put(tx, runs, "input", OTHER_RUN, stolen)

    await sealed.transact(TENANT, lie)
    with pytest.raises(NotDecrypted, match="changed, or encrypted for something else"):
        await sealed.transact(TENANT, lambda tx: tx.one(rows_of(runs, run_id=OTHER_RUN)))


async def test_a_cell_that_is_copied_to_another_column_or_table_is_refused(sealed: Ledger) -> None:
    def step(tx: Transaction) -> None:
        values = {"step_id": STEP, "attempt": 1, "tool": "t", "state": "succeeded"}
        tx.execute(insert_row(steps, run_id=RUN, **values, input=INPUT, output={"ok": True}))
        put(tx, steps, "output", RUN, raw(tx, steps, "input", RUN))

    def elsewhere(tx: Transaction) -> None:
        put(tx, plans, "plan", RUN, raw(tx, steps, "input", RUN))

    await sealed.transact(TENANT, step)
    with pytest.raises(NotDecrypted, match=r"steps\.output"):
        await sealed.transact(TENANT, lambda tx: tx.all(rows_of(steps, run_id=RUN)))
    await sealed.transact(TENANT, elsewhere)
    with pytest.raises(NotDecrypted, match=r"plans\.plan"):
        await sealed.transact(TENANT, lambda tx: tx.all(rows_of(plans, run_id=RUN)))


async def test_a_cell_of_another_tenants_run_is_refused(sealed: Ledger) -> None:
    cell = await sealed.transact(TENANT, lambda tx: raw(tx, runs, "input", RUN))
    await sealed.transact("acme", lambda tx: opened(tx, f"acme/{RUN}"))
    await sealed.transact("acme", lambda tx: put(tx, runs, "input", f"acme/{RUN}", cell))

    with pytest.raises(NotDecrypted):
        await sealed.transact("acme", lambda tx: tx.all(rows_of(runs)))


async def test_without_keys_a_sealed_value_is_refused(sealed: Ledger, ledger_url: str) -> None:
    async with open_ledger(ledger_url) as ledger:
        with pytest.raises(WrongUse, match="SUREHAND_KEY_ENCRYPTION_KEYS is not set here"):
            await ledger.transact(TENANT, lambda tx: tx.one(rows_of(runs, run_id=RUN)))


@pytest.mark.parametrize("odd", [{"$sealed": ["run-1", "AA=="]}, {"$plain": 1}, {"$sealed": 1}])
async def test_without_keys_it_is_only_a_value(ledger: Ledger, odd: dict[str, Any]) -> None:
    scene = Scene.begin(ledger, TENANT)
    values = {"step_id": STEP, "attempt": 1, "tool": "t", "state": "failed"}
    with scene.tx() as tx:
        said = '{"$sealed": ["run-1", "AA=="]}'
        tx.execute(insert_row(steps, run_id=RUN, **values, input=odd, error=said))

    row = scene.row(steps)
    assert (row["input"], row["error"]) == (odd, said)


async def test_no_transaction_fetches_keys(sealed: Ledger, ledger_url: str) -> None:
    assert isinstance(sealed.keys, Keys)
    before = sealed.keys.fetched
    for number in range(5):
        request = call(TENANT, key=f"k-{number}", step_id=f"s-{number}")
        await sealed.transact(TENANT, committed, request)

    # Opening the runs has fetched them: what follows needs no transaction more.
    assert (before, sealed.keys.fetched) == (2, 2)


async def test_a_params_hash_is_the_same_at_each_try_and_guessed_by_nobody(sealed: Ledger) -> None:
    def made(run_id: str) -> str:
        return Hashes(sealed.keys).of_params(run_id, "pay", "1", {"amount": "1"}).hash

    first, again = [await sealed.with_keys(lambda: made(RUN)) for _ in range(2)]
    salt = Hashes(sealed.keys).of_params(RUN, "pay", "1", {"amount": "1"}).salt

    assert first == again == params_hash("pay", "1", {"amount": "1"}, (), salt)
    assert first != params_hash("pay", "1", {"amount": "1"})
    assert first != made(OTHER_RUN)


async def test_the_same_call_of_two_runs_is_known_by_identity(sealed: Ledger) -> None:
    hashes = Hashes(sealed.keys)
    mine, before = await sealed.with_keys(lambda: hashes.of_identity(TENANT, "pay", {"n": 1}))
    others, _ = await sealed.with_keys(lambda: hashes.of_identity("acme", "pay", {"n": 1}))

    assert before == identity_hash("pay", {"n": 1})  # as entries from before runs had keys
    assert mine not in (before, others)
    assert hashes.of_identity(TENANT, "pay", {"n": 1}) == (mine, before)


async def erased(ledger: Ledger, run_id: str = RUN) -> None:
    await ledger.transact(TENANT, closed, run_id)
    await ledger.transact(TENANT, lambda tx: erase_run(tx, run_id, by="root", because="asked"))
    assert ledger.keys is not None
    ledger.keys = Keys(lambda: ledger, ledger.keys.ring)  # type: ignore[attr-defined]


async def test_an_erased_run_is_read_by_nobody_and_its_chain_holds(sealed: Ledger) -> None:
    await sealed.transact(TENANT, committed, call(TENANT, params=INPUT))
    await erased(sealed)

    with pytest.raises(KeyErased, match=r"run run-1 was erased by root on .* UTC"):
        await sealed.transact(TENANT, lambda tx: tx.all(rows_of(effects, run_id=RUN)))
    events, _, head = await sealed.transact(TENANT, chain_of, RUN)
    assert verify_chain(events, [head]) is None
    assert str(find_erasure(events)).endswith("by root: asked")
    assert await sealed.transact(TENANT, lambda tx: tx.all(rows_of(runs, run_id=OTHER_RUN)))


@pytest.mark.parametrize("order", ["sent first", "erased first", "reopened"])
async def test_an_erased_run_holds_nobodys_notifications_up(sealed: Ledger, order: str) -> None:
    def taken(tx: Transaction) -> list[str]:
        tx.channels = ("slack",)
        write_notification(tx, Kind.STOPPED, Facts(what=MARKER), run_id=RUN, subject=RUN)
        return due(tx)

    def due(tx: Transaction) -> list[str]:
        found, *_ = take_due(tx, "slack", tx.now_ms, limit=8, lease=timedelta(0))
        return [one.notification.delivery_id for one in found]

    def record(tx: Transaction) -> None:
        record_sent(tx, sent, tx.now_ms, "C1:1")

    [sent] = await sealed.transact(TENANT, taken)
    if order == "erased first":
        await erased(sealed)
        await sealed.transact(TENANT, record)
    else:
        await sealed.transact(TENANT, record)
        await erased(sealed)
    again = {"state": "pending", "sent_ms": None} if order == "reopened" else {"attempts": 1}
    change = update_rows(notifications, run_id=RUN).values(**again)
    await sealed.transact(TENANT, lambda tx: tx.execute(change))

    assert await sealed.transact(TENANT, due) == []
    shown = rows_of(notifications, run_id=RUN).execution_options(sealed="shown")
    [row] = await sealed.transact(TENANT, lambda tx: tx.all(shown))
    assert (row["state"], row["message"]) == ("void" if order == "reopened" else "sent", None)


async def test_nobody_guesses_an_erased_runs_params(sealed: Ledger) -> None:
    hashes = Hashes(sealed.keys)
    known_by = await sealed.with_keys(lambda: hashes.of_identity(TENANT, "pay", INPUT))
    request = replace(call(TENANT, params=INPUT), identity_hash=known_by[0])
    await sealed.transact(TENANT, committed, request)

    def kept(tx: Transaction) -> list[str]:
        return [row["identity_hash"] for row in tx.all(rows_of(effects, effects.c.identity_hash))]

    before = await sealed.transact(TENANT, kept)
    await erased(sealed)

    # The tenant's key is still there: so the guess can be made, and meets nothing.
    assert before == [known_by[0]] == [hashes.of_identity(TENANT, "pay", INPUT)[0]]
    assert await sealed.transact(TENANT, kept) == [NO_IDENTITY]


async def test_the_key_of_an_erased_runs_effect_makes_no_second_one(sealed: Ledger) -> None:
    await sealed.transact(TENANT, committed, call(TENANT, params=INPUT))
    await erased(sealed)
    again = call(TENANT, params=INPUT, run_id=OTHER_RUN)
    found = await sealed.transact(TENANT, claims.claim_effect, again)

    assert isinstance(found, Mismatch) and "which was erased: it is not made again" in found.reason
    [entry] = await sealed.transact(TENANT, lambda tx: tx.all(rows_of(effects, effects.c.calls)))
    assert entry["calls"] == 1


async def test_another_run_makes_the_erased_runs_missing_effect(sealed: Ledger) -> None:
    request = call(TENANT, params=INPUT)

    def fail(tx: Transaction) -> None:
        found = claims.claim_effect(tx, request)
        assert isinstance(found, Claimed)
        assert outcomes.record_failure(tx, request, found.entry, "transient", MARKER, delay=None)

    await sealed.transact(TENANT, fail)
    await erased(sealed)
    again = call(TENANT, params=INPUT, run_id=OTHER_RUN)
    await sealed.transact(TENANT, committed, again)

    [entry] = await sealed.transact(TENANT, lambda tx: tx.all(rows_of(effects, run_id=OTHER_RUN)))
    assert (entry["params"], entry["error"], entry["state"]) == (INPUT, None, "committed")


async def test_what_somebody_has_to_settle_keeps_a_run_from_being_erased(sealed: Ledger) -> None:
    request = call(TENANT, params=INPUT)

    def doubt(tx: Transaction) -> None:
        found = claims.claim_effect(tx, request)
        assert isinstance(found, Claimed)
        assert outcomes.leave_in_doubt(tx, request, found.entry, MARKER) is not None

    def ask(tx: Transaction) -> None:
        tx.execute(
            update_rows(effects, run_id=RUN).values(
                state="failed", settled_ms=1, recovering_ms=None
            )
        )
        values = {"intervention_id": "iv-1", "entry_id": "ef-1", "number": 1, "rule": "unknown"}
        tx.execute(
            insert_row(
                interventions,
                run_id=RUN,
                step_id=STEP,
                **values,
                question=MARKER,
                state="open",
                opened_ms=1,
            )
        )

    await sealed.transact(TENANT, doubt)
    await sealed.transact(TENANT, closed, RUN)
    with pytest.raises(NotErasable, match="is in_doubt: whoever settles it needs its params"):
        await sealed.transact(TENANT, lambda tx: erase_run(tx, RUN, by="root", because=""))
    await sealed.transact(TENANT, ask)
    with pytest.raises(NotErasable, match="intervention iv-1 is open"):
        await sealed.transact(TENANT, lambda tx: erase_run(tx, RUN, by="root", because=""))
    found = await sealed.transact(TENANT, interventions_of)
    assert [row["question"] for row in found] == [MARKER]


async def test_a_list_of_a_tenant_shows_other_runs_although_one_was_erased(sealed: Ledger) -> None:
    def ask(tx: Transaction) -> None:
        for run_id, state in ((RUN, "settled"), (OTHER_RUN, "open")):
            name = {"intervention_id": f"iv-{run_id}", "entry_id": "ef-1", "number": 1}
            settled = {"outcome": "happened", "actor": "ann"} if state == "settled" else {}
            about = {"step_id": STEP, "rule": "unknown", "question": MARKER, "opened_ms": 1}
            values = {**name, **settled, **about, "state": state}
            tx.execute(insert_row(interventions, run_id=run_id, **values))

    await sealed.transact(TENANT, ask)
    await erased(sealed)
    found = await sealed.transact(TENANT, interventions_of)
    sealed.keys = None
    [open_one] = await sealed.transact(TENANT, read_open_doubts)

    assert (open_one.run_id, MARKER in open_one.question) == (OTHER_RUN, False)
    shown = {row["run_id"]: row["question"] for row in found}
    assert shown == {RUN: "(erased)", OTHER_RUN: MARKER}


async def replayed(ledger: Ledger) -> str:
    """Have one run make an effect and another one rely on it; returns the entry's id."""
    await ledger.transact(TENANT, committed, call(TENANT, params=INPUT))
    again = call(TENANT, params=INPUT, run_id=OTHER_RUN)
    found = await ledger.transact(TENANT, claims.claim_effect, again)
    assert isinstance(found, Committed)
    return found.entry.entry_id


async def test_held_and_needed_runs_are_not_erased(sealed: Ledger) -> None:
    entry_id = await replayed(sealed)
    with pytest.raises(NotErasable, match=f"run {OTHER_RUN} rests on entry {entry_id}"):
        await erased(sealed)
    await sealed.transact(TENANT, closed, OTHER_RUN)
    await sealed.transact(TENANT, lambda tx: hold_run(tx, RUN, by="rita", reason="a lawsuit"))

    with pytest.raises(NotErasable, match="held by rita: a lawsuit"):
        await erased(sealed)


async def test_an_effect_is_undone_beside_an_erased_run(sealed: Ledger) -> None:
    entry_id = await replayed(sealed)
    await erased(sealed, OTHER_RUN)
    await sealed.transact(TENANT, tell_replayers, entry_id)

    assert await sealed.transact(TENANT, interventions_of) == []


async def test_a_run_goes_on_beside_an_erased_undo(sealed: Ledger) -> None:
    entry_id = await replayed(sealed)

    def undo(tx: Transaction) -> None:
        tx.execute(update_rows(effects, entry_id=entry_id).values(state="compensated"))
        tell_replayers(tx, entry_id)

    await sealed.transact(TENANT, undo)
    await erased(sealed)
    asked = await sealed.transact(TENANT, must_be_told, OTHER_RUN)
    assert asked is not None and "relies on" in asked.question
    answer = Resolution(
        intervention_id=asked.intervention_id, outcome=ResolutionOutcome.COMPENSATED, actor="ann"
    )
    settled, message, _ = await sealed.transact(
        TENANT, settle_intervention, OTHER_RUN, "r-1", answer
    )

    assert settled, message
    assert await sealed.transact(TENANT, must_be_told, OTHER_RUN) is None
