"""What a kill between a call and its record leaves outside, of Surehand and of Temporal alone."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from benchmarks.peer_program import KEYED, KILLED
from benchmarks.peer_systems import require_killed
from benchmarks.plain import PLAIN_KILLED, READY
from benchmarks.played import played
from benchmarks.workers import Place
from surehand.client.connection import Connection
from surehand.drill.environment import READY as TAKES_WORK
from surehand.drill.environment import Environment, worker
from surehand.process.children import Child, python
from surehand.workflows.plan.plan import Plan

#: What recovers a call, by whether it hands over a key.
CALLS: Final = {False: "nothing", True: "a key that the outside keeps"}
#: The same of our tools.
TOOLS: Final = {CALLS[True]: "killed.put", "a lookup": "killed.order"}
_MODULES: Final = "benchmarks.killed_tools,benchmarks.quick_tools"


async def ours_killed(environment: Environment, place: Place, tool: str, mode: str) -> Path:
    """Kill a worker in a tool's call, start another; returns what has arrived outside.

    Raises:
        SurehandError: It was not killed, or the run did not complete.
    """
    name = f"{tool}-{mode}-{place.store}"
    folder = environment.case_folder(name)
    world = folder / "world.jsonl"
    settings = place.server.settings.model_copy(update={"task_queue": name})
    server = Connection(place.server.client, place.server.target, settings)
    variables = {
        **place.variables,
        "SUREHAND_TOOL_MODULES": _MODULES,
        "BENCHMARK_WORLD": str(world),
    }
    # Two steps: one alone is no batch.
    plan = Plan.model_validate([{"tool": tool}, {"tool": "quick.write"}])

    def start() -> Child:
        return worker(variables, folder, "worker", database_url=place.url, task_queue=name)

    await _killed(start, TAKES_WORK, lambda: played(server, "killed", plan, mode))
    return world


async def plain_killed(environment: Environment, place: Place, *, keyed: bool) -> Path:
    """Kill a worker of Temporal alone in an activity; returns what has arrived outside.

    Raises:
        SurehandError: It was not killed.
    """
    name = f"plain-{KEYED if keyed else KILLED}-{place.store}"
    folder = environment.case_folder(name)
    world = folder / "world.jsonl"

    def start() -> Child:
        return Child(
            python("benchmarks.plain", name),
            environment={**place.variables, "BENCHMARK_WORLD": str(world)},
            log=folder / "worker.log",
        )

    def run() -> Awaitable[object]:
        return place.server.client.execute_workflow(
            PLAIN_KILLED, keyed, id=f"killed-{secrets.token_hex(6)}", task_queue=name
        )

    await _killed(start, READY, run)
    return world


async def _killed(
    start: Callable[[], Child], ready: str, run: Callable[[], Awaitable[object]]
) -> None:
    with start() as one:
        await asyncio.to_thread(one.wait_said, ready)
        ended = asyncio.ensure_future(run())
        await asyncio.to_thread(require_killed, one)
    with start() as another:
        await asyncio.to_thread(another.wait_said, ready)
        await ended
