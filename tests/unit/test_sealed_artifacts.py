"""Artifacts of runs that have keys: nobody reads or guesses them, and no other run has them."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Final

import pytest

from surehand.activities.artifacts import ArtifactStore, ArtifactUnavailable
from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.steps import artifacts as artifact_rows
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.run_keys import LedgerKeys
from surehand.workflows.canonical_json import canonical_json
from surehand.workflows.contracts.base import Artifact
from surehand.workflows.contracts.runs import Linked
from tests.conftest import KEYS
from tests.ledger.scene import LARGEST_INLINE, OTHER_RUN, RUN, STEP, Scene

MARKER: Final = "Ana Silva, 1 Elm Street"
BIG: Final = {"lines": [MARKER] * 1000}
TENANT: Final = "default"


def store_in(folder: Path, ledger: Ledger, keys: str = KEYS) -> ArtifactStore:
    """Return the store as a worker that was started just now has it."""
    ledger.keys = LedgerKeys.of(keys, lambda: ledger)
    return ArtifactStore(str(folder), ledger, largest_inline=LARGEST_INLINE)


def artifact(kept: Kept) -> Artifact:
    assert kept.artifact is not None
    return kept.artifact


async def test_kept_content_is_neither_read_nor_guessed(tmp_path: Path, ledger: Ledger) -> None:
    kept = artifact(await store_in(tmp_path, ledger).keep(TENANT, RUN, BIG))

    guessed = hashlib.sha256(canonical_json(BIG)).hexdigest()
    files = [file for file in (tmp_path / TENANT).rglob("*") if file.is_file()]
    assert [file.name for file in files] == [kept.sha256]
    assert kept.sha256 != guessed
    assert MARKER.encode() not in files[0].read_bytes()
    assert await store_in(tmp_path, ledger).read(TENANT, RUN, kept) == BIG


async def test_runs_keep_the_same_content_apart(tmp_path: Path, ledger: Ledger) -> None:
    names = [
        artifact(await store_in(tmp_path, ledger).keep(TENANT, run_id, BIG)).sha256
        for run_id in (RUN, RUN, f"{RUN}~child", OTHER_RUN)
    ]

    assert len(set(names)) == 2 and names[3] not in names[:3]
    assert len([file for file in (tmp_path / TENANT).rglob("*") if file.is_file()]) == 2


async def test_the_ledger_seals_what_it_keeps_for_the_store(tmp_path: Path, ledger: Ledger) -> None:
    store = store_in(tmp_path, ledger)
    kept = await store.keep_in_ledger(TENANT, RUN, BIG)
    scene = Scene.begin(ledger, TENANT)
    with scene.tx() as tx:
        artifact_rows.record_artifact(tx, RUN, STEP, kept)

    assert kept.content is not None and MARKER.encode() not in kept.content
    assert await store_in(tmp_path, ledger).read(TENANT, RUN, artifact(kept)) == BIG


async def test_another_runs_file_is_refused(tmp_path: Path, ledger: Ledger) -> None:
    store = store_in(tmp_path, ledger)
    own = artifact(await store.keep(TENANT, RUN, BIG))
    others = artifact(await store.keep(TENANT, OTHER_RUN, {**BIG, "to": "mallory"}))
    shutil.copyfile(tmp_path / others.uri, tmp_path / own.uri)

    with pytest.raises(ArtifactUnavailable, match="changed, or encrypted for something else"):
        await store.read(TENANT, RUN, own)


async def test_a_run_reads_what_the_ledger_has_given_it(tmp_path: Path, ledger: Ledger) -> None:
    store = store_in(tmp_path, ledger)
    kept = await store.keep(TENANT, RUN, BIG)
    scene = Scene.begin(ledger, TENANT)
    with scene.tx() as tx:
        artifact_rows.record_artifact(tx, RUN, STEP, kept)
    await store.named(OTHER_RUN, "0" * 64)  # makes its key
    scene.open_run(OTHER_RUN)

    with pytest.raises(ArtifactUnavailable, match="is of another run than"):
        await store.read(TENANT, OTHER_RUN, artifact(kept))
    claimed = artifact(kept).model_copy(update={"sealed_for": OTHER_RUN})
    with pytest.raises(ArtifactUnavailable):
        await store.read(TENANT, OTHER_RUN, claimed)

    # The effect stood already: its receipt is this run's, too.
    with scene.tx() as tx:
        artifact_rows.record_artifact(tx, OTHER_RUN, STEP, kept)
    assert await store.read(TENANT, OTHER_RUN, artifact(kept)) == BIG


async def test_a_fork_reads_what_it_was_forked_from(tmp_path: Path, ledger: Ledger) -> None:
    store = store_in(tmp_path, ledger)
    kept = await store.keep(TENANT, RUN, BIG)
    scene = Scene.begin(ledger, TENANT)
    with scene.tx() as tx:
        artifact_rows.record_artifact(tx, RUN, STEP, kept)
    await store.named(OTHER_RUN, "0" * 64)  # makes its key
    scene.open_run(OTHER_RUN, linked=Linked(run_id=RUN))

    assert await store.read(TENANT, OTHER_RUN, artifact(kept)) == BIG


async def test_without_keys_a_process_says_so(tmp_path: Path, ledger: Ledger) -> None:
    kept = artifact(await store_in(tmp_path, ledger).keep(TENANT, RUN, BIG))

    with pytest.raises(ArtifactUnavailable, match="SUREHAND_KEY_ENCRYPTION_KEYS is not set here"):
        await store_in(tmp_path, ledger, keys="").read(TENANT, RUN, kept)
