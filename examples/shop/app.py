"""The shop's own endpoints, and the application made of everything."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from surehand.examples.shop.admin import Admin
from surehand.examples.shop.connections import Connections
from surehand.examples.shop.effects import Answer, apply, look_up, refusal
from surehand.examples.shop.faults import Fault, Faults
from surehand.examples.shop.serving import Serving
from surehand.examples.shop.store import Store
from surehand.examples.shop.traffic import Traffic
from surehand.examples.shop.world import order_view
from surehand.examples.shop.writes import WRITES, Refused, Write

Handler = Callable[[Request], Awaitable[Response]]

ORDERS: Final = "orders"


def lookup_of(endpoint: str) -> str:
    """Return the name under which an endpoint's lookup is counted and disturbed."""
    return f"{endpoint}.lookup"


#: Every name that faults and counts know.
ENDPOINTS: Final = frozenset(
    {ORDERS} | {write.name for write in WRITES} | {lookup_of(write.name) for write in WRITES}
)


def build(db: Path, connections: Connections) -> Starlette:
    """Return the application on its database file."""
    store, faults, traffic = Store(db), Faults(), Traffic()
    serving = Serving(faults, traffic, connections)
    routes = [
        Route("/orders/{order_id}", _read_order(serving, store)),
        *(Route(write.path, _write(serving, store, write), methods=["POST"]) for write in WRITES),
        *(Route(f"/{write.name}", _lookup(serving, store, faults, write)) for write in WRITES),
        *Admin(store, faults, traffic, ENDPOINTS).routes(),
    ]
    return Starlette(routes=routes, exception_handlers={ValidationError: _invalid})


def _read_order(serving: Serving, store: Store) -> Handler:
    async def handle(request: Request) -> Response:
        order_id = request.path_params["order_id"]

        def work(fault: Fault) -> Answer:
            order = order_view(store, order_id)
            if order is None:
                return refusal(Refused(404, "order_not_found", f"there is no order {order_id}"))
            return Answer(200, order)

        return await serving.serve(request, ORDERS, work)

    return handle


def _write(serving: Serving, store: Store, write: Write) -> Handler:
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


def _lookup(serving: Serving, store: Store, faults: Faults, write: Write) -> Handler:
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


async def _invalid(request: Request, error: Exception) -> Response:
    return JSONResponse({"code": "invalid", "message": str(error)}, 422)
