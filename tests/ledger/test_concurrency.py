"""Races: however many processes want the same thing at once, one gets it."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import pytest
from sqlalchemy import select

from surehand.activities.ledger.core.store import Ledger, open_ledger
from surehand.activities.ledger.core.tables import approvals, effects
from surehand.activities.ledger.effects.claims import claim_effect
from surehand.activities.ledger.effects.compensations import NothingToUndo
from surehand.activities.ledger.effects.run_tree import list_remaining
from surehand.activities.ledger.steps import acting
from surehand.activities.ledger.steps.entries import ApprovalRefused, Barred, Claimed, Held
from tests.ledger.databases import Database, until_one_waits
from tests.ledger.scene import RUN, STEP, WORKERS, Scene
from tests.ledger.test_batches import ENDS, FIRST, End

T = TypeVar("T")

#: Races that are repeated: one that is lost in one of a hundred tries is lost in production.
ROUNDS = 40
#: No machine is so busy that a lease ends within a round.
LEASE = timedelta(minutes=10)


@pytest.fixture
def scenes(scene: Scene, workers: list[Ledger]) -> list[Scene]:
    """The same tenant, as each worker sees it."""
    return [Scene(ledger, scene.tenant) for ledger in workers]


async def test_of_many_claims_of_one_key_one_is_made(scene: Scene, scenes: list[Scene]) -> None:
    for number in range(5):
        scene.open_run(f"run-{number + 2}")
    for round_ in range(5):
        claims = [
            asyncio.to_thread(
                worker.claim,
                worker.call(lease=LEASE, key=f"order-{round_}", run_id=f"run-{number + 1}"),
            )
            for number, worker in enumerate(scenes)
        ]
        results = await asyncio.gather(*claims)

        assert Counter(type(result) for result in results) == {Claimed: 1, Held: WORKERS - 1}
    rows = scene.rows(effects)
    assert [(row["calls"], row["fencing_token"]) for row in rows] == [(1, 1)] * 5


async def test_of_many_requests_people_see_one(scene: Scene, scenes: list[Scene]) -> None:
    """Retries and attempts side by side ask for the same thing (paperclip #8556)."""
    for round_ in range(5):
        step_id = f"refund-{round_}"
        asking = [
            asyncio.to_thread(worker.ask_approval, worker.call(step_id=step_id))
            for worker in scenes
        ]
        asked = await asyncio.gather(*asking)

        [row] = scene.rows(approvals, step_id=step_id)
        assert {one.approval_id for one in asked} == {row["approval_id"]}
        # Nor does a late retry after the answer ask again.
        scene.decide(asked[0])
        assert scene.ask_approval(scene.call(step_id=step_id)).approval_id == row["approval_id"]
        [row] = scene.rows(approvals, step_id=step_id)
        assert row["state"] == "approved"
    assert len(scene.events(type_="approval.requested")) == 5


async def test_of_many_claims_one_uses_the_approval(scene: Scene, scenes: list[Scene]) -> None:
    gated = scene.approved(scene.call())

    claims = [
        asyncio.to_thread(
            worker.claim, worker.call(lease=LEASE, gated=True, approval_id=gated.approval_id)
        )
        for worker in scenes
    ]
    results = await asyncio.gather(*claims)

    assert Counter(type(result) for result in results) == {Claimed: 1, Held: WORKERS - 1}
    assert (scene.row(approvals))["consumed_generation"] == 1
    assert len(scene.events(type_="approval.consumed")) == 1


async def test_of_a_claim_and_an_undo_one_wins(scene: Scene, scenes: list[Scene]) -> None:
    won = set()
    lead = 0
    for round_ in range(ROUNDS):
        step, key = f"step-{round_}", f"order-{round_}"
        call = scene.call(lease=LEASE, step_id=step, key=key)
        claim = partial(scenes[0].claim, call)
        undo = partial(scenes[1].begin_undo, step_id=step)
        results = await asyncio.gather(
            asyncio.to_thread(_behind, lead, claim), asyncio.to_thread(_behind, -lead, undo)
        )
        found = {type(result) for result in results}
        # Whoever has lost starts earlier in the next round: so they meet.
        if Claimed in found:
            lead = 2 * lead + 1 if lead >= 0 else int(lead / 2)
        else:
            lead = 2 * lead - 1 if lead <= 0 else int(lead / 2)

        assert found in ({Claimed, Held}, {Barred, NothingToUndo}), found
        rows = scene.rows(effects, step_id=step)
        assert len(rows) == (1 if Claimed in found else 0)
        won.add(Claimed in found)
    assert won == {True, False}, "one of the two has always won: this was no race"


def _behind(turns: int, work: Callable[[], T]) -> T:
    """Do something after others have had some turns."""
    for _ in range(turns):
        os.sched_yield()
    return work()


async def test_of_many_decisions_one_is_accepted(scene: Scene, scenes: list[Scene]) -> None:
    for number in range(5):
        gated = scene.ask_approval(scene.call(), number=number)
        outcomes = ["approve" if n % 2 else "reject" for n in range(WORKERS)]
        deliveries = [
            asyncio.to_thread(worker.decide, gated, outcome)
            for worker, outcome in zip(scenes, outcomes, strict=True)
        ]
        verdicts = await asyncio.gather(*deliveries)

        codes = Counter(verdict.code for verdict in verdicts)
        assert codes == {"accepted": 1, "already_decided": WORKERS - 1}
        (accepted,) = [verdict for verdict in verdicts if verdict.code == "accepted"]
        row = scene.row(approvals, approval_id=gated.approval_id)
        assert row["state"] == accepted.state


async def test_one_decision_gets_one_verdict(scene: Scene, scenes: list[Scene]) -> None:
    for number in range(10):
        gated = scene.ask_approval(scene.call(), number=number)
        deliveries = [
            asyncio.to_thread(worker.decide, gated, decision_id=f"{RUN}#the-same-{number}")
            for worker in scenes[:2]
        ]
        first, second = await asyncio.gather(*deliveries)

        assert first == second
        assert first.code == "accepted"


async def test_an_approval_is_used_or_voided(scene: Scene, scenes: list[Scene]) -> None:
    for number in range(10):
        call = scene.call(lease=LEASE, key=f"order-{number}", step_id=f"{STEP}-{number}")
        gated = scene.approved(call)
        used, state = await asyncio.gather(
            asyncio.to_thread(scenes[0].claim, gated),
            asyncio.to_thread(scenes[1].close, gated, "void"),
        )

        row = scene.row(approvals, approval_id=gated.approval_id)
        if isinstance(used, Claimed):
            assert (state, row["state"]) == ("approved", "approved")
            assert row["consumed_entry"] == used.entry.entry_id
        else:
            assert isinstance(used, ApprovalRefused)
            assert (state, row["state"], row["consumed_entry"]) == ("void", "void", None)


def test_parallel_commits_are_numbered_in_order(scene: Scene, scenes: list[Scene]) -> None:
    # Given two workers that write to one run in turns
    first, second, *_ = scenes
    numbers, in_order = list[int](), list[str]()
    for number in range(3):
        step, other = f"step-{number}", f"other-{number}"
        mine, its = (
            first.call(lease=LEASE, step_id=step, key=step),
            second.call(lease=LEASE, step_id=other, key=other),
        )
        one, two = first.claimed(mine), second.claimed(its)
        numbers += [second.commit(its, two), first.commit(mine, one)]
        in_order += [other, step]

    assert numbers == sorted(set(numbers))
    assert scene.remaining() == in_order[::-1]


async def test_parallel_workers_leave_one_chain(scene: Scene, scenes: list[Scene]) -> None:
    def write(worker: Scene, number: int) -> None:
        for round_ in range(ROUNDS // 4):
            name = f"step-{number}-{round_}"
            worker.committed(worker.call(step_id=name, key=name))

    await asyncio.gather(
        *(asyncio.to_thread(write, worker, number) for number, worker in enumerate(scenes))
    )

    chain = scene.events()
    assert [event["seq"] for event in chain] == list(range(1, len(chain) + 1))
    assert all(before["hash"] == after["previous"] for before, after in pairwise(chain))
    committed = [e["body"]["entry_id"] for e in chain if e["type"] == "effect.committed"]
    numbers = {row["entry_id"]: row["commit_no"] for row in scene.rows(effects)}
    assert len(committed) == len(set(numbers.values())) == WORKERS * (ROUNDS // 4)


@pytest.mark.postgres
async def test_an_unknown_chain_is_locked_in_the_one_order(postgres_database: Database) -> None:
    # Given a worker that has forgotten the run's head, and somebody who takes its entry over
    async with (
        open_ledger(postgres_database.url) as ledger,
        open_ledger(postgres_database.url) as other,
        open_ledger(postgres_database.url) as forgetful,
    ):
        scene = Scene.begin(ledger, f"order-{uuid.uuid4().hex[:8]}")
        call = scene.call()
        entry = scene.claimed(call)
        with other.transaction(scene.tenant) as rival:
            mine = select(effects).where(effects.c.tenant_id == scene.tenant)
            rival.one(mine.with_for_update())
            committing = asyncio.create_task(
                asyncio.to_thread(Scene(forgetful, scene.tenant).commit, call, entry)
            )
            await until_one_waits(rival)
            # It waits for the entry, and not with the run in its hands.
            rival.event(RUN, "test.taken")
        await committing

    assert [event["type"] for event in (await _chain(postgres_database, scene))[-2:]] == [
        "test.taken",
        "effect.committed",
    ]


@pytest.mark.postgres
@pytest.mark.parametrize("end", ENDS)
async def test_a_batch_ends_behind_its_claims(postgres_database: Database, end: End) -> None:
    async with open_ledger(postgres_database.url) as ledger:
        scene = Scene.begin(ledger, f"given-up-{uuid.uuid4().hex[:8]}")

        def over() -> int:
            with scene.tx() as tx:
                end(tx)
                return len((list_remaining(tx, RUN)).effects)

        with scene.tx() as tx:
            acting.begin_batch(tx, RUN, FIRST)
        with scene.tx() as tx:
            claimed = claim_effect(tx, scene.call(batch=FIRST.token))
            ending = asyncio.create_task(asyncio.to_thread(over))
            await until_one_waits(tx)
        # What was claimed before, it sees: nothing slips between.
        assert (type(claimed), await ending) == (Claimed, 1)


async def _chain(database: Database, scene: Scene) -> list[dict[str, Any]]:
    async with open_ledger(database.url) as ledger:
        return Scene(ledger, scene.tenant).events()
