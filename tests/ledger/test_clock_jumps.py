"""G5: a database clock that is set back keeps no dead attempt's lease alive."""

from __future__ import annotations

from datetime import timedelta

from activities.ledger import lookups, outcomes
from activities.ledger.entries import Claimed, Doubtful, Held
from activities.ledger.tables import effects
from tests.ledger.rows import change
from tests.ledger.scene import LEASE, LEASE_OVER, SETTLE, TIMEOUT, Scene
from workflows.contracts import Recovery

#: As a row has it whose writer's clock was an hour ahead.
HOUR_MS = 3_600_000


async def set_back(scene: Scene, column: str) -> None:
    """Let a row's time lie an hour further ahead than it can by the clock of now."""
    before = (await scene.row(effects))[column]
    await change(scene, effects, **{column: before + HOUR_MS})


async def test_a_dead_attempts_lease_is_waited_for_no_longer_than_a_lease_lasts(
    scene: Scene,
) -> None:
    await scene.claimed(scene.call(holder="dead"))
    await set_back(scene, "lease_until_ms")
    other = scene.call(holder="other", activity_key="other")

    held = await scene.claim(other)

    assert isinstance(held, Held) and held.wait <= LEASE
    assert isinstance(await scene.claim(other, LEASE_OVER), Doubtful)
    [event] = await scene.events(type_="clock.set_back")
    assert event["body"]["evidence"] == "lease_until_ms"


async def test_a_live_attempt_keeps_its_claim_by_renewing_it(scene: Scene) -> None:
    request = scene.call(holder="alive")
    entry = await scene.claimed(request)
    await set_back(scene, "lease_until_ms")
    await scene.claim(scene.call(holder="other", activity_key="other"))

    async with scene.tx() as tx:
        assert await outcomes.renew(tx, entry)
    assert await scene.commit(request, entry)


async def test_an_undo_waits_no_longer_than_a_lease_lasts(scene: Scene) -> None:
    await scene.claimed(scene.call(holder="dead"))
    await set_back(scene, "lease_until_ms")

    held = await scene.begin_undo()

    assert isinstance(held, Held) and held.wait <= timedelta(seconds=10)
    assert isinstance(await scene.begin_undo(after=timedelta(seconds=11)), Doubtful)


async def test_a_not_found_is_believed_after_what_a_call_can_last(scene: Scene) -> None:
    request = scene.call(recovery=Recovery.LOOKUP)
    await scene.in_doubt(request)
    await set_back(scene, "deadline_ms")
    doubtful = await scene.claim(scene.call(attempt=2))
    assert isinstance(doubtful, Doubtful)

    async with scene.tx() as tx:
        held = await lookups.after_not_found(tx, request, doubtful.entry, forward=True)
    assert isinstance(held, Held) and held.wait <= TIMEOUT + SETTLE

    later = await scene.claim(scene.call(attempt=3))
    assert isinstance(later, Doubtful)
    async with scene.tx(TIMEOUT + SETTLE + timedelta(seconds=1)) as tx:
        again = await lookups.after_not_found(tx, request, later.entry, forward=True)
    assert isinstance(again, Claimed)
