"""A server that is a program ends with its connection, and so does what it has started."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from surehand.activities.mcp import connection

#: Each starts another program, and says which.
ENDS: str = "sleep 600 & echo $! > started; cat > /dev/null"
STAYS: str = "trap '' TERM; sleep 600 & echo $! > started; while true; do sleep 600; done"


def runs(number: int) -> bool:
    """Return whether a process is there, and not only what nobody has asked about."""
    try:
        stat = Path(f"/proc/{number}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
@pytest.mark.parametrize("script", [ENDS, STAYS], ids=["ends by itself", "hears nothing"])
async def test_what_a_server_has_started_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setattr(connection, "_GRACE", 0.3)
    monkeypatch.chdir(tmp_path)
    started = tmp_path / "started"
    async with connection.program(["/bin/sh", "-c", script], {"PATH": os.environ["PATH"]}):
        while not started.exists() or not started.read_text(encoding="utf-8").strip():
            await connection.asyncio.sleep(0.01)
        child = int(started.read_text(encoding="utf-8"))
        assert runs(child)
    assert not runs(child)


async def test_a_server_that_leaves_nothing_behind_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_GRACE", 60.0)
    began = time.monotonic()
    async with connection.program(
        ["/bin/sh", "-c", "cat > /dev/null"], {"PATH": os.environ["PATH"]}
    ):
        pass
    assert time.monotonic() - began < 30
