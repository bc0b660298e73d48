"""The quota of effects an hour: exact, and only first calls count."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from surehand.activities.ledger.core.store import Ledger, open_ledger
from surehand.activities.ledger.core.tables import approvals, effects, quota_usage
from surehand.activities.ledger.effects import claims, outcomes
from surehand.activities.ledger.quotas.limits import OverQuota
from surehand.activities.ledger.quotas.usage import HOUR_MS
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.entries import Claimed, ClaimResult
from surehand.workflows.contracts.values import Quota
from tests.ledger.databases import Database
from tests.ledger.quotas import limited
from tests.ledger.scene import LEASE_OVER, RUN, Scene

WORKERS = 6


@pytest.fixture(scope="module")
async def workers(database: Database) -> AsyncIterator[list[Ledger]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(open_ledger(database.url)) for _ in range(WORKERS)]


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
    scene = Scene.begin(workers[0], f"claimers-{_next()}")
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


def _next() -> int:
    return next(_numbers)


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


def test_an_approval_that_is_refused_at_the_claim_takes_nothing_of_the_quota(
    scene: Scene,
) -> None:
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
        assert outcomes.fail(tx, failed, entry, "transient", "no", delay=timedelta(seconds=1))
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


def test_a_claim_that_is_rolled_back_has_counted_nothing(scene: Scene) -> None:
    """As when its worker dies between count and claim: they are one transaction."""
    limited(scene, effects_per_hour=1)
    with pytest.raises(RuntimeError, match="killed"), scene.tx() as tx:
        assert isinstance(claims.claim(tx, scene.call()), Claimed)
        raise RuntimeError("killed")

    assert (scene.rows(effects), used(scene)) == ([], [])
    entry = scene.claimed(scene.call())
    with scene.tx() as tx:
        assert outcomes.commit(tx, scene.call(), entry, Kept("r")) is not None
    assert len(scene.events(RUN, "effect.committed")) == 1


def test_another_tenants_quota_says_nothing(scene: Scene, other: Scene) -> None:
    limited(other, effects_per_hour=0)

    assert isinstance(scene.claim(scene.call()), Claimed)
    over(other.claim(other.call()))
    assert (used(scene), used(other)) == ([], [])
