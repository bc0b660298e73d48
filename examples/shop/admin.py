"""The endpoints by which tests and demos steer a service and count; never disturbed."""

from __future__ import annotations

from collections.abc import Callable, Collection

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from surehand.examples.shop.faults import Fault, Faults
from surehand.examples.shop.traffic import Traffic


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
        """Steer a service.

        Args:
            faults: In force.
            traffic: What has come.
            endpoints: Every name that faults and counts know.
            counted: The effects, by endpoint; in all or about one thing.
            about: The parameter by which effects are counted for one thing only.
        """
        self._faults = faults
        self._traffic = traffic
        self._endpoints = sorted(endpoints)
        self._counted = counted
        self._about = about

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/admin/faults/{endpoint}", self.tell_fault, methods=["PUT"]),
            Route("/admin/faults", self.clear_faults, methods=["DELETE"]),
            Route("/admin/counts", self.counts),
            Route("/admin/requests", self.requests),
            Route("/admin/wait", self.wait),
        ]

    async def tell_fault(self, request: Request) -> Response:
        """Replace an endpoint's fault."""
        endpoint = request.path_params["endpoint"]
        if endpoint not in self._endpoints:
            known = ", ".join(self._endpoints)
            return problem(404, f"there is no endpoint {endpoint!r}; known are {known}")
        fault = Fault.model_validate_json(await request.body())
        self._faults.tell(endpoint, fault)
        return JSONResponse(fault.model_dump(mode="json"))

    async def clear_faults(self, request: Request) -> Response:
        """Let all endpoints behave well."""
        self._faults.clear()
        return Response(status_code=204)

    async def counts(self, request: Request) -> Response:
        """Return how many effects were applied, in all or about one thing."""
        return JSONResponse(self._counted(request.query_params.get(self._about)))

    async def requests(self, request: Request) -> Response:
        """Return the requests received by this process."""
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
    """Return the answer to a request that cannot be served as it is."""
    return JSONResponse({"code": "refused", "message": message}, status)
