"""Limits of SQLite: one writer at a time. Doctor says how to find the one that stops the others."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.starter import Starter

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("fuser") is None, reason="needs fuser"),
]

#: Another process in the middle of a write transaction.
WRITER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute(f"PRAGMA journal_mode={sys.argv[2]}")
connection.execute("BEGIN IMMEDIATE")
print("writing", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
def test_the_command_that_doctor_gives_shows_the_stopped_process_that_stops_everybody(
    sqlite_template: Path, tmp_path: Path, mode: str
) -> None:
    file = tmp_path / "the ledger.db"
    shutil.copy(sqlite_template, file)
    line = [sys.executable, "-c", WRITER, str(file), mode]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"writing\n"
            writer.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, writer.pid, os.WSTOPPED)
            own = {
                "SUREHAND_DATABASE_URL": f"sqlite:///{file}",
                "SUREHAND_TOOL_MODULES": "surehand.examples.shop.tools",
                "TEMPORAL_ADDRESS": "127.0.0.1:1",
            }
            checks = Starter(own, tmp_path)("doctor", "--json").document()["checks"]
            (check,) = [one for one in checks if one["name"] == "database"]
            (command,) = check["commands"]
            shown = subprocess.check_output(command, shell=True, text=True).splitlines()[1:]
        finally:
            writer.kill()

    assert not check["ok"] and "database is locked" in check["detail"]
    assert [one.split()[:2] for one in shown] == [[str(writer.pid), "T"]]
