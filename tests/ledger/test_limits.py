"""How long failures are tried again and leases last: counted by the ledger, by recorded limits."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import httpx
import pytest
from temporalio.exceptions import ApplicationError

from surehand.activities.effects.recorder import Done
from surehand.activities.effects.write import EffectCall
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import effects
from surehand.activities.ledger.effects import claims, outcomes, reconcile, resource_leases
from surehand.activities.ledger.effects.resource_leases import Busy, LeaseRequest
from surehand.activities.ledger.steps.entries import Claimed, ClaimRequest, Doubtful, Held
from surehand.activities.tools.failures import RateLimited, Retries
from surehand.activities.tools.tool import Found, NotFound, Tool, ToolContext
from surehand.activities.tools.toolbox import WRITE, tool
from surehand.workflows.contracts.tools import Recovery
from surehand.workflows.names import ErrorType
from tests.ledger.attempts import Payment, Provider, effect_call, request_for
from tests.ledger.rows import change
from tests.ledger.scene import LEASE, LEASE_OVER, NOW, OTHER_RUN, RUN, SETTLE, TIMEOUT, Scene

LIMIT = timedelta(seconds=30)


def busy(pause: timedelta) -> Tool:
    """A tool whose provider wants to be left alone for a while."""
    return Provider([RateLimited("later", pause)]).tool(recovery="human")


def attempt(scene: Scene, tool: Tool, request: ClaimRequest, retries: Retries) -> EffectCall:
    effect = effect_call(scene, tool, request)
    return replace(effect, worker=replace(effect.worker, retries=retries))


@pytest.mark.parametrize(
    ("pause", "type_"),
    [
        (LIMIT - timedelta(seconds=5), ErrorType.RATE_LIMITED),
        (LIMIT + timedelta(seconds=5), ErrorType.TOOL_FAILED),
    ],
)
async def test_undo_retries_have_a_limit(scene: Scene, pause: timedelta, type_: ErrorType) -> None:
    tool = busy(pause)
    committed = scene.committed(scene.call())
    undo = request_for(scene, tool, key=f"undo:{committed.entry_id}", undoes=committed.entry_id)
    retries = Retries(compensation_limit=LIMIT, uniform=lambda low, high: low)

    with pytest.raises(ApplicationError) as ended:
        await attempt(scene, tool, undo, retries).run()

    assert ended.value.type == type_
    [failed] = scene.events(type_="effect.failed")
    assert ("retry_ms" in failed["body"]) is (type_ is ErrorType.RATE_LIMITED)


async def test_the_limit_of_undoing_holds_for_no_forward_call(scene: Scene) -> None:
    tool, pause = busy(2 * LIMIT), 2 * LIMIT
    retries = Retries(compensation_limit=LIMIT, uniform=lambda low, high: low)

    with pytest.raises(ApplicationError) as ended:
        await attempt(scene, tool, request_for(scene, tool), retries).run()

    assert (ended.value.type, ended.value.next_retry_delay) == (ErrorType.RATE_LIMITED, pause)


#: What the call was made with; the judge has ``TIMEOUT``, ``SETTLE`` and ``LEASE``.
LONG: dict[str, Any] = {"timeout": timedelta(minutes=10), "settle": timedelta(minutes=2)}
LONG_LEASE = timedelta(minutes=5)
#: By the judge's own limits everything would be over.
SOON = TIMEOUT + SETTLE + timedelta(seconds=5)
LATE = timedelta(minutes=12, seconds=5)
DEDUPES: dict[str, Any] = {"recovery": Recovery.DEDUPES, "window": timedelta(hours=1)}


def not_found(scene: Scene, after: timedelta, **changes: Any) -> Any:
    """Have a worker of today look for the entry, and find nothing."""
    request = scene.call(attempt=2, **changes)
    doubted = scene.claim(request, after)
    assert isinstance(doubted, Doubtful), doubted
    with scene.tx(after) as tx:
        return reconcile.after_not_found(tx, request, doubted.entry, forward=True)


async def test_not_found_proves_nothing_before_the_call_that_was_made_is_over(scene: Scene) -> None:
    scene.claimed(scene.call(**LONG))

    held = not_found(scene, SOON)

    assert isinstance(held, Held)
    assert held.wait > LATE - SOON - timedelta(seconds=10)
    assert isinstance(not_found(scene, LATE), Claimed)
    assert scene.events(type_="clock.set_back") == []


def test_of_two_calls_the_one_that_is_over_last_is_waited_for(scene: Scene) -> None:
    """The repeated call is shorter; the first one may still be on its way."""
    scene.claimed(scene.call(**LONG, **DEDUPES))
    again = scene.claimed(scene.call(attempt=2, **DEDUPES), LEASE_OVER)
    assert again.unproven

    assert isinstance(not_found(scene, SOON + LEASE_OVER), Held)
    assert isinstance(not_found(scene, LATE), Claimed)


@pytest.mark.parametrize(
    ("made_with", "judged_with"),
    [
        ({}, {}),
        ({"recovery": Recovery.DEDUPES, "window": timedelta(minutes=2)}, {}),
        (DEDUPES, {"window": timedelta(minutes=2)}),
        (DEDUPES, {"tool_version": "2"}),
    ],
    ids=["never", "for a shorter time", "for a shorter time now", "in an earlier version"],
)
def test_a_call_is_repeated_only_where_its_own_provider_knows_it_again(
    scene: Scene, made_with: dict[str, Any], judged_with: dict[str, Any]
) -> None:
    scene.claimed(scene.call(**made_with))
    later = timedelta(minutes=3)

    found = scene.claim(scene.call(attempt=2, **{**DEDUPES, **judged_with}), later)

    assert isinstance(found, Doubtful)
    assert scene.events(type_="effect.reconciled") == []


async def test_a_call_that_was_made_without_a_settle_time_is_never_proven(scene: Scene) -> None:
    async def lookup(params: Payment, ctx: Any) -> NotFound:
        return NotFound()

    @tool(
        "payments.refund",
        effect=WRITE,
        irreversible=True,
        timeout=TIMEOUT,
        lookup=lookup,
        settle=SETTLE,
    )
    async def refund(params: Payment, ctx: ToolContext) -> None:
        raise AssertionError("it is not called again")

    scene.in_doubt(scene.call(settle=None, timeout=NOW))

    asked = await effect_call(scene, refund, request_for(scene, refund, attempt=2)).run()

    assert "without a settle time" in asked.question  # type: ignore[union-attr]


def test_a_recovery_has_the_time_of_the_call_that_was_made(scene: Scene) -> None:
    """A human is asked after the limit, and not while "not found" cannot prove anything yet."""
    limit = scene.call().recovery_limit
    entry = scene.in_doubt(scene.call(**LONG))
    began = entry.recovering_ms or 0

    late = timedelta(minutes=12) + limit
    for after, over in ((late, False), (late + timedelta(seconds=1), True)):
        assert entry.recovers_too_long(limit, began + int(after.total_seconds() * 1000)) is over


def test_a_long_lease_is_no_clock_that_was_set_back(scene: Scene) -> None:
    request = scene.call(holder="alive", lease=LONG_LEASE, recovery=Recovery.HUMAN)
    entry = scene.claimed(request)
    other = scene.call(holder="other", activity_key="other", lease=LEASE, recovery=Recovery.HUMAN)

    for after in (NOW, LEASE_OVER, SOON):
        assert isinstance(scene.claim(other, after), Held)
        assert isinstance(scene.begin_undo(after=after), Held)

    with scene.tx(SOON) as tx:
        assert outcomes.renew_lease(tx, entry)
    assert (scene.entry(entry.entry_id)).lease_until_ms == tx.now_ms + 300_000
    assert scene.events(type_="clock.set_back") == []


def test_the_reaper_leaves_a_live_call_with_a_long_lease_alone(scene: Scene) -> None:
    scene.claimed(scene.call(lease=LONG_LEASE, **LONG))

    with scene.tx(SOON) as tx:
        assert reconcile.stale_entries(tx, NOW, 10) == []


def test_the_reaper_finds_what_a_clock_that_was_set_back_would_hide(scene: Scene) -> None:
    hour = timedelta(hours=1)
    scene.claimed(scene.call(), after=hour)
    scene.in_doubt(scene.call(key="b", step_id="b"), after=hour)

    with scene.tx() as tx:
        found = reconcile.stale_entries(tx, NOW, 10)
    assert [seen.state for seen in found] == ["claimed", "in_doubt"]
    with scene.tx() as tx:
        assert reconcile.take_over(tx, found[0]) is None, "it may be alive: a lease's time"
    with scene.tx(LEASE_OVER) as tx:
        assert reconcile.take_over(tx, found[0]) is not None


def wants(scene: Scene, lease: timedelta, **changes: Any) -> LeaseRequest:
    values = {"run_id": RUN, "step_id": "pay", "holder": "h", "attempt": 1, **changes}
    return LeaseRequest(
        tenant=scene.tenant, tool="payments.refund", resources=("till",), lease=lease, **values
    )


def acquire(scene: Scene, request: LeaseRequest, after: timedelta = NOW) -> Any:
    with scene.tx(after) as tx:
        return resource_leases.acquire_resources(tx, request)


async def test_a_resource_is_kept_for_its_first_leases_time(scene: Scene) -> None:
    """Its step's next attempt is a worker with a shorter lease, and ends at once."""
    scene.open_run(OTHER_RUN)
    other = wants(scene, LEASE, run_id=OTHER_RUN, holder="other")
    acquire(scene, wants(scene, LONG_LEASE))
    held = acquire(scene, wants(scene, LEASE, holder="h2", attempt=2))
    with scene.tx() as tx:
        resource_leases.release_resources(tx, held)

    for after in (NOW, SOON):
        assert isinstance(acquire(scene, other, after), Busy)
    assert scene.events(type_="clock.set_back") == []
    assert not isinstance(acquire(scene, other, LONG_LEASE + LEASE), Busy)


