"""``python -m benchmarks.runs``: what a whole run costs, from its start to its result.

The refund of ``examples``: two reads and three writes, of which one needs an approval that a
standing approval gives. One run after another and many at once, in turns with a plain Temporal
workflow that makes the same five calls, and whose signal is there from the start. BENCHMARKS.md
shows what this prints.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sqlalchemy import make_url
from temporalio.api.enums.v1 import EventType

from benchmarks import harness, tools
from benchmarks.plain import APPROVE, PLAIN_QUEUE, PLAIN_REFUND
from surehand.activities.ledger.approvals import standing as standing_rows
from surehand.client.plan_file import load_plan
from surehand.drill.environment import Environment
from surehand.process import ROOT
from surehand.process.exits import SurehandError, leave
from surehand.workflows.contracts.approvals import Scope, StandingGrant

#: Temporal alone, which takes turns with the modes.
PLAIN: Final = "plain"
ROUNDS: Final = 3
#: In each turn, at once and one after another.
RUNS: Final = 50
ALONE: Final = 20
#: Before the first turn, in each mode.
_WARM_UP: Final = 3
#: Runs of which each event is looked at; the others have the same.
_LOOKED_AT: Final = 5
#: Seconds after a turn, for what servers and workers do once a run has ended.
_REST: Final = 0.5
_GRANTED_FOR: Final = timedelta(days=1)
#: Seconds. A run takes one; one that takes as long as this asks somebody.
_LIMIT: Final = 120
#: What is counted in a run's history, beside its events and bytes.
_COUNTED: Final = {
    "activities": EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED,
    "local_activities": EventType.EVENT_TYPE_MARKER_RECORDED,
    "workflow_tasks": EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED,
}


@dataclass(frozen=True)
class Turn:
    """Some runs; times in seconds."""

    took: Sequence[float]
    """Each, from its start to its result."""
    whole: float
    """From the first one's start to the last one's result."""
    cpu: dict[str, float]
    """Processor time a run: of the worker, Temporal's server and the ledger's database."""
    histories: Sequence[dict[str, int]]


class WholeRuns:
    """Plays runs at a place."""

    def __init__(self, place: harness.Place) -> None:
        self._place = place
        self._server = place.server
        self._plan = load_plan(str(ROOT / "examples" / "refund.yaml"))
        url = make_url(place.url)
        self._pids = {
            "server": harness.process_with("--port", place.server.target.address.split(":")[1])
        }
        if url.get_backend_name() == "postgresql":
            self._pids["database"] = harness.process_with("-p", str(url.port))

    def grant(self) -> None:
        tool = tools.refund
        until = int(time.time() + _GRANTED_FOR.total_seconds())
        scope = Scope(
            tool=tool.name, version=tool.version, schema_hash=tool.schema_hash, until=until
        )
        given = StandingGrant(granter="benchmark", scope=scope, nonce=secrets.token_urlsafe(24))
        with harness.administration(self._place.url) as tx:
            standing_rows.grant_standing(tx, given)

    async def turn(self, kind: str, runs: int, *, at_once: bool) -> Turn:
        """Play runs in a mode or by Temporal alone."""
        worker = self._place.plain if kind == PLAIN else self._place.worker
        pids = {"worker": worker.pid, **self._pids}
        before = {name: harness.tree_cpu(pid) for name, pid in pids.items()}
        began = time.monotonic()
        try:
            async with asyncio.timeout(_LIMIT + runs):
                if at_once:
                    found = await asyncio.gather(*(self._play(kind) for _ in range(runs)))
                else:
                    found = [await self._play(kind) for _ in range(runs)]
        except TimeoutError:
            raise SurehandError(f"{runs} runs ({kind}) did not end") from None
        whole = time.monotonic() - began
        await asyncio.sleep(_REST)
        cpu = {name: (harness.tree_cpu(pid) - before[name]) / runs for name, pid in pids.items()}
        histories = [await self._history(run_id) for run_id, _ in found[:_LOOKED_AT]]
        return Turn([took for _, took in found], whole, cpu, histories)

    async def _play(self, kind: str) -> tuple[str, float]:
        """Return a run's id, and how long it took."""
        order, began = f"order-{secrets.token_hex(6)}", time.monotonic()
        if kind != PLAIN:
            plan = self._plan.model_copy(update={"input": {"order_id": order}})
            run_id = (await harness.played(self._server, kind, plan, kind)).run_id
        else:
            run_id = f"plain-{order}"
            await self._server.client.execute_workflow(
                PLAIN_REFUND,
                order,
                id=run_id,
                task_queue=PLAIN_QUEUE,
                start_signal=APPROVE,
                start_signal_args=["benchmark"],
            )
        return run_id, time.monotonic() - began

    async def _history(self, run_id: str) -> dict[str, int]:
        handle = self._server.handle(run_id)
        described = (await handle.describe()).raw_description.workflow_execution_info
        kinds = Counter([event.event_type async for event in handle.fetch_history_events()])
        counted = {name: kinds[kind] for name, kind in _COUNTED.items()}
        sizes = {"events": described.history_length, "bytes": described.history_size_bytes}
        return {**sizes, **counted}


