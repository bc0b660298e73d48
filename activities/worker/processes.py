"""``--processes N``: workers in processes of their own, one for a core; one to whoever watches.

A Python process keeps one core busy, so a machine with more needs more of them. This process does
no work: it starts the workers, starts again one that has died, and answers for all of them. What
one of them had under way when it died is taken over as from any dead worker.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final

import httpx
import structlog

from surehand.activities.worker.endpoint import Answer, answering
from surehand.activities.worker.readiness import LIVE, READY
from surehand.activities.worker.settings import Settings
from surehand.process.children import Child, python, settings_of_module
from surehand.process.dev_server import free_ports
from surehand.process.exits import ExitCode
from surehand.process.settings import PREFIX

log = structlog.get_logger()

#: Between two looks at the workers; one that dies again and again is started no faster.
LOOK: Final = timedelta(seconds=0.5)
#: How long a worker may take for an answer: longer than it takes itself for one.
PATIENCE: Final = timedelta(seconds=4)
#: Beyond what calls under way may take: until a worker that ends in order has ended.
_ENDING: Final = timedelta(seconds=10)
_METRICS: Final = "/metrics"
_EXPOSITION: Final = "text/plain; version=0.0.4"
#: ``name{labels} value``; after ``{`` a label follows, or ``}``.
_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{(?!}))?(\{})?")


class Process:
    """One worker in a process of its own."""

    def __init__(self, number: int, settings: Settings) -> None:
        """Start it; ``number``: from 1, as its metrics are labelled."""
        self.number = number
        self._settings = settings
        self.ready = False
        """Whether it has begun to work since it was started."""
        self.began = False
        """Whether it ever has: one that has may find the ledger away, and is started again."""
        self.child = self._start()

    def _start(self) -> Child:
        health, metrics = (f"127.0.0.1:{port}" for port in free_ports(2))
        self._health, self._metrics = f"http://{health}", f"http://{metrics}"
        own = {
            f"{PREFIX}PROCESSES": "1",
            f"{PREFIX}HEALTH": health,
            f"{PREFIX}METRICS": metrics if self._settings.metrics else "",
        }
        environment = {**os.environ, **settings_of_module(), **own}
        started = Child(
            python("surehand.worker"),
            environment=environment,
            log=None,
            folder=Path.cwd(),
            guard="TERM",  # where this process is killed, its workers end in order
        )
        log.info("processes.started", process=self.number, pid=started.pid)
        return started

    def start_again(self) -> None:
        """Start it again, after it has ended by itself."""
        code = self.child.wait()
        log.error("processes.ended", process=self.number, pid=self.child.pid, code=code)
        self.ready = False
        self.child = self._start()

    async def look(self, client: httpx.AsyncClient) -> None:
        """See whether it has begun to work."""
        if not self.ready:
            self.ready = (await self.asked(client, LIVE)) is not None
            self.began |= self.ready

    async def asked(self, client: httpx.AsyncClient, path: str) -> httpx.Response | None:
        """Return what it answers; ``None``: nothing."""
        base = self._metrics if path == _METRICS else self._health
        try:
            return await client.get(base + path)
        except httpx.HTTPError:
            return None


async def supervise(settings: Settings) -> ExitCode | int:
    """Keep the workers at work until SIGTERM or SIGINT, and return the exit code.

    Each is started once the one before works. One that ends before it has begun would not begin
    the second time, either: all end then, with its exit code.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE.total_seconds()) as client:
        processes: list[Process] = []
        health = {
            LIVE: partial(_live, processes, client),
            READY: partial(_ready, processes, client, settings.processes, stopping.is_set),
        }
        metrics = {_METRICS: partial(_metrics, processes, client)}
        try:
            async with (
                answering("health", settings.health, health),
                answering("metrics", settings.metrics, metrics),
            ):
                code = await _keep(processes, settings, client, stopping)
                stopping.set()
                ended = await _end(processes, settings.graceful_shutdown + _ENDING)
        finally:
            for one in processes:
                one.child.kill()
    log.info("processes.stopped", codes=ended)
    # One that was still loading dies of the signal; another one had to be killed.
    failed = [one for one in ended if one not in (0, -signal.SIGTERM)]
    return code or next((one if one > 0 else ExitCode.UNEXPECTED for one in failed), ExitCode.DONE)


