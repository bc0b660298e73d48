"""How workers end that have not begun: told to, or because of what they would need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

#: A worker that is told to end while it loads.
LOADING = """
import asyncio, os, signal
from surehand import worker

async def loads(settings, *, check_only):
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.Event().wait()

worker.serve = loads
raise SystemExit(worker.main([]))
"""


def test_a_worker_that_is_told_to_end_while_it_loads_ends_in_order(tmp_path: Path) -> None:
    settings = {**os.environ, "SUREHAND_DATABASE_URL": f"sqlite:///{tmp_path}/ledger.db"}
    command = [sys.executable, "-c", LOADING]
    done = subprocess.run(command, env=settings, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
