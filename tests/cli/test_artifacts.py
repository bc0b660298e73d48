"""``artifacts``: large values listed, fetched, and never those of another tenant."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from surehand.activities.artifacts import ArtifactStore
from surehand.activities.ledger.core.store import open_ledger
from surehand.activities.ledger.steps.artifacts import record
from surehand.workflows.identity import canonical_json, run_id_for
from tests.cli.starter import Ended, Verbs
from tests.ledger.scene import STEP, Scene

BIG: Final = {"lines": ["x" * 100] * 100}
Fetch = Callable[..., Ended]


@pytest.fixture
def run_id() -> str:
    return f"run-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def fetch(verbs: Verbs, settings: dict[str, str], store: Path, run_id: str) -> Fetch:
    """Calls ``artifacts``; a run of tenant ``default`` and one of ``acme`` have kept a value."""

    async def keep(tenant: str) -> None:
        async with open_ledger(settings["SUREHAND_DATABASE_URL"]) as ledger:
            scene = Scene(ledger, tenant)
            scene.open_run(run_id_for(tenant, run_id))
            kept = await ArtifactStore(str(store), ledger, largest_inline=8 * 1024).keep(
                tenant, run_id_for(tenant, run_id), BIG
            )
            with scene.tx() as tx:
                record(tx, run_id_for(tenant, run_id), STEP, kept)

    for tenant in ("default", "acme"):
        asyncio.run(keep(tenant))

    def call(*arguments: str) -> Ended:
        return verbs("artifacts", *arguments, SUREHAND_ARTIFACTS=str(store))

    return call


def test_a_runs_artifacts_are_listed_and_fetched(fetch: Fetch, run_id: str, tmp_path: Path) -> None:
    [row] = json.loads(fetch(run_id, "--json").out)["rows"]
    assert (row["run_id"], row["step_id"], row["type"]) == (run_id, STEP, "application/json")

    fetched = fetch(run_id, "--to", str(tmp_path / "out"))

    [file] = (tmp_path / "out").iterdir()
    assert file.read_bytes() == canonical_json(BIG)
    assert f"{file}  {row['bytes']} bytes, digest verified" in fetched.out


def test_another_tenants_artifacts_are_not_found(fetch: Fetch, run_id: str) -> None:
    other = fetch(run_id, "--tenant", "nobody")
    assert (other.code, other.line()) == (2, f"surehand: run not found: nobody/{run_id}")
    ours = json.loads(fetch(run_id, "--json").out)["rows"]
    theirs = json.loads(fetch(run_id, "--tenant", "acme", "--json").out)["rows"]
    assert {row["artifact_id"] for row in ours}.isdisjoint(row["artifact_id"] for row in theirs)


def test_an_artifact_that_was_changed_is_not_handed_out(
    fetch: Fetch, run_id: str, store: Path, tmp_path: Path
) -> None:
    [file] = [path for path in (store / "default").rglob("*") if path.is_file()]
    file.write_bytes(b"{}")

    ended = fetch(run_id, "--to", str(tmp_path / "out"))

    assert ended.code == 4
    assert "is not what was kept" in ended.line()
    assert not (tmp_path / "out").exists()


def test_an_unknown_artifact_is_named(fetch: Fetch, run_id: str) -> None:
    ended = fetch(run_id, "ar-none")

    assert (ended.code, ended.line()) == (2, f"surehand: run {run_id} has no artifact 'ar-none'")
