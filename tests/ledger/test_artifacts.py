"""Artifacts: kept outside history, written part by part, and never in the way of an outcome."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from temporalio.exceptions import ApplicationError

from surehand.activities.artifacts import ArtifactStore, ArtifactUnavailable
from surehand.activities.effects import drafts as kept_drafts
from surehand.activities.effects.leases import LeaseLost
from surehand.activities.effects.recorder import Done
from surehand.activities.ledger.core.statements import update_rows
from surehand.activities.ledger.core.tables import artifacts, drafts, effects
from surehand.activities.ledger.history.reads import artifacts_of
from surehand.activities.ledger.steps import artifacts as artifact_rows
from surehand.activities.ledger.steps.entries import ClaimRequest
from surehand.activities.tools import call_reports as tool_drafts
from surehand.activities.tools.call_reports import Draft
from surehand.activities.tools.failures import Transient
from surehand.activities.tools.tool import Tool, ToolContext
from surehand.activities.tools.toolbox import WRITE, tool
from surehand.workflows.canonical_json import digest
from surehand.workflows.contracts.base import Artifact, as_artifact
from tests.ledger.attempts import Payment, Provider, effect_call, request_for, time_passes
from tests.ledger.scene import LARGEST_INLINE, OTHER_RUN, RUN, STEP, Scene


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "artifacts"


@pytest.fixture
def store(scene: Scene, folder: Path) -> ArtifactStore:
    return ArtifactStore(str(folder), scene.ledger, largest_inline=LARGEST_INLINE)


BIG = {"lines": ["x" * 1000 for _ in range(20)]}


def reference(value: Any) -> Artifact:
    artifact = as_artifact(value)
    assert artifact is not None
    return artifact


async def test_a_large_receipt_is_kept_outside_and_its_entry_refers_to_it(scene: Scene) -> None:
    loaded = Provider([BIG]).tool(recovery="human")

    result = await effect_call(scene, loaded, request_for(scene, loaded)).run()

    assert isinstance(result, Done)
    kept = reference(result.receipt)
    [entry] = scene.rows(effects)
    assert entry["receipt"] == result.receipt
    [row] = scene.rows(artifacts)
    assert (row["run_id"], row["sha256"], row["content"]) == (RUN, kept.sha256, None)
    assert await scene.artifacts.read(scene.tenant, RUN, kept) == BIG
    [committed] = [e for e in scene.events(RUN) if e["type"] == "effect.committed"]
    assert committed["body"]["receipt"] == digest(BIG)


async def test_another_run_that_replays_an_effect_lists_its_receipt_too(scene: Scene) -> None:
    loaded = Provider([BIG]).tool(recovery="human")
    await effect_call(scene, loaded, request_for(scene, loaded)).run()
    scene.open_run(OTHER_RUN)

    again = request_for(scene, loaded, run_id=OTHER_RUN, holder="other", activity_key="other")
    result = await effect_call(scene, loaded, again).run()

    assert isinstance(result, Done) and result.replayed
    [row] = await scene.ledger.transact(scene.tenant, artifacts_of, OTHER_RUN)
    assert row["sha256"] == reference(result.receipt).sha256


async def test_a_lost_store_delays_no_outcome(
    scene: Scene, store: ArtifactStore, folder: Path
) -> None:
    take_away(folder)
    loaded = Provider([BIG]).tool(recovery="human")
    call = effect_call(scene, loaded, request_for(scene, loaded), artifacts=store)

    result = await call.run()

    assert isinstance(result, Done)
    kept = reference(result.receipt)
    assert kept.uri.startswith("ledger:")
    assert await store.read(scene.tenant, RUN, kept) == BIG


def take_away(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("a file where the folder was")


async def test_the_ledger_keeps_what_the_store_lost(
    scene: Scene, store: ArtifactStore, folder: Path
) -> None:
    kept = await store.keep(scene.tenant, RUN, BIG)
    with scene.tx() as tx:
        artifact_rows.record_artifact(tx, RUN, STEP, kept)
    take_away(folder)

    again = await store.keep(scene.tenant, RUN, BIG)
    with scene.tx() as tx:
        artifact_rows.record_artifact(tx, RUN, STEP, again)

    assert await store.read(scene.tenant, RUN, reference(again.value)) == BIG
    assert len(scene.rows(artifacts)) == 1


async def test_the_store_is_asked_after_the_ledger(
    scene: Scene, store: ArtifactStore, folder: Path
) -> None:
    kept = await store.keep(scene.tenant, RUN, BIG)
    assert kept.artifact is not None
    meant = kept.artifact.model_copy(update={"uri": f"ledger:{kept.artifact.sha256}"})

    assert await store.read(scene.tenant, RUN, meant) == BIG
    take_away(folder)
    with pytest.raises(ArtifactUnavailable):
        await store.read(scene.tenant, RUN, meant)


async def test_another_runs_store_says_so(scene: Scene, tmp_path: Path) -> None:
    """Also an empty folder in its place: one that is not mounted."""
    right, other, empty = (
        ArtifactStore(str(tmp_path / name), scene.ledger, largest_inline=LARGEST_INLINE)
        for name in ("right", "other", "empty")
    )
    run_id = f"{scene.tenant}/opened-there"
    scene.open_run(run_id, store=await right.store_id())
    assert await other.store_id() != await right.store_id()

    assert await right.blobs.elsewhere(run_id) is None
    for store in (other, empty):
        assert f"{store.url} is not the artifact store of" in str(
            await store.blobs.elsewhere(run_id)
        )
    # Of a run that nobody has opened nobody knows.
    assert await other.blobs.elsewhere(f"{scene.tenant}/unknown") is None


async def test_an_artifact_of_another_tenant_is_not_there(
    scene: Scene, store: ArtifactStore
) -> None:
    kept = await store.keep(scene.tenant, RUN, BIG)
    assert kept.artifact is not None

    with pytest.raises(ArtifactUnavailable):
        await store.read("somebody-else", RUN, kept.artifact)
    elsewhere = kept.artifact.model_copy(update={"uri": f"ledger:{kept.artifact.sha256}"})
    with pytest.raises(ArtifactUnavailable, match="the ledger does not have it"):
        await store.read("somebody-else", RUN, elsewhere)


#: More than a draft's row keeps.
LARGE: Final = b"x" * (kept_drafts.LARGEST_TAIL + 1)
Body = Callable[[Draft], Awaitable[Any]]


def writer(*bodies: Body) -> Tool:
    """Return a tool whose attempts do that, one after the other."""
    left = list(bodies)

    async def write(params: Payment, ctx: ToolContext) -> Any:
        """Write a report."""
        return await left.pop(0)(ctx.artifact)

    return tool("reports.write", effect=WRITE, irreversible=True, recovery="human")(write)


async def attempt(scene: Scene, loaded: Tool, number: int = 1, **changes: Any) -> Any:
    store = changes.pop("artifacts", None)
    request: ClaimRequest = request_for(scene, loaded, attempt=number, **changes)
    return await effect_call(scene, loaded, request, artifacts=store).run()


async def fails(draft: Draft) -> None:
    raise Transient("the printer is out of paper")


async def begins(draft: Draft) -> None:
    for part in ("a", LARGE, "ä"):
        await draft.append(part)
    await fails(draft)


async def removed(scene: Scene, store: ArtifactStore) -> int:
    """Remove what nobody needs any more, and return how many drafts that are."""
    over = await scene.ledger.transact(scene.tenant, artifact_rows.end_unneeded_drafts)
    await store.remove_drafts(scene.tenant, over)
    return len(over)


def parts(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if "drafts" in path.parts and path.is_file()]


async def test_attempts_make_one_artifact(scene: Scene, store: ArtifactStore, folder: Path) -> None:
    seen: dict[str, Any] = {}

    async def ends(draft: Draft) -> Any:
        seen.update(bytes=draft.bytes_written, last=await draft.read(last=3))
        await draft.append(b"end")
        return await draft.finish(media_type="text/plain")

    loaded = writer(begins, ends)
    with pytest.raises(ApplicationError, match="out of paper"):
        await attempt(scene, loaded, artifacts=store)
    done = await attempt(scene, loaded, 2, artifacts=store)

    content = b"a" + LARGE + "ä".encode() + b"end"
    assert isinstance(done, Done)
    assert seen == {"bytes": len(content) - 3, "last": b"x" + "ä".encode()}
    [row] = scene.rows(artifacts)
    assert done.receipt == {
        "artifact": f"sha256:{row['sha256']}",
        "bytes": len(content),
        "media_type": "text/plain",
    }
    assert (folder / row["uri"]).read_bytes() == content
    assert parts(folder) and await removed(scene, store) == 1
    assert parts(folder) == [] and (folder / row["uri"]).exists()
    assert await removed(scene, store) == 0


@pytest.mark.parametrize("text", ["late", LARGE.decode()], ids=["small", "large"])
async def test_an_overtaken_attempt_adds_nothing_and_leaves_nothing(
    scene: Scene, store: ArtifactStore, folder: Path, text: str
) -> None:
    at, goes_on = asyncio.Event(), asyncio.Event()
    told: list[Any] = []

    async def late(draft: Draft) -> Any:
        await draft.append("early ")
        at.set()
        with suppress(asyncio.CancelledError):  # it is told, and goes on all the same
            await goes_on.wait()
        for write in (lambda: draft.append(text), draft.restart, lambda: draft.finish("a/b")):
            try:
                await write()
            except LeaseLost as error:
                told.append(error)
        return "late"

    async def ends(draft: Draft) -> Any:
        await draft.append("right")
        return (await draft.read()).decode()

    loaded = writer(late, ends)
    overtaken = asyncio.create_task(attempt(scene, loaded, artifacts=store))
    await at.wait()
    # Its lease is over, and a human says that it has not happened: the next attempt may write.
    time_passes(scene)
    newer = request_for(scene, loaded, attempt=2)
    with scene.tx() as tx:
        failed = {"state": "failed", "lease_until_ms": None}
        assert tx.execute(update_rows(effects, key=newer.key).values(failed)) == 1
    done = await effect_call(scene, loaded, newer, artifacts=store).run()
    assert isinstance(done, Done)
    await removed(scene, store)
    goes_on.set()
    with pytest.raises(ApplicationError, match="taken this effect over"):
        await overtaken

    assert done.receipt == "early right"
    assert len(told) == 3
    assert parts(folder) == []
    assert [row["type"] for row in scene.rows(artifacts)] == ["application/json"]  # its receipt


async def test_a_call_with_other_params_begins_anew(scene: Scene, store: ArtifactStore) -> None:
    async def whole(draft: Draft) -> Any:
        await draft.append("anew")
        return (await draft.read()).decode()

    loaded = writer(begins, whole)
    with pytest.raises(ApplicationError, match="out of paper"):
        await attempt(scene, loaded, artifacts=store)
    other = {"order": "1002", "amount": "120.00"}
    done = await attempt(scene, loaded, 2, artifacts=store, params=other, key="refund:1002")

    assert done.receipt == "anew"
    assert [row["ended_ms"] is not None for row in scene.rows(drafts)] == [True, True]


async def test_what_a_tool_begins_anew_stands_alone(scene: Scene, store: ArtifactStore) -> None:
    async def anew(draft: Draft) -> Any:
        await draft.restart()
        sizes = [draft.bytes_written]
        await draft.append("b")
        return [*sizes, draft.bytes_written, (await draft.read()).decode()]

    loaded = writer(begins, anew)
    with pytest.raises(ApplicationError, match="out of paper"):
        await attempt(scene, loaded, artifacts=store)

    assert (await attempt(scene, loaded, 2, artifacts=store)).receipt == [0, 1, "b"]
    assert await removed(scene, store) == 2


async def test_a_cancelled_part_is_there_whole_or_not(scene: Scene, store: ArtifactStore) -> None:
    async def cancels(draft: Draft) -> Any:
        await draft.append("a")
        for _ in range(5):
            part = asyncio.ensure_future(draft.append("b"))
            await asyncio.sleep(0)
            part.cancel()
            await asyncio.wait({part})
            await draft.append("c")
        return (await draft.read()).decode()

    text = (await attempt(scene, writer(cancels), artifacts=store)).receipt

    assert (text[0], text.count("c"), set(text)) == ("a", 5, set(text) & set("abc"))


async def test_a_write_past_the_largest_size_is_in_doubt_because_it_may_have_happened(
    scene: Scene, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_drafts, "LARGEST_ARTIFACT", 3)

    async def too_much(draft: Draft) -> Any:
        await draft.append("four")

    asked = await attempt(scene, writer(too_much), artifacts=store)

    assert "an artifact of 4 bytes: 3 at most" in asked.question
