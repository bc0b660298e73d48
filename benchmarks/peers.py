"""``python -m benchmarks.peers``: DBOS and plain Temporal beside Surehand.

Runs of steps that do next to nothing, one alone and many at once, in turns on the same machine.
call4agents, a library without an engine, is compared with the ledger alone. The peers have their
own virtual environment (``benchmarks/peers.txt``), which is made the first time. BENCHMARKS.md
shows what this prints.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import psycopg
import structlog
from sqlalchemy import make_url

from benchmarks.harness import (
    Found,
    Place,
    Row,
    at_each,
    clean,
    makers,
    parser_of,
    run,
)
from benchmarks.peer_program import APPROVED, STEPS
from benchmarks.steps import Probe, Turn, play_plain, play_protected
from surehand.activities.ledger.core.store import open_ledger
from surehand.activities.ledger.effects import claims, outcomes
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.entries import Claimed, ClaimRequest
from surehand.drill.environment import Environment
from surehand.process import ROOT
from surehand.process.children import Child
from surehand.process.exits import SurehandError, leave
from surehand.workflows.identity import DEFAULT_TENANT
from tests.ledger.scene import Scene
from tests.postgres_server import SUPERUSER

#: Fastest first.
_MODES: Final = ("exit", "async", "sync")
_OURS: Final = {mode: f"Surehand `{mode}`" for mode in _MODES}
_TEMPORAL: Final = "temporal"
_PLAIN: Final = "plain Temporal"
ROUNDS: Final = 5
#: Of the run that is alone, and of each of many.
ALONE_STEPS: Final = 100
CONCURRENT_STEPS: Final = 10
CONCURRENT: Final = 50
#: Their names, by the module of their program.
PEERS: Final = {"dbos": "DBOS"}
#: It has no engine: it is compared with the ledger alone.
LIBRARY: Final = "call4agents"
#: Actions before the first round, and of each.
_WARM_UP: Final = 50
LIBRARY_ACTIONS: Final = 300
#: What its program is told, by the action.
ACTIONS: Final = {"claim and outcome": STEPS, "approval and action": APPROVED}
#: Where their packages are, from the folder in which the benchmark is called.
_VENV: Final = Path(".surehand/benchmarks/peers-venv")
_PINNED: Final = ROOT / "benchmarks" / "peers.txt"
#: Plays so many runs with so many steps.
Play = Callable[[int, int], Awaitable[Turn]]


def peers_python() -> Path:
    """Return the peers' own Python; their packages are installed when the list has changed."""
    digest = hashlib.sha256(_PINNED.read_bytes()).hexdigest()
    venv, own = _VENV.absolute(), _VENV.absolute() / "bin" / "python"
    mark = venv / "installed"
    if not mark.exists() or mark.read_text() != digest:
        shutil.rmtree(venv, ignore_errors=True)
        pip = [str(own), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for command in ([sys.executable, "-m", "venv", str(venv)], [*pip, "-r", str(_PINNED)]):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
                raise SurehandError(f"the peers cannot be installed: {said}")
        mark.write_text(digest)
    return own


class Peer:
    """One of them, on a database of its own beside a ledger."""

    def __init__(self, name: str, python: Path, environment: Environment, ledger: str) -> None:
        self._name = name
        self._python = python
        self._folder = environment.make_case_folder(f"{name}-{make_url(ledger).get_backend_name()}")
        self._ledger = ledger
        self._started = 0

    async def turn(self, steps: int, runs: int, what: str = STEPS) -> Turn:
        self._started += 1
        numbers = str(steps), str(runs)
        called: list[str | Path] = [self._python, "-m", "benchmarks.peer_program", self._name, what]
        with Child(
            [*called, self._database(what), *numbers],
            environment={**clean(), "PYTHONPATH": str(ROOT)},
            log=self._folder / f"{self._name}-{self._started}.log",
        ) as one:
            await asyncio.to_thread(one.wait_done)
            said = [line for line in one.output().splitlines() if line.startswith("[[")]
        return Turn(json.loads(said[-1]))

    def _database(self, name: str) -> str:
        """Return the URL of a database, which is made if it is not there."""
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


def _times(here: Sequence[Turn], there: Sequence[Turn], runs: int) -> float:
    """Return how many times as long as here a step takes there: the median of the rounds'."""
    both = zip(here, there, strict=True)
    if runs == 1:
        return statistics.median(t.seconds_per_step() / h.seconds_per_step() for h, t in both)
    return statistics.median(h.steps_per_second() / t.steps_per_second() for h, t in both)


def _cost(system: str, store: str, runs: int, turns: dict[str, list[Turn]]) -> Row:
    own = turns[system]
    ms = 1000 * statistics.median(turn.seconds_per_step() for turn in own)
    speed = statistics.median(turn.steps_per_second() for turn in own)
    return {
        "system": system,
        "store": store,
        "runs": runs,
        "ms_per_step": round(ms, 2),
        "steps_per_s": round(speed, 1),
        **{mode: round(_times(own, turns[_OURS[mode]], runs), 3) for mode in _MODES},
    }


async def measure(environment: Environment, options: argparse.Namespace, found: Found) -> None:
    wanted = options.peer or [*PEERS, _TEMPORAL, LIBRARY]
    chosen = [name for name in PEERS if name in wanted]
    program = await asyncio.to_thread(peers_python) if wanted != [_TEMPORAL] else None
    if program and LIBRARY in wanted and "sqlite" in options.database:
        await measure_library(environment, options, program, found)
    if set(wanted) == {LIBRARY}:
        return

    async def play(place: Place) -> None:
        peers = {PEERS[n]: Peer(n, program, environment, place.url) for n in chosen if program}
        systems: dict[str, Play] = {name: peer.turn for name, peer in peers.items()}
        if _TEMPORAL in wanted:
            systems[_PLAIN] = lambda steps, runs: play_plain(place.server, steps, 0, runs)
        systems |= {_OURS[mode]: partial(_play_ours, place, mode) for mode in _MODES}
        for one in systems.values():
            await one(3, 1)
        for runs, steps in ((1, options.steps), (options.runs, CONCURRENT_STEPS)):
            turns: dict[str, list[Turn]] = {name: [] for name in systems}
            for _ in range(options.rounds):
                for name, one in systems.items():
                    turns[name].append(await one(steps, runs))
            found.rows += [_cost(name, place.store, runs, turns) for name in systems]
            found.note(f"{place.store}: {runs} x {steps} steps")

    variables = environment.make_variables({**clean(), "SUREHAND_TOOL_MODULES": "benchmarks.tools"})
    await at_each(environment, variables, options.database, play)


async def measure_library(
    environment: Environment, options: argparse.Namespace, program: Path, found: Found
) -> None:
    """Have the ledger and the library take turns, each in one process and on SQLite."""
    with ExitStack() as running, _discard_log():
        url = makers(environment, ["sqlite"], running)["sqlite"](LIBRARY)
        peer = Peer(LIBRARY, program, environment, url)
        async with open_ledger(url) as ledger:
            scene, first = Scene.begin(ledger, DEFAULT_TENANT), _WARM_UP
            for action, what in ACTIONS.items():
                await play_ledger(scene, first, _WARM_UP, what)
                with ledger.engine.connect() as connection:
                    # Plans of a ledger without statistics are bad.
                    connection.exec_driver_sql("ANALYZE")
                    connection.commit()
                ours, theirs = [], []
                for _ in range(options.rounds):
                    first += options.actions + _WARM_UP
                    ours.append(await play_ledger(scene, first, options.actions, what))
                    theirs.append(await peer.turn(options.actions, 1, what))
                first += options.actions
                one, other = ([t.seconds_per_step() for t in turns] for turns in (ours, theirs))
                found.rows.append(
                    {
                        "action": action,
                        "store": "sqlite",
                        "ledger_ms": round(1000 * statistics.median(one), 2),
                        f"{LIBRARY}_ms": round(1000 * statistics.median(other), 2),
                        "ratio": round(_times(theirs, ours, 1), 2),
                    }
                )
    found.note(LIBRARY)


@contextmanager
def _discard_log() -> Iterator[None]:
    """Write log lines as a worker does, and keep none."""
    with Path(os.devnull).open("w", encoding="utf-8") as nobody:
        structlog.configure(
            processors=[structlog.processors.JSONRenderer()],
            logger_factory=structlog.WriteLoggerFactory(nobody),
        )
        try:
            yield
        finally:
            structlog.reset_defaults()


def make_writes(scene: Scene, first: int, count: int) -> Iterator[ClaimRequest]:
    """Yield the claims of so many refunds, each with a key of its own."""
    for number in range(first, first + count):
        key, step = f"refund:order-{number}", f"refund-{number}"
        yield scene.call(key=key, step_id=step, params={"order": str(number), "amount": "120.00"})


async def play_ledger(scene: Scene, first: int, count: int, what: str) -> Turn:
    """Make writes with the ledger's own transactions, each approved before if that is asked."""
    began = []
    for request in make_writes(scene, first, count):
        if what == APPROVED:
            request = await asyncio.to_thread(scene.approved, request)
        claimed = await scene.ledger.transact(scene.tenant, claims.claim_effect, request)
        assert isinstance(claimed, Claimed)
        began.append(time.monotonic())
        kept = Kept({"refund": "r-1", "amount": "120.00"})
        await scene.ledger.transact(
            scene.tenant, outcomes.commit_effect, request, claimed.entry, kept
        )
    return Turn([began])


async def _play_ours(place: Place, mode: str, steps: int, runs: int) -> Turn:
    return await play_protected(place.server, mode, Probe("write", runs, steps, 1).plan(), runs)


def main(argv: Sequence[str] | None = None) -> int:
    parser = parser_of("peers", "DBOS, call4agents, plain Temporal beside us.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help="default 5")
    parser.add_argument("--steps", type=int, default=ALONE_STEPS, metavar="N", help="default 100")
    parser.add_argument("--runs", type=int, default=CONCURRENT, metavar="N", help="default 50")
    parser.add_argument(
        "--actions", type=int, default=LIBRARY_ACTIONS, metavar="N", help="default 300"
    )
    names = (*PEERS, _TEMPORAL, LIBRARY)
    parser.add_argument("--peer", choices=names, action="append", help="default all")
    options = parser.parse_args(argv)
    if options.rounds < 1 or min(options.steps, options.runs, options.actions) < 2:
        parser.error("--rounds must be at least 1, --steps, --runs and --actions at least 2")
    return run("peers", options, measure)


if __name__ == "__main__":
    leave(main())
