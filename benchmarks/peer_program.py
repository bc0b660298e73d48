"""Runs of DBOS, LangGraph and call4agents, by the peers' own Python: nothing of ours is imported.

``python -m benchmarks.peer_program PEER steps DATABASE STEPS RUNS`` prints when each call began
(``approved``: each is approved before); ``killed DATABASE`` and ``keyed DATABASE`` have a call kill
the process the first time. Started again they go on with the same run. ``keyed`` has the call hand
over a key that the outside keeps. The outside of these two is a file of lines, ``BENCHMARK_WORLD``,
for all systems alike.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

#: What they are told to do, and what the only run of the killed ones is called.
STEPS: Final = "steps"
APPROVED: Final = "approved"
KILLED: Final = "killed"
KEYED: Final = "keyed"
#: Steps of a run before those that are measured.
_WARM_UP: Final = 5
_CONNECTIONS: Final = 20

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
    return any(line["key"] == key for line in _lines(_world()))


def arrived(world: Path) -> Arrived:
    lines = _lines(world)
    keys = {line["key"] for line in lines if line["dedupes"]}
    return Arrived(len(lines), len(keys) + sum(not line["dedupes"] for line in lines))


def _lines(world: Path) -> list[dict[str, object]]:
    if not world.exists():
        return []
    return [json.loads(line) for line in world.read_text(encoding="utf-8").splitlines()]


def _world() -> Path:
    return Path(os.environ["BENCHMARK_WORLD"])


def play_dbos(what: str, database: str, steps: int, runs: int) -> None:
    """A run is a workflow, and a call one of its steps. DBOS records what a step has returned."""
    from dbos import DBOS, SetWorkflowID  # type: ignore[import-not-found]

    def call_outside(what: str) -> None:
        if what == KEYED:
            arrive(f"{DBOS.workflow_id}:{DBOS.step_id}", dedupes=True)
        else:
            arrive()

    call = DBOS.step(name="call")(lambda run: {"at": note_call(run)})
    outside = DBOS.step(name="call_outside")(call_outside)

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
    killed = DBOS.workflow(name="killed")(lambda what: outside(what))
    DBOS.launch()

    def play(run: str, steps: int) -> None:
        with SetWorkflowID(run):
            workflow(run, steps)

    if what == STEPS:
        measure(play, steps, runs)
    else:
        # Started once more under its id, it is the same run.
        with SetWorkflowID(what):
            DBOS.start_workflow(killed, what).get_result()
    DBOS.destroy()


class State(TypedDict):
    """What LangGraph records."""

    done: int
    steps: int
    at: float


def play_langgraph(what: str, database: str, steps: int, runs: int) -> None:
    """A run is a thread of a graph, and a call one node of it that follows itself.

    LangGraph records the state after each node, here before the next one begins
    (``durability="sync"``).
    """
    from langgraph.checkpoint.postgres import PostgresSaver  # type: ignore[import-not-found]
    from langgraph.checkpoint.sqlite import SqliteSaver  # type: ignore[import-not-found]
    from langgraph.graph import END, START, StateGraph
    from psycopg.rows import dict_row
    from psycopg_pool import ConnectionPool  # type: ignore[import-not-found]

    def call(state: Any, config: RunnableConfig) -> dict[str, Any]:
        return {"done": state["done"] + 1, "at": note_call(config["configurable"]["thread_id"])}

    def call_outside(state: Any, config: RunnableConfig) -> dict[str, Any]:
        run = config["configurable"]["thread_id"]
        if run == KEYED:
            arrive(f"{run}:{state['done']}", dedupes=True)
        else:
            arrive()
        return {"done": state["done"] + 1}

    with ExitStack() as opened:
        if database.startswith("sqlite:///"):
            file = database.removeprefix("sqlite:///")
            saver = opened.enter_context(SqliteSaver.from_conn_string(file))
        else:
            # As its documentation asks for.
            options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
            pool = ConnectionPool(database, min_size=1, max_size=_CONNECTIONS, kwargs=options)
            saver = PostgresSaver(opened.enter_context(pool))
        saver.setup()
        made: Any = StateGraph(State)
        made.add_node("call", call if what == STEPS else call_outside)
        made.add_edge(START, "call")
        made.add_conditional_edges(
            "call", lambda state: "call" if state["done"] < state["steps"] else END
        )
        graph = made.compile(checkpointer=saver)

        def play(run: str, steps: int) -> None:
            config = {"configurable": {"thread_id": run}, "recursion_limit": 10 * steps}
            begun = graph.get_state(config).next if what != STEPS else ()
            state = None if begun else {"done": 0, "steps": steps, "at": 0.0}
            graph.invoke(state, config, durability="sync")

        if what == STEPS:
            measure(play, steps, runs)
        else:
            play(what, 1)


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


PEERS: Final = {"dbos": play_dbos, "langgraph": play_langgraph, "call4agents": play_call4agents}

if __name__ == "__main__":
    peer, what, database, *numbers = sys.argv[1:]
    steps, runs = map(int, numbers or (1, 1))
    PEERS[peer](what, database, steps, runs)
