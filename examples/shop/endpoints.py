"""Handlers that every service has: a write under an idempotency key, and its lookup by that key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from surehand.examples.shop.effects import Answer, apply, look_up, refusal
from surehand.examples.shop.faults import Fault, Faults
from surehand.examples.shop.serving import Serving
from surehand.examples.shop.store import Store
from surehand.examples.shop.writes import Refused, Write

Handler = Callable[[Request], Awaitable[Response]]


def lookup_of(endpoint: str) -> str:
    """Return the name under which an endpoint's lookup is counted and disturbed."""
    return f"{endpoint}.lookup"


def write(serving: Serving, store: Store, write: Write) -> Handler:
    """Return what applies an effect."""

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


def lookup(serving: Serving, store: Store, faults: Faults, write: Write) -> Handler:
    """Return what tells an effect by its key."""

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


def read(serving: Serving, endpoint: str, found: Callable[[Request], Answer]) -> Handler:
    """Return what changes nothing."""

    async def handle(request: Request) -> Response:
        return await serving.serve(request, endpoint, lambda fault: found(request))

    return handle


async def invalid(request: Request, error: Exception) -> Response:
    """Answer a request whose body does not fit."""
    return JSONResponse({"code": "invalid", "message": str(error)}, 422)
