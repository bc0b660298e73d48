"""How long approvers take, what waits for them, and how much each is asked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from surehand.activities.ledger.approvals.waiting import measure_waiting
from surehand.activities.ledger.history.stats import StatsScope, read_stats
from surehand.workflows.plan.policy import Requirement
from tests.ledger.people import person
from tests.ledger.scene import Scene


def test_figures_tell_of_decisions_what_waits_and_the_load_of_each_person(scene: Scene) -> None:
    person(scene, "ana", "manager")
    person(scene, "bob", "clerk")
    manager = Requirement(roles=("manager",))
    minute, calls = timedelta(minutes=1), [scene.call(key=f"k{n}", step_id=f"s{n}") for n in (1, 2)]
    first, _ = (scene.ask_approval(one, requirement=manager) for one in calls)
    scene.ask_approval(scene.call(key="any", step_id="any"))
    assert scene.decide(first, approver="bob").code == "not_permitted"
    assert scene.decide(first, approver="ana", after=minute).code == "accepted"
    scope = StatsScope(scene.tenant, datetime.now(UTC) - timedelta(days=1))

    found = read_stats(scene.ledger, scope).approvals

    assert (found.decisions, found.waiting) == (1, 2)
    assert found.time is not None and found.time.p50 == pytest.approx(60, abs=30)
    assert found.oldest is not None and 0 <= found.oldest < 60
    assert found.asked_each_day == pytest.approx({"ana": 3, "bob": 1}, rel=0.01)
    assert found.decided_each_day == pytest.approx({"ana": 1}, rel=0.01)
    with scene.tx(after=minute) as tx:
        count, age_ms = measure_waiting(tx)
    assert count == 2 and age_ms >= 60_000


def test_of_nothing_there_are_no_figures(scene: Scene) -> None:
    scope = StatsScope(scene.tenant, datetime.now(UTC) - timedelta(days=1))

    found = read_stats(scene.ledger, scope).approvals

    assert (found.decisions, found.waiting, found.time, found.oldest) == (0, 0, None, None)
    with scene.tx() as tx:
        assert measure_waiting(tx) == (0, 0)
