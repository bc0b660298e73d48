"""A worker's HTTP endpoints: ``/livez`` says that it lives, ``/readyz`` whether it can work.

Its event loop answers: one that hangs does not answer. It takes no library: a few paths, no bodies
to read, and each connection is closed behind its answer.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from typing import Final

import structlog
from temporalio.client import Client
from temporalio.service import RPCError

from surehand.activities.ledger.approvals.waiting import measure_waiting
from surehand.activities.ledger.core.store import Ledger, LedgerUnavailable
from surehand.activities.ledger.effects.epochs import current_epoch
from surehand.activities.ledger.halts import SCOPES, count_halts
from surehand.activities.ledger.runs.deletion import read_round_age
from surehand.activities.worker.telemetry import AddressError, Metrics
from surehand.workflows.identity import DEFAULT_TENANT, tenant_of_run, tenant_problem
from surehand.workflows.ports import IS_RUN, TENANT

#: How long a request may take to come in, and bytes of its head.
_REQUEST_PATIENCE: Final = timedelta(seconds=5)
_LONGEST_REQUEST: Final = 8192


#: Status and JSON document.
HealthAnswer = tuple[HTTPStatus, Mapping[str, object]]
#: What answers at a path.
Answering = Callable[[], Awaitable[HealthAnswer]]


@asynccontextmanager
async def answering(address: str, paths: Mapping[str, Answering]) -> AsyncIterator[None]:
    """Answer whoever asks at an address, for as long as the block lasts; empty: nobody.

    Raises ``AddressError``.
    """
    if not address:
        yield
        return
    host, _, port = address.rpartition(":")
    try:
        server = await asyncio.start_server(
            partial(_answer, paths), host.strip("[]"), int(port), limit=_LONGEST_REQUEST
        )
    except OSError as error:
        raise AddressError("health", address, error.strerror or str(error)) from error
    try:
        yield
    finally:
        server.close()


async def _answer(
    paths: Mapping[str, Answering], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    try:
        async with asyncio.timeout(_REQUEST_PATIENCE.total_seconds()):
            head = await reader.readuntil(b"\r\n\r\n")
        method, _, rest = head.decode("latin-1").partition(" ")
        status, document = await _judge(paths, method, rest.partition(" ")[0].partition("?")[0])
        body = json.dumps(document).encode() + b"\n"
        lines = (
            f"HTTP/1.1 {status.value} {status.phrase}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "Connection: close",
        )
        shown = b"" if method == "HEAD" else body
        writer.write("\r\n".join([*lines, "", ""]).encode() + shown)
        await writer.drain()
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        pass  # Whoever has asked so gets no answer.
    finally:
        writer.close()


async def _judge(paths: Mapping[str, Answering], method: str, path: str) -> HealthAnswer:
    if method not in ("GET", "HEAD"):
        return HTTPStatus.METHOD_NOT_ALLOWED, {"error": "only GET and HEAD"}
    if path not in paths:
        return HTTPStatus.NOT_FOUND, {"error": f"only {' and '.join(paths)}"}
    return await paths[path]()


#: What does not answer within this time does not answer; whoever asks waits for some seconds.
PATIENCE: Final = timedelta(seconds=2)
LIVE: Final = "/livez"
READY: Final = "/readyz"
#: What is well.
OK: Final = "ok"

Check = Callable[[], Awaitable[None]]


class NotReady(Exception):
    """A check has found that the worker cannot work; the message says why."""


@dataclass
class Readiness:
    """Asks what a worker needs, each thing once at a time, however many want to know."""

    checks: Mapping[str, Check]
    hide: Callable[[str], str] = lambda text: text
    stopping: bool = False
    """Whether the worker takes no more work."""
    _asked: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    @classmethod
    def of(cls, ledger: Ledger, client: Client, hide: Callable[[str], str]) -> Readiness:
        """Return what looks at ledger and server."""
        checks = {
            "ledger": partial(ledger.ping, PATIENCE),
            "temporal": partial(_require_served, client),
        }
        return cls(checks, hide)

    async def look(self) -> dict[str, str]:
        """Return what each check says: ``ok``, or what is wrong."""
        for name, check in self.checks.items():
            if name not in self._asked:
                self._asked[name] = asyncio.ensure_future(check())
        asked = dict(self._asked)
        # Nothing is cut off: what is with the ledger comes to its end, and is asked again then.
        await asyncio.wait(asked.values(), timeout=PATIENCE.total_seconds())
        found = {name: self.hide(_describe_check(task)) for name, task in asked.items()}
        self._asked = {name: task for name, task in self._asked.items() if not task.done()}
        if self.stopping:
            found["worker"] = "it is stopping"
        return found


def _describe_check(task: asyncio.Task[None]) -> str:
    if not task.done():
        return f"does not answer within {PATIENCE.total_seconds():g} s"
    error = task.exception()
    return OK if error is None else f"{error or type(error).__name__}"


async def _require_served(client: Client) -> None:
    try:
        serving = await client.service_client.check_health(timeout=PATIENCE)
    except RPCError as error:
        raise NotReady(f"{client.service_client.config.target_host}: {error.message}") from error
    if not serving:
        raise NotReady(f"{client.service_client.config.target_host}: it does not serve")


def health_paths(readiness: Readiness) -> dict[str, Answering]:
    """Return what answers whoever watches the worker's process."""

    async def live() -> HealthAnswer:
        return HTTPStatus.OK, {"live": True}

    async def ready() -> HealthAnswer:
        found = await readiness.look()
        well = all(said == OK for said in found.values())
        status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
        return status, {"ready": well, **found}

    return {LIVE: live, READY: ready}


