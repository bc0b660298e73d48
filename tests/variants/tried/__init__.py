"""Agents as people have them, each with one write."""

from __future__ import annotations

from typing import NoReturn

ORDER = {"order_id": "order-1"}
AMOUNT = {"amount": "12.50"}


def refuse_effect() -> NoReturn:
    raise AssertionError("a comparison makes no write")
