"""No plan is ended by the server's limits of size: what is large travels by reference."""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.common import RawValue

from surehand.activities.artifacts import ArtifactStore
from surehand.process.blobs import Blobs
from surehand.workflows.canonical_json import canonical_json
from surehand.workflows.contracts.base import Artifact, RunState, as_artifact
from surehand.workflows.contracts.steering import Verb
from surehand.workflows.names import PAUSES, ErrorType
from surehand.workflows.payload_codec import ENCODING, data_converter, payloads_of
from surehand.workflows.run import run_core
from tests.e2e.executions import executions
from tests.e2e.messages import event, told
from tests.e2e.model_scripts import MODEL, asked, call, driven, finish, said
from tests.e2e.plans import plan, refund_step
from tests.e2e.runs import Run, decision_on, states, step, until
from tests.e2e.stage import Stage, speaking
from tests.e2e.test_continuing import SOON
from tests.e2e.test_model_run import tries
from tests.variants import big

PAGES = {"tool_modules": "tests.variants.pages"}
MANY = 300
#: Characters of JSON that an event from outside has at most, with some room.
EVENT = 8000


def pages(count: int = MANY, **params: Any) -> dict[str, Any]:
    return {
        "id": "pages",
        "tool": "pages.read",
        "for_each": "${input.numbers}",
        "item": "n",
        "params": {"n": "${n}", **params},
    }


def numbers(count: int = MANY) -> dict[str, Any]:
    return {"numbers": list(range(count))}


COUNT = {"id": "count", "tool": "pages.count", "params": {"pages": "${pages}"}}


@pytest.mark.parametrize("mode", ["sync", "exit"])
async def test_a_long_lists_outputs_are_handed_on(stage: Stage, order_id: str, mode: str) -> None:
    late = {"id": "late", "tool": "pages.read", "when": "pages[7].n == 7", "params": {"n": 1}}
    theirs = {**COUNT, "params": {"pages": "${input.pages}"}}
    child = {
        "id": "inner",
        "plan": {"name": "inner", "steps": [theirs]},
        "params": {"pages": "${pages}"},
    }
    steps = plan(refund_step(order_id), pages(), COUNT, late, child, input=numbers())
    async with stage.worker_here(**PAGES):
        run = await stage.start(steps, durability=mode)
        result = await run.completed(timeout_s=200)

    assert step(result, "count").output == MANY
    assert states(result)["late"] == "succeeded"
    assert step(result, "inner").output == {"count": MANY}
    assert len(step(result, "pages").output) == MANY  # type: ignore[arg-type]


async def test_a_model_hears_all_of_it(stage: Stage, order_id: str, tmp_path: Path) -> None:
    script = [call("pages.read", n=n, length=300_000) for n in range(8)]
    async with stage.worker_here(**PAGES, **MODEL, largest_inline=str(1024 * 1024)):
        run = await stage.start(driven(tmp_path, *script, finish("ok")))
        result = await run.result(timeout_s=200)

    assert said(result) == "ok"
    assert asked(tmp_path) == len(script) + 1


async def test_kept_events_go_along_into_the_next_execution(stage: Stage) -> None:
    waits = [
        {"id": f"w{n}", "wait": {"event": "returned", "about": f"k{n}"}, "after": []}
        for n in (0, 200)
    ]
    later = [{"id": f"p{n}", "tool": "pages.read", "params": {"n": n}} for n in range(3)]
    text = "x" * EVENT
    async with stage.worker_here(**PAGES):
        run = await stage.start(plan(*waits, {**later[0], "after": ["w0"]}), continue_after=SOON)
        for n in range(1, 201):
            await run.handle.signal("event", event(f"e{n}", text, about=f"k{n}"))
        await run.until(lambda view: "w200" in done(view.result), timeout_s=200)
        before = len(await executions(stage, run))
        for n in range(60):  # some more history
            await run.handle.signal("event", event(f"f{n}", 1, about="nobody"))
        await until(lambda: executions(stage, run), lambda found: len(found) > before)
        await told(run, Verb.EVENT, event("e0", "last", about="k0"))
        result = await run.completed()

    assert step(result, "w200").output == text