@dataclass
class SlowBank:
    """Takes a request at once and applies it four minutes later: hence the long time-out."""

    seconds: int = 0
    requests: list[int] = field(default_factory=list)
    """When each one is applied."""

    async def lookup(self, params: Payment, ctx: ToolContext) -> Found | NotFound:
        applied = any(at <= self.seconds for at in self.requests)
        return Found({"id": "r-1"}) if applied else NotFound()

    async def pay(self, params: Payment, ctx: ToolContext) -> dict[str, str]:
        """Take a request."""
        self.requests.append(self.seconds + 240)
        return {"id": "r-1"}

    def tool(self, timeout: timedelta) -> Tool:
        return tool(
            "payments.refund",
            effect=WRITE,
            irreversible=True,
            timeout=timeout,
            lookup=self.lookup,
            settle=SETTLE,
        )(self.pay)


async def test_a_shorter_timeout_is_no_proof(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    bank = SlowBank()
    before, now = bank.tool(timedelta(minutes=10)), bank.tool(timedelta(seconds=30))
    scene.claimed(request_for(scene, before, holder="killed by the deploy"))
    bank.requests.append(240)

    def at_the_banks_time(module: Any, name: str) -> None:
        real = getattr(module, name)

        def shifted(tx: Transaction, *args: Any, **options: Any) -> Any:
            tx.now_ms += bank.seconds * 1000
            return real(tx, *args, **options)

        monkeypatch.setattr(module, name, shifted)

    at_the_banks_time(claims, "claim_effect")
    at_the_banks_time(reconcile, "after_not_found")
    result: Any = None
    attempt = 1
    while result is None:
        bank.seconds, attempt = bank.seconds + 30, attempt + 1
        try:
            result = await effect_call(scene, now, request_for(scene, now, attempt=attempt)).run()
        except ApplicationError as error:
            assert error.type in ("LeaseHeld", "Settling"), error

    assert isinstance(result, Done)
    assert len(bank.requests) == 1
    assert (scene.row(effects))["calls"] == 1


#: As a row has it whose writer's clock was an hour ahead.
HOUR_MS = 3_600_000


def set_back(scene: Scene, column: str) -> None:
    """Let a row's time lie an hour further ahead than it can by the clock of now."""
    before = (scene.row(effects))[column]
    change(scene, effects, **{column: before + HOUR_MS})


@pytest.mark.guarantee("G5")
def test_a_dead_attempts_lease_is_waited_for_no_longer_than_a_lease_lasts(scene: Scene) -> None:
    scene.claimed(scene.call(holder="dead"))
    set_back(scene, "lease_until_ms")
    other = scene.call(holder="other", activity_key="other")

    held = scene.claim(other)

    assert isinstance(held, Held) and held.wait <= LEASE
    assert isinstance(scene.claim(other, LEASE_OVER), Doubtful)
    [event] = scene.events(type_="clock.set_back")
    assert event["body"]["evidence"] == "lease_until_ms"


@pytest.mark.guarantee("G5")
def test_a_live_attempt_keeps_its_claim_by_renewing_it(scene: Scene) -> None:
    request = scene.call(holder="alive")
    entry = scene.claimed(request)
    set_back(scene, "lease_until_ms")
    scene.claim(scene.call(holder="other", activity_key="other"))

    with scene.tx() as tx:
        assert outcomes.renew_lease(tx, entry)
    assert scene.commit(request, entry)


@pytest.mark.guarantee("G5")
def test_an_undo_waits_no_longer_than_a_lease_lasts(scene: Scene) -> None:
    scene.claimed(scene.call(holder="dead"))
    set_back(scene, "lease_until_ms")

    held = scene.begin_undo()

    assert isinstance(held, Held) and held.wait <= timedelta(seconds=10)
    assert isinstance(scene.begin_undo(after=timedelta(seconds=11)), Doubtful)


@pytest.mark.guarantee("G5")
def test_a_not_found_is_believed_after_what_a_call_can_last(scene: Scene) -> None:
    request = scene.call(recovery=Recovery.LOOKUP)
    scene.in_doubt(request)
    set_back(scene, "deadline_ms")
    doubtful = scene.claim(scene.call(attempt=2))
    assert isinstance(doubtful, Doubtful)

    with scene.tx() as tx:
        held = reconcile.after_not_found(tx, request, doubtful.entry, forward=True)
    assert isinstance(held, Held) and held.wait <= TIMEOUT + SETTLE

    later = scene.claim(scene.call(attempt=3))
    assert isinstance(later, Doubtful)
    with scene.tx(TIMEOUT + SETTLE + timedelta(seconds=1)) as tx:
        again = reconcile.after_not_found(tx, request, later.entry, forward=True)
    assert isinstance(again, Claimed)


DOWN = httpx.ConnectError("no route")


class Health:
    """A health check that answers as it is told."""

    def __init__(self, *answers: bool | Exception) -> None:
        self.answers = list(answers)

    async def __call__(self) -> bool:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def attempt_read(scene: Scene, loaded: Tool, number: int) -> object:
    request = request_for(scene, loaded, attempt=number)
    try:
        return await effect_call(scene, loaded, request).run()
    except ApplicationError as error:
        return error.type


@pytest.mark.parametrize("sick", [False, OSError("no route")])
async def test_a_dependency_down_is_not_called(scene: Scene, sick: bool | Exception) -> None:
    provider, health = Provider([DOWN, {"id": "r-1"}]), Health(sick)
    loaded = provider.tool(recovery="human", health=health)

    assert await attempt_read(scene, loaded, 1) == "DependencyDown"
    assert await attempt_read(scene, loaded, 2) == "DependencyDown"

    assert len(provider.keys) == 1
    assert (scene.row(effects))["failures"] == {"dependency_down": 2}


async def test_once_it_is_up_it_is_called_again(scene: Scene) -> None:
    provider, health = Provider([DOWN, {"id": "r-1"}]), Health(True)
    loaded = provider.tool(recovery="human", health=health)

    await attempt_read(scene, loaded, 1)

    assert isinstance(await attempt_read(scene, loaded, 2), Done)
    assert len(provider.keys) == 2


async def test_a_dependency_that_was_not_down_is_not_asked(scene: Scene) -> None:
    loaded = Provider([{"id": "r-1"}]).tool(recovery="human", health=Health())

    assert isinstance(await attempt_read(scene, loaded, 1), Done)
