"""Days on the approver's page: several people, several tabs, and what breaks beside them."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, Route, expect

from surehand.workflows.plan.plan import Plan
from tests.browser.approver import Approver, Served, ann, arriving, served
from tests.conftest import missing
from tests.e2e.runs import Run, decision_on, refund_plan
from tests.e2e.stage import Stage
from tests.ledger.people import key_of, person
from tests.ledger_databases import PostgresLedgers
from tests.postgres_server import PostgresMissing, PostgresServer

__all__ = ["ann", "served"]

Arrive = Callable[[str], Any]


@pytest.fixture
async def arrive(ann: Approver, served: Served) -> AsyncIterator[Arrive]:
    """Brings one more approver, with a browser of their own."""
    async with AsyncExitStack() as there:

        async def arrived(name: str) -> Approver:
            other = arriving(ann.page.context, served, name)
            return await there.enter_async_context(other)

        yield arrived


def two_of_them(order_id: str, **approval: Any) -> Plan:
    """Return a refund that two people have to approve."""
    plan = refund_plan(order_id).model_dump(mode="json")
    plan["steps"][2]["approval"] = {"quorum": 2, **approval}
    return Plan.model_validate(plan)


def said(stage: Stage, run: Run) -> list[tuple[str, str, str]]:
    """Return who has said what to a run, and what was made of it."""
    rows = stage.decision_rows(run)
    return [(row["approver"], row["outcome"], row["verdict"]) for row in rows]


async def test_two_others_than_who_asked_approve_a_call_and_who_asked_is_told_before_signing(
    stage: Stage, ann: Approver, arrive: Arrive, order_id: str
) -> None:
    bob, uma = await arrive("bob"), await arrive("uma")
    umas = [key_of(stage, person(stage, one.name)) for one in (ann, bob, uma)][-1]
    async with stage.worker_here(decisions="signed"):
        run = await stage.start(two_of_them(order_id, four_eyes=True), key=umas)
        request = await run.asks()
        for one in (ann, bob, uma):
            await one.gets_ready()
            await one.opens(request.approval_id)
            await one.reads()

        told = uma.page.get_by_text("Your approval does not count here")
        await expect(told).to_be_visible()
        assert said(stage, run) == []
        await expect(bob.page.get_by_text("Your approval does not count here")).to_have_count(0)
        await uma.approves()
        await uma.says("does not count: uma has asked for this call")
        await ann.approves()
        await ann.says("Your decision counts")
        await expect(bob.page.locator("#votes")).to_have_text("ann")
        assert stage.shop.counts(order_id)["refunds"] == 0
        await bob.approves()
        await bob.says("counts: approved by ann, bob")
        await expect(ann.page.locator("#state")).to_contain_text("Approved by bob")
        await run.completed()

    assert stage.shop.counts(order_id)["refunds"] == 1
    yes = ("approve", "accepted")
    assert said(stage, run) == [("uma", "approve", "four_eyes"), ("ann", *yes), ("bob", *yes)]
    assert all(row["verified"] for row in stage.decision_rows(run)[1:])


async def test_a_far_expiry_keeps_a_page_open(stage: Stage, ann: Approver, order_id: str) -> None:
    plan = refund_plan(order_id).model_dump(mode="json")
    plan["steps"][2]["approval"] = {"expires_in": "60d"}
    async with stage.worker_here(tool_modules="tests.variants.refund_ungated"):
        run = await stage.start(Plan.model_validate(plan))
        await ann.signs_in()
        await ann.page.clock.install()
        await ann.opens((await run.asks()).approval_id)
        await ann.reads()
        # A timer of a browser's ends after 24 d 20 h at the latest.
        for later in (timedelta(hours=20), timedelta(days=24, hours=10), timedelta(days=25)):
            await ann.page.clock.fast_forward(later // timedelta(milliseconds=1))
            await expect(ann.page.locator("#state")).not_to_contain_text("Expired")
            await ann.reads()
            await expect(ann.reject).to_be_enabled()

        await ann.page.clock.fast_forward(timedelta(days=10) // timedelta(milliseconds=1))
        await expect(ann.page.locator("#state")).to_contain_text("Expired")
        for button in (ann.approve, ann.reject, ann.page.locator("#edit")):
            await expect(button).to_be_disabled()
    assert said(stage, run) == []


async def test_of_two_tabs_one_decides(stage: Stage, ann: Approver, order_id: str) -> None:
    person(stage, "ann")
    async with stage.worker_here():
        run = await stage.start(two_of_them(order_id))
        request = await run.asks()
        await ann.gets_ready()
        tabs = [ann, Approver("ann", await ann.page.context.new_page(), ann.served)]
        for tab in tabs:
            await tab.opens(request.approval_id)
            await tab.reads()
        await tabs[0].approves()
        await tabs[0].says("Your decision counts")
        await expect(tabs[1].page.locator("#votes")).to_contain_text("ann")
        await tabs[1].approves()
        await tabs[1].says("Your decision does not count: ann counts once")
        await tabs[1].opens(request.approval_id)
        await expect(tabs[1].page.get_by_text("You have approved it already")).to_be_visible()

        assert stage.shop.counts(order_id)["refunds"] == 0
        await run.decide(decision_on(request, approver="bob"))
        await run.completed()
    assert stage.shop.counts(order_id)["refunds"] == 1
    told = [("ann", "accepted"), ("ann", "already_voted"), ("bob", "accepted")]
    assert [(who, verdict) for who, _, verdict in said(stage, run)] == told


@pytest.mark.parametrize("arrives", [True, False])
async def test_a_decision_whose_answer_is_lost_is_told_to_be_unknown_and_sent_again_is_one_vote(
    stage: Stage, ann: Approver, order_id: str, arrives: bool
) -> None:
    async def lose(route: Route) -> None:
        if arrives:
            await route.fetch()
        await route.abort("connectionreset")

    async with stage.worker_here():
        run = await stage.start(two_of_them(order_id))
        request = await run.asks()
        await ann.signs_in()
        await ann.opens(request.approval_id)
        await ann.page.route("**/decide", lose, times=1)
        await ann.approves()
        await ann.says("No answer came")
        assert len(said(stage, run)) == int(arrives)
        await ann.approves()
        # The run takes the same thing once, and says the same of it again.
        await ann.says("Your decision counts: approved by ann; so far 1 of 2 approvals")

        assert stage.shop.counts(order_id)["refunds"] == 0
        await run.decide(decision_on(request, approver="bob"))
        await run.completed()
    assert stage.shop.counts(order_id)["refunds"] == 1
    votes = [who for who, _, verdict in said(stage, run) if verdict == "accepted"]
    assert votes == ["ann", "bob"]


@pytest.mark.crash
@pytest.mark.parametrize("point", ["before_claim", "before_report"])
async def test_a_verdict_comes_from_the_next_worker_where_one_is_killed_over_it_and_it_is_one_vote(
    stage: Stage, ann: Approver, order_id: str, point: str
) -> None:
    with stage.ready_worker(crash_at=f"verify_decision:{point}") as first:
        run = await stage.start(refund_plan(order_id))
        request = await run.asks()
        await ann.signs_in()
        await ann.opens(request.approval_id)
        await ann.approves()
        first.wait_killed()
    await ann.says("Sending")
    assert len(said(stage, run)) == (point == "before_report")
    with stage.ready_worker():
        await expect(ann.page.locator("#state")).to_contain_text("Approved by ann")
        # Where the next one takes long to come, the page has said by then that it counts later.
        await expect(ann.page.locator("#said")).to_contain_text("count")
        await expect(ann.approve).to_be_disabled()
        await run.completed()
    assert stage.shop.counts(order_id)["refunds"] == 1
    assert said(stage, run) == [("ann", "approve", "accepted")]


class TestLedgerAway:
    """The ledger does not answer for a while, and nobody starts the approvals server anew."""

    @pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
    def database(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def postgres(self, database: str) -> Iterator[PostgresServer | None]:
        """A server of this test's own."""
        if database == "sqlite":
            yield None
            return
        try:
            server = PostgresServer.start()
        except PostgresMissing as error:
            missing(str(error))
        yield server
        server.remove()

    @pytest.fixture
    def ledger_url(
        self, postgres: PostgresServer | None, sqlite_template: Path, tmp_path: Path
    ) -> str:
        if postgres is not None:
            return PostgresLedgers(postgres).create()
        return f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'ledger.db')}"

    async def test_the_page_says_so_in_one_line_and_all_is_as_before_once_it_is_back(
        self, stage: Stage, ann: Approver, order_id: str, postgres: PostgresServer | None
    ) -> None:
        async with stage.worker_here():
            run = await stage.start(refund_plan(order_id))
            request = await run.asks()
        await ann.signs_in()
        listing = await ann.page.context.new_page()
        await listing.goto(ann.served.url)
        await ann.opens(request.approval_id)
        await ann.reads()
        with away(stage, postgres):
            answer = await (await ann.page.context.new_page()).goto(ann.served.url)
            assert answer is not None and answer.status == 503
            [line] = (await shown_error(answer.frame.page)).splitlines()
            assert line.startswith("ledger database: ")
            await ann.reads()

        async with stage.worker_here():
            await ann.approves()
            await ann.says("counts: approved by ann")
            await expect(listing.locator("#changed")).to_be_visible()
            await expect(listing.locator("[data-id].gone")).to_have_count(1)
            await listing.get_by_role("link", name="as it is now").click()
            await expect(listing.locator("#nothing")).to_be_visible()
            await run.completed()
        assert stage.shop.counts(order_id)["refunds"] == 1
        assert said(stage, run) == [("ann", "approve", "accepted")]


async def shown_error(page: Page) -> str:
    return await page.get_by_role("alert").inner_text()


@contextmanager
def away(stage: Stage, postgres: PostgresServer | None) -> Iterator[None]:
    """Have a ledger answer nobody: its server is gone, or another process has its file."""
    if postgres is not None:
        postgres.kill_immediate()
        yield
        postgres.restart()
        return
    file = stage.ledger_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")
