"""G1: what is believed of a call reckons with late requests, and with calls that hang."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Final

import pytest
from sqlalchemy import update
from temporalio.exceptions import ApplicationError

from surehand import READ, WRITE, Found, OutcomeUnknown, ToolContext, tool
from surehand.activities.approvals import ApprovalActivities
from surehand.activities.effects.prepare import prepare, to_call_with
from surehand.activities.effects.recorder import Done, NextWrite
from surehand.activities.effects.tool_calls import ToolActivities
from surehand.activities.effects.write import EffectCall
from surehand.activities.ledger.approvals.decisions import Edited
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import effects
from surehand.activities.ledger.effects import claims, reconcile
from surehand.activities.ledger.effects.outcomes import put_in_doubt
from surehand.activities.ledger.steps import entries
from surehand.activities.tools.failures import DependencyDown
from surehand.activities.tools.tool import Dedupes, NotFound, Tool
from surehand.activities.worker.context import Attempt, WorkerContext
from surehand.activities.worker.watchdog import Watchdog
from surehand.process import clock as own_clock
from surehand.workflows.contracts.tools import Recovery, ToolCall
from surehand.workflows.names import ErrorType
from tests.ledger.attempts import (
    Payment,
    Provider,
    effect_call,
    last_of,
    looked_up,
    request_for,
    worker_of,
)
from tests.ledger.scene import (
    LEASE_OVER,
    RECOVERY_LIMIT,
    RUN,
    SETTLE,
    SETTLED,
    TIMEOUT,
    Scene,
)

#: Longer than a test takes.
MOMENT = timedelta(seconds=20)


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("window", "repeated"),
    [(TIMEOUT + SETTLE + MOMENT, True), (TIMEOUT + SETTLE, False), (LEASE_OVER + MOMENT, False)],
    ids=["within", "after it, if it is late", "after it, if its call lasts"],
)
def test_a_window_bounds_repeated_calls(scene: Scene, window: timedelta, repeated: bool) -> None:
    options = {"dedupes": Dedupes(window), "lookup": looked_up(NotFound()), "settle": SETTLE}
    refund = Provider([{"id": "r-1"}]).tool(timeout=TIMEOUT, **options)
    scene.in_doubt(request_for(scene, refund))

    result = scene.claim(request_for(scene, refund, attempt=2), after=LEASE_OVER)

    assert isinstance(result, entries.Claimed if repeated else entries.Doubtful)


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
    real_now, real_claim = own_clock.now, claims.claim_effect

    def claim(tx: Transaction, request: entries.ClaimRequest) -> entries.ClaimResult:
        tx.now_ms += entries.milliseconds(found.before_the_claim + found.slept)
        result = real_claim(tx, request)
        found.slept, found.next = found.slept + found.next, timedelta(0)
        return result

    monkeypatch.setattr(claims, "claim_effect", claim)
    monkeypatch.setattr(own_clock, "now", lambda: real_now() + found.slept.total_seconds())
    return found


@pytest.mark.in_turns
@pytest.mark.parametrize("held_up", [timedelta(0), timedelta(minutes=4), timedelta(hours=2)])
async def test_a_late_window_stops_calls(scene: Scene, asleep: Asleep, held_up: timedelta) -> None:
    """It is found again by the attempt that made it: its lease was over when it woke up."""
    provider = Provider([{"id": "r-1"}])
    refund = provider.tool(timeout=TIMEOUT, dedupes=Dedupes(timedelta(minutes=3)))
    scene.claimed(request_for(scene, refund, holder="dead"))
    asleep.before_the_claim, asleep.next = LEASE_OVER, held_up

    result = await effect_call(scene, refund, request_for(scene, refund, attempt=2)).run()

    if held_up:
        assert isinstance(result, entries.Asked)
        assert provider.keys == []
        found = scene.events(type_="effect.in_doubt")
        assert [event["body"]["rule"] for event in found] == ["held_up"]
    else:
        assert isinstance(result, Done)
        assert len(provider.keys) == 1


@pytest.mark.parametrize("held_up", [timedelta(minutes=1), timedelta(hours=2)])
async def test_a_late_recovery_stops_it(scene: Scene, asleep: Asleep, held_up: timedelta) -> None:
    provider = Provider([{"id": "r-1"}])
    refund = provider.tool(timeout=TIMEOUT, lookup=looked_up(NotFound()), settle=SETTLE)
    request = request_for(scene, refund, attempt=2)
    scene.claimed(request_for(scene, refund, holder="dead"))
    doubted = scene.claim(request, LEASE_OVER)
    assert isinstance(doubted, entries.Doubtful)
    with scene.tx(SETTLED) as tx:
        claimed = reconcile.after_not_found(tx, request, doubted.entry, forward=True)
    assert isinstance(claimed, entries.Claimed)
    # Its answer was lost, and its process is held up before it asks once more.
    asleep.before_the_claim = SETTLED + held_up

    result = await effect_call(scene, refund, request).run()

    assert isinstance(result, entries.Asked if held_up > RECOVERY_LIMIT else Done)
    assert len(provider.keys) == int(held_up < RECOVERY_LIMIT)


def test_a_first_call_that_lies_ahead_of_the_clock_is_out_of_the_window(scene: Scene) -> None:
    """The clock was two days ahead when it was made: how long ago that was nobody knows."""
    how: dict[str, Any] = {"recovery": Recovery.DEDUPES, "window": timedelta(minutes=10)}
    scene.claimed(scene.call(**how, holder="dead"), after=timedelta(hours=48))

    for after in (timedelta(hours=30), timedelta(hours=30) + LEASE_OVER):
        found = scene.claim(scene.call(**how, attempt=2), after)

    assert isinstance(found, entries.Doubtful)


def test_a_recovery_that_begins_later_than_now_is_a_humans_business(scene: Scene) -> None:
    entry = scene.in_doubt(scene.call(), after=timedelta(hours=1))
    with scene.tx(timedelta(hours=1)) as tx:
        entry = put_in_doubt(tx, entry, None)

    assert entry.recovers_too_long(RECOVERY_LIMIT, (entry.recovering_ms or 0) - 1)


async def test_a_suspended_machine_does_not_call(scene: Scene, asleep: Asleep) -> None:
    """Another worker has looked, waited and called meanwhile."""
    provider = Provider([{"id": "r-1"}])
    refund = provider.tool(timeout=TIMEOUT, lookup=looked_up(NotFound()), settle=SETTLE)
    suspended = effect_call(scene, refund, request_for(scene, refund, holder="suspended"))
    asked = own_clock.now()
    entry = scene.claimed(suspended.request)
    asleep.slept = timedelta(hours=1)
    other = await last_of(scene, refund, holder="other", activity_key="other")

    following = NextWrite(
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        suspended.request,
        entries.Claimed(entry),
        asked,
    )
    result = await suspended.run(following)

    assert isinstance(result, Done) and result.replayed
    assert isinstance(other, Done)
    assert len(provider.keys) == 1


SECOND: Final = timedelta(seconds=1)
READ_NAME: Final = "orders.read"
WRITE_NAME: Final = "payments.refund"


@dataclass
class Watched:
    """A tool's functions, which note what the watchdog would say if they did not end."""

    watchdog: Watchdog = field(default_factory=Watchdog)
    said: list[str | None] = field(default_factory=list)
    fails: list[Exception] = field(default_factory=list)
    """What the calls end with, one after the other."""

    async def _noted(self, *_: Any) -> Any:
        self.said.append(self.watchdog.overdue(math.inf))
        return True

    async def call(self, params: Payment, ctx: ToolContext) -> Any:
        """Do it."""
        await self._noted()
        if self.fails:
            raise self.fails.pop(0)
        return {}

    async def look(self, params: Payment, ctx: ToolContext) -> Any:
        """Look for it."""
        return Found(await self._noted())

    def read(self) -> Tool:
        return tool(READ_NAME, effect=READ, health=self._noted)(self.call)

    def write(self, **options: Any) -> Tool:
        values = {"lookup": self.look, "settle": SECOND, "irreversible": True, **options}
        return tool(WRITE_NAME, effect=WRITE, health=self._noted, **values)(self.call)

    def worker(self, scene: Scene, loaded: Tool) -> WorkerContext:
        return worker_of(scene, loaded, watchdog=self.watchdog)


