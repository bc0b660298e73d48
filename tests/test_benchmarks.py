"""The benchmarks run, and say what they have measured; how much it is, is not for a test."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import peers
from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import open_ledger
from surehand.activities.ledger.core.tables import effects
from surehand.process.exits import ExitCode
from tests.ledger.scene import Scene

ROOT = Path(__file__).parent.parent
#: Tried before figures are written. The others tell in CI if a worker, a run or a kill is made in
#: another way than benchmarks make it.
SELDOM = pytest.mark.exhaustive


def measured(name: str, folder: Path, options: str) -> tuple[subprocess.CompletedProcess[str], Any]:
    """Run a benchmark; return how it has ended, and the figures that it has written down."""
    file = folder / f"{name}.json"
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *options.split(), "--json", file],
        cwd=ROOT, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    # A target that is missed on a busy machine is no broken benchmark.
    assert done.returncode in (ExitCode.DONE, ExitCode.BROKEN), done.stderr
    return done, json.loads(file.read_text())


@pytest.mark.crash
def test_the_recovery_benchmark_measures(temporal_cli: Path, tmp_path: Path) -> None:
    done, found = measured("recovery", tmp_path, "--rounds 1 --database sqlite --kind approval")

    [row] = found
    assert (row["database"], row["kind"], row["point"]) == ("sqlite", "approval", "waiting")
    assert row["n"] == 1
    assert min(row["next_effect_p50_s"], row["next_step_max_s"]) > 0
    assert "| sqlite | approval | waiting | 1 |" in done.stdout


@SELDOM
def test_the_waiting_benchmark_measures(temporal_cli: Path, tmp_path: Path) -> None:
    done, found = measured("waiting", tmp_path, "--runs 4 --parked 0.1 --database sqlite")

    row, single, together = found
    assert (row["database"], row["runs"]) == ("sqlite", 4)
    assert 0 < row["ready_mb"] < row["parked_mb"]
    assert (single["n"], together["n"]) == (2, 2)
    assert "| sqlite | 4 |" in done.stdout


def test_the_steps_benchmark_compares_modes(temporal_cli: Path, tmp_path: Path) -> None:
    few = "--rounds 1 --steps 4 --database sqlite --probe alone --effect write"
    done, found = measured("steps", tmp_path, few)

    assert done.returncode == ExitCode.DONE, done.stderr
    assert [row["mode"] for row in found] == ["sync", "async", "exit"]
    for row in found:
        assert (row["store"], row["effect"], row["runs"]) == ("sqlite", "write", 1)
        assert min(row["ms_per_step"], row["plain_ms_per_step"], row["steps_per_s"]) > 0
    assert "| exit | sqlite | write | 1 |" in done.stdout


@SELDOM
def test_the_steps_benchmark_compares_limits(temporal_cli: Path, tmp_path: Path) -> None:
    _, found = measured("steps", tmp_path, "--rounds 1 --steps 4 --database sqlite --probe limits")

    [row] = found
    assert (row["mode"], row["store"]) == ("sync", "sqlite")
    assert min(row["cpu ms free"], row["cpu ms limited"], row["ratio of cpu"]) > 0


@SELDOM
def test_the_runs_benchmark_compares_runs(temporal_cli: Path, tmp_path: Path) -> None:
    done, found = measured("runs", tmp_path, "--rounds 1 --runs 2 --mode exit --database sqlite")

    assert done.returncode == ExitCode.DONE, done.stderr
    costs, left = found[0:2] + found[4:6], found[2:4] + found[6:8]
    for part in (costs, left):
        assert [(row["mode"], row["at_once"]) for row in part] == [
            *(("plain", 1), ("exit", 1)),
            *(("plain", 2), ("exit", 2)),
        ]
    for row in costs:
        assert min(row["ms_per_run"], row["runs_per_s"], row["cpu_worker_s"]) > 0
    for row in left:
        assert min(row["events"], row["bytes"], row["workflow_tasks"]) > 0
    assert (costs[0]["ratio"], left[0]["activities"]) == (1, 5)
    assert "| exit | sqlite | 2 |" in done.stdout


@SELDOM
def test_the_peers_benchmark_compares_steps(temporal_cli: Path, tmp_path: Path) -> None:
    # Of Temporal alone: the others' packages would have to be installed.
    few = "--rounds 1 --steps 2 --runs 2 --peer temporal --database sqlite"
    done, found = measured("peers", tmp_path, few)

    assert done.returncode == ExitCode.DONE, done.stderr
    assert len(found) == 8
    for row in found:
        assert min(row["ms_per_step"], row["exit"], row["async"], row["sync"]) > 0


@SELDOM
async def test_the_ledger_has_the_peers_actions(sqlite_template: Path, tmp_path: Path) -> None:
    # The ledger's side alone: the library's package would have to be installed.
    shutil.copy(sqlite_template, tmp_path / "ledger.db")
    async with open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        scene = Scene.begin(ledger, "default")
        for turn, what in enumerate(peers.ACTIONS.values()):
            made = await peers.play_ledger(scene, 10 * turn, 3, what)
            assert made.seconds_per_step() > 0
        with scene.tx() as tx:
            states = [row["state"] for row in tx.all(rows_of(effects, effects.c.state))]
    assert states == ["committed"] * 6
