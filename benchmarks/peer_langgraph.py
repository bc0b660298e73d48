"""Runs of LangGraph, by its own Python: ``python -m benchmarks.peer_langgraph steps DATABASE ...``.

A run is a thread of a graph, and a call one node of it that follows itself. LangGraph records the
state after each node, here before the next one begins (``durability="sync"``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres import PostgresSaver  # type: ignore[import-not-found]
from langgraph.checkpoint.sqlite import SqliteSaver  # type: ignore[import-not-found]
from langgraph.graph import END, START, StateGraph
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool  # type: ignore[import-not-found]

from benchmarks.peer_program import KEYED, STEPS, arguments, arrive, called, measure

_CONNECTIONS: Final = 20


class State(TypedDict):
    """What is recorded."""

    done: int
    steps: int
    at: float


def _call(state: State, config: RunnableConfig) -> dict[str, Any]:
    return {"done": state["done"] + 1, "at": called(config["configurable"]["thread_id"])}


def _call_outside(state: State, config: RunnableConfig) -> dict[str, Any]:
    run = config["configurable"]["thread_id"]
    if run == KEYED:
        arrive(f"{run}:{state['done']}", dedupes=True)
    else:
        arrive()
    return {"done": state["done"] + 1}


def _next(state: State) -> str:
    return "call" if state["done"] < state["steps"] else END


@contextmanager
def _saver(database: str) -> Iterator[BaseCheckpointSaver[Any]]:
    file = database.removeprefix("sqlite:///")
    if file != database:
        with SqliteSaver.from_conn_string(file) as saver:
            yield saver
        return
    # As its documentation asks for.
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    pool = ConnectionPool(database, min_size=1, max_size=_CONNECTIONS, kwargs=options)
    with pool:
        yield PostgresSaver(pool)


def _graph(node: Any, saver: BaseCheckpointSaver[Any]) -> Any:
    graph = StateGraph(State)
    graph.add_node("call", node)
    graph.add_edge(START, "call")
    graph.add_conditional_edges("call", _next)
    return graph.compile(checkpointer=saver)


def main() -> None:
    """Do what the arguments say."""
    what, database, steps, runs = arguments()
    with _saver(database) as saver:
        saver.setup()  # type: ignore[attr-defined]
        graph = _graph(_call if what == STEPS else _call_outside, saver)

        def play(run: str, steps: int) -> None:
            config = {"configurable": {"thread_id": run}, "recursion_limit": 10 * steps}
            begun = graph.get_state(config).next if what != STEPS else ()
            state = None if begun else {"done": 0, "steps": steps, "at": 0.0}
            graph.invoke(state, config, durability="sync")

        if what == STEPS:
            measure(play, steps, runs)
        else:
            play(what, 1)


if __name__ == "__main__":
    main()
