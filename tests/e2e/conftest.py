"""The stage of each end-to-end test."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client

from surehand.activities.ledger.core.store import Ledger
from tests.e2e.stage import Stage, speaking
from tests.shop_process import ShopProcess


@pytest.fixture
async def stage(
    client: Client,
    shop: ShopProcess,
    ledger: Ledger,
    ledger_url: str,
    task_queue: str,
    tmp_path: Path,
    keys: str,
) -> AsyncIterator[Stage]:
    """A stage; after each test what its runs have left in the ledger is audited."""
    client = speaking(client, tmp_path / "artifacts", ledger, keys)
    stage = Stage(client, shop, ledger, ledger_url, task_queue, tmp_path, keys)
    yield stage
    await stage.audit()


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine's own is configured, for what reads its settings itself."""
    for name in os.environ:
        if name.startswith(("SUREHAND_", "TEMPORAL_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", os.devnull)


@pytest.fixture
def count(tmp_path: Path) -> Path:
    """The file in which a model counts its turns."""
    return tmp_path / "turns"