def done(result: Any) -> list[str]:
    return [view.id for view in result.steps if view.state == "succeeded"]


async def test_a_run_whose_history_is_full_fails_and_undoes_what_it_has_done(
    stage: Stage, order_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_core, "MOST_CARRIED", 10)
    monkeypatch.setattr(run_core, "MOST_AT_ALL", 200)
    steps = plan(refund_step(order_id), pages(), input=numbers())
    run, result = await stage.play(steps, continue_after=SOON, **PAGES)

    assert result.state is RunState.FAILED
    assert "characters to carry, 10 at most" in (result.error or "")
    assert stage.paid(order_id) == (1, 1)
    assert [row["type"] for row in await stage.events(run, "run.failed")] == ["run.failed"]


async def test_a_lost_store_loses_nothing(stage: Stage, order_id: str) -> None:
    folder, away = stage.folder / "artifacts", stage.folder / "away"
    gated = refund_step(order_id, approval={"expires_in": "1h"})
    steps = plan(pages(), gated, COUNT, input=numbers())
    async with stage.worker_here(**PAGES):
        run = await stage.start(steps, durability="exit")
        request = await run.asks()
    await run.send(decision_on(request))
    # Another one that has read nothing of it yet; a file is where the folder was.
    other = speaking(stage.client, folder, stage.ledger, stage.keys)
    async with stage.worker_here(**PAGES, client=other):
        folder.rename(away)
        folder.touch()
        await until(lambda: attempts(run), lambda made: made > 1)
        folder.unlink()
        away.rename(folder)
        result = await run.completed()

    assert step(result, "count").output == MANY
    assert stage.shop.counts(order_id)["refunds"] == 1


async def attempts(run: Run) -> int:
    """Return how often it was tried to move the run on."""
    found = await run.handle.describe()
    return found.raw_description.pending_workflow_task.attempt


@pytest.fixture
def by_hand(keys: str) -> None:
    """The test makes by hand what goes over the wire in plain."""
    if keys:
        pytest.skip("what is made by hand is not encrypted, and refused for that")


async def send_raw(run: Run, signal: str, content: Any) -> None:
    """Send what a client's codec would have put in the place of a large payload."""
    payload = Payload(metadata={"encoding": ENCODING}, data=json.dumps(content).encode())
    await run.handle.signal(signal, RawValue(payload))


def looking_in(stage: Stage, folder: Path) -> Client:
    """Return a worker's client: it keeps in a folder, and knows where each run does."""
    store = ArtifactStore(str(folder), stage.ledger, largest_inline=8192)
    converter = data_converter(lambda: store.blobs, waits=True)
    return Client(**{**stage.client.config(), "data_converter": converter})


@pytest.mark.usefixtures("by_hand")
@pytest.mark.parametrize("looks_in", ["another store", "an empty folder"])
async def test_a_wrong_store_keeps_what_is_sent(stage: Stage, order_id: str, looks_in: str) -> None:
    right, wrong = stage.folder / "artifacts", stage.folder / "elsewhere"
    if looks_in == "another store":
        await Blobs(str(wrong)).store_id(make=True)
    gated = refund_step(order_id, approval={"expires_in": "1h"})
    async with stage.worker_here(client=looking_in(stage, right)):
        run = await stage.start(plan(gated))
        request = await run.asks()
    # As a client sends what is large.
    [kept] = stage.client.data_converter.payload_converter.to_payloads([decision_on(request)])
    data = kept.SerializeToString(deterministic=True)
    sha256 = hashlib.sha256(data).hexdigest()
    path = f"{payloads_of(run.run_id)}/{sha256}"
    await Blobs(str(right)).put(path, data)
    reference = {"uri": path, "sha256": sha256, "bytes": len(data)}
    await send_raw(run, "decide", reference)

    async with stage.worker_here(artifacts=str(wrong), client=looking_in(stage, wrong)):
        await run.history_has("workflow_task_failed")
    result = await stage.finish(run, client=looking_in(stage, right))

    assert result.state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["refunds"] == 1
    assert [row["verdict"] for row in stage.decision_rows(run)] == ["accepted"]
    failed = [
        event.workflow_task_failed_event_attributes.failure.message
        async for event in run.handle.fetch_history_events()
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
    ]
    assert any(f"{wrong} is not the artifact store of run {run.run_id}" in why for why in failed)


