"""The way of every request through a service: counted, disturbed, applied, answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from surehand.examples.shop.connections import Connections
from surehand.examples.shop.effects import Answer
from surehand.examples.shop.faults import Fault, Faults
from surehand.examples.shop.traffic import Traffic

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
