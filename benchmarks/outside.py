"""The outside of a call whose process dies before anybody hears the answer, for all systems alike.

A file of lines, ``BENCHMARK_WORLD``. Nothing is imported here that a peer does not have.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Arrived:
    """What has arrived outside."""

    calls: int
    effects: int
    """Calls without a key have one each, those with the same key one together."""


def arrive(key: str = "", *, dedupes: bool = False) -> None:
    """Make a call outside; the first one kills this process (SIGKILL).

    Args:
        key: Of the call.
        dedupes: Whether the outside does nothing for a key that it has seen.
    """
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
