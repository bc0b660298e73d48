"""G1, G2: a transactional tool's effect and its outcome commit together, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from temporalio.exceptions import ApplicationError

from surehand.activities.effects.recorder import Done, SaidNo
from surehand.activities.effects.write import CallResult
from surehand.activities.ledger.core.tables import effects, steps
from surehand.activities.ledger.steps.entries import Asked, Barred, Claimed, Doubtful
from surehand.activities.tools.failures import Permanent
from surehand.activities.tools.tool import No, Tool, ToolContext
from surehand.activities.tools.toolbox import WRITE, tool
from surehand.workflows.contracts.tools import Recovery
from tests.ledger.attempts import Payment, effect_call, request_for
from tests.ledger.scene import LEASE_OVER, OTHER_RUN, Scene

Answer = Callable[[], Awaitable[Any]]


pytestmark = pytest.mark.usefixtures("credits_table")


def credit(answer: Answer, **options: Any) -> Tool:
    """A tool that books a credit, and then answers."""

    @tool("payments.refund", effect=WRITE, transactional=True, irreversible=True, **options)
    async def book(params: Payment, ctx: ToolContext) -> Any:
        assert ctx.session is not None
        await ctx.session.execute(
            text("INSERT INTO credits (tenant, account, amount) VALUES (:t, :a, 120)"),
            {"t": ctx.tenant, "a": params.order},
        )
        return await answer()

    return book


def booked(scene: Scene) -> int:
    with scene.tx() as tx:
        count = text("SELECT count(*) FROM credits WHERE tenant = :t")
        return int((tx.connection.execute(count, {"t": tx.tenant})).scalar_one())


async def attempt(scene: Scene, loaded: Tool, number: int = 1, **changes: Any) -> CallResult:
    request = request_for(scene, loaded, attempt=number, holder=f"attempt-{number}", **changes)
    return await effect_call(scene, loaded, request).run()


async def done() -> dict[str, str]:
    return {"id": "c-1"}


def raises(error: BaseException) -> Answer:
    async def answer() -> None:
        raise error

    return answer


async def test_effect_and_outcome_are_there_together(scene: Scene) -> None:
    result = await attempt(scene, credit(done))

    assert isinstance(result, Done) and result.receipt == {"id": "c-1"}
    assert booked(scene) == 1
    assert (scene.row(effects))["state"] == "committed"
    assert (scene.row(steps))["state"] == "succeeded"


@pytest.mark.parametrize(
    ("error", "class_"),
    [
        (Permanent("account closed"), "permanent"),
        (ValueError("a bug"), "transient"),
        (TimeoutError(), "transient"),
    ],
)
async def test_a_failed_tool_leaves_nothing(scene: Scene, error: Exception, class_: str) -> None:
    with pytest.raises(ApplicationError):
        await attempt(scene, credit(raises(error)))

    assert booked(scene) == 0
    entry = scene.row(effects)
    assert (entry["state"], entry["failures"]) == ("failed", {class_: 1})


async def test_a_no_takes_back_what_was_written(scene: Scene) -> None:
    async def no() -> No:
        return No("too many credits")

    result = await attempt(scene, credit(no))

    assert isinstance(result, SaidNo) and result.reason == "too many credits"
    assert booked(scene) == 0


async def test_the_next_attempt_takes_over_a_dead_ones_claim_at_once(scene: Scene) -> None:
    loaded = credit(done)
    scene.claimed(request_for(scene, loaded, holder="dead"))

    result = await attempt(scene, loaded, 2)

    assert isinstance(result, Done) and not result.replayed
    assert booked(scene) == 1


def test_another_run_calls_once_the_dead_ones_lease_is_over(scene: Scene) -> None:
    loaded = credit(done)
    scene.open_run(OTHER_RUN)
    scene.claimed(request_for(scene, loaded, holder="dead"))
    theirs = request_for(
        scene, loaded, run_id=OTHER_RUN, holder="other", activity_key="other activity"
    )

    assert isinstance(scene.claim(theirs, LEASE_OVER), Claimed)


async def test_an_attempt_that_was_taken_over_writes_nothing(scene: Scene) -> None:
    loaded = credit(done)
    request = request_for(scene, loaded, holder="zombie")
    entry = scene.claimed(request)
    zombie = effect_call(scene, loaded, request)
    zombie.began = asyncio.get_running_loop().time()
    await attempt(scene, loaded, 2)

    with pytest.raises(ApplicationError, match="taken this effect over"):
        await zombie._call_in_ledger(entry)

    assert booked(scene) == 1


async def test_two_attempts_at_once_make_one_effect(scene: Scene) -> None:
    """The second waits for the first one's transaction, and finds what it has committed."""
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def held() -> dict[str, str]:
        inside.set()
        await go_on.wait()
        return {"id": "first"}

    first = asyncio.create_task(attempt(scene, credit(held)))
    await inside.wait()
    second = asyncio.create_task(attempt(scene, credit(done), 2))
    go_on.set()

    results = await asyncio.gather(first, second)

    assert [result.receipt for result in results if isinstance(result, Done)] == [
        {"id": "first"},
        {"id": "first"},
    ]
    assert booked(scene) == 1