# Large values stay outside history, and runs work with them all the same.


BIG = "tests.variants.big"
LARGEST_HISTORY = 1_000_000  # bytes


@pytest.fixture(autouse=True)
def fresh() -> None:
    big.UNDONE.clear()
    big.TEXTS.clear()


def page(number: int, tool: str = "pages.write", **more: Any) -> dict[str, Any]:
    return {"id": f"page{number}", "tool": tool, "params": {"page": number}, **more}


async def kept_as(stage: Stage, run: Run, artifact: Artifact) -> bytes:
    store = ArtifactStore(str(stage.folder / "artifacts"), stage.ledger, largest_inline=1024)
    return await store.read_bytes(stage.tenant, run.run_id, artifact)


async def history_bytes(run: Run) -> int:
    found = await run.handle.describe()
    return int(found.raw_description.workflow_execution_info.history_size_bytes)


async def test_20_results_of_a_megabyte_leave_a_history_under_one(stage: Stage) -> None:
    reads = [page(n, "pages.read", after=[]) for n in range(10)]
    writes = [page(n, "pages.write", after=[]) for n in range(10, 20)]
    run, result = await stage.play(plan(*reads, *writes), tool_modules=BIG)

    assert result.state is RunState.COMPLETED
    assert await history_bytes(run) < LARGEST_HISTORY
    kept = {view.id: as_artifact(view.output) for view in result.steps}
    for number in range(20):
        artifact = kept[f"page{number}"]
        assert artifact is not None and artifact.bytes > 800_000
        content = await kept_as(stage, run, artifact)
        assert content == canonical_json(big.megabyte(number))
        assert artifact.sealed_for or artifact.sha256 == hashlib.sha256(content).hexdigest()


async def test_large_params_are_approved_by_their_hash_and_shown_by_reference(stage: Stage) -> None:
    params = {"text": "${page1.report}"}
    send = {"id": "send", "tool": "pages.send", "params": params, "approval": "required"}
    async with stage.worker_here(tool_modules=BIG):
        run = await stage.start(plan(page(1, "pages.read"), send))
        request = await run.approve()
        await run.completed()

    shown = as_artifact(request.params)
    assert shown is not None
    content = await kept_as(stage, run, shown)
    assert content == canonical_json({"text": big.megabyte(1)["report"]})
    assert [big.megabyte(1)["report"]] == big.TEXTS
    assert await history_bytes(run) < 100_000


async def test_an_undo_is_given_the_whole_receipt(stage: Stage) -> None:
    refuse = {"id": "refuse", "tool": "pages.refuse", "params": {"text": "x"}}
    _, result = await stage.play(plan(page(7), refuse), tool_modules=BIG)

    assert result.state is RunState.FAILED
    assert big.UNDONE == ["sku-7"]
    assert result.uncompensated == []


async def test_a_step_whose_params_are_in_the_store_waits_for_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PAUSES, ErrorType.ARTIFACT_UNAVAILABLE, timedelta(milliseconds=20))
    folder, away = stage.folder / "artifacts", stage.folder / "away"
    ask = {"id": "ask", "ask": {"question": "Go on?"}}
    send = {"id": "send", "tool": "pages.send", "params": {"text": "${page1.lines.0.sku}"}}
    send |= {"after": ["ask"], "approval": "required"}
    async with stage.worker_here(tool_modules=BIG):
        run = await stage.start(plan(page(1, "pages.read"), ask, send))
        await run.in_state(RunState.WAITING_INPUT)
        folder.rename(away)
        await run.handle.execute_update("answer", {"actor": "ann", "answer": True})
        # More often than two minutes have room for at the usual pause.
        await until(lambda: tries(run), lambda made: made > 26)
        away.rename(folder)
        await run.approve()
        await run.completed()

    assert big.TEXTS == ["sku-1"]
