"""G1: what is believed of a call reckons with requests that arrive as late as they may."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import update
from temporalio.exceptions import ApplicationError

from surehand.activities.effects.recorder import Begun, Done, Next
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import effects
from surehand.activities.ledger.effects import claims, reconcile
from surehand.activities.ledger.effects.outcomes import doubt
from surehand.activities.ledger.steps.entries import (
    Asked,
    Claimed,
    ClaimRequest,
    ClaimResult,
    Doubtful,
    milliseconds,
)
from surehand.activities.tools.tool import Dedupes, NotFound
from surehand.process import clock as own_clock
from surehand.workflows.contracts.tools import Recovery
from surehand.workflows.errors import ErrorType
from tests.ledger.attempts import Payment, Provider, effect_call, last_of, request_for
from tests.ledger.scene import LEASE_OVER, RECOVERY_LIMIT, SETTLE, SETTLED, TIMEOUT, Scene

#: Longer than a test takes.
MOMENT = timedelta(seconds=20)


@pytest.mark.parametrize(
    ("window", "repeated"),
    [(TIMEOUT + SETTLE + MOMENT, True), (TIMEOUT + SETTLE, False), (LEASE_OVER + MOMENT, False)],
    ids=["within", "after it, if it is late", "after it, if its call lasts"],
)
def test_a_call_is_repeated_only_if_its_request_arrives_within_the_window(
    scene: Scene, window: timedelta, repeated: bool
) -> None:
    async def lookup(params: Payment, ctx: Any) -> NotFound:
        return NotFound()

    provider = Provider([{"id": "r-1"}])
    options = {"dedupes": Dedupes(window), "lookup": lookup, "settle": SETTLE}
    refund = provider.tool(timeout=TIMEOUT, **options)
    scene.in_doubt(request_for(scene, refund))

    result = scene.claim(request_for(scene, refund, attempt=2), after=LEASE_OVER)

    assert isinstance(result, Claimed if repeated else Doubtful)


async def test_a_window_shorter_than_a_call_leaves_its_doubt_to_a_human(scene: Scene) -> None:
    provider = Provider([{"id": "r-1"}])
    refund = provider.tool(timeout=TIMEOUT, dedupes=Dedupes(TIMEOUT / 2))
    scene.in_doubt(request_for(scene, refund))

    result = await effect_call(scene, refund, request_for(scene, refund, attempt=2)).run()

    assert isinstance(result, Asked)
    assert provider.keys == []


@pytest.mark.parametrize("held_up", [False, True])
async def test_a_lookup_that_found_nothing_proves_what_was_so_when_it_looked(
    scene: Scene, held_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr(own_clock, "now", lambda: clock.seconds)

    async def lookup(params: Payment, ctx: Any) -> NotFound:
        # A frozen process: its answer is in hand, and the world goes on.
        clock.seconds += 60 if held_up else 0
        return NotFound()

    provider = Provider([{"id": "r-1"}])
    refund = provider.tool(timeout=TIMEOUT, lookup=lookup, settle=SETTLE)
    scene.in_doubt(request_for(scene, refund))
    with scene.tx() as tx:
        over = tx.now_ms - int(SETTLE.total_seconds() * 1000) - 1
        mine = update(effects).where(effects.c.tenant_id == tx.tenant)
        tx.execute(mine.values(deadline_ms=over))
    attempt = effect_call(scene, refund, request_for(scene, refund, attempt=2))

    if held_up:
        with pytest.raises(ApplicationError) as caught:
            await attempt.run()
        assert caught.value.type == ErrorType.SETTLING
        assert provider.keys == []
    else:
        assert isinstance(await attempt.run(), Done)
        assert len(provider.keys) == 1


@dataclass
class Asleep:
    """A machine that is frozen or suspended after its next claim, right before its call."""

    next: timedelta = timedelta(0)
    before_the_claim: timedelta = timedelta(0)
    slept: timedelta = timedelta(0)


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> Asleep:
    """Time that passes, by the database's clock and this process's own, while nothing runs."""
    found = Asleep()
    real_now, real_claim = own_clock.now, claims.claim

    def claim(tx: Transaction, request: ClaimRequest) -> ClaimResult:
        tx.now_ms += milliseconds(found.before_the_claim + found.slept)
        result = real_claim(tx, request)
        found.slept, found.next = found.slept + found.next, timedelta(0)
        return result

    monkeypatch.setattr(claims, "claim", claim)
    monkeypatch.setattr(own_clock, "now", lambda: real_now() + found.slept.total_seconds())
    return found


@pytest.mark.parametrize("held_up", [timedelta(0), timedelta(minutes=4), timedelta(hours=2)])
async def test_a_claim_to_call_again_is_worth_nothing_once_the_window_is_over(
    scene: Scene, asleep: Asleep, held_up: timedelta
) -> None:
    """It is found again by the attempt that made it: its lease was over when it woke up."""
    provider = Provider([{"id": "r-1"}])
    refund = provider.tool(timeout=TIMEOUT, dedupes=Dedupes(timedelta(minutes=3)))
    scene.claimed(request_for(scene, refund, holder="dead"))
    asleep.before_the_claim, asleep.next = LEASE_OVER, held_up

    result = await effect_call(scene, refund, request_for(scene, refund, attempt=2)).run()

    if held_up:
        assert isinstance(result, Asked)
        assert provider.keys == []
        found = scene.events(type_="effect.in_doubt")
        assert [event["body"]["rule"] for event in found] == ["held_up"]
    else:
        assert isinstance(result, Done)
        assert len(provider.keys) == 1


@pytest.mark.parametrize("held_up", [timedelta(minutes=1), timedelta(hours=2)])
async def test_a_claim_after_a_lookup_is_worth_nothing_once_its_recovery_has_taken_too_long(
    scene: Scene, asleep: Asleep, held_up: timedelta
) -> None:
    async def lookup(params: Payment, ctx: Any) -> NotFound:
        return NotFound()

    provider = Provider([{"id": "r-1"}])
    refund = provider.tool(timeout=TIMEOUT, lookup=lookup, settle=SETTLE)
    request = request_for(scene, refund, attempt=2)
    scene.claimed(request_for(scene, refund, holder="dead"))
    doubted = scene.claim(request, LEASE_OVER)
    assert isinstance(doubted, Doubtful)
    with scene.tx(SETTLED) as tx:
        claimed = reconcile.after_not_found(tx, request, doubted.entry, forward=True)
    assert isinstance(claimed, Claimed)
    # Its answer was lost, and its process is held up before it asks once more.
    asleep.before_the_claim = SETTLED + held_up

    result = await effect_call(scene, refund, request).run()

    assert isinstance(result, Asked if held_up > RECOVERY_LIMIT else Done)
    assert len(provider.keys) == int(held_up < RECOVERY_LIMIT)


def test_a_first_call_that_lies_ahead_of_the_clock_is_out_of_the_window(
    scene: Scene,
) -> None:
    """The clock was two days ahead when it was made: how long ago that was nobody knows."""
    how: dict[str, Any] = {"recovery": Recovery.DEDUPES, "window": timedelta(minutes=10)}
    scene.claimed(scene.call(**how, holder="dead"), after=timedelta(hours=48))

    for after in (timedelta(hours=30), timedelta(hours=30) + LEASE_OVER):
        found = scene.claim(scene.call(**how, attempt=2), after)

    assert isinstance(found, Doubtful)


def test_a_recovery_that_begins_later_than_now_is_a_humans_business(scene: Scene) -> None:
    entry = scene.in_doubt(scene.call(), after=timedelta(hours=1))
    with scene.tx(timedelta(hours=1)) as tx:
        entry = doubt(tx, entry, None)

    assert entry.recovers_too_long(RECOVERY_LIMIT, (entry.recovering_ms or 0) - 1)


async def test_a_machine_that_was_suspended_between_claim_and_call_does_not_call(
    scene: Scene, asleep: Asleep
) -> None:
    """Another worker has looked, waited and called meanwhile."""

    async def lookup(params: Payment, ctx: Any) -> NotFound:
        return NotFound()

    provider = Provider([{"id": "r-1"}])
    refund = provider.tool(timeout=TIMEOUT, lookup=lookup, settle=SETTLE)
    suspended = effect_call(scene, refund, request_for(scene, refund, holder="suspended"))
    asked = own_clock.now()
    entry = scene.claimed(suspended.request)
    asleep.slept = timedelta(hours=1)
    other = await last_of(scene, refund, holder="other", activity_key="other")

    following = Next(None, None, suspended.request)  # type: ignore[arg-type]
    result = await suspended.run(Begun(following, Claimed(entry), asked))

    assert isinstance(result, Done) and result.replayed
    assert isinstance(other, Done)
    assert len(provider.keys) == 1
