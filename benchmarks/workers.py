"""A worker on each ledger, and one of Temporal alone beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.ledgers import makers
from benchmarks.plain import READY
from benchmarks.program import clean
from surehand.client.connection import Connection
from surehand.drill.environment import READY as TAKES_WORK
from surehand.drill.environment import Environment, worker
from surehand.process.children import Child, python
from surehand.process.connect import connect, find_target
from surehand.process.settings import ClientSettings
from surehand.workflows.identity import DEFAULT_TENANT


@dataclass(frozen=True)
class Place:
    """Where runs are measured."""

    server: Connection
    store: str
    """The kind of its ledger."""
    url: str
    worker: Child
    """Ours."""
    plain: Child
    """That of Temporal alone."""
    variables: Mapping[str, str]
    """Theirs, but for what each has of its own."""


async def at_each(
    environment: Environment,
    databases: Sequence[str],
    play: Callable[[Place], Awaitable[None]],
    *,
    tools: str = "benchmarks.quick_tools",
    **settings: str,
) -> None:
    """Play on each ledger, with one worker of ours and one of Temporal alone.

    Args:
        environment: Where their folders are made.
        databases: Kinds of ledgers.
        play: Measures.
        tools: The module of our workers' tools.
        settings: Of our workers, where they are not the defaults.
    """
    variables = environment.variables({**clean(), "SUREHAND_TOOL_MODULES": tools})
    target = find_target(variables)
    client = await connect(target, quiet=True)
    with ExitStack() as running:
        plain = running.enter_context(
            Child(
                python("benchmarks.plain"),
                environment=variables,
                log=environment.folder / "plain.log",
            )
        )
        await asyncio.to_thread(plain.wait_said, READY)
        for store, make in makers(environment, list(databases), running).items():
            url = await asyncio.to_thread(make, "steps")
            ours = {"database_url": url, "task_queue": store, **settings}
            with worker(variables, environment.case_folder(store), "worker", **ours) as one:
                await asyncio.to_thread(one.wait_said, TAKES_WORK)
                server = Connection(
                    client,
                    target,
                    ClientSettings(
                        tenant=DEFAULT_TENANT,
                        user="benchmark",
                        task_queue=store,
                        ui_url=environment.web_ui,
                    ),
                )
                await play(Place(server, store, url, one, plain, variables))
