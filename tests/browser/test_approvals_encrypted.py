"""An encrypted run on the approver's page: with the keys of runs, and without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.async_api import expect

from surehand.workflows.contracts.states import RunState
from tests.browser.approver import Approver, Served, ann, served, serving
from tests.conftest import KEYS
from tests.e2e.runs import example_plan
from tests.e2e.stage import Stage

__all__ = ["ann", "served"]


@pytest.fixture
def keys() -> str:
    return KEYS


async def test_a_server_with_the_keys_of_runs_shows_what_is_hashed_with_its_salt(
    stage: Stage, ann: Approver, order_id: str
) -> None:
    async with stage.worker_here():
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        request = await run.asks()
        assert request.salt is not None
        await ann.signs_in()
        await ann.page.get_by_role("link", name=order_id).click()
        await expect(ann.page.locator("#check")).to_have_text("You decide on exactly this call.")
        assert json.loads(await ann.page.locator("#params").inner_text()) == request.params
        await ann.approve.click()
        await expect(ann.page.locator("#said")).to_contain_text("counts: approved by ann")
        assert (await run.result()).state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["refunds"] == 1


async def test_a_server_without_them_shows_no_params_and_lets_nobody_approve_it(
    stage: Stage, ann: Approver, served: Served, order_id: str, tmp_path: Path
) -> None:
    folder = tmp_path / "without"
    folder.mkdir()
    async with stage.worker_here():
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        request = await run.asks()
        with serving(stage, folder, key_encryption_keys="") as blind:
            eve = Approver("ann", ann.page, blind)
            await eve.signs_in()
            await expect(eve.page.get_by_text("this server has no keys").first).to_be_visible()
            await eve.opens(request.approval_id)
            await expect(eve.page.locator("#check")).to_contain_text("approving is off")
            await expect(eve.approve).to_be_disabled()
            shown = await eve.page.content()
            assert "120.00" not in shown
            await eve.page.goto("about:blank")  # or it goes on to follow
    assert stage.shop.counts(order_id)["refunds"] == 0
    assert stage.decision_rows(run) == []
