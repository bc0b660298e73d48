"""Quotas: effects an hour, places for runs and requests, tokens and money of a day."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from surehand.activities.ledger.core.store import Ledger, open_ledger
from surehand.activities.ledger.core.tables import approvals, effects, quota_usage, runs
from surehand.activities.ledger.effects import claims, outcomes
from surehand.activities.ledger.quotas import (
    DAY_MS,
    HOUR_MS,
    Limits,
    OverQuota,
    QuotaUsedUp,
    add_spent,
    admit_run,
    change_limits,
    count_open_runs,
    count_queued_runs,
    read_limits,
    read_quotas,
    require_unspent,
)
from surehand.activities.ledger.steps.entries import Claimed, ClaimResult
from surehand.workflows.contracts.base import Quota, QuotaWait, Usage
from surehand.workflows.contracts.runs import Parent
from tests.ledger.databases import Database, until_one_waits
from tests.ledger.people import administration, person
from tests.ledger.quotas import limited
from tests.ledger.scene import LEASE_OVER, NOW, RUN, WORKERS, Scene
from tests.ledger.standing import ask, granted
from tests.ledger_databases import DATABASES

MANY = 12


def admitted(scene: Scene) -> set[str]:
    return {row["run_id"] for row in scene.rows(runs) if row["admitted_ms"] is not None}


def admit(scene: Scene, run_id: str) -> QuotaWait | None:
    with scene.tx() as tx:
        return admit_run(tx, run_id)


def _now_ms(scene: Scene) -> int:
    with scene.tx() as tx:
        return tx.now_ms


async def test_as_many_runs_open_as_may_be_open(database: Database, scene: Scene) -> None:
    limited(scene, open_runs=4)  # one is open already
    async with open_ledger(database.url) as one, open_ledger(database.url) as two:
        places = [Scene(one, scene.tenant), Scene(two, scene.tenant)]
        names = [f"many-{n:02}" for n in range(MANY)]
        await asyncio.gather(
            *(asyncio.to_thread(places[n % 2].open_run, name) for n, name in enumerate(names))
        )
        assert len(admitted(scene)) == 4

        while len(rest := [name for name in names if name not in admitted(scene)]) > 0:
            open_now = [row["run_id"] for row in scene.rows(runs, closed_ms=None)]
            scene.end(next(name for name in open_now if name in admitted(scene)))
            await asyncio.gather(
                *(asyncio.to_thread(admit, places[n % 2], name) for n, name in enumerate(rest))
            )
            taken = [row for row in scene.rows(runs, closed_ms=None) if row["admitted_ms"]]
            assert len(taken) == 4


def test_those_that_wait_are_admitted_in_the_order_in_which_they_were_opened(scene: Scene) -> None:
    limited(scene, open_runs=1)
    for name in ("b", "a", "c"):
        scene.open_run(name)
        moment = scene.row(runs, run_id=name)["opened_ms"]
        while moment >= _now_ms(scene):  # the next one is later by the database's clock
            pass
    assert admitted(scene) == {RUN}

    last = admit(scene, "c")
    assert last is not None
    assert (last.quota, last.used, last.limit, last.ahead) == (Quota.OPEN_RUNS, "1", "1", 2)
    scene.end()
    waits = {name: admit(scene, name) for name in ("c", "a", "b")}
    assert [name for name, wait in waits.items() if wait is None] == ["b"]
    told = scene.events("b", "run.admitted")
    assert len(told) == 1
    assert admit(scene, "b") is None
    assert scene.events("b", "run.admitted") == told


def test_a_run_at_the_front_asks_soon_and_one_far_behind_seldom(scene: Scene) -> None:
    limited(scene, open_runs=1)
    for number in range(4):
        scene.open_run(f"q-{number}")
    pauses = [(admit(scene, f"q-{n}") or pytest.fail("admitted")).pause for n in range(4)]

    assert sorted(pauses) == [timedelta(seconds=2 * n) for n in (1, 2, 3, 4)]


def test_a_child_run_is_admitted_with_its_parent_and_counts_for_nothing(scene: Scene) -> None:
    limited(scene, open_runs=1)
    parent = Parent(run_id=RUN, step_id="s")
    scene.open_run(f"{RUN}~s", start=scene.start(f"{RUN}~s", parent=parent))

    assert admitted(scene) == {RUN, f"{RUN}~s"}
    with scene.tx() as tx:
        assert (count_open_runs(tx), count_queued_runs(tx)) == (1, 0)


def test_a_run_over_the_quota_leaves_nothing_where_what_is_over_is_rejected(scene: Scene) -> None:
    limited(scene, open_runs=1, over="reject")
    with pytest.raises(QuotaUsedUp, match="open_runs: 1 of 1 used"):
        scene.open_run("too-many")

    assert [row["run_id"] for row in scene.rows(runs)] == [RUN]


def test_all_that_wait_are_admitted_once_the_quota_is_lifted(scene: Scene) -> None:
    limited(scene, open_runs=0)
    scene.open_run("waits")
    limited(scene)

    assert admit(scene, "waits") is None


async def test_of_requests_at_once_as_many_wait_as_may(database: Database, scene: Scene) -> None:
    limited(scene, pending_approvals=3)

    def ask(place: Scene, number: int) -> bool:
        try:
            place.ask_approval(place.call(step_id=f"s-{number}", key=f"k-{number}"))
        except QuotaUsedUp as error:
            assert error.found.wait.quota is Quota.APPROVALS
            return False
        return True

    async with open_ledger(database.url) as one, open_ledger(database.url) as two:
        places = [Scene(one, scene.tenant), Scene(two, scene.tenant)]
        asked = await asyncio.gather(
            *(asyncio.to_thread(ask, places[n % 2], n) for n in range(MANY))
        )

    assert sum(asked) == 3
    assert len(scene.rows(approvals)) == 3


def test_a_request_keeps_its_place_until_it_gives_it_up(scene: Scene) -> None:
    limited(scene, pending_approvals=1)
    call, other = scene.call(), scene.call(step_id="other", key="other")
    gated = scene.ask_approval(call)
    assert scene.ask_approval(call).approval_id == gated.approval_id
    with pytest.raises(QuotaUsedUp):
        scene.ask_approval(other)
    assert len(scene.events(type_="approval.requested")) == 1

    scene.decide(gated)
    scene.ask_approval(other)


def test_a_request_that_a_standing_approval_answers_needs_no_place(scene: Scene) -> None:
    limited(scene, pending_approvals=0)
    person(scene, "ann", "manager")
    granted(scene, "ann")

    gated = ask(scene)
    assert scene.row(approvals, approval_id=gated.approval_id)["state"] == "approved"


@pytest.mark.parametrize(
    ("limits", "usage", "kind", "quota", "shown"),
    [
        ({"tokens_per_day": 100}, Usage(tokens=60), "tokens", Quota.TOKENS, "120"),
        ({"money_per_day": "1.50"}, Usage(money="0.8"), "money", Quota.MONEY, "1.6"),
    ],
)
def test_the_call_that_crosses_the_line_ends_and_the_next_one_waits_for_the_next_day(
    scene: Scene, limits: dict[str, object], usage: Usage, kind: str, quota: Quota, shown: str
) -> None:
    limited(scene, **limits)
    with scene.tx() as tx:
        noon = timedelta(milliseconds=DAY_MS - tx.now_ms % DAY_MS + DAY_MS // 2)
    for _ in range(2):
        with scene.tx(noon) as tx:
            require_unspent(tx)
            add_spent(tx, usage)

    with scene.tx(noon) as tx, pytest.raises(QuotaUsedUp) as used_up:
        require_unspent(tx)
    wait = used_up.value.found.wait
    assert (wait.quota, wait.used) == (quota, shown)
    assert type(scene.claim(scene.call(), noon)).__name__ == "OverQuota"
    with scene.tx(noon + wait.pause) as tx:
        require_unspent(tx)
    assert len(scene.rows(quota_usage, kind=kind)) == 1


def test_money_is_added_exactly(scene: Scene) -> None:
    limited(scene, money_per_day="1")
    with scene.tx() as tx:
        for money in ("0.1", "0.2", "0.0000000001"):
            add_spent(tx, Usage(money=money))
        assert read_quotas(tx).uses[-1].used == "0.300000001"
        add_spent(tx, Usage(money="1000000000000"))
    [row] = scene.rows(quota_usage, kind="money")
    assert row["used"] == 2**63 - 1, "more than the column holds: it stays there, and is over"


def test_what_is_not_limited_is_not_counted(scene: Scene) -> None:
    with scene.tx(NOW) as tx:
        add_spent(tx, Usage(tokens=5, money="5"))
        assert read_limits(tx) == Limits()
    limited(scene, open_runs=1)
    with scene.tx() as tx:
        add_spent(tx, Usage(tokens=5, money="5"))
    scene.claimed(scene.call())

    assert scene.rows(quota_usage) == []


def test_an_overview_says_what_is_used_and_what_waits(scene: Scene) -> None:
    limited(scene, open_runs=1, effects_per_hour=7)
    scene.open_run("waits")
    scene.claimed(scene.call())
    with scene.tx() as tx:
        found = read_quotas(tx)

    assert {use.quota: (use.used, use.limit) for use in found.uses} == {
        Quota.OPEN_RUNS: ("1", "1"),
        Quota.EFFECTS: ("1", "7"),
        Quota.APPROVALS: ("0", None),
        Quota.TOKENS: (None, None),
        Quota.MONEY: (None, None),
    }
    assert found.queued_runs == 1


@pytest.mark.parametrize("database", DATABASES[1:], indirect=True)
async def test_of_two_changes_of_quotas_at_once_none_is_lost(scene: Scene) -> None:
    def other() -> None:
        with administration(scene) as tx:
            change_limits(tx, "bob", weight=2.0)

    limited(scene, open_runs=9)
    with administration(scene) as tx:
        change_limits(tx, "ann", open_runs=4)
        changing = asyncio.create_task(asyncio.to_thread(other))
        await until_one_waits(tx)
    await changing

    with scene.tx() as tx:
        limits = read_limits(tx)
    assert (limits.open_runs, limits.weight, limits.set_by) == (4, 2.0, "bob")


def over(result: ClaimResult) -> OverQuota:
    assert isinstance(result, OverQuota), result
    return result


def an_hour(scene: Scene) -> timedelta:
    """Return how far away the middle of the next hour is, whenever a test begins."""
    with scene.tx() as tx:
        return timedelta(milliseconds=HOUR_MS - tx.now_ms % HOUR_MS + HOUR_MS // 2)


def used(scene: Scene) -> list[int]:
    return [row["used"] for row in scene.rows(quota_usage, kind="effects")]


@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    database=None,
)
@given(limit=st.integers(0, 8), wanted=st.integers(1, 14))
def test_however_many_claim_at_once_exactly_as_many_effects_begin_as_may(
    database: Database, workers: list[Ledger], limit: int, wanted: int
) -> None:
    scene = Scene.begin(workers[0], f"claimers-{next(_numbers)}")
    limited(scene, effects_per_hour=limit)
    at = an_hour(scene)

    async def claim_all() -> list[ClaimResult]:
        calls = [scene.call(step_id=f"s-{n}", key=f"k-{n}") for n in range(wanted)]
        return await asyncio.gather(
            *(
                asyncio.to_thread(Scene(workers[n % WORKERS], scene.tenant).claim, call, at)
                for n, call in enumerate(calls)
            )
        )

    found = Counter(type(result) for result in asyncio.run(claim_all()))

    assert found[Claimed] == min(limit, wanted)
    assert found[OverQuota] == wanted - found[Claimed]
    assert len(scene.rows(effects)) == found[Claimed]
    assert sum(used(scene)) == found[Claimed]


_numbers = iter(range(1, 10_000))


def test_a_new_hour_begins_anew(scene: Scene) -> None:
    limited(scene, effects_per_hour=1)
    now = an_hour(scene)
    scene.claimed(scene.call(step_id="a", key="a"), now)
    found = over(scene.claim(scene.call(step_id="b", key="b"), now))

    assert (found.wait.quota, found.wait.used, found.wait.limit) == (Quota.EFFECTS, "1", "1")
    assert timedelta(0) < found.wait.pause <= timedelta(hours=1)
    assert over(scene.claim(scene.call(step_id="c", key="c"), now)).over == "queue"
    assert scene.claimed(scene.call(step_id="b", key="b"), now + found.wait.pause)
    assert used(scene) == [1, 1]


def test_a_refused_effect_leaves_nothing_but_one_event_an_hour(scene: Scene) -> None:
    limited(scene, effects_per_hour=0)
    now = an_hour(scene)
    gated = scene.approved(scene.call(), expires_in=timedelta(hours=9))
    for _ in range(3):
        over(scene.claim(gated, now))
    over(scene.claim(gated, now + timedelta(hours=1)))

    assert scene.rows(effects) == []
    assert scene.rows(quota_usage) == []
    assert scene.row(approvals)["consumed_entry"] is None
    told = scene.events(type_="quota.exceeded")
    assert [event["body"]["quota"] for event in told] == ["effects_per_hour"] * 2


def test_an_approval_that_is_refused_at_the_claim_takes_nothing_of_the_quota(scene: Scene) -> None:
    limited(scene, effects_per_hour=1)
    now = an_hour(scene)
    scene.claim(scene.call(gated=True, approval_id="run-1/refund/7"), now)

    assert used(scene) == []
    scene.claimed(scene.call(), now)
    assert used(scene) == [1]


def test_what_settles_or_repeats_or_undoes_a_call_needs_no_quota(scene: Scene) -> None:
    now = an_hour(scene)
    failed, lost, kept = (scene.call(step_id=name, key=name) for name in ("f", "l", "k"))
    entry = scene.claimed(failed, now)
    with scene.tx() as tx:
        assert outcomes.record_failure(tx, failed, entry, "transient", "no", delay=NOW)
    scene.claimed(lost, now)
    made = scene.claimed(kept, now)
    scene.commit(kept, made)
    limited(scene, effects_per_hour=0)

    again = scene.call(step_id="f", key="f", attempt=2)
    assert isinstance(scene.claim(again, now), Claimed), "proven not to have happened: once more"
    late = scene.claim(scene.call(step_id="l", key="l", attempt=2), now + LEASE_OVER)
    assert type(late).__name__ == "Doubtful"
    repeated = scene.claim(scene.call(step_id="k", key="k", attempt=2), now)
    assert type(repeated).__name__ == "Committed"
    assert isinstance(scene.claim(scene.undo(scene.entry(made.entry_id)), now), Claimed)
    assert used(scene) == []


def test_an_effect_that_was_undone_and_is_made_anew_counts_again(scene: Scene) -> None:
    limited(scene, effects_per_hour=2)
    scene.compensated(scene.call())
    scene.open_run("run-9")
    scene.claimed(scene.call(run_id="run-9", step_id="x"))

    assert sum(used(scene)) == 2


def test_a_batchs_next_write_is_claimed_by_itself_where_effects_are_limited(scene: Scene) -> None:
    def at_once(key: str) -> object:
        with scene.tx() as tx:
            return claims.claim_at_once(tx, scene.call(step_id=key, key=key))

    assert isinstance(at_once("before"), Claimed)
    limited(scene, effects_per_hour=100)
    assert at_once("after") is None
    assert isinstance(scene.claim(scene.call(step_id="after", key="after")), Claimed)
