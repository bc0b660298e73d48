"""The requests that the tests of the shop send."""

from __future__ import annotations

from typing import Any

import httpx


def refund(
    http: httpx.Client, order_id: str, key: str | None = None, amount: str = "120.00"
) -> httpx.Response:
    body = {"order_id": order_id, "amount": amount, "currency": "EUR", "reason": "returned"}
    return post(http, "/refunds", key, body)


def post(
    http: httpx.Client, path: str, key: str | None = None, body: dict[str, Any] | None = None
) -> httpx.Response:
    """Post a request, with an idempotency key if there is one."""
    headers = {} if key is None else {"Idempotency-Key": key}
    return http.post(path, json=body or {}, headers=headers)


def applied(http: httpx.Client, endpoint: str, key: str) -> list[dict[str, Any]]:
    """Return what the shop says it applied under a key."""
    found: list[dict[str, Any]] = http.get(f"/{endpoint}", params={"key": key}).json()["applied"]
    return found
