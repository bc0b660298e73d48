"""An approver's whole day in a real browser, with nothing but Temporal's own Web UI."""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from playwright.async_api import Page, expect

from surehand.workflows.contracts.approvals import ApprovalRequest
from surehand.workflows.contracts.states import RunState
from surehand.workflows.plain_text import markdown
from tests.browser.web_ui import RunPage
from tests.e2e.runs import Run, example_plan
from tests.e2e.stage import Stage
from tests.ledger.people import key_of, person

ROOT = Path(__file__).parent.parent.parent


async def asking(
    stage: Stage, page: Page, order_id: str, key: Ed25519PrivateKey | None = None
) -> tuple[Run, RunPage, ApprovalRequest]:
    """Start a refund, and open its page once it waits for the approver."""
    run = await stage.start(example_plan("refund.yaml", order_id=order_id), key=key)
    request = await run.asks()
    return run, await RunPage.of(page, run.run_id), request


async def pasted_command(line: str, approver: str, key_file: Path) -> str:
    """Run a command of ours as the page shows it, with a name and a key; returns what it prints."""
    line = line.replace("YOUR-NAME", approver).replace("KEYFILE", shlex.quote(str(key_file)))
    assert line.startswith("python starter.py ")
    command = [sys.executable, *shlex.split(line)[1:]]
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def written(key: Ed25519PrivateKey, file: Path) -> Path:
    """Write a private key for nobody else's eyes."""
    file.touch(mode=0o600)
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return file


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


async def test_where_signatures_are_asked_for_the_page_takes_a_signed_approval_only(
    stage: Stage, page: Page, order_id: str, tmp_path: Path
) -> None:
    key_file = written(key_of(stage, person(stage, "ann")), tmp_path / "ann.pem")
    umas = key_of(stage, person(stage, "uma"))
    async with stage.worker_here(decisions="signed"):
        run, shown, request = await asking(stage, page, order_id, umas)
        unsigned = {
            "approval_id": request.approval_id,
            "params_hash": request.params_hash,
            "outcome": "approve",
            "approver": "ann",
        }
        await shown.shows("Only signed decisions count.")
        await shown.decide(json.dumps(unsigned))
        await shown.refreshed()
        await shown.shows("waiting_approval", "Last decision refused (unsigned)")
        await shown.is_in("Running")
        assert stage.shop.counts(order_id)["refunds"] == 0

        command = await shown.block("python starter.py sign ")
        await shown.decide(await pasted_command(command, "ann", key_file))
        await shown.is_in("Completed")

    assert (await run.result()).state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["refunds"] == 1
    [approval] = stage.approval_rows(run)
    assert (approval["decided_by"], approval["verified"]) == ("ann", True)
    assert approval["consumed_entry"] is not None
    told = [(row["verdict"], bool(row["verified"])) for row in stage.decision_rows(run)]
    assert told == [("unsigned", False), ("accepted", True)]


async def test_a_text_that_a_model_wrote_draws_nothing_on_the_page(page: Page) -> None:
    text = r"Refund ~~9~~ **1** `EUR` _to_ <b>you</b> [paid](/x) &lt; \* | # 1"
    await page.goto(f"/render?content={quote(markdown(text))}")
    await expect(page.locator("main > p")).to_have_text(text)
    assert await page.locator("main p *").count() == 0
