"""Who lives, who may do what, and figures of what happened, on both databases."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from surehand.activities.effects.recorder import Done
from surehand.activities.ledger.approvals.waiting import measure_waiting
from surehand.activities.ledger.core import presence
from surehand.activities.ledger.core.engine import make_engine
from surehand.activities.ledger.core.presence import Presence, presence_of
from surehand.activities.ledger.core.store import Transaction, open_ledger
from surehand.activities.ledger.core.tables import (
    effects,
    events,
    grants,
    principal_changes,
    principal_keys,
    runs,
)
from surehand.activities.ledger.core.tables import principals as people
from surehand.activities.ledger.history.stats import Spread, Stats, StatsScope, read_stats
from surehand.activities.ledger.people import principals
from surehand.activities.ledger.people.principals import (
    Kind,
    Principal,
    PrincipalError,
    read_changes,
)
from surehand.activities.tools.failures import Transient
from surehand.activities.tools.tool import Dedupes
from surehand.activities.worker.takeover import InHand, worker_before
from surehand.workflows.plan.policy import Requirement
from tests.ledger.attempts import Provider, last_of, request_for
from tests.ledger.people import ADMINISTRATOR, SOMEBODYS_KEY, administration, person, revoked
from tests.ledger.rows import COMMITTED, write
from tests.ledger.scene import LEASE_OVER, OTHER_RUN, WINDOW, Scene, said
from tests.ledger_databases import DATABASES

NO_TIME = timedelta(milliseconds=1)
LONG = timedelta(seconds=60)
Make = Callable[..., Presence]


@pytest.fixture
def make(ledger_url: str) -> Iterator[Make]:
    """Makes the presence of a worker, whose name is enough."""
    engine, made = make_engine(ledger_url), list[Presence]()

    def one(worker: str, namespace: str = "default") -> Presence:
        found = presence_of(engine, namespace, worker)
        assert found is not None
        made.append(found)
        return found

    yield one
    for each in made:
        each.leave()
        # In a worker a thread may wait for a lock on it until the process ends.
        if (watching := getattr(each, "_watching", None)) is not None:
            watching.close()
    engine.dispose()


def die(worker: Presence) -> None:
    """Free its lock, as the end of its process does, and change nothing else."""
    own = worker._own  # type: ignore[attr-defined]
    worker._own = None  # type: ignore[attr-defined]
    os.close(own) if isinstance(own, int) else own.close()


@pytest.mark.parametrize("database", DATABASES)
def test_a_dead_workers_lock_is_free_and_its_work_found_once(make: Make) -> None:
    dead, alive = make("1@host@a"), make("2@host@b")
    dead.enter(["first"])
    alive.enter(["mine"])
    dead.write(["second", "third"], ["first"])

    assert alive.others() == ["1@host@a"]
    assert not alive.wait_free("1@host@a", NO_TIME)
    with alive.taken("1@host@a") as runs:
        assert runs is None

    die(dead)

    assert alive.wait_free("1@host@a", LONG)
    with alive.taken("1@host@a") as runs:
        assert runs is not None
        assert sorted(runs) == ["second", "third"]
    assert alive.others() == []


@pytest.mark.parametrize("database", DATABASES)
def test_what_nobody_has_taken_over_to_the_end_is_found_again(make: Make) -> None:
    dead, alive = make("dead"), make("alive")
    dead.enter(["run"])
    die(dead)
    alive.others()

    with pytest.raises(RuntimeError, match="cut off"), alive.taken("dead"):
        raise RuntimeError("cut off")

    with alive.taken("dead") as runs:
        assert runs == ["run"]


@pytest.mark.parametrize("database", DATABASES)
def test_who_leaves_in_order_leaves_nothing(make: Make) -> None:
    one, other = make("one"), make("other")
    one.enter(["run"])
    assert other.others() == ["one"]

    one.leave()

    assert other.others() == []


@pytest.mark.parametrize("database", DATABASES)
def test_workers_of_another_namespace_are_not_seen(make: Make) -> None:
    one, other = make("one", "a"), make("other", "b")
    one.enter(["run"])

    assert other.others() == []


def test_a_grown_file_is_rewritten_and_locked(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "_LARGEST_FILE", 1000)
    writer, reader = make("writer"), make("reader")
    writer.enter(["kept"])
    for number in range(200):
        writer.write([f"run-{number}"], [f"run-{number - 1}"])

    assert not reader.wait_free("writer", NO_TIME)
    die(writer)
    with reader.taken("writer") as runs:
        assert runs == ["kept", "run-199"]


def test_each_worker_watches_the_one_before_it_and_the_first_one_the_last() -> None:
    workers = ["a", "b", "c"]
    watched = {
        one: worker_before(one, [other for other in workers if other != one]) for one in workers
    }
    assert watched == {"a": "c", "b": "a", "c": "b"}
    assert worker_before("a", []) is None


def test_a_run_is_noted_once_and_dropped_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("surehand.activities.worker.takeover.time.monotonic", lambda: now)
    in_hand, told = InHand(), list[None]()
    in_hand.on_news = lambda: told.append(None)
    with in_hand.holding("run"):
        for _ in range(2):
            with in_hand.holding("run"):
                pass
        assert in_hand.changes() == (["run"], [])
        now += 60
        assert in_hand.changes() == ([], [])
    with in_hand.holding("run"):
        pass
    assert (len(told), in_hand.all()) == (1, ["run"])
    now += 60
    assert in_hand.changes() == ([], ["run"])
    assert in_hand.all() == []


KINDS: tuple[Kind, ...] = ("role", "permission")
KID = "kid-1"
#: As many administrators as ever do the same thing at once, and more.
AT_ONCE = 6
Change = Callable[[Transaction], Any]


def found(scene: Scene, name: str) -> Principal:
    with scene.tx() as tx:
        return principals.find_principal(tx, name)


def noted(scene: Scene, name: str) -> Counter[str]:
    with scene.tx() as tx:
        return Counter(one.change for one in read_changes(tx, name))


async def at_once(scene: Scene, change: Change) -> Counter[Any]:
    """Make one change many times side by side; returns how often it ended in which way."""

    def attempt() -> Any:
        try:
            with administration(scene) as tx:
                return change(tx)
        except PrincipalError:
            return PrincipalError

    return Counter(await asyncio.gather(*(asyncio.to_thread(attempt) for _ in range(AT_ONCE))))


@pytest.mark.parametrize("kind", KINDS)
def test_a_grant_counts_until_it_is_revoked(scene: Scene, kind: Kind) -> None:
    def held() -> bool:
        ann = found(scene, "ann")
        return "refunds" in (ann.roles if kind == "role" else ann.permissions)

    person(scene, "ann")
    assert not held()
    for _ in range(2):
        with administration(scene) as tx:
            assert principals.give_grant(tx, "ann", kind, "refunds", ADMINISTRATOR)
            assert not principals.give_grant(tx, "ann", kind, "refunds", ADMINISTRATOR)
        assert held()
        with administration(scene) as tx:
            assert principals.revoke_grant(tx, "ann", kind, "refunds", ADMINISTRATOR)
            assert not principals.revoke_grant(tx, "ann", kind, "refunds", ADMINISTRATOR)
        assert not held()

    assert noted(scene, "ann") == {"added": 1, f"{kind}_granted": 2, f"{kind}_revoked": 2}


def test_a_role_is_no_permission_of_the_same_name(scene: Scene) -> None:
    person(scene, "ann", "refunds")

    assert found(scene, "ann") == Principal("ann", roles=frozenset({"refunds"}))
    with administration(scene) as tx:
        assert principals.find_lacking(tx, "ann", ["refunds"]) == "refunds"
        assert not principals.revoke_grant(tx, "ann", "permission", "refunds", ADMINISTRATOR)
    assert (found(scene, "ann")).roles == {"refunds"}


def test_a_permission_that_is_missing_is_named_and_none_when_all_are_there(scene: Scene) -> None:
    person(scene, "ann", permissions=("mail", "refunds"))

    with scene.tx() as tx:
        assert principals.find_lacking(tx, "ann", ["refunds", "mail"]) is None
        assert principals.find_lacking(tx, "ann", ["refunds", "stock", "mail"]) == "stock"
        assert principals.find_lacking(tx, "nobody", []) is None
        assert principals.find_lacking(tx, "nobody", ["mail"]) == "mail"
    revoked(scene, "ann", "permission", "mail")
    with scene.tx() as tx:
        assert principals.find_lacking(tx, "ann", ["refunds", "mail"]) == "mail"


def test_an_unknown_name_is_found_as_somebody_who_may_do_nothing(scene: Scene) -> None:
    person(scene, "ann", "finance", permissions=("mail",))

    with scene.tx() as tx:
        known = {name: principals.find_principal(tx, name) for name in ("ann", "nobody", "ann ")}
        everybody = principals.read_principals(tx)

    assert known["nobody"] == Principal("nobody")
    assert known["ann "] == Principal("ann ")
    assert everybody == [known["ann"]]


async def test_nothing_is_given_to_or_taken_from_an_unknown_name(scene: Scene) -> None:
    refusals: list[Change] = [
        lambda tx: principals.give_grant(tx, "nobody", "role", "finance", ADMINISTRATOR),
        lambda tx: principals.revoke_grant(tx, "nobody", "role", "finance", ADMINISTRATOR),
        lambda tx: principals.add_key(tx, "nobody", KID, SOMEBODYS_KEY, ADMINISTRATOR),
        lambda tx: principals.revoke_key(tx, "nobody", KID, ADMINISTRATOR),
    ]
    for refused in refusals:
        nobody = pytest.raises(PrincipalError, match="no principal 'nobody'")
        with nobody, administration(scene) as tx:
            refused(tx)

    for table in (people, grants, principal_keys, principal_changes):
        assert scene.rows(table) == []


def test_a_key_has_one_owner_and_once_revoked_never_counts_again(scene: Scene) -> None:
    person(scene, "ann")
    person(scene, "bob")
    with administration(scene) as tx:
        assert principals.add_key(tx, "ann", KID, SOMEBODYS_KEY, ADMINISTRATOR)
        assert not principals.add_key(tx, "ann", KID, SOMEBODYS_KEY, ADMINISTRATOR)
        with pytest.raises(PrincipalError, match="belongs to 'ann'"):
            principals.add_key(tx, "bob", KID, SOMEBODYS_KEY, ADMINISTRATOR)
        with pytest.raises(PrincipalError, match="'bob' has no key"):
            principals.revoke_key(tx, "bob", KID, ADMINISTRATOR)
    assert (found(scene, "ann")).keys == (KID,)

    with administration(scene) as tx:
        assert principals.revoke_key(tx, "ann", KID, ADMINISTRATOR)
        assert not principals.revoke_key(tx, "ann", KID, ADMINISTRATOR)
        with pytest.raises(PrincipalError, match="was revoked"):
            principals.add_key(tx, "ann", KID, SOMEBODYS_KEY, ADMINISTRATOR)
        key = principals.find_key(tx, KID)

    assert key is not None and key.revoked
    assert (found(scene, "ann")).keys == ()
    assert noted(scene, "ann") == {"added": 1, "key_added": 1, "key_revoked": 1}


async def test_of_many_equal_changes_at_once_one_is_made_and_noted(scene: Scene) -> None:
    ends = await at_once(scene, lambda tx: principals.add_principal(tx, "ann", ADMINISTRATOR))
    assert ends == {None: 1, PrincipalError: AT_ONCE - 1}
    equal: dict[str, Change] = {
        "role_granted": lambda tx: principals.give_grant(tx, "ann", "role", "x", ADMINISTRATOR),
        "role_revoked": lambda tx: principals.revoke_grant(tx, "ann", "role", "x", ADMINISTRATOR),
        "key_added": lambda tx: principals.add_key(tx, "ann", KID, SOMEBODYS_KEY, ADMINISTRATOR),
        "key_revoked": lambda tx: principals.revoke_key(tx, "ann", KID, ADMINISTRATOR),
    }
    for name, change in equal.items():
        assert await at_once(scene, change) == {True: 1, False: AT_ONCE - 1}, name

    assert noted(scene, "ann") == {"added": 1, **dict.fromkeys(equal, 1)}
    ask = iter([person(scene, f"person-{number}") for number in range(AT_ONCE)])
    ends = await at_once(
        scene, lambda tx: principals.add_key(tx, next(ask), "kid-2", SOMEBODYS_KEY, ADMINISTRATOR)
    )
    assert ends == {True: 1, PrincipalError: AT_ONCE - 1}


# On SQLite a transaction that has begun keeps all others from beginning.
@pytest.mark.postgres
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_changes_are_told_in_the_order_of_their_locks(scene: Scene) -> None:
    person(scene, "ann")
    with administration(scene) as late:
        with administration(scene) as tx:
            principals.give_grant(tx, "ann", "role", "finance", ADMINISTRATOR)
        assert principals.revoke_grant(late, "ann", "role", "finance", ADMINISTRATOR)

    with scene.tx() as tx:
        told = [one.change for one in read_changes(tx, "ann")]
    assert told == ["added", "role_granted", "role_revoked"]


AN_HOUR = timedelta(hours=1)


def figures(scene: Scene, *, since: timedelta = AN_HOUR, probes: int = 0) -> Stats:
    scope = StatsScope(scene.tenant, datetime.now(UTC) - since)
    return read_stats(scene.ledger, scope, probes=probes)


async def left_by_a_dead_attempt(scene: Scene, key: str, step_id: str) -> None:
    """A claim whose lease is over, taken over by the next attempt, which calls again."""
    loaded = Provider([{"id": key}]).tool(dedupes=Dedupes(window=WINDOW))
    dead = request_for(scene, loaded, key=key, step_id=step_id, holder="dead")
    scene.claimed(dead, -LEASE_OVER)
    assert isinstance(await last_of(scene, loaded, key=key, step_id=step_id), Done)


def test_a_tenant_without_effects_has_figures_of_nothing(scene: Scene) -> None:
    found = figures(scene)

    assert found.recoveries.ended == 0
    assert (found.recoveries.success_rate, found.recoveries.time) == (None, None)
    assert (found.retries, found.checkpoint) == ([], None)
    assert (found.invariants.runs, found.invariants.ok) == (1, 1)


async def test_recoveries_are_told_apart_by_who_ended_them(scene: Scene) -> None:
    await left_by_a_dead_attempt(scene, "a", "one")
    await left_by_a_dead_attempt(scene, "b", "two")
    _, settled = scene.asked(scene.call(key="c", step_id="three"))
    assert scene.settle(said(settled, "happened"))[0]
    scene.asked(scene.call(key="d", step_id="four"))

    found = figures(scene)

    it = found.recoveries
    assert (it.ended, it.without_human, it.by_human) == (3, 2, 1)
    assert (it.under_way, it.waiting_for_human) == (1, 1)
    assert (it.success_rate, it.human_takeover_rate) == (0.5, 0.5)
    assert it.branches == {"dedupes: call_again": 2}
    assert it.time is not None and it.time.count == 2
    assert it.time_by_human is not None and it.time_by_human.count == 1
    assert (found.leases.claims, found.leases.lost) == (6, 2)
    assert found.interventions.opened == {"unknown": 2}
    assert (found.interventions.settled, found.interventions.open) == (1, 1)
    assert found.invariants.broken == []


async def test_retries_are_told_by_class_with_delay_and_end(scene: Scene) -> None:
    heals = Provider([Transient("no"), Transient("no"), {"id": "r"}]).tool(recovery="human")
    await last_of(scene, heals, key="heals", step_id="one")
    scene.failed(scene.call(key="stays", step_id="two"))

    [retried] = (figures(scene)).retries

    assert (retried.failure_class, retried.failures, retried.retried) == ("transient", 3, 3)
    assert retried.mean_delay is not None
    assert 0.8 + 1.6 + 1 <= retried.mean_delay * 3 <= 1.2 + 2.4 + 1
    assert (retried.calls, retried.succeeded, retried.success_rate) == (2, 1, 0.5)


async def test_two_effects_of_one_key_are_found(sqlite_template: Path, tmp_path: Path) -> None:
    file = shutil.copy(sqlite_template, tmp_path / "ledger.db")
    async with open_ledger(f"sqlite:///{file}") as ledger:
        scene = Scene.begin(ledger, "acme")
        with scene.tx() as tx:
            tx.connection.exec_driver_sql("DROP INDEX uq_effects_live_key")
        for n in (1, 2):
            values = {**COMMITTED, "generation": n, "commit_no": n, "settled_ms": tx.now_ms}
            write(scene, effects, entry_id=f"ef-{n}", **values)

        found = figures(scene)

    assert found.duplicates.keys == 1
    [broken] = found.invariants.broken
    assert "is committed in the ledger, but in no event" in broken.first_break


def test_a_broken_chain_is_named_with_its_run(scene: Scene) -> None:
    scene.open_run(OTHER_RUN)
    write(scene, events, run_id=OTHER_RUN, seq=7)

    checked = (figures(scene)).invariants

    assert (checked.runs, checked.ok) == (2, 1)
    [broken] = checked.broken
    assert broken.run_id == OTHER_RUN
    assert broken.first_break.startswith("event 2: missing")


def test_another_tenants_run_is_not_counted(scene: Scene, other: Scene) -> None:
    scene.committed(scene.call())

    assert (figures(scene)).leases.claims == 1
    assert (figures(other)).leases.claims == 0


def test_a_probe_measures_writes_and_changes_nothing(scene: Scene) -> None:
    before = scene.rows(runs), scene.rows(events)

    probe = (figures(scene, probes=5)).checkpoint

    assert probe is not None and probe.latency is not None
    assert (probe.transactions, probe.failed, probe.success_rate) == (5, 0, 1.0)
    assert 0 < probe.latency.p50 <= probe.latency.p95 <= probe.latency.p99
    assert (scene.rows(runs), scene.rows(events)) == before


def test_percentiles_are_values_that_were_measured() -> None:
    spread = Spread.of([float(n) for n in range(100, 0, -1)])

    assert spread == Spread(count=100, p50=50, p95=95, p99=99)
    assert Spread.of([7.0]) == Spread(count=1, p50=7, p95=7, p99=7)


def test_figures_tell_of_decisions_what_waits_and_the_load_of_each_person(scene: Scene) -> None:
    person(scene, "ana", "manager")
    person(scene, "bob", "clerk")
    manager = Requirement(roles=("manager",))
    minute, calls = timedelta(minutes=1), [scene.call(key=f"k{n}", step_id=f"s{n}") for n in (1, 2)]
    first, _ = (scene.ask_approval(one, requirement=manager) for one in calls)
    scene.ask_approval(scene.call(key="any", step_id="any"))
    assert scene.decide(first, approver="bob").code == "not_permitted"
    assert scene.decide(first, approver="ana", after=minute).code == "accepted"

    found = figures(scene, since=timedelta(days=1)).approvals

    assert (found.decisions, found.waiting) == (1, 2)
    assert found.time is not None and found.time.p50 == pytest.approx(60, abs=30)
    assert found.oldest is not None and 0 <= found.oldest < 60
    assert found.asked_each_day == pytest.approx({"ana": 3, "bob": 1}, rel=0.01)
    assert found.decided_each_day == pytest.approx({"ana": 1}, rel=0.01)
    with scene.tx(after=minute) as tx:
        count, age_ms = measure_waiting(tx)
    assert count == 2 and age_ms >= 60_000


def test_of_nothing_there_are_no_figures(scene: Scene) -> None:
    found = figures(scene, since=timedelta(days=1)).approvals

    assert (found.decisions, found.waiting, found.time, found.oldest) == (0, 0, None, None)
    with scene.tx() as tx:
        assert measure_waiting(tx) == (0, 0)