def _rows(
    store: str, at_once: int, turns: dict[str, list[Turn]]
) -> tuple[list[harness.Row], list[harness.Row]]:
    """Return what runs cost by their kind, and what they leave on the server."""
    costs, left = [], []
    for kind, of in turns.items():
        place = {"mode": kind, "store": store, "at_once": at_once}
        both = zip(of, turns[PLAIN], strict=True)
        cpu = {
            f"cpu_{name}_s": round(statistics.median(turn.cpu.get(name, 0.0) for turn in of), 4)
            for name in ("worker", "server", "database")
        }
        ms = 1000 * statistics.median(took for turn in of for took in turn.took)
        ratio = statistics.median(ours.whole / plain.whole for ours, plain in both)
        speed = statistics.median(len(turn.took) / turn.whole for turn in of)
        took = {"ms_per_run": round(ms, 1), "ratio": round(ratio, 3), "runs_per_s": round(speed, 2)}
        costs.append({**place, **took, **cpu})
        histories = [one for turn in of for one in turn.histories]
        left.append(
            place | {name: statistics.median(h[name] for h in histories) for name in histories[0]}
        )
    return costs, left


async def measure(
    environment: Environment, options: argparse.Namespace, found: harness.Found
) -> None:
    kinds = (PLAIN, *(options.mode or harness.MODES))

    async def play(place: harness.Place) -> None:
        runs = WholeRuns(place)
        runs.grant()
        for kind in kinds:
            await runs.turn(kind, _WARM_UP, at_once=False)
        for at_once, runs_each in ((False, min(ALONE, options.runs)), (True, options.runs)):
            turns: dict[str, list[Turn]] = {kind: [] for kind in kinds}
            for _ in range(options.rounds):
                for kind in kinds:
                    turns[kind].append(await runs.turn(kind, runs_each, at_once=at_once))
            crowd = options.runs if at_once else 1
            for rows in _rows(place.store, crowd, turns):
                found.rows.extend(rows)
            found.note(f"{place.store}: {crowd} at once")

    variables = {**harness.clean(), "SUREHAND_TOOL_MODULES": "benchmarks.tools"}
    variables = environment.make_variables(variables)
    await harness.at_each(environment, variables, options.database, play, options.processes)


def main(argv: Sequence[str] | None = None) -> int:
    parser = harness.parser_of("runs", "What a whole run costs.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help="default 3")
    parser.add_argument("--runs", type=int, default=RUNS, metavar="N", help="at once; default 50")
    own = "of our worker, not of the plain one; default 1"
    parser.add_argument("--processes", type=int, default=1, metavar="N", help=own)
    parser.add_argument("--mode", choices=harness.MODES, action="append", help="default all")
    options = parser.parse_args(argv)
    if options.rounds < 1 or options.runs < 2:
        parser.error("--rounds must be at least 1, --runs at least 2")
    return harness.run("runs", options, measure)


if __name__ == "__main__":
    leave(main())
