"""An encrypted run in Temporal's Web UI: a person signs in at the codec server, and reads it."""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from surehand.cli.codec_server.server import make_holder, write_line
from surehand.process.dev_server import DevServer
from surehand.workflows.payload_codec import ENCODING_KEY, ENCRYPTED
from tests.browser.approver import Approver, Served, ann, served, serving
from tests.browser.web_ui import RunPage
from tests.cli.starter import Starter
from tests.conftest import KEYS
from tests.e2e.runs import refund_plan
from tests.e2e.stage import Stage


@pytest.fixture
def keys() -> str:
    return KEYS


@dataclass(frozen=True)
class Codec:
    """A codec server, and a token for each right."""

    url: str
    tokens: dict[str, str]


@pytest.fixture
def codec(stage: Stage, web_ui: DevServer, tmp_path: Path) -> Iterator[Codec]:
    made = {right: secrets.token_urlsafe(32) for right in ("read", "write")}
    tokens = tmp_path / "tokens"
    holders = ((made[right], make_holder(stage.tenant, right, "test")) for right in made)
    tokens.write_text("".join(f"{write_line(*holder)}\n" for holder in holders))
    settings = stage.environment()
    assert web_ui.ui_url is not None
    serve = ["codec", "serve", "--tokens", str(tokens), "--http", "127.0.0.1:0"]
    serve += ["--origin", web_ui.ui_url]
    with Starter(settings, tmp_path).child(tmp_path / "codec.log", *serve) as server:
        server.wait_said("codec server at")
        found = re.search(r"http://\S+", server.output())
        assert found is not None
        yield Codec(found[0], made)


async def signs_in(page: Page, codec: Codec, right: str) -> None:
    """Sign in at the codec server, and name it to the Web UI."""
    await page.goto(codec.url)
    await page.get_by_label("Token").fill(codec.tokens[right])
    await page.get_by_role("button", name="Sign in").click()
    await page.goto("/namespaces/default/workflows")
    await page.get_by_test_id("data-encoder-status").click()
    await page.get_by_test_id("data-encoder-endpoint-input").fill(codec.url)
    await page.get_by_text("Include cross-origin credentials").click()
    await page.get_by_test_id("confirm-data-encoder-button").click()


def shown_as(metadata: bytes) -> str:
    """Return a payload's metadata as the Web UI shows it, where nobody decodes it."""
    return base64.b64encode(metadata).decode()


async def test_a_person_who_has_signed_in_at_the_codec_server_reads_and_approves_an_encrypted_run(
    stage: Stage, page: Page, codec: Codec, order_id: str
) -> None:
    async with stage.worker_here():
        run = await stage.start(refund_plan(order_id))
        request = await run.asks()
        await page.goto(f"/namespaces/default/workflows/{run.run_id}")
        await expect(page.get_by_text(shown_as(ENCRYPTED)).first).to_be_visible()
        assert order_id not in await page.content()

        await signs_in(page, codec, "write")
        shown = await RunPage.of(page, run.run_id)
        await shown.shows(f"Refund 120.00 EUR for {order_id}", request.params_hash)
        decision = await shown.block('{\n  "approval_id"')
        await shown.decide(decision.replace("YOUR-NAME", "ann"))
        await shown.is_in("Completed")
        sent = [
            payload.metadata[ENCODING_KEY]
            async for event in run.handle.fetch_history_events()
            for payload in event.workflow_execution_signaled_event_attributes.input.payloads
        ]
    assert sent == [ENCRYPTED]

    await run.completed()
    assert stage.shop.counts(order_id)["refunds"] == 1


# An encrypted run on the approver's page: with the keys of runs, and without.


__all__ = ["ann", "served"]


async def test_a_server_with_keys_shows_params(stage: Stage, ann: Approver, order_id: str) -> None:
    async with stage.worker_here():
        run = await stage.start(refund_plan(order_id))
        request = await run.asks()
        assert request.salt is not None
        await ann.signs_in()
        await ann.page.get_by_role("link", name=order_id).click()
        await expect(ann.page.locator("#check")).to_have_text(
            "You decide on exactly what is shown here."
        )
        assert json.loads(await ann.page.locator("#json").text_content() or "") == request.params
        await ann.approves()
        await expect(ann.page.locator("#said")).to_contain_text("counts: approved by ann")
        await run.completed()
    assert stage.shop.counts(order_id)["refunds"] == 1


async def test_a_server_without_them_shows_no_params_and_lets_nobody_approve_it(
    stage: Stage, ann: Approver, served: Served, order_id: str, tmp_path: Path
) -> None:
    folder = tmp_path / "without"
    folder.mkdir()
    async with stage.worker_here():
        run = await stage.start(refund_plan(order_id))
        request = await run.asks()
        with serving(stage, folder, key_encryption_keys="") as blind:
            eve = Approver("ann", ann.page, blind)
            await eve.signs_in()
            await expect(eve.page.get_by_text("this server has no keys").first).to_be_visible()
            await eve.opens(request.approval_id)
            await expect(eve.page.locator("#check")).to_contain_text("You cannot approve it here")
            await expect(eve.approve).to_be_disabled()
            shown = await eve.page.content()
            assert "120.00" not in shown
            await eve.page.goto("about:blank")  # or it goes on to follow
    assert stage.shop.counts(order_id)["refunds"] == 0
    assert stage.decision_rows(run) == []
