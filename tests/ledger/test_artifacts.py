"""Large receipts: kept outside history, verified when read, never in the way of an outcome."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from surehand.activities.artifacts import (
    ArtifactStore,
    ArtifactUnavailable,
)
from surehand.activities.effects.recorder import Done
from surehand.activities.ledger.core.tables import artifacts, effects
from surehand.activities.ledger.history.reads import artifacts_of
from surehand.activities.ledger.steps import artifacts as artifact_rows
from surehand.workflows.contracts.values import Artifact, as_artifact
from surehand.workflows.identity import digest
from tests.ledger.attempts import Provider, effect_call, request_for
from tests.ledger.scene import LARGEST_INLINE, OTHER_RUN, RUN, STEP, Scene

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


async def test_a_small_receipt_stays_in_its_entry(scene: Scene) -> None:
    loaded = Provider([{"id": "r-1"}]).tool(recovery="human")

    result = await effect_call(scene, loaded, request_for(scene, loaded)).run()

    assert isinstance(result, Done) and result.receipt == {"id": "r-1"}
    assert scene.rows(artifacts) == []


async def test_another_run_that_replays_an_effect_lists_its_receipt_too(scene: Scene) -> None:
    loaded = Provider([BIG]).tool(recovery="human")
    await effect_call(scene, loaded, request_for(scene, loaded)).run()
    scene.open_run(OTHER_RUN)

    again = request_for(scene, loaded, run_id=OTHER_RUN, holder="other", activity_key="other")
    result = await effect_call(scene, loaded, again).run()

    assert isinstance(result, Done) and result.replayed
    [row] = await scene.ledger.transact(scene.tenant, artifacts_of, OTHER_RUN)
    assert row["sha256"] == reference(result.receipt).sha256


async def test_an_outcome_does_not_wait_for_a_store_that_is_away(
    scene: Scene, tmp_path: Path
) -> None:
    folder = tmp_path / "artifacts"
    store = ArtifactStore(str(folder), scene.ledger, largest_inline=LARGEST_INLINE)
    folder.rmdir()
    folder.write_text("a file where the folder was")
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


async def test_what_the_store_has_lost_and_does_not_take_again_the_ledger_keeps(
    scene: Scene, tmp_path: Path
) -> None:
    folder = tmp_path / "artifacts"
    store = ArtifactStore(str(folder), scene.ledger, largest_inline=LARGEST_INLINE)
    kept = await store.keep(scene.tenant, RUN, BIG)
    with scene.tx() as tx:
        artifact_rows.record(tx, RUN, STEP, kept)
    take_away(folder)

    again = await store.keep(scene.tenant, RUN, BIG)
    with scene.tx() as tx:
        artifact_rows.record(tx, RUN, STEP, again)

    assert await store.read(scene.tenant, RUN, reference(again.value)) == BIG
    assert len(scene.rows(artifacts)) == 1


async def test_what_the_ledger_does_not_have_is_looked_for_in_the_store(
    scene: Scene, tmp_path: Path
) -> None:
    folder = tmp_path / "artifacts"
    store = ArtifactStore(str(folder), scene.ledger, largest_inline=LARGEST_INLINE)
    kept = await store.keep(scene.tenant, RUN, BIG)
    assert kept.artifact is not None
    meant = kept.artifact.model_copy(update={"uri": f"ledger:{kept.artifact.sha256}"})

    assert await store.read(scene.tenant, RUN, meant) == BIG
    take_away(folder)
    with pytest.raises(ArtifactUnavailable):
        await store.read(scene.tenant, RUN, meant)


async def test_a_store_that_is_not_the_one_a_run_was_opened_with_says_so(
    scene: Scene, tmp_path: Path
) -> None:
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


async def test_an_artifact_of_another_tenant_is_not_there(scene: Scene, tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path), scene.ledger, largest_inline=LARGEST_INLINE)
    kept = await store.keep(scene.tenant, RUN, BIG)
    assert kept.artifact is not None

    with pytest.raises(ArtifactUnavailable):
        await store.read("somebody-else", RUN, kept.artifact)
    elsewhere = kept.artifact.model_copy(update={"uri": f"ledger:{kept.artifact.sha256}"})
    with pytest.raises(ArtifactUnavailable, match="the ledger does not have it"):
        await store.read("somebody-else", RUN, elsewhere)
