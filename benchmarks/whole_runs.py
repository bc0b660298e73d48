"""Whole runs of the example's refund, one after another or many at once, and Temporal's alone."""

from __future__ import annotations

import asyncio
import secrets
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sqlalchemy import make_url
from temporalio.api.enums.v1 import EventType

from benchmarks import refund_tools
from benchmarks.ledgers import administration
from benchmarks.plain import APPROVE, PLAIN_QUEUE, PLAIN_REFUND
from benchmarks.played import played
from benchmarks.worker_use import process_with, tree_cpu
from benchmarks.workers import Place
from surehand.activities.ledger.approvals import standing_grants
from surehand.client.plan_file import load_plan
from surehand.process import ROOT
from surehand.process.exits import SurehandError
from surehand.workflows.contracts.standing import Scope, StandingGrant

#: Temporal alone, which takes turns with the modes.
PLAIN: Final = "plain"
#: Runs of which each event is looked at; the others have the same.
_LOOKED_AT: Final = 5
#: Seconds after a turn, for what servers and workers do once a run has ended.
_REST: Final = 0.5
_GRANTED_FOR: Final = timedelta(days=1)
#: A run takes a second; one that takes as long as this asks somebody.
_LIMIT: Final = timedelta(seconds=120)
_MARKER: Final = EventType.EVENT_TYPE_MARKER_RECORDED
_SCHEDULED: Final = EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
_MOVED: Final = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED


@dataclass(frozen=True)
class History:
    """What a run leaves on the server."""

    events: int
    size: int
    """In bytes."""
    activities: int
    local: int
    """Local activities."""
    tasks: int
    """Workflow tasks."""


@dataclass(frozen=True)
class Turn:
    """Some runs; times in seconds."""

    took: Sequence[float]
    """Each, from its start to its result."""
    whole: float
    """From the first one's start to the last one's result."""
    cpu: dict[str, float]
    """Processor time a run: of the worker, Temporal's server and the ledger's database."""
    histories: Sequence[History]


class WholeRuns:
    """Plays runs at a place."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._server = place.server
        self._plan = load_plan(str(ROOT / "examples" / "refund.yaml"))
        url = make_url(place.url)
        self._pids = {"server": process_with("--port", place.server.target.address.split(":")[1])}
        if url.get_backend_name() == "postgresql":
            self._pids["database"] = process_with("-p", str(url.port))

    def grant(self) -> None:
        """Let refunds be approved by a standing approval."""
        tool = refund_tools.refund
        until = int(time.time() + _GRANTED_FOR.total_seconds())
        scope = Scope(
            tool=tool.name, version=tool.version, schema_hash=tool.schema_hash, until=until
        )
        given = StandingGrant(granter="benchmark", scope=scope, nonce=secrets.token_urlsafe(24))
        with administration(self._place.url) as tx:
            standing_grants.grant(tx, given)

    async def turn(self, kind: str, runs: int, *, at_once: bool) -> Turn:
        """Play runs in a mode or by Temporal alone.

        Raises:
            SurehandError: One did not complete.
        """
        one = self._plain if kind == PLAIN else self._protected
        worker = self._place.plain if kind == PLAIN else self._place.worker
        pids = {"worker": worker.pid, **self._pids}
        before = {name: tree_cpu(pid) for name, pid in pids.items()}
        began = time.monotonic()
        try:
            async with asyncio.timeout(_LIMIT.total_seconds() + runs):
                found = await _all_of(lambda: one(kind), runs, at_once=at_once)
        except TimeoutError:
            raise SurehandError(f"{runs} runs ({kind}) did not end") from None
        whole = time.monotonic() - began
        await asyncio.sleep(_REST)
        cpu = {name: (tree_cpu(pid) - before[name]) / runs for name, pid in pids.items()}
        histories = [await self._history(run_id) for run_id, _ in found[:_LOOKED_AT]]
        return Turn([took for _, took in found], whole, cpu, histories)

    async def _protected(self, mode: str) -> tuple[str, float]:
        order = {"order_id": f"order-{secrets.token_hex(6)}"}
        plan = self._plan.model_copy(update={"input": order})
        began = time.monotonic()
        result = await played(self._server, mode, plan, mode)
        return result.run_id, time.monotonic() - began

    async def _plain(self, _kind: str) -> tuple[str, float]:
        run_id = f"plain-{secrets.token_hex(6)}"
        began = time.monotonic()
        await self._server.client.execute_workflow(
            PLAIN_REFUND,
            f"order-{secrets.token_hex(6)}",
            id=run_id,
            task_queue=PLAIN_QUEUE,
            start_signal=APPROVE,
            start_signal_args=["benchmark"],
        )
        return run_id, time.monotonic() - began

    async def _history(self, run_id: str) -> History:
        handle = self._server.handle(run_id)
        described = (await handle.describe()).raw_description.workflow_execution_info
        kinds = Counter([event.event_type async for event in handle.fetch_history_events()])
        return History(
            events=described.history_length,
            size=described.history_size_bytes,
            activities=kinds[_SCHEDULED],
            local=kinds[_MARKER],
            tasks=kinds[_MOVED],
        )


async def _all_of(
    one: Callable[[], Awaitable[tuple[str, float]]], runs: int, *, at_once: bool
) -> list[tuple[str, float]]:
    if at_once:
        return list(await asyncio.gather(*(one() for _ in range(runs))))
    return [await one() for _ in range(runs)]


@dataclass(frozen=True)
class Measured:
    """What whole runs cost in one mode, and those of Temporal alone in the same minutes."""

    store: str
    kind: str
    """The mode, or ``plain``."""
    at_once: int
    """Runs at once; 1: one after another."""
    turns: Sequence[Turn]
    plain: Sequence[Turn]

    @property
    def ms(self) -> float:
        """Milliseconds from a run's start to its result."""
        return 1000 * statistics.median(took for turn in self.turns for took in turn.took)

    @property
    def runs_per_s(self) -> float:
        """Runs a second."""
        return statistics.median(len(turn.took) / turn.whole for turn in self.turns)

    @property
    def ratio(self) -> float:
        """How many times as long the same runs take as plain ones: the median of the rounds'."""
        both = zip(self.turns, self.plain, strict=True)
        return statistics.median(ours.whole / theirs.whole for ours, theirs in both)

    def left(self, what: Callable[[History], int]) -> float:
        """Return what a run leaves in its history."""
        return statistics.median(what(one) for turn in self.turns for one in turn.histories)

    def cpu(self, process: str) -> float:
        """Return seconds of processor time a run; 0 for a process that there is not."""
        return statistics.median(turn.cpu.get(process, 0.0) for turn in self.turns)
