"""Notifications as the ledger writes them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from surehand.activities.ledger.outbox.notification import Kind, Notification


def approval(**changes: Any) -> Notification:
    """A request to pay a refund."""
    values: dict[str, Any] = {
        "delivery_id": "nt-0123456789abcdef0123456789abcdef",
        "kind": Kind.APPROVAL.value,
        "tenant": "default",
        "run_id": "refund-1",
        "step_id": "refund",
        "subject": "refund-1/refund/1",
        "number": 0,
        "at": datetime(2026, 11, 21, 9, 0, tzinfo=UTC),
        "what": "Refund 120.00 EUR for order-1001",
        "tool": "payments.refund",
        "params_hash": "sha256:" + "4" * 64,
        "undo": "undone by payments.cancel_refund",
        "asked_by": ("ada",),
        "needs": ("2 approvals of finance, not by who asked for it",),
        "until": datetime(2026, 11, 22, 9, 0, tzinfo=UTC),
        **changes,
    }
    return Notification(**values)
