"""The peers as processes: their Python, their databases, their turns and their kills."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import psycopg
from sqlalchemy import make_url

from benchmarks.concurrent import Turn
from benchmarks.peer_program import KEYED, KILLED, STEPS
from benchmarks.program import clean
from benchmarks.workers import Place
from surehand.drill.environment import Environment
from surehand.process import ROOT
from surehand.process.children import Child
from surehand.process.exits import SurehandError
from tests.postgres_server import SUPERUSER

#: Their names, by the module of their program.
PEERS: Final = {"dbos": "DBOS", "langgraph": "LangGraph"}
#: Where their packages are, from the folder in which the benchmark is called.
_VENV: Final = Path(".surehand/benchmarks/peers-venv")
_PINNED: Final = ROOT / "benchmarks" / "peers.txt"


def peers_python() -> Path:
    """Return the peers' own Python; their packages are installed when the list has changed.

    Raises:
        SurehandError: They cannot be.
    """
    digest = hashlib.sha256(_PINNED.read_bytes()).hexdigest()
    venv, python = _VENV.absolute(), _VENV.absolute() / "bin" / "python"
    mark = venv / "installed"
    if not mark.exists() or mark.read_text() != digest:
        shutil.rmtree(venv, ignore_errors=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for command in ([sys.executable, "-m", "venv", str(venv)], [*pip, "-r", str(_PINNED)]):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
                raise SurehandError(f"the peers cannot be installed: {said}")
        mark.write_text(digest)
    return python


class Peer:
    """One of them, on a database of its own beside a ledger."""

    def __init__(self, name: str, python: Path, environment: Environment, place: Place) -> None:
        self._name = name
        self._python = python
        self._folder = environment.case_folder(f"{name}-{place.store}")
        self._ledger = place.url
        self._started = 0

    async def turn(self, steps: int, runs: int) -> Turn:
        """Play runs at once.

        Raises:
            SurehandError: Its program failed.
        """
        with self._program(self._database(STEPS), STEPS, str(steps), str(runs)) as one:
            await asyncio.to_thread(one.wait_done)
            said = [line for line in one.output().splitlines() if line.startswith("[[")]
        return Turn(json.loads(said[-1]))

    async def killed(self, *, keyed: bool) -> Path:
        """Have a call kill its process, start that again; returns what has arrived outside.

        Args:
            keyed: Whether the call hands over a key.

        Raises:
            SurehandError: It was not killed, or did not go on.
        """
        what = KEYED if keyed else KILLED
        database, world = self._database(what), self._folder / f"{what}.jsonl"
        with self._program(database, what, world=world) as one:
            await asyncio.to_thread(require_killed, one)
        with self._program(database, what, world=world) as one:
            await asyncio.to_thread(one.wait_done)
        return world

    def _database(self, name: str) -> str:
        """Return the URL of a database, which is made where it is not there."""
        url = make_url(self._ledger)
        if url.get_backend_name() == "sqlite":
            return f"sqlite:///{self._folder / name}.db"
        own = f"{self._name}_{name}"
        server = f"postgresql://{SUPERUSER}@{url.host}:{url.port}"
        with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
            there = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [own])
            if there.fetchone() is None:
                connection.execute(f'CREATE DATABASE "{own}"'.encode())
        return f"{server}/{own}"

    def _program(self, database: str, what: str, *numbers: str, world: Path | None = None) -> Child:
        self._started += 1
        module = f"benchmarks.peer_{self._name}"
        variables = {**clean(), "PYTHONPATH": str(ROOT), "LANGSMITH_TRACING": "false"}
        return Child(
            [self._python, "-m", module, what, database, *numbers],
            environment=variables | ({"BENCHMARK_WORLD": str(world)} if world else {}),
            log=self._folder / f"{self._name}-{self._started}.log",
        )


def require_killed(one: Child) -> None:
    """Wait until a process has ended, and see that it was killed.

    Raises:
        SurehandError: It was not.
    """
    one.wait_for(lambda: one.returncode is not None)
    if one.returncode != -signal.SIGKILL:
        raise SurehandError(f"{one.log.stem} was not killed: {one.last_line()}")
