"""The help desk as a drill sees it: a ticket for each run, and what became of it.

``surehand drill PLAN --world surehand.examples.support.drill:world
--fresh surehand.examples.support.drill:fresh``
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import httpx

from surehand.examples.shop.drill import let_arrive

if TYPE_CHECKING:
    from surehand import Context


def fresh(context: Context) -> dict[str, Any]:
    """Open a ticket for one more run: its id is the plan's input."""
    with _desk() as desk:
        ticket = desk.post("/admin/tickets", json={})
    return {"ticket_id": ticket.raise_for_status().json()["ticket_id"]}


def world(context: Context) -> dict[str, Any]:
    """Return what the desk has of a run's ticket; ``effects`` counts its mails, too."""
    ticket_id = context.input["ticket_id"]
    with _desk() as desk:
        let_arrive(desk)
        counts = desk.get("/admin/counts", params={"ticket_id": ticket_id})
        ticket = desk.get(f"/tickets/{ticket_id}")
    return {"effects": counts.raise_for_status().json(), "ticket": ticket.raise_for_status().json()}


def _desk() -> httpx.Client:
    # No proxy: the desk is on this machine.
    url = os.environ.get("SUPPORT_URL", "http://127.0.0.1:8091")
    return httpx.Client(base_url=url, timeout=70, trust_env=False)
