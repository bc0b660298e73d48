"""G1, G5: the connection to the ledger is cut at a commit, and nobody knows whether it happened."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import make_url, text
from temporalio.exceptions import ApplicationError

from surehand.activities.effects.recorder import Done
from surehand.activities.ledger.core.store import open_ledger
from surehand.activities.ledger.core.tables import effects, steps
from surehand.activities.tools.failures import Permanent, RateLimited
from surehand.activities.tools.tool import Tool, ToolContext
from surehand.activities.tools.toolbox import READ, WRITE, tool
from surehand.workflows.contracts.tools import RateLimited as RateLimitedReport
from surehand.workflows.contracts.tools import Succeeded
from tests.ledger.attempts import Payment, effect_call, read_once, request_for
from tests.ledger.commit_cutter import CommitCutter, Cut
from tests.ledger.databases import Database
from tests.ledger.scene import Scene
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.postgres, pytest.mark.guarantee("G5")]
MINUTE = timedelta(minutes=1)
RECEIPT = {"id": "r-1"}
ActivityClient = list[str]


@pytest.fixture
async def cutter(postgres_server: PostgresServer) -> AsyncIterator[CommitCutter]:
    with CommitCutter.before(postgres_server.port) as found:
        yield found


@pytest.fixture
async def scene(
    cutter: CommitCutter, postgres_database: Database, request: pytest.FixtureRequest
) -> AsyncIterator[Scene]:
    url = make_url(postgres_database.url).set(port=cutter.port)
    async with open_ledger(url.render_as_string(hide_password=False)) as ledger:
        yield Scene.begin(ledger, f"cut-{abs(hash(request.node.name)) % 10**9}")


def refund(calls: ActivityClient, arm: Callable[[], None] | None = None, **how: Any) -> Tool:
    """A tool that counts its calls, and arms the cutter during them."""

    async def pay(params: Payment, ctx: ToolContext) -> Any:
        calls.append(ctx.idempotency_key)
        if ctx.session is not None:
            await ctx.session.execute(
                text("INSERT INTO credits (tenant, account, amount) VALUES (:t, :a, 120)"),
                {"t": ctx.tenant, "a": params.order},
            )
        if arm is not None and len(calls) == 1:
            arm()
        return RECEIPT

    return tool("payments.refund", effect=WRITE, irreversible=True, **how)(pay)


def failing(error: Exception, arm: Callable[[], None]) -> Tool:
    """A tool that fails, and arms the cutter before."""

    async def pay(params: Payment, ctx: ToolContext) -> Any:
        arm()
        raise error

    return tool("payments.refund", effect=WRITE, irreversible=True, recovery="human")(pay)


def reading(calls: ActivityClient, arm: Callable[[], None], error: Exception | None = None) -> Tool:
    """A tool that reads, and arms the cutter meanwhile."""

    async def look(params: Payment, ctx: ToolContext) -> Any:
        calls.append(ctx.step_id)
        arm()
        if error is not None:
            raise error
        return RECEIPT

    return tool("payments.look", effect=READ)(look)


async def refused(scene: Scene, loaded: Tool) -> ApplicationError:
    with pytest.raises(ApplicationError) as ended:
        await run_once(scene, loaded)
    return ended.value


async def run_once(scene: Scene, loaded: Tool) -> Awaitable[Any] | Any:
    return await effect_call(scene, loaded, request_for(scene, loaded)).run()


@pytest.mark.parametrize("cut", list(Cut), ids=lambda cut: cut.name.lower())
async def test_a_cut_claim_is_found_once(scene: Scene, cutter: CommitCutter, cut: Cut) -> None:
    calls: ActivityClient = []
    cutter.arm(cut)

    result = await run_once(scene, refund(calls, recovery="human"))

    assert isinstance(result, Done)
    assert (cutter.cuts, len(calls)) == (1, 1)
    assert (scene.row(effects))["state"] == "committed"


@pytest.mark.parametrize("cut", list(Cut), ids=lambda cut: cut.name.lower())
async def test_a_cut_outcome_is_recorded_once(scene: Scene, cutter: CommitCutter, cut: Cut) -> None:
    calls: ActivityClient = []

    result = await run_once(scene, refund(calls, lambda: cutter.arm(cut), recovery="human"))

    assert isinstance(result, Done) and result.receipt == RECEIPT
    assert (cutter.cuts, len(calls)) == (1, 1)
    committed = scene.events(type_="effect.committed")
    assert len(committed) == 1
    assert (scene.row(effects))["state"] == "committed"


@pytest.mark.parametrize("cut", list(Cut), ids=lambda cut: cut.name.lower())
async def test_a_cut_rate_limit_is_waited_for(scene: Scene, cutter: CommitCutter, cut: Cut) -> None:
    limited = RateLimited("100 a minute", retry_after=MINUTE)

    error = await refused(scene, failing(limited, lambda: cutter.arm(cut)))

    assert (cutter.cuts, error.type) == (1, "RateLimited")
    assert error.next_retry_delay is not None and error.next_retry_delay >= MINUTE
    assert scene.row(effects)["failures"] == {"rate_limited": 1}
    assert len(scene.events(type_="effect.failed")) == 1


@pytest.mark.parametrize("cut", list(Cut), ids=lambda cut: cut.name.lower())
async def test_a_cut_last_failure_stays_last(scene: Scene, cutter: CommitCutter, cut: Cut) -> None:
    error = await refused(scene, failing(Permanent("no payment"), lambda: cutter.arm(cut)))

    assert (cutter.cuts, error.non_retryable) == (1, True)
    assert scene.row(effects)["failures"] == {"permanent": 1}
    assert len(scene.events(type_="effect.failed")) == 1


@pytest.mark.parametrize("cut", list(Cut), ids=lambda cut: cut.name.lower())
async def test_a_cut_answer_is_recorded_once(scene: Scene, cutter: CommitCutter, cut: Cut) -> None:
    calls: ActivityClient = []

    report = await read_once(scene, reading(calls, lambda: cutter.arm(cut)))

    assert isinstance(report.outcome, Succeeded) and report.outcome.output == RECEIPT
    assert (cutter.cuts, len(calls)) == (1, 1)
    [event] = scene.events(type_="step.succeeded")
    assert report.head is not None and report.head.hash == event["hash"]
    assert scene.row(steps)["output"] == RECEIPT


@pytest.mark.parametrize("cut", list(Cut), ids=lambda cut: cut.name.lower())
async def test_a_cut_failure_is_recorded_once(scene: Scene, cutter: CommitCutter, cut: Cut) -> None:
    limited = RateLimited("100 a minute", retry_after=MINUTE)

    report = await read_once(scene, reading([], lambda: cutter.arm(cut), limited))

    assert isinstance(report.outcome, RateLimitedReport) and report.outcome.pause >= MINUTE
    assert cutter.cuts == 1
    assert len(scene.events(type_="step.failed")) == 1


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
@pytest.mark.parametrize("cut", list(Cut), ids=lambda cut: cut.name.lower())
async def test_a_transactional_effect_whose_commit_was_cut_is_there_once(
    scene: Scene, cutter: CommitCutter, cut: Cut, credits_table: None
) -> None:
    calls: ActivityClient = []

    result = await run_once(scene, refund(calls, lambda: cutter.arm(cut), transactional=True))

    assert isinstance(result, Done) and result.receipt == RECEIPT
    assert cutter.cuts == 1
    # Called again only where the first one is rolled back for certain.
    assert len(calls) == (2 if cut is Cut.BEFORE else 1)
    with scene.tx() as tx:
        [row] = tx.all(
            text("SELECT count(*) AS n FROM credits WHERE tenant = :t").bindparams(t=scene.tenant)
        )
    assert row["n"] == 1
