"""Quotas as an administrator sets them: workers may only read them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from surehand.activities.ledger.quotas.limits import Limits, change_limits
from tests.ledger.people import ADMINISTRATOR, Place, administration

#: What says who has set the others.
SET = ("set_by", "set_ms")


def limited(scene: Place, **limits: Any) -> None:
    """Set all quotas of a tenant."""
    with administration(scene) as tx:
        none = {field.name: field.default for field in fields(Limits) if field.name not in SET}
        change_limits(tx, ADMINISTRATOR, **none | limits)
