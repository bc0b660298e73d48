"""An approver's day in a real browser: by Temporal's Web UI, or by a link in a message."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from playwright.async_api import Page, expect

from surehand.workflows.contracts.approvals import ApprovalRequest
from surehand.workflows.plain_text import markdown
from tests.browser.approver import SMALL, Approver, Served, ann, served
from tests.browser.web_ui import RunPage
from tests.e2e.runs import Run, refund_plan
from tests.e2e.stage import Stage
from tests.ledger.people import key_of, person
from tests.notifiers.receiver import Receiver, documents, receiving


async def asking(
    stage: Stage, page: Page, order_id: str, key: Ed25519PrivateKey | None = None
) -> tuple[Run, RunPage, ApprovalRequest]:
    """Start a refund, and open its page once it waits for the approver."""
    run = await stage.start(refund_plan(order_id), key=key)
    request = await run.asks()
    return run, await RunPage.of(page, run.run_id), request


async def test_an_approver_approves_in_the_web_ui(stage: Stage, page: Page, order_id: str) -> None:
    async with stage.worker_here():
        run, shown, request = await asking(stage, page, order_id)
        await shown.shows(
            f"Refund 120.00 EUR for {order_id}",
            "tool: payments.refund version 1",
            "undone by payments.cancel_refund",
            "asked by uma",
            "needs 1 approval",
            request.params_hash,
        )
        await shown.shows("reject in place of approve rejects")
        await shown.cuts_off_nothing()
        assert json.loads(await shown.block('{\n  "order_id"')) == request.params
        assert stage.shop.counts(order_id)["refunds"] == 0

        decision = await shown.block('{\n  "approval_id"')
        await shown.decide(decision.replace("YOUR-NAME", "ann"))
        await shown.is_in("Completed")

    await run.completed()
    assert stage.shop.counts(order_id)["refunds"] == 1
    [approval] = stage.approval_rows(run)
    assert (approval["params_hash"], approval["decided_by"]) == (request.params_hash, "ann")
    assert (await stage.effect_states(run))["payments.refund"] == "committed"
    assert approval["consumed_entry"] is not None and not approval["verified"]


async def test_a_text_that_a_model_wrote_draws_nothing_on_the_page(page: Page) -> None:
    text = r"Refund ~~9~~ **1** `EUR` _to_ <b>you</b> [paid](/x) &lt; \* | # 1"
    await page.goto(f"/render?content={quote(markdown(text))}")
    await expect(page.locator("main > p")).to_have_text(text)
    assert await page.locator("main p *").count() == 0


__all__ = ["ann", "served"]
_WIDTH = "document.documentElement.scrollWidth"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving(Receiver()) as one:
        yield one


async def told(receiver: Receiver) -> dict[str, Any]:
    """Wait until people are told of a request, and return what."""

    def found(got: list[dict[str, Any]]) -> bool:
        return bool(documents(got, "approval.requested"))

    return documents(await asyncio.to_thread(receiver.wait, found), "approval.requested")[0]


class Phone:
    """An approver who does one thing after the other, and what they have done."""

    def __init__(self, who: Approver) -> None:
        self.who = who
        self.steps: list[str] = []

    async def opens(self, what: str, link: str) -> None:
        """Press a link in a mail or a message."""
        self.steps.append(f"opens {what}")
        await self.who.page.goto(link)

    async def presses(self, button: str) -> None:
        """Press a button, on a page that is no wider than the phone."""
        self.steps.append(f"presses {button}")
        if button == "Approve":
            await self.who.reads()
        assert await self.who.page.evaluate(_WIDTH) <= SMALL["width"]
        await self.who.page.get_by_role("button", name=button, exact=True).click()


async def test_whoever_is_told_opens_the_link_sees_the_call_and_approves_it_with_their_key(
    stage: Stage, ann: Approver, served: Served, receiver: Receiver, order_id: str
) -> None:
    person(stage, "ann")
    umas = key_of(stage, person(stage, "uma"))
    await ann.gets_ready()
    await ann.signs_out()
    await expect(ann.page.get_by_role("heading", name="Sign in")).to_be_visible()
    await ann.page.goto("about:blank")
    to_pages = {"approvals_url": served.url, "decisions": "signed"}
    with stage.ready_worker(notify="webhook", **to_pages, **receiver.settings()):
        run = await stage.start(refund_plan(order_id), key=umas)
        message = await told(receiver)
        assert urlsplit(message["page"]).netloc == urlsplit(served.url).netloc

        phone = Phone(ann)
        await phone.opens("the message's link", message["page"])
        await ann.page.get_by_text("I am the administrator").click()
        await expect(ann.page.get_by_text("approvals link --as NAME")).to_be_visible()
        await phone.opens("a link to sign in", served.link("ann"))
        await phone.presses("Sign in")
        await expect(ann.page.get_by_role("heading", level=1)).to_have_text(message["what"])
        await expect(ann.page.locator("#check")).to_have_text(
            "You decide on exactly what is shown here."
        )
        [request] = stage.approval_rows(run)
        assert request["state"] == "pending"  # a link decides nothing
        assert request["params_hash"] == message["params_hash"]
        await phone.presses("Approve")
        await ann.says("counts: approved by ann")
        # Nothing there still speaks of a decision that is awaited.
        await expect(ann.page.locator("#left")).to_have_count(0)
        await expect(ann.page.locator("#hindrance")).to_be_hidden()
        await expect(ann.page.get_by_role("link", name="Back to the list")).to_be_visible()
        await run.completed()

    signs_in = ["opens a link to sign in", "presses Sign in"]
    assert phone.steps == ["opens the message's link", *signs_in, "presses Approve"]
    assert stage.shop.counts(order_id)["refunds"] == 1
    [decision] = stage.decision_rows(run)
    assert (decision["approver"], decision["outcome"]) == ("ann", "approve")
    assert (decision["verdict"], decision["verified"]) == ("accepted", True)


@pytest.mark.parametrize(
    "kept",
    [
        {"page": "//elsewhere.example/", "until": 9e15},
        {"page": "https://elsewhere.example/", "until": 9e15},
        {"page": "/mine", "until": 0},
    ],
)
async def test_whoever_signs_in_is_led_to_no_other_server_and_to_no_page_of_long_ago(
    ann: Approver, served: Served, kept: dict[str, Any]
) -> None:
    await ann.page.goto(f"{served.url}/sign-in")
    keep = "kept => localStorage.setItem('wanted-page', JSON.stringify(kept))"
    await ann.page.evaluate(keep, kept)

    await ann.signs_in()

    assert ann.page.url == f"{served.url}/"
