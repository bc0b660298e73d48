"""``stats``: figures from the ledger's own events and rows, over both databases."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from surehand.activities.effects.recorder import Done
from surehand.activities.ledger.core.store import RunNotFound, open_ledger
from surehand.activities.ledger.core.tables import effects, events, runs
from surehand.activities.ledger.history.stats import Spread, Stats, StatsScope, stats
from surehand.activities.tools.failures import Transient
from surehand.activities.tools.tool import Dedupes
from surehand.workflows.contracts.effects import Resolution, ResolutionOutcome
from tests.ledger.attempts import Provider, last_of, request_for
from tests.ledger.rows import COMMITTED, write
from tests.ledger.scene import LEASE_OVER, OTHER_RUN, RUN, WINDOW, Scene

AN_HOUR = timedelta(hours=1)


def figures(scene: Scene, run_id: str | None = None, *, probes: int = 0) -> Stats:
    scope = StatsScope(scene.tenant, datetime.now(UTC) - AN_HOUR, run_id)
    return stats(scene.ledger, scope, probes=probes)


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
    resolution = Resolution(
        intervention_id=settled,
        outcome=ResolutionOutcome.HAPPENED,
        actor="bob",
        evidence="bank statement",
    )
    assert (scene.settle(resolution))[0]
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


async def test_retries_are_told_by_class_with_delay_and_end(
    scene: Scene,
) -> None:
    heals = Provider([Transient("no"), Transient("no"), {"id": "r"}]).tool(recovery="human")
    await last_of(scene, heals, key="heals", step_id="one")
    scene.failed(scene.call(key="stays", step_id="two"))

    [retried] = (figures(scene)).retries

    assert (retried.failure_class, retried.failures, retried.retried) == ("transient", 3, 3)
    assert retried.mean_delay is not None
    assert 0.8 + 1.6 + 1 <= retried.mean_delay * 3 <= 1.2 + 2.4 + 1
    assert (retried.calls, retried.succeeded, retried.success_rate) == (2, 1, 0.5)


def test_compensations_are_told_by_outcome(scene: Scene) -> None:
    scene.compensated(scene.call(key="a"))

    found = figures(scene)

    assert found.compensations.compensated == 1
    assert (found.compensations.uncompensated, found.compensations.failed) == (0, 0)


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
    assert (figures(scene, RUN)).invariants.broken == []


def test_one_run_is_told_apart_and_another_tenants_is_not_there(scene: Scene, other: Scene) -> None:
    scene.open_run(OTHER_RUN)
    scene.committed(scene.call())
    other.committed(other.call())

    assert (figures(scene, RUN)).leases.claims == 1
    assert (figures(scene, OTHER_RUN)).leases.claims == 0
    with pytest.raises(RunNotFound):
        figures(other, OTHER_RUN)


def test_what_lies_further_back_does_not_count(scene: Scene) -> None:
    scene.committed(scene.call())
    later = datetime.now(UTC) + AN_HOUR

    found = stats(scene.ledger, StatsScope(scene.tenant, later))

    assert found.leases.claims == 0


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
