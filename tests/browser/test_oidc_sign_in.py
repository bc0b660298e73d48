"""Signing in by an identity provider, in a browser: what a session is for, and what it is not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from playwright.async_api import expect

from docs.pictures import take, wanted
from tests.browser.accessibility import violations
from tests.browser.approver import Approver, Served, ann, serving
from tests.e2e.runs import decision_on, refund_plan
from tests.e2e.stage import Stage
from tests.ledger.people import key_of, person
from tests.oidc.provider_process import NATIVE, RealProvider, running

__all__ = ["ann"]


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealProvider]:
    with running(["https://pages.example/oidc/back"], tmp_path_factory.mktemp("idp")) as provider:
        yield provider


@pytest.fixture
def served(stage: Stage, provider: RealProvider, tmp_path: Path) -> Iterator[Served]:
    subjects = tmp_path / "principals.yaml"
    subjects.write_text(f"{stage.tenant}:\n  {provider.issuer}:\n    s-ann: ann\n")
    settings = {
        "oidc_issuer": provider.issuer,
        "oidc_client_id": NATIVE,
        "oidc_principals": str(subjects),
    }
    with serving(stage, tmp_path, **settings) as served:
        yield served


async def signs_in(ann: Approver, login: str) -> None:
    """Sign in at the provider, from a page of ours that asks for it."""
    # The provider's page has a font from elsewhere.
    await ann.page.route(re.compile("^https:"), lambda route: route.fulfill(body=""))
    await ann.page.get_by_role("link", name="Sign in with").click()
    await ann.page.get_by_placeholder("Enter any login").fill(login)
    await ann.page.get_by_placeholder("and password").fill("any")
    await ann.page.get_by_role("button", name="Sign-in").click()
    # Programs on somebody's own machine may be anybody's, so it asks.
    await ann.page.get_by_role("button", name="Continue").click()


async def test_whoever_comes_by_the_provider_approves_with_their_key_and_a_session_alone_cannot(
    stage: Stage, ann: Approver, served: Served, order_id: str
) -> None:
    person(stage, "ann")
    umas = key_of(stage, person(stage, "uma"))
    async with stage.worker_here(decisions="signed"):
        run = await stage.start(refund_plan(order_id), key=umas)
        request = await run.asks()
        there = f"{served.url}/approval?id={quote(request.approval_id)}"
        await ann.page.goto(there)
        await expect(ann.page.get_by_role("link", name="Sign in with")).to_be_visible()
        assert await violations(ann.page) == []
        await signs_in(ann, "s-ann")
        await expect(ann.page.locator(".me summary")).to_be_visible()
        assert ann.page.url == there

        # A thief has her cookie, and not her browser's key.
        cookies = {one["name"]: one["value"] for one in await ann.page.context.cookies(served.url)}
        sent = decision_on(request, approver="ann").model_dump(mode="json", exclude_none=True)
        headers = {"origin": served.url}
        async with httpx.AsyncClient(base_url=served.url, cookies=cookies) as thief:
            assert (await thief.get("/")).status_code == 200
            told = await thief.post("/decide", json=sent, headers=headers)
        assert (told.status_code, told.json()["verdict"]["code"]) == (409, "unsigned")
        assert stage.approval_rows(run)[0]["state"] == "pending"
        assert stage.shop.counts(order_id)["refunds"] == 0

        public = await ann.makes_a_key()
        served.register("ann", public)
        await ann.opens(request.approval_id)
        await ann.approves()
        await expect(ann.page.locator("#said")).to_contain_text("counts: approved by ann")
        await run.completed()

    assert stage.shop.counts(order_id)["refunds"] == 1
    [decision] = [row for row in stage.decision_rows(run) if row["verdict"] == "accepted"]
    assert (decision["verified"], decision["kid"]) == (True, json.loads(public)["kid"])


async def test_who_is_no_principal_is_told_whom_to_name(
    stage: Stage, ann: Approver, served: Served
) -> None:
    await ann.page.goto(f"{served.url}/")
    await signs_in(ann, "s-nobody")
    await expect(ann.page.get_by_role("heading", name="You have no account here")).to_be_visible()
    await expect(ann.page.get_by_text("s-nobody")).to_be_visible()
    assert await violations(ann.page) == []
    if wanted():
        await take(ann.page, "no-principal")
    await ann.page.goto(f"{served.url}/")
    await expect(ann.page.get_by_role("link", name="Sign in with")).to_be_visible()
