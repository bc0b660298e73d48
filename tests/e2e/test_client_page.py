"""The page about the Python client: what it shows is run as it stands there."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from surehand import Client, RunState
from tests.e2e.runs import EXAMPLES, until
from tests.e2e.stage import Stage

PAGE: Final = Path(__file__).parents[2] / "docs" / "howto" / "use-the-client.md"
START, APPROVE, STEER = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def defined_by(block: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(block, str(PAGE), "exec"), names)
    return names


@pytest.fixture(autouse=True)
def _configured(
    no_settings: None, stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = stage.environment()
    for name in ("TEMPORAL_ADDRESS", "SUREHAND_TASK_QUEUE", "SUREHAND_ARTIFACTS"):
        monkeypatch.setenv(name, environment[name])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "refund.yaml").write_text((EXAMPLES / "refund.yaml").read_text())


async def test_the_page_starts_and_approves_a_run(stage: Stage, order_id: str) -> None:
    app = defined_by(APPROVE)["app"]
    service = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        stage.worker_here(),
        httpx.AsyncClient(transport=service, base_url="http://service") as browser,
    ):
        ending = asyncio.create_task(defined_by(START)["refund"](order_id))
        ann = {"x-user": "ann"}

        async def look() -> list[dict[str, Any]]:
            shown: list[dict[str, Any]] = (await browser.get("/waiting", headers=ann)).json()
            return [one for one in shown if one["params"]["order_id"] == order_id]

        [seen] = await until(look, bool)
        form = {name: seen[name] for name in ("approval_id", "params_hash")}
        stale = {**form, "params_hash": "sha256:" + "0" * 64}
        refused = await browser.post("/approve", headers=ann, json=stale)
        assert (refused.status_code, refused.json()["code"]) == (409, "wrong_hash")
        assert stage.shop.counts(order_id)["refunds"] == 0
        approved = await browser.post("/approve", headers=ann, json=form)
        assert approved.json()["state"] == "approved"
        assert (await ending).state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["refunds"] == 1


async def test_a_run_is_held_and_called_off_by_the_page(stage: Stage, order_id: str) -> None:
    page = defined_by(STEER)
    async with stage.worker_here():
        client = await Client.connect(user="uma")
        run = await client.start("refund.yaml", input={"order_id": order_id})
        await until(run.view, lambda view: bool(view.pending))
        assert await page["hold"](run.run_id)
        assert (await run.view()).result.state is RunState.PAUSED_USER
        await page["call_off"](run.run_id)
        assert (await run.wait()).state is RunState.CANCELLED
    assert stage.shop.counts(order_id)["refunds"] == 0