@pytest.mark.parametrize("late", [False, True])
async def test_undoing_a_claim_without_an_outcome_waits_for_nothing_and_asks_nobody(
    scene: Scene, late: bool
) -> None:
    loaded = credit(done)
    request = request_for(scene, loaded)
    scene.claimed(request)
    found = scene.begin_undo(after=LEASE_OVER)
    assert isinstance(found, Doubtful)
    settling = effect_call(scene, loaded, replace(request, holder="undo", activity_key="undo"))
    if late:
        limit = request.recovery_limit // timedelta(milliseconds=1)
        settling._now_ms = (found.entry.recovering_ms or 0) + limit + 1

    result = await settling.reconcile(found.entry, forward=False)

    assert isinstance(result, Barred)
    assert (scene.row(effects))["state"] == "failed"
    assert booked(scene) == 0
    *_, event = scene.events(type_="effect.reconciled")
    assert event["body"]["rule"] == "transactional"


async def test_an_sql_error_that_the_tool_swallows_is_its_failure(scene: Scene) -> None:
    """PostgreSQL goes on with nothing after it; SQLite does."""

    @tool("payments.refund", effect=WRITE, transactional=True, irreversible=True)
    async def book(params: Payment, ctx: ToolContext) -> str:
        assert ctx.session is not None
        with suppress(DBAPIError):
            await ctx.session.execute(text("SELECT * FROM no_such_table"))
        return "booked"

    if scene.ledger.engine.dialect.name == "sqlite":
        assert isinstance(await attempt(scene, book), Done)
        return
    with pytest.raises(ApplicationError) as failed:
        await attempt(scene, book)

    assert failed.value.type == "Transient"
    entry = scene.row(effects)
    assert (entry["state"], entry["failures"]) == ("failed", {"transient": 1})


async def test_a_call_of_an_earlier_version_may_have_been_made_elsewhere(scene: Scene) -> None:
    """What is transactional now need not have been then: nothing proves that it did not happen."""
    loaded = credit(done, version="2")
    scene.open_run(OTHER_RUN)
    before = scene.claimed(scene.call(recovery=Recovery.HUMAN))
    now = request_for(scene, loaded, run_id=OTHER_RUN, tool_version="2", activity_key="other")

    found = scene.claim(now, LEASE_OVER)
    assert isinstance(found, Doubtful)
    result = await effect_call(scene, loaded, now).reconcile(found.entry, forward=False)

    assert isinstance(result, Asked)
    assert (scene.entry(before.entry_id)).state == "in_doubt"
    assert booked(scene) == 0
