"""What the peers' programs do alike; run by their own Python, so nothing of ours is imported.

Their arguments are ``steps DATABASE STEPS RUNS``, which prints when each call began, and ``killed
DATABASE`` or ``keyed DATABASE``, whose call kills the process the first time. Started again they go
on with the same run. ``keyed`` has the call hand over a key that the outside keeps. The outside of
these two calls is a file of lines, ``BENCHMARK_WORLD``, for all systems alike.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: What they are told to do, and what the only run of the killed ones is called.
STEPS: Final = "steps"
#: As ``steps``, where each call is approved before.
APPROVED: Final = "approved"
KILLED: Final = "killed"
KEYED: Final = "keyed"
#: Steps of a run before those that are measured.
_WARM_UP: Final = 5

#: When the calls of each run began, by the machine's monotonic clock.
_BEGAN: Final[dict[str, list[float]]] = {}


def called(run: str) -> float:
    """Make a call that does nothing; returns when it began."""
    at = time.monotonic()
    _BEGAN.setdefault(run, []).append(at)
    return at


def measure(play: Callable[[str, int], object], steps: int, runs: int) -> None:
    """Play runs at once, each in a thread, and print when their calls began."""
    play("warm-up", _WARM_UP)
    names = [f"run-{number}-{time.time_ns()}" for number in range(runs)]
    with ThreadPoolExecutor(runs) as threads:
        list(threads.map(play, names, [steps] * runs))
    print(json.dumps([_BEGAN[name] for name in names]), flush=True)


def arguments(argv: Sequence[str] = sys.argv) -> tuple[str, str, int, int]:
    """Return what to do, the database, the steps and the runs."""
    what, database, *numbers = argv[1:]
    steps, runs = map(int, numbers or (1, 1))
    return what, database, steps, runs


@dataclass(frozen=True)
class Arrived:
    """What has arrived outside."""

    calls: int
    effects: int
    """Calls without a key have one each, those with the same key one together."""


def arrive(key: str = "", *, dedupes: bool = False) -> None:
    """Make a call outside; the first one kills this process (SIGKILL)."""
    first = not _world().exists()
    with _world().open("a", encoding="utf-8") as world:
        world.write(f"{json.dumps({'key': key, 'dedupes': dedupes})}\n")
    if first:
        os.kill(os.getpid(), signal.SIGKILL)


def seen(key: str) -> bool:
    """Say whether a call with this key has arrived."""
    return any(line["key"] == key for line in _lines(_world()))


def arrived(world: Path) -> Arrived:
    """Return what has arrived in a file."""
    lines = _lines(world)
    keys = {line["key"] for line in lines if line["dedupes"]}
    return Arrived(len(lines), len(keys) + sum(not line["dedupes"] for line in lines))


def _lines(world: Path) -> list[dict[str, object]]:
    if not world.exists():
        return []
    return [json.loads(line) for line in world.read_text(encoding="utf-8").splitlines()]


def _world() -> Path:
    return Path(os.environ["BENCHMARK_WORLD"])
