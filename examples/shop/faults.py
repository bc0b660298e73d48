"""How every request goes through a service: counted, disturbed as told, applied, answered.

Faults are told by ``PUT /admin/faults/{endpoint}``. HTTP servers offer no way to end a request
without an answer, so connections are kept, to hang up.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from surehand.examples.shop.effects import Answer


class Fault(BaseModel):
    """The misbehaviour of one endpoint. The empty fault is a well-behaved endpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ignore_keys: bool = False
    """Apply a request again although its ``Idempotency-Key`` was seen before."""
    ignore_lookup: bool = False
    """Answer 501 when asked for an effect by key. Does not use up ``times``."""
    delay_before_s: float = Field(default=0.0, ge=0)
    """Seconds before the request is applied: it is on the wire and its client may die."""
    delay_after_s: float = Field(default=0.0, ge=0)
    """Seconds between the application and the answer."""
    hold: Literal["before", "after"] | None = None
    """Hold a request before or after it is applied, until faults are told or cleared anew."""
    half: bool = False
    """Apply half of the request, then answer 500."""
    fail: Literal["before", "after", "drop_before", "drop_after"] | None = None
    """Fail before or after applying: with ``status``, or by closing the connection."""
    status: int = Field(default=500, ge=400, le=599)
    retry_after: int | str | None = None
    """``Retry-After`` of a failure: seconds or an HTTP date. Alone it means 429 before applying."""
    times: int | None = Field(default=None, ge=1)
    """Only the first so many requests are disturbed; ``None`` disturbs them all."""

    @model_validator(mode="before")
    @classmethod
    def _rate_limit(cls, value: object) -> object:
        if isinstance(value, dict) and value.get("retry_after") is not None:
            return {"status": 429, "fail": "before"} | value
        return value

    @model_validator(mode="after")
    def _half_needs_an_application(self) -> Self:
        if self.half and self.fail in ("before", "drop_before"):
            raise ValueError("a request that fails before it is applied cannot be half applied")
        return self


WELL_BEHAVED: Final = Fault()


@dataclass
class Told:
    """A fault in force."""

    fault: Fault
    remaining: int | None
    """Requests that it still disturbs; ``None``: all."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it is in force no more: what it holds goes on."""

    async def before(self) -> None:
        """Wait as long as a request is to wait before it is applied."""
        await self._wait("before", self.fault.delay_before_s)

    async def after(self) -> None:
        """Wait as long as a request is to wait between its application and the answer."""
        await self._wait("after", self.fault.delay_after_s)

    async def _wait(self, moment: str, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        if self.fault.hold == moment:
            await self.over.wait()


class Faults:
    """The faults in force, by endpoint. Kept in memory: a restarted shop behaves well."""

    def __init__(self) -> None:
        self._told: dict[str, Told] = {}

    def tell(self, endpoint: str, fault: Fault) -> None:
        self._end(endpoint)
        self._told[endpoint] = Told(fault, fault.times)

    def clear(self) -> None:
        for endpoint in list(self._told):
            self._end(endpoint)

    def take(self, endpoint: str) -> Told:
        """Return the fault that disturbs the request at hand, and count it."""
        told = self._told.get(endpoint)
        if told is None or told.remaining == 0:
            return Told(WELL_BEHAVED, None)
        if told.remaining is not None:
            told.remaining -= 1
        return told

    def ignores_lookup(self, endpoint: str) -> bool:
        """Return whether the endpoint refuses to be asked by key."""
        told = self._told.get(endpoint)
        return told is not None and told.fault.ignore_lookup

    def _end(self, endpoint: str) -> None:
        told = self._told.pop(endpoint, None)
        if told is not None:
            told.over.set()


class Traffic:
    """Requests by endpoint since the process started."""

    def __init__(self) -> None:
        self._received: Counter[str] = Counter()
        self._finished: Counter[str] = Counter()
        self._change = asyncio.Event()

    @contextmanager
    def request(self, endpoint: str) -> Iterator[None]:
        """Count a request as in flight while the block runs."""
        self._received[endpoint] += 1
        self.changed()
        try:
            yield
        finally:
            self._finished[endpoint] += 1
            self.changed()

    def received(self, endpoint: str) -> int:
        return self._received[endpoint]

    def finished(self, endpoint: str) -> int:
        return self._finished[endpoint]

    def snapshot(self) -> dict[str, dict[str, int]]:
        return {
            endpoint: {
                "received": received,
                "in_flight": received - self._finished[endpoint],
                "finished": self._finished[endpoint],
            }
            for endpoint, received in sorted(self._received.items())
        }

    def changed(self) -> None:
        """Wake everybody who waits, to look again."""
        self._change.set()
        self._change = asyncio.Event()

    async def wait_until(self, reached: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until ``reached`` holds; ``False`` if it does not in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while not reached():
                    await self._change.wait()
        except TimeoutError:
            return False
        return True


Address = tuple[str, int]


class Connections:
    """The open connections, by the client's address."""

    def __init__(self) -> None:
        self._open: dict[Address, asyncio.Transport] = {}

    def protocol(self) -> type[asyncio.Protocol]:
        """Return uvicorn's HTTP protocol, made to report its connections here."""
        connections = self._open

        class ReportingProtocol(H11Protocol):
            def connection_made(  # type: ignore[override]
                self, transport: asyncio.Transport
            ) -> None:
                super().connection_made(transport)
                if self.client:
                    connections[self.client] = transport

            def connection_lost(self, exc: Exception | None) -> None:
                if self.client:
                    connections.pop(self.client, None)
                super().connection_lost(exc)

        return ReportingProtocol

    async def drop(self, client: Address) -> None:
        """Close the client's connection at once; whatever is sent on it later goes nowhere."""
        transport = self._open.get(client)
        if transport is not None:
            transport.abort()
        # The protocol hears of the loss in the loop's next turn; an answer must not overtake that.
        await asyncio.sleep(0)


Work = Callable[[Fault], Answer]


class Serving:
    """Serves requests under the faults in force."""

    def __init__(self, faults: Faults, traffic: Traffic, connections: Connections) -> None:
        self._faults = faults
        self._traffic = traffic
        self._connections = connections
        # The event loop itself keeps only weak references to its tasks.
        self._running: set[asyncio.Task[Response | None]] = set()

    async def serve(self, request: Request, endpoint: str, work: Work) -> Response:
        """Answer a request whose body has been read.

        The request runs in a task of its own, which nobody cancels: once it is on the wire, the
        death of its client does not stop it, as with any real provider.
        """
        task = asyncio.create_task(self._through(endpoint, work))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        response = await asyncio.shield(task)
        if response is None:
            if request.client is not None:
                await self._connections.drop((request.client.host, request.client.port))
            return Response()
        return response

    async def _through(self, endpoint: str, work: Work) -> Response | None:
        """Return the response, or ``None`` where the connection is to be closed instead."""
        with self._traffic.request(endpoint):
            told = self._faults.take(endpoint)
            fault = told.fault
            await told.before()
            if fault.fail == "drop_before":
                return None
            if fault.fail == "before":
                return _failure(fault)
            answer = work(fault)
            self._traffic.changed()
            await told.after()
            if fault.fail == "drop_after":
                return None
            if fault.fail == "after":
                return _failure(fault)
            return JSONResponse(answer.body, answer.status)


def _failure(fault: Fault) -> Response:
    headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
    body = {"code": "told_to_fail", "message": "the service was told to fail"}
    return JSONResponse(body, fault.status, headers)
