"""``interventions`` and ``resolve``: what nothing but a human can tell."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import pytest

from tests.cli.starter import Run, Verbs
from tests.shop_process import ShopProcess
from tests.worker_process import WorkerProcess

RECEIPT = '{"refund_id": "refund-7", "order_id": "o", "amount": "120.00", "currency": "EUR"}'


def test_a_human_settles_what_a_crash_left_unknown(
    settings: dict[str, str],
    sqlite_template: Path,
    shop: ShopProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger = shutil.copy(sqlite_template, tmp_path / "ledger.db")
    own = {
        **settings,
        "SUREHAND_DATABASE_URL": f"sqlite+aiosqlite:///{ledger}",
        "SUREHAND_TASK_QUEUE": f"resolve-{uuid.uuid4().hex[:8]}",
        "SUREHAND_TOOL_MODULES": "tests.variants.refund_human",
    }
    verbs, run = Verbs(own, tmp_path, monkeypatch), Run("in-doubt", shop.new_order())
    drill = {**own, "SUREHAND_CRASH_AT": "payments.refund:after_call"}
    with WorkerProcess(drill, tmp_path / "first") as first:
        first.wait_ready()
        assert verbs(*run.start, "--wait").code == 10
        [asked] = verbs("show", run.name, "--json").document()["pending"]
        verbs("approve", asked["approval_id"], "--params-hash", asked["params_hash"])
        first.wait_killed()
    with WorkerProcess(own, tmp_path / "second"):
        waiting = verbs(*run.start, "--wait")
        assert waiting.code == 10
        assert "OUTCOME is happened (with --receipt JSON), not-happened" in waiting.out
        [row] = verbs("interventions", "--open", "--json").document()["rows"]
        intervention = row["intervention_id"]
        line = f"python starter.py resolve {intervention} OUTCOME --run {run.name}"
        assert line in verbs("interventions").out

        unknown = verbs("resolve", "iv-none", "happened")
        settled = verbs(
            *("resolve", intervention, "happened", "--as", "bob"),
            *("--evidence", "bank statement", "--receipt", RECEIPT),
        )
        again = verbs("resolve", intervention, "not-happened", "--run", run.name)

        assert (unknown.code, settled.code, again.code) == (2, 0, 2)
        assert "intervention not found: iv-none" in unknown.line()
        assert verbs(*run.start, "--wait").code == 0
    [row] = verbs("interventions", run.name, "--json").document()["rows"]
    assert (row["state"], row["outcome"], row["actor"]) == ("settled", "happened", "bob")
    assert shop.counts(run.order)["refunds"] == 1
