"""G1, G5: the connection to the ledger is cut at a commit, and nobody knows whether it happened."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import make_url, text

from activities.ledger.store import open_ledger
from activities.ledger.tables import effects
from activities.recorder import Done
from activities.toolbox import WRITE, Tool, ToolContext, tool
from tests.ledger.attempts import Payment, effect_call, request_for
from tests.ledger.commit_cutter import CommitCutter, Cut
from tests.ledger.databases import Database
from tests.ledger.scene import Scene
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.postgres
RECEIPT = {"id": "r-1"}
Calls = list[str]


@pytest.fixture
async def cutter(postgres_server: PostgresServer) -> AsyncIterator[CommitCutter]:
    async with CommitCutter.before(postgres_server.port) as found:
        yield found


@pytest.fixture
async def scene(
    cutter: CommitCutter, postgres_database: Database, request: pytest.FixtureRequest
) -> AsyncIterator[Scene]:
    url = make_url(postgres_database.url).set(port=cutter.port)
    async with open_ledger(url.render_as_string(hide_password=False)) as ledger:
        yield await Scene.begin(ledger, f"cut-{abs(hash(request.node.name)) % 10**9}")


def refund(calls: Calls, arm: Callable[[], None] | None = None, **how: Any) -> Tool:
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


async def run_once(scene: Scene, loaded: Tool) -> Awaitable[Any] | Any:
    return await effect_call(scene, loaded, request_for(scene, loaded)).run()


@pytest.mark.parametrize("cut", list(Cut), ids=lambda cut: cut.name.lower())
async def test_a_claim_whose_commit_was_cut_is_found_again_and_called_once(
    scene: Scene, cutter: CommitCutter, cut: Cut
) -> None:
    calls: Calls = []
    cutter.arm(cut)

    result = await run_once(scene, refund(calls, recovery="human"))

    assert isinstance(result, Done)
    assert (cutter.cuts, len(calls)) == (1, 1)
    assert (await scene.row(effects))["state"] == "committed"


@pytest.mark.parametrize("cut", list(Cut), ids=lambda cut: cut.name.lower())
async def test_an_outcome_whose_commit_was_cut_is_recorded_once_and_not_called_again(
    scene: Scene, cutter: CommitCutter, cut: Cut
) -> None:
    calls: Calls = []

    result = await run_once(scene, refund(calls, lambda: cutter.arm(cut), recovery="human"))

    assert isinstance(result, Done) and result.receipt == RECEIPT
    assert (cutter.cuts, len(calls)) == (1, 1)
    committed = await scene.events(type_="effect.committed")
    assert len(committed) == 1
    assert (await scene.row(effects))["state"] == "committed"


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
@pytest.mark.parametrize("cut", list(Cut), ids=lambda cut: cut.name.lower())
async def test_a_transactional_effect_whose_commit_was_cut_is_there_once(
    scene: Scene, cutter: CommitCutter, cut: Cut, credits_table: None
) -> None:
    calls: Calls = []

    result = await run_once(scene, refund(calls, lambda: cutter.arm(cut), transactional=True))

    assert isinstance(result, Done) and result.receipt == RECEIPT
    assert cutter.cuts == 1
    # Called again only where the first one is rolled back for certain.
    assert len(calls) == (2 if cut is Cut.BEFORE else 1)
    async with scene.tx() as tx:
        [row] = await tx.all(
            text("SELECT count(*) AS n FROM credits WHERE tenant = :t").bindparams(t=scene.tenant)
        )
    assert row["n"] == 1
