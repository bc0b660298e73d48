"""Runs of DBOS and call4agents, by the peers' own Python: nothing of ours is imported.

``python -m benchmarks.peer_program PEER WHAT DATABASE STEPS RUNS`` prints when each call began.
``WHAT``: ``steps``, or ``approved`` if each call is approved first.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

#: What they are told to do.
STEPS: Final = "steps"
APPROVED: Final = "approved"
#: Steps of a run before those that are measured.
_WARM_UP: Final = 5

#: When the calls of each run began, by the machine's monotonic clock.
_BEGAN: Final[dict[str, list[float]]] = {}


def note_call(run: str) -> float:
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


def play_dbos(what: str, database: str, steps: int, runs: int) -> None:
    """A run is a workflow, and a call one of its steps. DBOS records what a step has returned."""
    from dbos import DBOS, SetWorkflowID  # type: ignore[import-not-found]

    call = DBOS.step(name="call")(lambda run: {"at": note_call(run)})

    def make_steps(run: str, steps: int) -> None:
        for _ in range(steps):
            call(run)

    DBOS(
        config={
            "name": "benchmark",
            "system_database_url": database,
            "run_admin_server": False,
            "log_level": "ERROR",
        }
    )
    workflow = DBOS.workflow(name="steps")(make_steps)
    DBOS.launch()

    def play(run: str, steps: int) -> None:
        with SetWorkflowID(run):
            workflow(run, steps)

    measure(play, steps, runs)
    DBOS.destroy()


def play_call4agents(what: str, database: str, actions: int, runs: int) -> None:
    """It commits to SQLite as the ledger does: write-ahead log and ``synchronous=FULL``."""
    import call4agents  # type: ignore[import-not-found]

    call4agents.init(database.removeprefix("sqlite:///"))

    def play(name: str, count: int) -> None:
        def refund(order: str, amount: str) -> dict[str, str]:
            note_call(name)
            return {"refund": "r-1", "amount": amount}

        action = call4agents.effect(refund, name="payments.refund", approval=what == APPROVED)
        for number in range(count):
            params = {"order": str(number), "amount": "120.00"}
            # Each in a run of its own, which costs nothing: it reads all approvals of a run.
            with call4agents.run(f"{name}-{os.getpid()}-{number}"):
                if what == APPROVED:
                    call4agents.approve(action, **params)
                action(**params)

    measure(play, actions, runs)


PEERS: Final = {"dbos": play_dbos, "call4agents": play_call4agents}

if __name__ == "__main__":
    peer, what, database, steps, runs = sys.argv[1:]
    PEERS[peer](what, database, int(steps), int(runs))
