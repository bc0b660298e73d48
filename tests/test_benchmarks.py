"""The benchmarks run, and say what they have measured; how much it is, is not for a test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from surehand.process.exits import ExitCode

ROOT = Path(__file__).parent.parent


@pytest.mark.crash
def test_the_recovery_benchmark_kills_a_worker_and_writes_down_what_it_measured(
    temporal_cli: Path, tmp_path: Path
) -> None:
    found = tmp_path / "recovery.json"
    one_pair = ["--rounds", "1", "--database", "sqlite", "--kind", "approval"]

    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.recovery", *one_pair, "--json", found],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip

    # A target that is missed on a busy machine is no broken benchmark.
    assert done.returncode in (ExitCode.DONE, ExitCode.BROKEN), done.stderr
    [row] = json.loads(found.read_text())
    assert (row["database"], row["kind"], row["point"]) == ("sqlite", "approval", "waiting")
    for measured in (row["next_effect_s"], row["next_step_s"]):
        assert measured.keys() == {"n", "p50", "p95", "shortest", "longest"}
        assert measured["n"] == 1
    assert "| approval | sqlite | 1 |" in done.stdout


def test_the_waiting_benchmark_approves_what_waits_and_writes_down_what_it_cost(
    temporal_cli: Path, tmp_path: Path
) -> None:
    found = tmp_path / "waiting.json"
    few = ["--runs", "4", "--parked", "0.1", "--database", "sqlite"]

    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.waiting", *few, "--json", found],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip

    assert done.returncode in (ExitCode.DONE, ExitCode.BROKEN), done.stderr
    [row] = json.loads(found.read_text())
    assert (row["database"], row["runs"]) == ("sqlite", 4)
    assert 0 < row["ready_mb"] < row["parked_mb"]
    assert (row["single"]["n"], row["together"]["n"]) == (2, 2)
    assert "| sqlite | 4 |" in done.stdout


def test_the_steps_benchmark_compares_each_mode_with_temporal_alone(
    temporal_cli: Path, tmp_path: Path
) -> None:
    found = tmp_path / "steps.json"
    small = ["--rounds", "1", "--steps", "4", "--database", "sqlite", "--probe", "alone"]

    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.steps", *small, "--effect", "write", "--json", found],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip

    assert done.returncode == ExitCode.DONE, done.stderr
    rows = json.loads(found.read_text())
    assert [row["mode"] for row in rows] == ["sync", "async", "exit"]
    for row in rows:
        assert (row["store"], row["effect"], row["runs"]) == ("sqlite", "write", 1)
        assert min(row["ms_per_step"], row["plain_ms_per_step"], row["steps_per_s"]) > 0
    assert "| exit | sqlite | write | 1 |" in done.stdout


def test_the_retries_benchmark_compares_each_mode_with_temporal_alone(
    temporal_cli: Path, tmp_path: Path
) -> None:
    found = tmp_path / "retries.json"

    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.retries", "--rounds", "1", "--database", "sqlite",
         "--json", found],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip

    assert done.returncode in (ExitCode.DONE, ExitCode.BROKEN), done.stderr
    rows = json.loads(found.read_text())
    assert [row["mode"] for row in rows] == ["sync", "async", "exit", "plain"]
    for row in rows:
        assert 0 < row["shortest_s"] <= row["p50_s"] <= row["longest_s"]
    assert "| plain | sqlite | 2 |" in done.stdout


def test_the_guards_benchmark_compares_keys_and_quotas_with_none(
    temporal_cli: Path, tmp_path: Path
) -> None:
    found = tmp_path / "guards.json"
    few = ["--rounds", "1", "--steps", "3", "--mode", "sync", "--database", "sqlite"]

    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.guards", *few, "--json", found],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip

    assert done.returncode == ExitCode.DONE, done.stderr
    rows = json.loads(found.read_text())
    assert [row["variant"] for row in rows] == ["nothing", "keys", "quotas", "both"]
    assert rows[0]["ratio"] == 1
    assert all(row["ms_per_step"] > 0 for row in rows)


def test_the_growth_benchmark_compares_a_ledger_of_many_runs_with_an_empty_one(
    temporal_cli: Path, tmp_path: Path
) -> None:
    found = tmp_path / "growth.json"
    few = ["--rounds", "1", "--events", "2000", "--mode", "exit", "--database", "sqlite"]

    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.growth", *few, "--json", found],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip

    assert done.returncode in (ExitCode.DONE, ExitCode.BROKEN), done.stderr
    rows = json.loads(found.read_text())
    transactions = [row["transaction"] for row in rows if "transaction" in row]
    assert transactions == ["claim", "outcome", "outcome and next claim"]
    assert [row["variant"] for row in rows if "variant" in row] == ["empty", "grown"]
    assert "2,000 events" in done.stdout


def test_the_approvals_page_benchmark_finds_no_statement_that_looks_at_all_that_waits(
    temporal_cli: Path, tmp_path: Path
) -> None:
    found = tmp_path / "approvals_page.json"
    few = ["--waiting", "60", "--database", "sqlite"]

    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.approvals_page", *few, "--json", found],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip

    assert done.returncode == ExitCode.DONE, done.stderr
    rows = json.loads(found.read_text())
    assert [row["page"] for row in rows] == ["mine", "all", "one tool"]
    for row in rows:
        assert 0 < row["p50_ms"] <= row["p95_ms"]
        assert row["whole"] == 0 < row["rows"]
    assert "| sqlite | all | 60 |" in done.stdout


def test_the_runs_benchmark_compares_whole_runs_with_those_of_temporal_alone(
    temporal_cli: Path, tmp_path: Path
) -> None:
    found = tmp_path / "runs.json"
    few = ["--rounds", "1", "--runs", "2", "--mode", "exit", "--database", "sqlite"]

    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.runs", *few, "--json", found],
        cwd=ROOT, capture_output=True, text=True, timeout=280,
    )  # fmt: skip

    assert done.returncode == ExitCode.DONE, done.stderr
    rows = json.loads(found.read_text())
    assert [(row["mode"], row["at_once"]) for row in rows] == [
        *(("plain", 1), ("exit", 1)),
        *(("plain", 2), ("exit", 2)),
    ]
    for row in rows:
        assert min(row["ms_per_run"], row["runs_per_s"], row["cpu_s_per_run"]["worker"]) > 0
        assert min(row["events"], row["history_bytes"], row["workflow_tasks"]) > 0
    assert (rows[0]["ratio"], rows[0]["activities"]) == (1, 5)
    assert "| exit | sqlite | 2 |" in done.stdout


@pytest.mark.crash
def test_the_peers_benchmark_counts_what_a_kill_has_left_outside(
    temporal_cli: Path, tmp_path: Path
) -> None:
    found = tmp_path / "peers.json"
    # Of Temporal alone: the others' packages would have to be installed.
    few = ["--rounds", "1", "--steps", "2", "--runs", "2", "--peer", "temporal"]

    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers", *few, "--database", "sqlite", "--json", found],
        cwd=ROOT, capture_output=True, text=True, timeout=280,
    )  # fmt: skip

    assert done.returncode == ExitCode.DONE, done.stderr
    rows = json.loads(found.read_text())
    costs, kills = rows[:8], rows[8:]
    assert all(min(row["ms_per_step"], *row["times"].values()) > 0 for row in costs)
    left = [(row["call"], row["calls"], row["effects"]) for row in kills]
    assert left == [
        ("nothing", 2, 2),
        ("a key that the outside keeps", 2, 1),
        *[("a key that the outside keeps", 2, 1), ("a lookup", 1, 1)] * 3,
    ]


@pytest.mark.postgres
@pytest.mark.usefixtures("postgres_server")
def test_the_profile_counts_the_round_trips_of_a_write(tmp_path: Path) -> None:
    found = tmp_path / "profile.json"

    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.profile", "--writes", "3", "--json", found],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip

    assert done.returncode == ExitCode.DONE, done.stderr
    trips = {
        (row["store"], row["transaction"]): row["trips"] for row in json.loads(found.read_text())
    }
    for store in ("sqlite", "postgresql"):
        apart = trips[store, "claim"] + trips[store, "outcome"]
        assert 0 < trips[store, "outcome and next claim"] < apart
    assert "| function (sqlite) |" in done.stdout
