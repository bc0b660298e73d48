"""``interventions`` and ``resolve``: what nothing but a human can tell."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import uuid
from pathlib import Path

import pytest

from surehand.process.dev_server import DevServer
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
        "SUREHAND_DATABASE_URL": f"sqlite:///{ledger}",
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
        [row] = verbs("interventions", "--open", "--json").document()["rows"]
        intervention = row["intervention_id"]
        pasted = [shlex.split(line) for line in waiting.out.splitlines() if " resolve " in line]
        outcomes = ["happened", "not-happened", "call-off", "compensated", "undo", "give-up"]
        resolve = ["python", "starter.py", "resolve", intervention]
        assert [line[4] for line in pasted if line[:4] == resolve] == outcomes
        line = f"python starter.py resolve {intervention} OUTCOME --run {run.name}"
        assert line in verbs("interventions").out

        broken = verbs("resolve", intervention, "happened", "--receipt", "{bad")
        audited = verbs("audit", run.name)
        unknown = verbs("resolve", "iv-none", "happened")
        mailless = verbs("resolve", intervention, "happened", "--evidence", "bank statement")
        settled = verbs(
            *("resolve", intervention, "happened", "--as", "bob"),
            *("--evidence", "bank statement", "--receipt", RECEIPT),
        )
        again = verbs("resolve", intervention, "not-happened", "--run", run.name)

        assert (broken.code, audited.code) == (2, 0)
        assert "--receipt must be JSON, such as" in broken.line()
        assert "line 1, column 2" in broken.line()
        assert f"waits for a human: {intervention}" in audited.out
        assert "nobody knows whether it happened: payments.refund (step refund" in audited.out
        assert mailless.code == 2
        assert "step mail takes ${refund.amount} from what this call returned" in mailless.line()
        assert (unknown.code, settled.code, again.code) == (2, 0, 2)
        assert "intervention not found: iv-none" in unknown.line()
        assert verbs(*run.start, "--wait").code == 0
    [row] = verbs("interventions", run.name, "--json").document()["rows"]
    assert (row["state"], row["outcome"], row["actor"]) == ("settled", "happened", "bob")
    assert shop.counts(run.order)["refunds"] == 1


def test_a_human_settles_in_the_ledger_what_a_terminated_run_has_left(
    settings: dict[str, str],
    sqlite_template: Path,
    shop: ShopProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    temporal_cli: Path,
    temporal_server: DevServer,
) -> None:
    ledger, unique = shutil.copy(sqlite_template, tmp_path / "ledger.db"), uuid.uuid4().hex[:8]
    own = {
        **settings,
        "SUREHAND_DATABASE_URL": f"sqlite:///{ledger}",
        "SUREHAND_TASK_QUEUE": f"resolve-{unique}",
        "SUREHAND_TOOL_MODULES": "tests.variants.refund_human",
    }
    verbs, run = Verbs(own, tmp_path, monkeypatch), Run(f"left-{unique}", shop.new_order())
    shop.fault("refunds", ignore_keys=True, ignore_lookup=True, fail="drop_after", times=1)
    with WorkerProcess(own, tmp_path / "worker") as worker:
        worker.wait_ready()
        assert verbs(*run.start, "--wait").code == 10
        [asked] = verbs("show", run.name, "--json").document()["pending"]
        verbs("approve", asked["approval_id"], "--params-hash", asked["params_hash"])
        assert verbs(*run.start, "--wait").code == 10
    terminate = ["workflow", "terminate", "--workflow-id", run.name]
    terminate += ["--address", temporal_server.address]
    subprocess.run([temporal_cli, *terminate], check=True, capture_output=True)
    [row] = verbs("interventions", "--open", "--json").document()["rows"]
    happened = ("resolve", row["intervention_id"], "happened", "--as", "bob")
    proof = ("--evidence", "bank statement", "--receipt", RECEIPT)

    assert "Waiting for a human: 1" in verbs("reconcile").out
    assert verbs("reconcile", "--json").document()["for_a_human"] == 1
    for arguments in ((), ("--run", run.name)):
        without = verbs(*happened, *arguments, *proof, SUREHAND_DATABASE_URL="")
        assert without.code == 2
        assert "SUREHAND_DATABASE_URL" in without.line()
    stranger = verbs(*happened, *proof, "--tenant", "acme")
    unproven = verbs(*happened)
    settled = [verbs(*happened, *proof, "--json") for _ in range(2)]
    second = verbs("resolve", row["intervention_id"], "not-happened", "--run", run.name)

    assert (stranger.code, unproven.code, second.code) == (2, 2, 2)
    assert "evidence" in unproven.line()
    assert "already settled by bob: happened" in second.line()
    assert [one.code for one in settled] == [0, 0]
    assert "in the ledger" in settled[0].document()["message"]
    [effect] = verbs("effects", run.name, "--json").document()["rows"]
    assert (effect["state"], effect["receipt"]["refund_id"]) == ("committed", "refund-7")
    events = verbs("events", run.name, "--json").document()["rows"]
    [event] = [one["body"] for one in events if one["type"] == "intervention.settled"]
    assert (event["actor"], event["evidence"]) == ("bob", "bank statement")
    assert verbs("audit", run.name).code == 0
    assert "Waiting for a human" not in verbs("reconcile").out
