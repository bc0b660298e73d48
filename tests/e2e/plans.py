"""Plans and steps of the tests, and the tool modules that they need."""

from __future__ import annotations

from typing import Any

from surehand.workflows.plan.plan import Plan

FULL, LESS = "120.00", "15.00"

UNGATED = "tests.variants.refund_ungated"


NEITHER = "tests.variants.refund_human"
#: The same, and a human need not wait for long until nothing is on its way any more.
HUMAN = "tests.variants.refund_human_soon"


def plan(*steps: dict[str, Any], **more: Any) -> Plan:
    return Plan.model_validate({"steps": list(steps), **more})


def refund_step(order_id: str, **more: Any) -> dict[str, Any]:
    params = {"order_id": order_id, "amount": FULL, "currency": "EUR"}
    return {"id": "refund", "tool": "payments.refund", "params": params, **more}


def mail_step(order_id: str, kind: str, **rest: Any) -> dict[str, Any]:
    params = {
        "order_id": order_id,
        "kind": kind,
        "to": "ada@example.com",
        "subject": "Hello",
        "body": "Hello",
    }
    return {"id": kind, "tool": "mail.send", "params": params, **rest}


def read(order_id: str, name: str = "order", **more: Any) -> dict[str, Any]:
    return {"id": name, "tool": "orders.read", "params": {"order_id": order_id}, **more}


def child(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "pay", "plan": {"name": "pay", "steps": list(steps)}, **more}