log = structlog.get_logger()

# Each worker asks the ledger for its epoch and rounds of retention, because nobody else is always
# there to be asked for metrics. It asks the Temporal server for tenants, because row-level security
# lists none. A worker knows the tenants that it has worked for: after a start it would know of
# none, and nobody would remind the people whose runs wait just now.
#: Short beside the time after which an alert is raised.
MEASURE_EVERY: Final = timedelta(minutes=1)
#: New tenants are heard of when they have a worker run something; this is for what waits.
LEARN_EVERY: Final = timedelta(minutes=5)
#: Most tenants that a query leaves out, and queries of one round.
_MOST: Final = 200
#: Runs looked at for one of them: normally the first one is.
_MOST_LOOKED_AT: Final = 1000


async def repeat(
    work: Callable[[], Awaitable[object]], every: timedelta, stopping: asyncio.Event, failed: str
) -> None:
    """Do work again and again until the worker stops; ``failed``: the log's word for a failure."""
    while not stopping.is_set():
        try:
            await work()
        except (LedgerUnavailable, RPCError) as error:
            log.warning(failed, error=str(error))
        except Exception:
            log.exception(failed)
        with suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), every.total_seconds())


async def measure(ledger: Ledger, metrics: Metrics) -> None:
    """Measure all of it once. Raises ``LedgerUnavailable``."""
    epoch = await ledger.transact(DEFAULT_TENANT, current_epoch)
    metrics.epoch(0 if epoch is None else epoch.number)
    halts, waiting, oldest_ms, ages = Counter(dict.fromkeys(SCOPES, 0)), 0, 0, list[timedelta]()
    for one in {DEFAULT_TENANT, *ledger.tenants}:
        found, (count, age_ms), age = await ledger.transact(
            one, lambda tx: (count_halts(tx), measure_waiting(tx), read_round_age(tx))
        )
        halts.update(found)
        waiting, oldest_ms = waiting + count, max(oldest_ms, age_ms)
        ages += [] if age is None else [age]
    metrics.halts(halts)
    metrics.approvals(waiting, timedelta(milliseconds=oldest_ms))
    metrics.retention(ages)


async def learn(server: Client, ledger: Ledger) -> int:
    """Have a ledger know the tenants of open runs, and return how many were new."""
    before = len(ledger.tenants)
    for _ in range(_MOST):
        known = sorted({DEFAULT_TENANT, *ledger.tenants})[:_MOST]
        conditions = [IS_RUN, "ExecutionStatus = 'Running'"]
        conditions += [f"{TENANT.name} != '{tenant}'" for tenant in known]
        # Where not all that are known can be left out, all the others are looked at.
        all_left_out = {DEFAULT_TENANT, *ledger.tenants} == set(known)
        most = _MOST_LOOKED_AT if all_left_out else None
        found = set[str]()
        async for run in server.list_workflows(" AND ".join(conditions), limit=most):
            tenant = tenant_of_run(run.id)
            # Anybody can start a workflow under any name: the others' runs are found beside it.
            if tenant_problem(tenant) is None and tenant not in {DEFAULT_TENANT, *ledger.tenants}:
                found.add(tenant)
                if all_left_out:
                    break  # The next query leaves it out.
        ledger.tenants |= found
        if not found:
            break
    return len(ledger.tenants) - before


async def keep_track(
    server: Client, ledger: Ledger, metrics: Metrics, stopping: asyncio.Event
) -> None:
    """Measure, and learn of tenants, again and again until the worker stops."""
    await asyncio.gather(
        repeat(partial(measure, ledger, metrics), MEASURE_EVERY, stopping, "gauges.not_measured"),
        repeat(partial(learn, server, ledger), LEARN_EVERY, stopping, "tenants.not_learnt"),
    )
