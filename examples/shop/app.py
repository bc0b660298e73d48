"""The shop's own endpoints, and the application made of everything."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from surehand.examples.shop import endpoints
from surehand.examples.shop.admin import Admin, problem
from surehand.examples.shop.bodies import NewOrder
from surehand.examples.shop.connections import Connections
from surehand.examples.shop.effects import Answer, counts, refusal
from surehand.examples.shop.endpoints import Handler, lookup_of
from surehand.examples.shop.faults import Faults
from surehand.examples.shop.serving import Serving
from surehand.examples.shop.store import Store, add_order
from surehand.examples.shop.traffic import Traffic
from surehand.examples.shop.world import order_view, world
from surehand.examples.shop.writes import WRITES, Refused

ORDERS: Final = "orders"
_WRITES: Final = tuple(write.name for write in WRITES)
#: Every name that faults and counts know.
ENDPOINTS: Final = frozenset((ORDERS, *_WRITES, *map(lookup_of, _WRITES)))


def build(db: Path, connections: Connections) -> Starlette:
    """Return the application on its database file."""
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
        Route("/orders/{order_id}", endpoints.read(serving, ORDERS, read_order)),
        *(Route(w.path, endpoints.write(serving, store, w), methods=["POST"]) for w in WRITES),
        *(Route(f"/{w.name}", endpoints.lookup(serving, store, faults, w)) for w in WRITES),
        Route("/admin/orders", _create_order(store), methods=["POST"]),
        Route("/admin/world", _world(store)),
        *Admin(faults, traffic, ENDPOINTS, counted=counted, about="order_id").routes(),
    ]
    return Starlette(routes=routes, exception_handlers={ValidationError: endpoints.invalid})


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
