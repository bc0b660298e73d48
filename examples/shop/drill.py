"""The shop as a drill sees it: an order for each run, and what became of it.

``surehand drill PLAN --world surehand.examples.shop.drill:world
--fresh surehand.examples.shop.drill:fresh``
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import httpx

from surehand.examples.shop.client import DEFAULT_URL

if TYPE_CHECKING:
    from surehand import Context


def fresh(context: Context) -> dict[str, Any]:
    """Make a paid order for one more run: its id is the plan's input."""
    with _shop() as shop:
        order = shop.post("/admin/orders", json={})
    return {"order_id": order.raise_for_status().json()["order_id"]}


def world(context: Context) -> dict[str, Any]:
    """Return what the shop has of a run's order; ``effects`` is its own count of them."""
    about = {"order_id": context.input["order_id"]}
    with _shop() as shop:
        let_arrive(shop)
        counts = shop.get("/admin/counts", params=about).raise_for_status().json()
        left = shop.get("/admin/world", params=about).raise_for_status().json()
    return {"effects": counts, "left": left}


def let_arrive(service: httpx.Client) -> None:
    """Wait for what is on the wire: the request of a dead worker is an effect, too."""
    requests = service.get("/admin/requests").raise_for_status().json()
    for endpoint, seen in requests.items():
        if seen["in_flight"]:
            ended = {"endpoint": endpoint, "finished": seen["received"], "timeout_s": 60}
            service.get("/admin/wait", params=ended).raise_for_status()


def _shop() -> httpx.Client:
    # No proxy: the shop is on this machine.
    url = os.environ.get("SHOP_URL", DEFAULT_URL)
    return httpx.Client(base_url=url, timeout=70, trust_env=False)
