"""The endpoints by which tests and demos steer the shop and look inside; never disturbed."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from surehand.examples.shop.bodies import NewOrder
from surehand.examples.shop.effects import counts
from surehand.examples.shop.faults import Fault, Faults
from surehand.examples.shop.store import Store, add_order
from surehand.examples.shop.traffic import Traffic
from surehand.examples.shop.world import order_view, world


class WaitFor(BaseModel):
    """What ``GET /admin/wait`` waits for: all that is given, counted since the shop started."""

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
        self, store: Store, faults: Faults, traffic: Traffic, endpoints: Collection[str]
    ) -> None:
        self._store = store
        self._faults = faults
        self._traffic = traffic
        self._endpoints = sorted(endpoints)

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/admin/faults/{endpoint}", self.tell_fault, methods=["PUT"]),
            Route("/admin/faults", self.clear_faults, methods=["DELETE"]),
            Route("/admin/orders", self.create_order, methods=["POST"]),
            Route("/admin/counts", self.counts),
            Route("/admin/world", self.world),
            Route("/admin/requests", self.requests),
            Route("/admin/wait", self.wait),
        ]

    async def tell_fault(self, request: Request) -> Response:
        """Replace an endpoint's fault."""
        endpoint = request.path_params["endpoint"]
        if endpoint not in self._endpoints:
            known = ", ".join(self._endpoints)
            return _problem(404, f"there is no endpoint {endpoint!r}; known are {known}")
        fault = Fault.model_validate_json(await request.body())
        self._faults.tell(endpoint, fault)
        return JSONResponse(fault.model_dump(mode="json"))

    async def clear_faults(self, request: Request) -> Response:
        """Let all endpoints behave well."""
        self._faults.clear()
        return Response(status_code=204)

    async def create_order(self, request: Request) -> Response:
        """Create an order."""
        order = NewOrder.model_validate_json(await request.body())
        try:
            with self._store.transaction() as connection:
                order_id = add_order(connection, order)
        except sqlite3.IntegrityError:
            return _problem(409, f"there is already an order {order.order_id}")
        return JSONResponse(order_view(self._store, order_id), 201)

    async def counts(self, request: Request) -> Response:
        """Return how many effects were applied, in all or for ``?order_id=``."""
        return JSONResponse(counts(self._store, request.query_params.get("order_id")))

    async def world(self, request: Request) -> Response:
        """Return what effects have left behind, in all or for ``?order_id=``."""
        return JSONResponse(world(self._store, request.query_params.get("order_id")))

    async def requests(self, request: Request) -> Response:
        """Return the requests received by this process."""
        return JSONResponse(self._traffic.snapshot())

    async def wait(self, request: Request) -> Response:
        """Answer when what is waited for has come; 408 if it has not in time."""
        want = WaitFor.model_validate(dict(request.query_params))
        if want.endpoint not in self._endpoints:
            return _problem(404, f"there is no endpoint {want.endpoint!r}")

        def reached() -> bool:
            return (
                self._traffic.received(want.endpoint) >= want.requests
                and self._traffic.finished(want.endpoint) >= want.finished
                and counts(self._store).get(want.endpoint, 0) >= want.effects
            )

        came = await self._traffic.wait_until(reached, want.timeout_s)
        return JSONResponse(self._traffic.snapshot(), 200 if came else 408)


def _problem(status: int, message: str) -> Response:
    return JSONResponse({"code": "refused", "message": message}, status)
