"""The shop's application: its own endpoints, those of every service, and ``/admin``."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from surehand.examples.shop.effects import (
    WRITES,
    Answer,
    Refused,
    Write,
    apply,
    counts,
    look_up,
    refusal,
)
from surehand.examples.shop.faults import Connections, Fault, Faults, Serving, Traffic
from surehand.examples.shop.store import NewOrder, Store, add_order, order_view, world

Handler = Callable[[Request], Awaitable[Response]]


def lookup_of(endpoint: str) -> str:
    """Return the name under which an endpoint's lookup is counted and disturbed."""
    return f"{endpoint}.lookup"


def write_handler(serving: Serving, store: Store, write: Write) -> Handler:

    async def handle(request: Request) -> Response:
        # Read whole before anything else: from here on the client is no longer needed.
        sent: dict[str, Any] = await request.json() if await request.body() else {}
        body = write.body.model_validate(sent | request.path_params)
        key = request.headers.get("Idempotency-Key")

        def work(fault: Fault) -> Answer:
            return apply(
                store, write, body, key=key, honour_key=not fault.ignore_keys, half=fault.half
            )

        return await serving.serve(request, write.name, work)

    return handle


def lookup_handler(serving: Serving, store: Store, faults: Faults, write: Write) -> Handler:

    async def handle(request: Request) -> Response:
        key = request.query_params.get("key")
        if not key:
            return JSONResponse({"code": "invalid", "message": "which key? (?key=)"}, 422)

        def work(fault: Fault) -> Answer:
            if faults.ignores_lookup(write.name):
                return refusal(Refused(501, "no_lookup", "this endpoint cannot be asked by key"))
            return look_up(store, write, key)

        return await serving.serve(request, lookup_of(write.name), work)

    return handle


def read_handler(serving: Serving, endpoint: str, found: Callable[[Request], Answer]) -> Handler:

    async def handle(request: Request) -> Response:
        return await serving.serve(request, endpoint, lambda fault: found(request))

    return handle


async def answer_invalid(request: Request, error: Exception) -> Response:
    """Answer a request whose body does not fit."""
    return JSONResponse({"code": "invalid", "message": str(error)}, 422)


class WaitFor(BaseModel):
    """What ``GET /admin/wait`` waits for: all that is given, counted since the start."""

    endpoint: str
    requests: int = 0
    """Requests that have arrived."""
    effects: int = 0
    """Effects in the database; these also count what an earlier process applied."""
    finished: int = 0
    """Requests that have ended, answered or not."""
    timeout_s: float = Field(default=20.0, gt=0)


class Admin:
    """Answers ``/admin/...``."""

    def __init__(
        self,
        faults: Faults,
        traffic: Traffic,
        endpoints: Collection[str],
        *,
        counted: Callable[[str | None], dict[str, int]],
        about: str,
    ) -> None:
        self._faults = faults
        self._traffic = traffic
        self._endpoints = sorted(endpoints)
        self._counted = counted
        self._about = about

    def routes(self) -> list[Route]:
        return [
            Route("/admin/faults/{endpoint}", self.tell_fault, methods=["PUT"]),
            Route("/admin/faults", self.clear_faults, methods=["DELETE"]),
            Route("/admin/counts", self.counts),
            Route("/admin/requests", self.requests),
            Route("/admin/wait", self.wait),
        ]

    async def tell_fault(self, request: Request) -> Response:
        endpoint = request.path_params["endpoint"]
        if endpoint not in self._endpoints:
            known = ", ".join(self._endpoints)
            return problem(404, f"there is no endpoint {endpoint!r}; known are {known}")
        fault = Fault.model_validate_json(await request.body())
        self._faults.tell(endpoint, fault)
        return JSONResponse(fault.model_dump(mode="json"))

    async def clear_faults(self, request: Request) -> Response:
        self._faults.clear()
        return Response(status_code=204)

    async def counts(self, request: Request) -> Response:
        return JSONResponse(self._counted(request.query_params.get(self._about)))

    async def requests(self, request: Request) -> Response:
        return JSONResponse(self._traffic.snapshot())

    async def wait(self, request: Request) -> Response:
        """Answer when what is waited for has come; 408 if it has not in time."""
        want = WaitFor.model_validate(dict(request.query_params))
        if want.endpoint not in self._endpoints:
            return problem(404, f"there is no endpoint {want.endpoint!r}")

        def reached() -> bool:
            return (
                self._traffic.received(want.endpoint) >= want.requests
                and self._traffic.finished(want.endpoint) >= want.finished
                and self._counted(None).get(want.endpoint, 0) >= want.effects
            )

        came = await self._traffic.wait_until(reached, want.timeout_s)
        return JSONResponse(self._traffic.snapshot(), 200 if came else 408)


def problem(status: int, message: str) -> Response:
    return JSONResponse({"code": "refused", "message": message}, status)


ORDERS: Final = "orders"
_WRITES: Final = tuple(write.name for write in WRITES)
#: Every name that faults and counts know.
ENDPOINTS: Final = frozenset((ORDERS, *_WRITES, *map(lookup_of, _WRITES)))


def build(db: Path, connections: Connections) -> Starlette:
    store, faults, traffic = Store(db), Faults(), Traffic()
    serving = Serving(faults, traffic, connections)

    def read_order(request: Request) -> Answer:
        order_id = request.path_params["order_id"]
        order = order_view(store, order_id)
        if order is None:
            return refusal(Refused(404, "order_not_found", f"there is no order {order_id}"))
        return Answer(200, order)

    def counted(order_id: str | None) -> dict[str, int]:
        return dict.fromkeys(_WRITES, 0) | counts(store, order_id)

    routes = [
        Route("/orders/{order_id}", read_handler(serving, ORDERS, read_order)),
        *(Route(w.path, write_handler(serving, store, w), methods=["POST"]) for w in WRITES),
        *(Route(f"/{w.name}", lookup_handler(serving, store, faults, w)) for w in WRITES),
        Route("/admin/orders", _create_order(store), methods=["POST"]),
        Route("/admin/world", _world(store)),
        *Admin(faults, traffic, ENDPOINTS, counted=counted, about="order_id").routes(),
    ]
    return Starlette(routes=routes, exception_handlers={ValidationError: answer_invalid})


def _create_order(store: Store) -> Handler:
    async def handle(request: Request) -> Response:
        order = NewOrder.model_validate_json(await request.body())
        try:
            with store.transaction() as connection:
                order_id = add_order(connection, order)
        except sqlite3.IntegrityError:
            return problem(409, f"there is already an order {order.order_id}")
        return JSONResponse(order_view(store, order_id), 201)

    return handle


def _world(store: Store) -> Handler:
    async def handle(request: Request) -> Response:
        return JSONResponse(world(store, request.query_params.get("order_id")))

    return handle