def call_of(scene: Scene, loaded: Tool) -> ToolCall:
    named = {"tenant": scene.tenant, "run_id": RUN, "step_id": "step", "user": "ada"}
    return ToolCall(**named, plan_version=1, tool=loaded.spec(), params={})


async def test_a_read_and_its_health_check_are_watched(scene: Scene) -> None:
    watched = Watched(fails=[DependencyDown("no route")])
    loaded = watched.read()
    tools, call = ToolActivities(watched.worker(scene, loaded)), call_of(scene, loaded)

    with pytest.raises(ApplicationError, match="no route"):
        await tools.call_tool(call, Attempt(1, "call", "call:1"))
    await tools.call_tool(call, Attempt(2, "call", "call:2"))

    read = f"{READ_NAME} of run {RUN}"
    assert watched.said == [read, f"the health check of {READ_NAME}", read]


@pytest.mark.parametrize("by", ["key", "state"])
async def test_a_lookup_is_watched_before_a_call_and_after_it(scene: Scene, by: Any) -> None:
    watched = Watched(fails=[OutcomeUnknown("no answer")])
    loaded = watched.write(lookup_by=by)

    for number in (1, 2):
        request = request_for(scene, loaded, attempt=number, observes=by == "state")
        effect = EffectCall(watched.worker(scene, loaded), loaded, Payment(), request)
        if number == 1:
            with pytest.raises(ApplicationError, match="no answer"):
                await effect.run()
        else:
            await effect.run()

    look, call = f"the lookup of {WRITE_NAME} of run {RUN}", f"{WRITE_NAME} of run {RUN}"
    assert watched.said == {"key": [call, look], "state": [look, call]}[by]


async def test_what_a_tool_has_for_preparing_a_call_or_an_edit_is_watched(scene: Scene) -> None:
    watched = Watched()

    def key(params: Payment) -> str:
        watched.said.append(watched.watchdog.overdue(math.inf))
        return "one"

    loaded = watched.write(key=key)
    worker = watched.worker(scene, loaded)
    row = {"tool": WRITE_NAME, "tool_version": loaded.version, "run_id": RUN, "step_id": "step"}
    assert isinstance(ApprovalActivities(worker)._edited(row, {}), Edited)
    edited = watched.said.copy()
    await ToolActivities(worker).call_tool(call_of(scene, loaded), Attempt(1, "call", "call:1"))

    assert edited == watched.said[1:2] == [f"the params of {WRITE_NAME} of run {RUN}"]


async def test_a_precondition_is_watched(scene: Scene) -> None:
    watched = Watched()
    loaded = watched.write(precondition=watched._noted)
    worker = watched.worker(scene, loaded)
    request = request_for(scene, loaded, gated=True)

    await to_call_with(
        worker.watchdog, request, prepare(worker.toolbox, worker.hashes, call_of(scene, loaded))
    )

    assert watched.said == [f"the precondition of {WRITE_NAME} of run {RUN}"]
