"""An approver's whole day in a real browser, with nothing but Temporal's own Web UI."""

from __future__ import annotations

import json
from urllib.parse import quote

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from playwright.async_api import Page, expect

from surehand.workflows.contracts.approvals import ApprovalRequest
from surehand.workflows.contracts.states import RunState
from surehand.workflows.plain_text import markdown
from tests.browser.web_ui import RunPage
from tests.e2e.runs import Run, example_plan
from tests.e2e.stage import Stage


async def asking(
    stage: Stage, page: Page, order_id: str, key: Ed25519PrivateKey | None = None
) -> tuple[Run, RunPage, ApprovalRequest]:
    """Start a refund, and open its page once it waits for the approver."""
    run = await stage.start(example_plan("refund.yaml", order_id=order_id), key=key)
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

    assert (await run.result()).state is RunState.COMPLETED
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