async def _keep(
    processes: list[Process],
    settings: Settings,
    client: httpx.AsyncClient,
    stopping: asyncio.Event,
) -> int:
    """Start them, and again who dies; return the exit code of one that has never begun, or 0."""
    while not stopping.is_set():
        if len(processes) < settings.processes and all(one.ready for one in processes):
            processes.append(Process(len(processes) + 1, settings))
        await asyncio.gather(*(one.look(client) for one in processes if one.child.running))
        for one in processes:
            code = one.child.returncode
            if code is None or stopping.is_set():
                continue
            if not one.began:
                log.error("processes.never_began", process=one.number, code=code)
                return code if code > 0 else ExitCode.UNEXPECTED
            one.start_again()
        with suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), LOOK.total_seconds())
    return 0


async def _end(processes: Sequence[Process], within: timedelta) -> list[int]:
    """End all of them in order, at once, and return how each has ended."""
    for one in processes:
        one.child.signal(signal.SIGTERM)
    with suppress(TimeoutError):
        async with asyncio.timeout(within.total_seconds()):
            while any(one.child.running for one in processes):
                await asyncio.sleep(LOOK.total_seconds() / 10)
    for one in processes:
        one.child.kill()
    return [one.child.wait() for one in processes]


async def _live(processes: Sequence[Process], client: httpx.AsyncClient) -> Answer:
    """Say whether no worker hangs; one that starts is no reason to end the others."""
    told = await _told(processes, client, LIVE)
    well = all(code in (None, HTTPStatus.OK) for code, _ in told.values())
    return _answer("live", well, {name: document for name, (_, document) in told.items()})


async def _ready(
    processes: Sequence[Process],
    client: httpx.AsyncClient,
    count: int,
    stops: Callable[[], bool],
) -> Answer:
    """Say whether all workers can work."""
    told = await _told(processes, client, READY)
    documents = {name: document for name, (_, document) in told.items()}
    if stops():
        return _answer("ready", False, {**documents, "worker": "it is stopping"})
    well = len(told) == count and all(code == HTTPStatus.OK for code, _ in told.values())
    return _answer("ready", well, documents)


def _answer(what: str, well: bool, documents: Mapping[str, object]) -> Answer:
    status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
    return Answer.document(status, {what: well, **documents})


async def _told(
    processes: Sequence[Process], client: httpx.AsyncClient, path: str
) -> dict[str, tuple[int | None, Mapping[str, object]]]:
    """Return what each worker says, by its number."""
    asked = list(processes)
    said = await asyncio.gather(*(_said(one, client, path) for one in asked))
    return {str(one.number): answer for one, answer in zip(asked, said, strict=True)}


async def _said(
    one: Process, client: httpx.AsyncClient, path: str
) -> tuple[int | None, Mapping[str, object]]:
    """Return status and document of one worker; ``None``: it has not begun yet."""
    if not one.ready:
        return None, {"worker": "it starts"}
    answer = await one.asked(client, path)
    if answer is None:
        return 0, {"worker": f"does not answer within {PATIENCE.total_seconds():g} s"}
    return answer.status_code, answer.json()


async def _metrics(processes: Iterable[Process], client: httpx.AsyncClient) -> Answer:
    """Return the metrics of all, each with the number of its process."""
    asked = list(processes)
    answers = await asyncio.gather(*(one.asked(client, _METRICS) for one in asked))
    pages = {
        one.number: answer.text
        for one, answer in zip(asked, answers, strict=True)
        if answer is not None and answer.is_success
    }
    return Answer(HTTPStatus.OK, merged(pages).encode(), _EXPOSITION)


def merged(pages: Mapping[int, str]) -> str:
    """Return pages of Prometheus' text format as one, each series labelled with its page.

    Source: https://prometheus.io/docs/instrumenting/exposition_formats/. All lines of a metric
    stand together in it, behind what describes it.
    """
    described: dict[str, list[str]] = {}
    series: dict[str, list[str]] = {}
    for number, page in pages.items():
        metric = ""
        for line in filter(None, page.split("\n")):
            if not line.startswith("#"):
                series.setdefault(metric, []).append(_labelled(line, number))
                continue
            metric = line.split(" ", 3)[2]
            about = described.setdefault(metric, [])
            if line not in about:
                about.append(line)
    lines = [line for metric in series for line in (*described.get(metric, ()), *series[metric])]
    return "".join(f"{line}\n" for line in lines)


def _labelled(sample: str, number: int) -> str:
    found = _SAMPLE.match(sample)
    assert found is not None, f"no sample: {sample}"
    end = "," if found[2] else "}"
    return f'{found[1]}{{process="{number}"{end}{sample[found.end() :]}'
