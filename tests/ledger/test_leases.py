"""Resource leases: of the calls that name one resource, one has it at a time."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.core.tables import leases as rows_of_leases
from surehand.activities.ledger.effects import resource_leases
from surehand.activities.ledger.effects.resource_leases import Busy, Lease, LeaseRequest
from tests.ledger.scene import NOW, OTHER_RUN, RUN, STEP, WORKERS, Scene

LEASE = timedelta(seconds=30)
BEFORE_ITS_END = LEASE - timedelta(seconds=1)
AFTER_ITS_END = LEASE + timedelta(seconds=1)
ACCOUNT = "account:7"
ROUNDS = 8


@pytest.fixture
def scene(scene: Scene) -> Scene:
    """With a second run that wants what the first has."""
    scene.open_run(OTHER_RUN)
    return scene


def wants(scene: Scene, *resources: str, **changes: Any) -> LeaseRequest:
    values: dict[str, Any] = {
        "tenant": scene.tenant,
        "run_id": RUN,
        "step_id": STEP,
        "tool": "payments.refund",
        "resources": resources or (ACCOUNT,),
        "attempt": 1,
        "lease": LEASE,
        **changes,
    }
    values.setdefault("holder", f"{values['run_id']}:{values['step_id']}:{values['attempt']}")
    return LeaseRequest(**values)


def acquire(
    scene: Scene, request: LeaseRequest, after: timedelta = NOW, **more: Any
) -> tuple[Lease, ...] | Busy:
    with scene.tx(after) as tx:
        return resource_leases.acquire_resources(tx, request, **more)


def acquired(scene: Scene, request: LeaseRequest, after: timedelta = NOW) -> tuple[Lease, ...]:
    held = acquire(scene, request, after)
    assert not isinstance(held, Busy), held
    return held


def renew(scene: Scene, held: tuple[Lease, ...], after: timedelta = NOW) -> bool:
    with scene.tx(after) as tx:
        return resource_leases.renew_resources(tx, held, LEASE)


def release(scene: Scene, held: tuple[Lease, ...]) -> None:
    with scene.tx() as tx:
        resource_leases.release_resources(tx, held)


def free(scene: Scene, after: timedelta, limit: int = 100) -> int:
    with scene.tx(after) as tx:
        return resource_leases.free_expired(tx, limit)


def lost(scene: Scene, held: tuple[Lease, ...], after: timedelta = NOW) -> list[str]:
    with scene.tx(after) as tx:
        return resource_leases.find_lost_resources(tx, held)


def test_what_one_run_holds_another_does_not_get_whatever_the_tool(scene: Scene) -> None:
    acquired(scene, wants(scene))

    other = wants(scene, run_id=OTHER_RUN, tool="mail.send")

    assert acquire(scene, other, BEFORE_ITS_END) == Busy(ACCOUNT, RUN, STEP)


def test_what_a_dead_call_holds_another_gets_after_the_lease(scene: Scene) -> None:
    (dead,) = acquired(scene, wants(scene))

    (lease,) = acquired(scene, wants(scene, run_id=OTHER_RUN), AFTER_ITS_END)

    assert lease.fencing_token == dead.fencing_token + 1
    noted = (scene.events(OTHER_RUN, "resource.acquired"))[0]["body"]
    assert noted["rule"] == "expired"


def test_a_lease_that_is_renewed_keeps_others_out_for_longer(scene: Scene) -> None:
    held = acquired(scene, wants(scene))

    assert renew(scene, held, BEFORE_ITS_END)

    assert isinstance(acquire(scene, wants(scene, run_id=OTHER_RUN), AFTER_ITS_END), Busy)


def test_what_is_released_another_gets_at_once_under_the_next_token(scene: Scene) -> None:
    tokens = []
    for run_id in (RUN, OTHER_RUN, RUN):
        held = acquired(scene, wants(scene, run_id=run_id))
        tokens.append(held[0].fencing_token)
        release(scene, held)

    assert tokens == [1, 2, 3]


def test_a_call_gets_all_of_its_resources_or_none(scene: Scene) -> None:
    acquired(scene, wants(scene, "b"))

    refused = acquire(scene, wants(scene, "a", "b", "c", run_id=OTHER_RUN))

    assert refused == Busy("b", RUN, STEP)
    assert [row["resource"] for row in scene.rows(rows_of_leases)] == ["b"]


def test_a_later_attempt_of_the_step_that_holds_it_takes_over_at_once(scene: Scene) -> None:
    zombie = acquired(scene, wants(scene))

    held = acquired(scene, wants(scene, attempt=2))

    assert held[0].fencing_token == zombie[0].fencing_token + 1
    assert not renew(scene, zombie)
    (_, noted) = scene.events(type_="resource.acquired")
    assert noted["body"]["rule"] == "taken_over"


def test_others_wait_until_an_overtaken_attempt_has_ended(scene: Scene) -> None:
    acquired(scene, wants(scene))
    held = acquired(scene, wants(scene, attempt=2), timedelta(seconds=10))
    release(scene, held)

    other = wants(scene, run_id=OTHER_RUN)

    assert isinstance(acquire(scene, other, BEFORE_ITS_END), Busy)
    assert acquired(scene, wants(scene, attempt=3), BEFORE_ITS_END), "its own step goes on"
    release(scene, acquired(scene, wants(scene, attempt=4), BEFORE_ITS_END))
    assert isinstance(acquire(scene, other, AFTER_ITS_END), Busy), "of the third attempt"


def test_an_attempt_that_lost_the_answer_finds_itself_and_nobody_waits_for_it(scene: Scene) -> None:
    acquired(scene, wants(scene))

    held = acquired(scene, wants(scene))
    release(scene, held)

    assert acquired(scene, wants(scene, run_id=OTHER_RUN))


def _taken_over(scene: Scene) -> None:
    acquired(scene, wants(scene, attempt=2))


def _expired(scene: Scene) -> None:
    acquired(scene, wants(scene, run_id=OTHER_RUN), AFTER_ITS_END)


def _freed(scene: Scene) -> None:
    assert free(scene, AFTER_ITS_END) == 1


def test_a_clock_that_was_set_back_keeps_a_dead_call_no_longer_than_its_lease(scene: Scene) -> None:
    hour = timedelta(hours=1)
    acquired(scene, wants(scene), hour)
    other = wants(scene, run_id=OTHER_RUN)

    assert isinstance(acquire(scene, other), Busy)

    assert isinstance(acquire(scene, other, BEFORE_ITS_END), Busy)
    assert acquired(scene, other, AFTER_ITS_END)
    (noted,) = scene.events(type_="clock.set_back")
    assert noted["body"]["resource"] == ACCOUNT


@pytest.mark.parametrize("happened", [_taken_over, _expired, _freed])
def test_who_has_lost_a_lease_neither_renews_nor_releases_it(scene: Scene, happened: Any) -> None:
    held = acquired(scene, wants(scene))
    happened(scene)
    before, events = scene.rows(rows_of_leases), scene.events()

    assert lost(scene, held) == [ACCOUNT]
    assert not renew(scene, held)
    release(scene, held)

    assert scene.rows(rows_of_leases) == before
    assert scene.events() == events


def test_a_lease_that_ran_out_is_lost_by_the_databases_clock(scene: Scene) -> None:
    held = acquired(scene, wants(scene, "a", "b"))

    assert lost(scene, held, BEFORE_ITS_END) == []
    assert lost(scene, held, AFTER_ITS_END) == ["a", "b"]


def test_the_worker_frees_what_dead_calls_hold_and_nothing_else(scene: Scene) -> None:
    (dead,) = acquired(scene, wants(scene, "dead"))
    alive = acquired(scene, wants(scene, "alive", run_id=OTHER_RUN))
    release(scene, acquired(scene, wants(scene, "free", step_id="s")))
    assert free(scene, BEFORE_ITS_END) == 0
    assert renew(scene, alive, BEFORE_ITS_END)

    assert free(scene, AFTER_ITS_END) == 1

    holders = {row["resource"]: row["holder"] for row in scene.rows(rows_of_leases)}
    assert holders == {"dead": None, "free": None, "alive": alive[0].holder}
    (event,) = scene.events(type_="resource.freed")
    token = {"fencing_token": dead.fencing_token}
    assert event["body"] == {"resource": "dead", "tool": "payments.refund", **token}
    assert free(scene, AFTER_ITS_END) == 0


def test_freeing_does_no_more_at_a_time_than_it_was_told(scene: Scene) -> None:
    acquired(scene, wants(scene, "a", "b", "c"))

    assert [free(scene, AFTER_ITS_END, limit=2) for _ in range(3)] == [2, 1, 0]


def test_waiting_refusal_and_release_are_told_with_who_holds_it(scene: Scene) -> None:
    held = acquired(scene, wants(scene))
    other = wants(scene, run_id=OTHER_RUN, tool="mail.send")
    second = timedelta(seconds=1)
    for waited in (None, second):
        acquire(scene, other, waited=waited)
    busy = acquire(scene, other, waited=2 * second)
    assert isinstance(busy, Busy)
    with scene.tx() as tx:
        resource_leases.record_busy_resource(tx, other, busy, 3 * second)
    release(scene, held)
    acquire(scene, other, waited=4 * second)

    said = [event for event in scene.events(OTHER_RUN) if event["type"] != "run.opened"]
    call = {"resource": ACCOUNT, "tool": "mail.send", "attempt": 1}
    holder = {"held_by": {"run_id": RUN, "step_id": STEP}}
    assert [(event["type"], event["body"]) for event in said] == [
        ("resource.waited", {**call, **holder}),
        ("resource.refused", {**call, **holder, "waited_ms": 3000}),
        ("resource.acquired", {**call, "fencing_token": 2, "waited_ms": 4000}),
    ]
    (released,) = scene.events(type_="resource.released")
    assert released["body"] == {"resource": ACCOUNT, "tool": "payments.refund", "fencing_token": 1}


async def test_of_many_calls_one_gets_the_resource(scene: Scene, workers: list[Ledger]) -> None:
    for round_ in range(ROUNDS):
        results = await asyncio.gather(
            *(
                asyncio.to_thread(
                    acquire,
                    Scene(ledger, scene.tenant),
                    wants(scene, f"account:{round_}", step_id=f"s{number}"),
                )
                for number, ledger in enumerate(workers)
            )
        )

        assert Counter(type(result) for result in results) == {tuple: 1, Busy: WORKERS - 1}


def test_calls_with_common_resources_never_overlap(scene: Scene, workers: list[Ledger]) -> None:
    names = [("a", "b"), ("b", "c"), ("a", "c"), ("a", "b", "c"), ("b",), ("c",)]
    inside: set[str] = set()
    calls: Counter[str] = Counter()
    tries, working = 0, WORKERS
    noting = threading.Condition()

    def work(ledger: Ledger, number: int) -> None:
        nonlocal tries, working
        mine = Scene(ledger, scene.tenant)
        resources = names[number]
        for attempt in range(ROUNDS):
            asked = wants(scene, *resources, step_id=f"s{number}", attempt=attempt)
            while isinstance(held := acquire(mine, asked, waited=NOW), Busy):
                with noting:
                    tries += 1
                    noting.notify_all()
            with noting:
                assert not inside & set(resources), "two calls at one resource"
                inside.update(resources)
                calls.update(resources)
                tries += 1
                noting.notify_all()
                before = tries
                while tries == before and working > 1:  # as long as it takes another to try
                    noting.wait()
                assert renew(mine, held)
                inside.difference_update(resources)
            release(mine, held)
        with noting:
            working -= 1
            noting.notify_all()

    with ThreadPoolExecutor(WORKERS) as threads:
        for done in [threads.submit(work, ledger, n) for n, ledger in enumerate(workers)]:
            done.result()

    assert calls == {"a": 3 * ROUNDS, "b": 4 * ROUNDS, "c": 4 * ROUNDS}
    tokens = {row["resource"]: row["fencing_token"] for row in scene.rows(rows_of_leases)}
    assert tokens == calls
