"""Large values stay outside history, and runs work with them all the same."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any

import pytest

from surehand.activities.artifacts import ArtifactStore
from surehand.activities.effects import prepare
from surehand.workflows.contracts.states import RunState
from surehand.workflows.contracts.values import Artifact, as_artifact
from surehand.workflows.identity import canonical_json
from surehand.workflows.plan.plan import Plan
from tests.e2e.runs import Run, step, until
from tests.e2e.stage import Stage
from tests.e2e.test_model_run import tries
from tests.variants import big

BIG = "tests.variants.big"
LARGEST_HISTORY = 5_000_000  # bytes


@pytest.fixture(autouse=True)
def fresh() -> None:
    big.UNDONE.clear()
    big.TEXTS.clear()


def plan(*steps: dict[str, Any]) -> Plan:
    return Plan.model_validate({"steps": list(steps)})


def page(number: int, tool: str = "pages.write", **more: Any) -> dict[str, Any]:
    return {"id": f"page{number}", "tool": tool, "params": {"page": number}, **more}


async def kept_as(stage: Stage, run: Run, artifact: Artifact) -> bytes:
    """Return what a run has kept."""
    store = ArtifactStore(str(stage.folder / "artifacts"), stage.ledger, largest_inline=1024)
    return await store.read_bytes(stage.tenant, run.run_id, artifact)


async def history_bytes(run: Run) -> int:
    found = await run.handle.describe()
    return int(found.raw_description.workflow_execution_info.history_size_bytes)


async def test_100_results_of_a_megabyte_leave_a_history_under_5_mb(stage: Stage) -> None:
    reads = [page(n, "pages.read", after=[]) for n in range(50)]
    writes = [page(n, "pages.write", after=[]) for n in range(50, 100)]
    async with stage.worker_here(tool_modules=BIG):
        run = await stage.start(plan(*reads, *writes))
        result = await run.result()

    assert result.state is RunState.COMPLETED
    assert await history_bytes(run) < LARGEST_HISTORY
    kept = {view.id: as_artifact(view.output) for view in result.steps}
    for number in range(100):
        artifact = kept[f"page{number}"]
        assert artifact is not None and artifact.bytes > 800_000
        content = await kept_as(stage, run, artifact)
        assert content == canonical_json(big.megabyte(number))
        assert artifact.sealed_for or artifact.sha256 == hashlib.sha256(content).hexdigest()


async def test_later_params_reach_into_a_large_output(stage: Stage) -> None:
    text = "${page1.lines.0.sku} of page ${page1.page}"
    send = {"id": "send", "tool": "pages.send", "params": {"text": text}}
    async with stage.worker_here(tool_modules=BIG):
        run = await stage.start(plan(page(1, "pages.read"), send))
        result = await run.result()

    assert result.state is RunState.COMPLETED
    assert big.TEXTS == ["sku-1 of page 1"]


async def test_large_params_are_approved_by_their_hash_and_shown_by_reference(
    stage: Stage,
) -> None:
    params = {"text": "${page1.report}"}
    send = {"id": "send", "tool": "pages.send", "params": params, "approval": "required"}
    async with stage.worker_here(tool_modules=BIG):
        run = await stage.start(plan(page(1, "pages.read"), send))
        request = await run.approve()
        result = await run.result()

    assert result.state is RunState.COMPLETED
    shown = as_artifact(request.params)
    assert shown is not None
    content = await kept_as(stage, run, shown)
    assert content == canonical_json({"text": big.megabyte(1)["report"]})
    assert [big.megabyte(1)["report"]] == big.TEXTS
    assert await history_bytes(run) < 100_000


async def test_an_undo_is_given_the_whole_receipt(stage: Stage) -> None:
    refuse = {"id": "refuse", "tool": "pages.refuse", "params": {"text": "x"}}
    async with stage.worker_here(tool_modules=BIG):
        run = await stage.start(plan(page(7), refuse))
        result = await run.result()

    assert result.state is RunState.FAILED
    assert big.UNDONE == ["sku-7"]
    assert result.uncompensated == []


async def test_a_field_that_a_large_output_does_not_have_fails_the_step(stage: Stage) -> None:
    send = {"id": "send", "tool": "pages.send", "params": {"text": "${page1.nothing}"}}
    async with stage.worker_here(tool_modules=BIG):
        run = await stage.start(plan(page(1, "pages.read"), send))
        result = await run.result()

    assert result.state is RunState.FAILED
    assert "page1.nothing" in (step(result, "send").error or "")
    assert big.TEXTS == []


@pytest.mark.parametrize("approval", [None, "required"])
async def test_a_step_whose_params_are_in_the_store_waits_for_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, approval: str | None
) -> None:
    monkeypatch.setattr(prepare, "READ_PAUSE", timedelta(milliseconds=20))
    folder, away = stage.folder / "artifacts", stage.folder / "away"
    ask = {"id": "ask", "ask": {"question": "Go on?"}}
    send = {"id": "send", "tool": "pages.send", "params": {"text": "${page1.lines.0.sku}"}}
    send |= {"after": ["ask"]} | ({"approval": approval} if approval else {})
    async with stage.worker_here(tool_modules=BIG):
        run = await stage.start(plan(page(1, "pages.read"), ask, send))
        await run.in_state(RunState.WAITING_INPUT)
        folder.rename(away)
        await run.handle.execute_update("answer", {"actor": "ann", "answer": True})
        # More often than two minutes have room for at the usual pause.
        await until(lambda: tries(run), lambda made: made > 26)
        away.rename(folder)
        if approval:
            await run.approve()
        result = await run.result()

    assert result.state is RunState.COMPLETED, result.error
    assert big.TEXTS == ["sku-1"]
