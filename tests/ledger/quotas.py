"""Quotas as an administrator sets them: workers may only read them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from surehand.activities.ledger.core.tables import quota_usage
from surehand.activities.ledger.quotas import DAY_MS, HOUR_MS, Limits, change_limits
from tests.ledger.people import ADMINISTRATOR, Place, administration

#: What says who has set the others.
SET = ("set_by", "set_ms")


def limited(scene: Place, **limits: Any) -> None:
    with administration(scene) as tx:
        none = {field.name: field.default for field in fields(Limits) if field.name not in SET}
        change_limits(tx, ADMINISTRATOR, **none | limits)


def used(scene: Place, **counts: int) -> None:
    """Count that so much is used, by kind; and of the next hour or day, should that begin soon."""
    with scene.ledger.transaction(scene.tenant) as tx:
        for kind, count in counts.items():
            length = HOUR_MS if kind == "effects" else DAY_MS
            start = tx.now_ms - tx.now_ms % length
            mine = {"kind": kind, "used": count}
            windows = ({**mine, "window_start_ms": at} for at in (start, start + length))
            tx.insert_new(quota_usage, *windows)
