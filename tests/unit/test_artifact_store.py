"""The artifact store: what it keeps, and never follows, whatever database the ledger has."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

import pytest

from surehand.activities.artifacts import ArtifactStore, ArtifactUnavailable
from surehand.activities.ledger.core.store import Ledger, TenantInvalid
from surehand.process import blobs
from surehand.process.exits import WrongUse
from surehand.workflows.contracts.base import ARTIFACT, Artifact
from surehand.workflows.payload_codec import StoreUnavailable
from tests.ledger.scene import LARGEST_INLINE
from tests.unit.values import ODD_TENANTS

TENANT: Final = "acme"
RUN: Final = "run-1"
BIG: Final = {"lines": ["x" * 1000 for _ in range(20)]}


def store_in(folder: Path, ledger: Ledger) -> ArtifactStore:
    return ArtifactStore(str(folder), ledger, largest_inline=LARGEST_INLINE)


async def test_changed_content_is_not_what_was_kept(ledger: Ledger, tmp_path: Path) -> None:
    store = store_in(tmp_path, ledger)
    kept = await store.keep(TENANT, RUN, BIG)
    assert kept.artifact is not None
    file = tmp_path / kept.artifact.uri
    file.write_bytes(file.read_bytes().replace(b"x", b"y", 1))

    with pytest.raises(ArtifactUnavailable, match="not what was kept"):
        await store.read(TENANT, RUN, kept.artifact)


@pytest.mark.parametrize("left", [b"", b"\0" * 20_047], ids=["nothing", "zeros"])
async def test_power_cuts_are_mended(ledger: Ledger, tmp_path: Path, left: bytes) -> None:
    kept = await store_in(tmp_path, ledger).keep(TENANT, RUN, BIG)
    assert kept.artifact is not None
    (tmp_path / kept.artifact.uri).write_bytes(left)

    again = await store_in(tmp_path, ledger).keep(TENANT, RUN, BIG)

    assert again == kept
    assert await store_in(tmp_path, ledger).read(TENANT, RUN, kept.artifact) == BIG


async def test_a_disk_that_fails_while_a_file_is_moved_is_a_store_that_is_away(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*places: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    store = store_in(tmp_path, ledger)
    kept = await store.keep(TENANT, RUN, BIG)
    assert kept.artifact is not None
    monkeypatch.setattr(blobs, "to_disk", fails)

    with pytest.raises(StoreUnavailable, match="Input/output error"):
        await store.blobs.move(kept.artifact.uri, f"{TENANT}/aside/one")


async def test_a_file_goes_to_disk_with_each_folder_that_leads_to_it(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(blobs, "to_disk", lambda *places: synced.extend(places))
    root = tmp_path / "store"

    kept = await store_in(root, ledger).keep(TENANT, RUN, BIG)

    assert kept.artifact is not None
    file = root / kept.artifact.uri
    expected = {file, *(one for one in file.parents if one.is_relative_to(root))}
    assert len(expected) > 2
    assert expected <= set(synced)


async def test_the_path_in_a_reference_is_never_followed(ledger: Ledger, tmp_path: Path) -> None:
    store = store_in(tmp_path / "store", ledger)
    secret = tmp_path / "secret"
    secret.write_text("{}")
    forged = Artifact(sha256="b" * 64, uri=os.fspath(secret), bytes=2)

    with pytest.raises(ArtifactUnavailable):
        await store.read(TENANT, RUN, forged)


@pytest.mark.parametrize("tenant", ODD_TENANTS, ids=ascii)
async def test_other_tenants_get_no_folder(ledger: Ledger, tmp_path: Path, tenant: str) -> None:
    store = store_in(tmp_path / "store", ledger)

    kept = await store.keep(tenant, RUN, BIG)

    # An outcome is in hand: it is not lost over a name.
    assert kept.artifact is not None and kept.artifact.uri.startswith("ledger:")
    written = {file.name for file in tmp_path.rglob("*") if file.is_file()}
    assert {name for name in written if not name.startswith("ledger.db")} == set()
    for uri in (kept.artifact.uri, "x/sha256/aa"):
        with pytest.raises(ArtifactUnavailable):
            await store.read(tenant, RUN, kept.artifact.model_copy(update={"uri": uri}))


def test_nothing_is_written_for_a_name_that_is_no_tenants(ledger: Ledger) -> None:
    for tenant in ODD_TENANTS:
        with pytest.raises(TenantInvalid), ledger.transaction(tenant):
            raise AssertionError("it was opened")
    assert ledger.tenants.isdisjoint(ODD_TENANTS)


async def test_a_receipt_like_a_reference_is_kept(ledger: Ledger, tmp_path: Path) -> None:
    store = store_in(tmp_path, ledger)
    odd = Artifact(sha256="c" * 64, uri="x", bytes=1).reference()

    kept = await store.keep(TENANT, RUN, odd)

    assert kept.value != odd and kept.artifact is not None
    assert await store.read(TENANT, RUN, kept.artifact) == odd


async def test_up_to_8_kib_of_json_stay_inline(ledger: Ledger, tmp_path: Path) -> None:
    store = store_in(tmp_path, ledger)
    largest = "x" * (LARGEST_INLINE - 2)

    assert (await store.keep(TENANT, RUN, largest)).value == largest
    assert ARTIFACT in (await store.keep(TENANT, RUN, largest + "x")).value


def test_a_store_that_cannot_be_is_named(ledger: Ledger) -> None:
    with pytest.raises(WrongUse, match="nonsense://x"):
        ArtifactStore("nonsense://x", ledger, largest_inline=LARGEST_INLINE)
