"""A starter has the Temporal plugins that its settings name, as workers have."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Final

import pytest

from tests.cli.starter import Verbs
from tests.shop_process import ShopProcess
from tests.worker_process import WorkerProcess

PLUGINS: Final = "tests.e2e.plugins"


@pytest.mark.parametrize("name", ["none", "no_plugin", "Impossible", "other_codec"])
def test_a_starter_refuses_a_plugin_that_cannot_be_loaded_or_kept_beside_ours(
    settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    given = {**settings, "SUREHAND_WORKER_PLUGINS": f"{PLUGINS}:{name}"}

    ended = Verbs(given, tmp_path, monkeypatch)("list")

    assert ended.code == 2
    assert "SUREHAND_WORKER_PLUGINS" in ended.line()


def test_what_is_ours_travels_as_ever_beside_a_plugin_with_a_converter_of_its_own(
    settings: dict[str, str], shop: ShopProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order_id, name = shop.new_order(), f"run-{uuid.uuid4().hex[:8]}"
    given = {
        **settings,
        "SUREHAND_TASK_QUEUE": f"plugins-{uuid.uuid4().hex[:8]}",
        "SUREHAND_ARTIFACTS": str(tmp_path / "artifacts"),
        "SUREHAND_TOOL_MODULES": "tests.variants.refund_ungated",
        "SUREHAND_WORKFLOW_MODULES": "tests.e2e.code_frameworks",
        "SUREHAND_WORKER_PLUGINS": f"{PLUGINS}:framework",
    }
    verbs = Verbs(given, tmp_path, monkeypatch)
    plan = {"code": "Foreign", "input": {"order_id": order_id, "note": "x" * 1_200_000}}
    (tmp_path / "foreign.yaml").write_text(json.dumps(plan))

    with WorkerProcess(given, tmp_path / "worker") as worker:
        worker.wait_ready()
        ended = verbs("start", "foreign.yaml", "--run-id", name, "--wait")
        shown = verbs("show", name, "--json", SUREHAND_WORKER_PLUGINS="")

    assert ended.code == 0, ended
    assert shown.document()["result"]["output"] == f"https://shop.example/{order_id}"
    assert shop.counts(order_id)["refunds"] == 1
    files = [file for file in (tmp_path / "artifacts").rglob("*") if file.is_file()]
    assert max(file.stat().st_size for file in files) > 1_200_000  # by reference, as ever
