"""How workers end that have not begun: told to, or because of what they would need."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from surehand.activities.worker import processes
from surehand.process.exits import ExitCode

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


@dataclass
class Ended:
    """A worker of several that has ended by itself."""

    began: bool
    stopping: asyncio.Event
    number: int = 1
    ready: bool = False
    child: Any = field(default_factory=lambda: SimpleNamespace(running=False, returncode=4))
    again: int = 0

    def start_again(self) -> None:
        self.again += 1
        self.stopping.set()


@pytest.mark.parametrize(("began", "code", "again"), [(True, 0, 1), (False, 4, 0)])
async def test_one_of_several_that_had_begun_once_is_started_again_whatever_ends_it(
    began: bool, code: int, again: int
) -> None:
    stopping = asyncio.Event()
    one, settings = Ended(began, stopping), cast(Any, SimpleNamespace(processes=1))
    async with httpx.AsyncClient() as client:
        found = await processes._keep([cast(Any, one)], settings, client, stopping)
    assert (found, one.again) == (code, again)


async def test_one_that_was_killed_before_it_began_is_no_success() -> None:
    stopping = asyncio.Event()
    one = Ended(False, stopping)
    one.child.returncode = -9
    settings = cast(Any, SimpleNamespace(processes=1))
    async with httpx.AsyncClient() as client:
        found = await processes._keep([cast(Any, one)], settings, client, stopping)
    assert found == ExitCode.UNEXPECTED
