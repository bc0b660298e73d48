"""A tenant moves to another cell: its keys come along, and nothing changes where it was."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.exc import ProgrammingError

from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Ledger, TenantAway, open_ledger
from surehand.activities.ledger.core.tables import effects, retentions
from surehand.activities.ledger.core.transaction import NoKeys
from surehand.activities.ledger.effects import epochs
from surehand.activities.ledger.history.audit import verify_chain
from surehand.activities.ledger.history.reads import chain_of
from surehand.activities.ledger.people import principals
from surehand.activities.ledger.people.principals import PrincipalError
from surehand.activities.ledger.retention.policy import parse
from surehand.activities.ledger.retention.rounds import LastRound
from surehand.activities.ledger.runs import lifecycle
from surehand.activities.ledger.steps.entries import Committed, Mismatch
from surehand.activities.ledger.tenants import copies, moves
from surehand.activities.worker import gauges
from surehand.workflows.contracts.runs import CloseRun
from surehand.workflows.contracts.starting import OpenRun, Parent
from surehand.workflows.contracts.states import RunState
from tests.ledger import databases
from tests.ledger.databases import Database
from tests.ledger.scene import OTHER_RUN, RUN, SPEC, Scene
from tests.ledger.test_retention import office_of
from tests.run_keys import AllKnown

_numbers = itertools.count(1)


@pytest.fixture
async def old(database: Database) -> AsyncIterator[Ledger]:
    """The tenant's ledger, as the role that owns it: moving is an administrator's."""
    async with open_ledger(database.owner_url) as opened:
        yield opened


@pytest.fixture
def new_database(database: Database, tmp_path: Path, request: pytest.FixtureRequest) -> Database:
    if database.dialect == "postgresql":
        ledgers = request.getfixturevalue("postgres_ledgers")
        return databases.postgresql(request.getfixturevalue("postgres_server"), ledgers.create())
    file = tmp_path / "new.db"
    shutil.copy(request.getfixturevalue("sqlite_template"), file)
    return databases.sqlite(file)


@pytest.fixture
async def new(new_database: Database) -> AsyncIterator[Ledger]:
    async with open_ledger(new_database.owner_url) as opened:
        yield opened


def close(scene: Scene, run_id: str = RUN) -> None:
    with scene.tx() as tx:
        lifecycle.close_run(
            tx, CloseRun(tenant=scene.tenant, run_id=run_id, state=RunState.COMPLETED)
        )


def leave(scene: Scene, old: Ledger) -> None:
    with old.transaction(scene.tenant) as tx:
        moves.leave(tx, "b", "olga")


def go(scene: Scene, old: Ledger) -> list[str]:
    with old.transaction(scene.tenant) as tx:
        return moves.go(tx, "olga")


def copy(scene: Scene, old: Ledger, new: Ledger) -> Any:
    return copies.copy(old, new, scene.tenant, ("a", "b"), "olga")


def gone(scene: Scene, old: Ledger) -> None:
    leave(scene, old)
    assert go(scene, old) == []


async def test_what_is_sealed_moves_without_keys_and_is_read_with_them(
    database: Database, old: Ledger, new: Ledger
) -> None:
    async with open_ledger(database.url) as ledger:
        ledger.keys = AllKnown()
        scene = Scene.begin(ledger, f"sealed-{next(_numbers)}")
        made = scene.committed(scene.call())
        close(scene)
        gone(scene, old)

    copy(scene, old, new)
    with pytest.raises(NoKeys), new.transaction(scene.tenant) as tx:
        tx.all(rows_of(effects))
    new.keys = AllKnown()

    with new.transaction(scene.tenant) as tx:
        [row] = tx.all(rows_of(effects))
    assert (row["params"], row["receipt"]) == (made.params, made.receipt)


async def test_the_age_of_retention_is_not_measured_of_a_tenant_that_has_moved(
    scene: Scene, keeper: Ledger, old: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close(scene)
    await office_of(scene, keeper, tmp_path).round()
    told = list[list[LastRound]]()
    metrics: Any = SimpleNamespace(
        epoch=lambda number: None, standbys=lambda found: None, retention=told.append
    )
    monkeypatch.setattr(scene.ledger, "tenants", {scene.tenant})

    await gauges.measure(scene.ledger, metrics)
    gone(scene, old)
    await gauges.measure(scene.ledger, metrics)

    assert [len(rounds) for rounds in told] == [1, 0]


async def test_a_tenant_moves_with_what_was_hidden_and_deleted(
    scene: Scene, keeper: Ledger, old: Ledger, new: Ledger, tmp_path: Path
) -> None:
    office = office_of(scene, keeper, tmp_path)
    made = scene.committed(scene.call())
    close(scene)
    assert (await office.round()).deleted
    scene.open_run(OTHER_RUN)
    close(scene, OTHER_RUN)
    assert (await office.round(parse("runs=0s,grace=9d"))).hidden
    gone(scene, old)

    copy(scene, old, new)

    there = Scene(new, scene.tenant)
    kept = [(row["run_id"], row["deleted_ms"] is None) for row in there.rows(retentions)]
    assert sorted(kept) == [(RUN, False), (OTHER_RUN, True)]
    there.open_run("third")
    refused = there.claim(there.call(run_id="third"))
    assert isinstance(refused, Mismatch) and made.entry_id in refused.reason
    with pytest.raises(TenantAway):
        await office.round()


def test_a_tenant_stays_while_its_ledger_may_have_forgotten_something(new: Ledger) -> None:
    scene = Scene.begin(new, "restored")
    close(scene)
    leave(scene, new)
    with new.transaction(scene.tenant) as tx:
        epochs.open_at(tx, tx.now_ms, "oscar")

    assert go(scene, new) == ["epoch 1 of a restore is open"]
    with new.transaction(scene.tenant) as tx:
        epochs.close(tx, "oscar")
    assert go(scene, new) == []


def test_a_key_of_the_old_cell_makes_no_second_effect_in_the_new_one(
    scene: Scene, old: Ledger, new: Ledger
) -> None:
    made = scene.committed(scene.call())
    close(scene)
    gone(scene, old)

    counts = copy(scene, old, new)

    there = Scene(new, scene.tenant)
    there.open_run(OTHER_RUN)
    assert isinstance(there.claim(there.call(run_id=OTHER_RUN)), Committed)
    assert there.entry(made.entry_id) == made
    assert counts["effects"] == 1 and counts["runs"] == 1 and counts["events"] > 3
    with new.transaction(scene.tenant) as tx:
        events, _, head = chain_of(tx, RUN)
    assert verify_chain(events, [head]) is None


def test_a_new_commit_comes_behind_those_that_were_copied(
    scene: Scene, old: Ledger, new: Ledger
) -> None:
    for key in "abc":
        scene.committed(scene.call(key=key, step_id=key))
    close(scene)
    gone(scene, old)
    copy(scene, old, new)

    there = Scene(new, scene.tenant)
    there.open_run(OTHER_RUN)
    fresh = there.call(key="fresh", run_id=OTHER_RUN)
    number = there.commit(fresh, there.claimed(fresh))

    [*copied, newest] = sorted(row["commit_no"] for row in there.rows(effects))
    assert (len(copied), newest) == (3, number)


def test_no_run_begins_while_a_tenant_leaves_and_those_under_way_go_on(
    scene: Scene, other: Scene, old: Ledger
) -> None:
    leave(scene, old)

    with pytest.raises(TenantAway, match=f"tenant {scene.tenant} leaves this cell"):
        scene.open_run(OTHER_RUN)
    scene.open_run(f"{RUN}~pay", parent=Parent(run_id=RUN, step_id="pay"))
    scene.committed(scene.call())
    other.open_run(OTHER_RUN)

    assert go(scene, old) == [f"run {RUN} is open", f"run {RUN}~pay is open"]


@pytest.mark.parametrize(
    ("left", "says"),
    [
        (Scene.claimed, "effect payments.refund refund:order-1001 is claimed"),
        (Scene.in_doubt, "effect payments.refund refund:order-1001 is in doubt"),
        (Scene.compensating, "effect payments.refund refund:order-1001 is compensating"),
        (Scene.asked, "intervention"),
        (lambda scene, _: scene.hold("account:7"), "resource account:7 is held"),
    ],
)
def test_a_tenant_stays_while_something_of_it_is_open(
    scene: Scene, old: Ledger, left: Callable[..., Any], says: str
) -> None:
    left(scene, scene.call())
    close(scene)
    leave(scene, old)

    assert any(line.startswith(says) for line in go(scene, old))
    with old.transaction(scene.tenant) as tx:
        found = moves.residence_of(tx)
    assert found is not None and found.state == "leaving"


def test_nothing_of_a_tenant_that_is_gone_changes(scene: Scene, other: Scene, old: Ledger) -> None:
    entry = scene.committed(scene.call())
    close(scene)
    gone(scene, old)

    for change in (
        lambda: scene.open_run(OTHER_RUN),
        lambda: scene.open_run(f"{RUN}~pay", parent=Parent(run_id=RUN, step_id="pay")),
        lambda: scene.claimed(scene.undo(entry)),
        lambda: scene.claimed(scene.call(key="another")),
    ):
        with pytest.raises(TenantAway, match=f"tenant {scene.tenant} has left this cell"):
            change()
    with pytest.raises(TenantAway), principals.administration(old, scene.tenant) as tx:
        principals.add(tx, "mallory", "olga")
    assert scene.entry(entry.entry_id) == entry
    other.committed(other.call())


@pytest.mark.postgres
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
async def test_a_run_that_is_being_opened_is_seen_or_refused(scene: Scene, old: Ledger) -> None:
    """Whoever lets the tenant go waits for the transaction that opens it (SQLite: one writer)."""
    close(scene)

    async def go_away() -> list[str]:
        await old.transact(scene.tenant, moves.leave, "b", "olga")
        return await old.transact(scene.tenant, moves.go, "olga")

    with scene.tx() as opening:
        started_at = datetime.now(UTC)
        start = scene.start(OTHER_RUN)
        asked = OpenRun(request=start, execution="x", started_at=started_at)
        lifecycle.open_run(opening, asked, {SPEC.name: SPEC})
        going = asyncio.create_task(go_away())
        await waits_for_lock(old)
    assert await going == [f"run {OTHER_RUN} is open"]


async def waits_for_lock(ledger: Ledger) -> None:
    """Wait until somebody waits for a lock that another one has."""
    query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    while True:
        with ledger.engine.connect() as connection:
            if connection.exec_driver_sql(query).scalar_one():
                return
        await asyncio.sleep(0)


def test_what_was_copied_already_is_not_copied_again(
    scene: Scene, old: Ledger, new: Ledger
) -> None:
    scene.committed(scene.call())
    close(scene)
    gone(scene, old)
    assert copy(scene, old, new)["effects"] == 1
    Scene(new, scene.tenant).open_run(OTHER_RUN)

    assert not copy(scene, old, new)


def test_a_copy_that_is_cut_off_leaves_nothing_and_its_repetition_all(
    scene: Scene, old: Ledger, new: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.committed(scene.call())
    close(scene)
    gone(scene, old)

    class CutOff(Exception):
        pass

    def cut_off(*_: Any) -> None:
        raise CutOff

    with monkeypatch.context() as patch:
        patch.setattr(copies, "_verify", cut_off)
        with pytest.raises(CutOff):
            copy(scene, old, new)
    with new.transaction(scene.tenant) as tx:
        assert not moves.is_known(tx)

    assert copy(scene, old, new)["effects"] == 1


def test_two_histories_of_a_tenant_do_not_become_one(
    scene: Scene, old: Ledger, new: Ledger
) -> None:
    close(scene)
    gone(scene, old)
    Scene(new, scene.tenant).open_run(RUN)

    with pytest.raises(PrincipalError, match="two histories cannot become one"):
        copy(scene, old, new)


def test_a_tenant_does_not_come_back_to_a_ledger_that_it_has_left(
    scene: Scene, old: Ledger, new: Ledger
) -> None:
    close(scene)
    gone(scene, old)
    copy(scene, old, new)
    with new.transaction(scene.tenant) as tx:
        moves.leave(tx, "a", "olga")
        assert moves.go(tx, "olga") == []

    with pytest.raises(PrincipalError, match="does not come back"):
        copies.copy(new, old, scene.tenant, ("b", "a"), "olga")


@pytest.mark.postgres
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_worker_says_of_no_tenant_where_it_is(scene: Scene) -> None:
    """SQLite has no roles."""
    with pytest.raises(ProgrammingError, match="permission denied"):
        leave(scene, scene.ledger)
