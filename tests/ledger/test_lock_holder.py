"""Limits of SQLite: who holds its one write lock is named, so that somebody can end it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from surehand.activities.ledger.core.lock_holder import lock_holder
from tests.worker_process import ROOT

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux")

#: Another process in the middle of a write transaction.
WRITER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute(f"PRAGMA journal_mode={sys.argv[2]}")
connection.execute("BEGIN IMMEDIATE")
print("writing", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def file(sqlite_template: Path, tmp_path: Path) -> Path:
    file = tmp_path / "ledger.db"
    shutil.copy(sqlite_template, file)
    return file


@pytest.fixture(params=["WAL", "DELETE"])
def writer(file: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """It has a ledger that workers have opened, or one that was only made."""
    line = [sys.executable, "-c", WRITER, str(file), request.param]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        yield process
        process.kill()


def test_the_process_in_a_write_transaction_is_named(
    file: Path, writer: subprocess.Popen[bytes]
) -> None:
    holder = lock_holder(file)

    assert holder is not None
    assert (holder.pid, holder.stopped) == (writer.pid, False)
    assert str(file) in holder.command


def test_nobody_is_named_where_nobody_writes(
    file: Path, writer: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    writer.kill()
    writer.wait()

    assert lock_holder(file) is None
    assert lock_holder(tmp_path / "nothing.db") is None


@pytest.mark.slow
async def test_doctor_says_which_stopped_process_stops_everybody(
    file: Path, writer: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    writer.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, writer.pid, os.WSTOPPED)
    ours = {name: value for name, value in os.environ.items() if not name.startswith("SUREHAND_")}
    doctor = await asyncio.create_subprocess_exec(
        *(sys.executable, str(ROOT / "starter.py"), "doctor", "--json"),
        env={
            **ours,
            "SUREHAND_DATABASE_URL": f"sqlite:///{file}",
            "SUREHAND_TOOL_MODULES": "surehand.examples.shop.tools",
            "TEMPORAL_ADDRESS": "127.0.0.1:1",
        },
        cwd=tmp_path,
        stdout=subprocess.PIPE,
    )
    out, _ = await doctor.communicate()

    [check] = [one for one in json.loads(out)["checks"] if one["name"] == "database"]
    assert not check["ok"]
    assert f"held by process {writer.pid}" in check["detail"]
    assert "which is stopped" in check["detail"]
    assert check["commands"] == [f"kill -CONT {writer.pid}", f"kill -KILL {writer.pid}"]
