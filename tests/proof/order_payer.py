"""Pays orders back without Surehand, and tries again until each is paid: for ``test_orders``.

``python -m tests.proof.order_payer SYSTEM FOLDER SHOP ORDER...``; the system is ``call4agents``, or
``nothing`` if the program only notes which orders it has paid.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx

#: As Surehand's workers in this test.
TIMEOUT_S: Final = 2.0
PAUSE_S: Final = 1.0
TRIES: Final = 30


def pay(shop: httpx.Client, order: str) -> Any:
    body = {"order_id": order, "amount": "120.00", "currency": "EUR"}
    return shop.post("/refunds", json=body, headers={"Idempotency-Key": order})


def find(shop: httpx.Client, order: str) -> Any:
    """Return the receipt of an order that was paid, or ``None``."""
    told = shop.get("/refunds", params={"key": order}).json()["applied"]
    return told[0]["receipt"] if told else None


def main(system: str, folder: Path, url: str, *orders: str) -> None:
    shop = httpx.Client(base_url=url, timeout=TIMEOUT_S, trust_env=False)
    shop.event_hooks["response"] = [httpx.Response.raise_for_status]
    action: Callable[[str], Any] = lambda order: pay(shop, order).json()  # noqa: E731
    within: Callable[[str], AbstractContextManager[Any]] = nullcontext
    refused: tuple[type[Exception], ...] = (httpx.HTTPError,)
    if system == "call4agents":
        import call4agents  # type: ignore[import-not-found]

        call4agents.init(str(folder / "record.sqlite"))
        action = call4agents.effect(action, name="pay", reconcile=partial(find, shop))
        within = call4agents.run
        refused += (call4agents.EffectInDoubt,)
    noted = folder / f"paid-{orders[0]}"
    noted.touch()
    print("ready", flush=True)
    for order in orders:
        if order in noted.read_text().split():
            continue
        with within(order):
            for _ in range(TRIES):
                try:
                    action(order)
                except refused:
                    time.sleep(PAUSE_S)
                else:
                    break
            else:
                print("in doubt", order, flush=True)
        with noted.open("a") as file:
            print(order, file=file)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
