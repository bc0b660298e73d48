"""Starts the example shop as a process of its own, and steers it."""

from __future__ import annotations

import os
import re
import sqlite3
from pathlib import Path
from typing import Any, Final, Self

import httpx

from surehand.process.children import Child, python

ROOT: Final = Path(__file__).parent.parent


class ShopProcess:
    """A shop on a free port, with its own database file. Use it in a ``with`` statement.

    After ``stop`` or ``kill`` it can be started again: on the same port and file, with no faults.
    """

    module = "surehand.examples.shop"

    def __init__(self, db: Path) -> None:
        self.db = db
        self._port = 0
        self._process: Child | None = None
        self._http: httpx.Client | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Where the shop listens; what ``SHOP_URL`` has to be for its tools."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        command = python(self.module, *self.options())
        log = self.db.with_suffix(".log")
        shop = self._process = Child(command, environment=os.environ, log=log, folder=ROOT)
        try:
            said = shop.wait_for(
                lambda: re.search(r"listening on http://.*:(\d+)\n", shop.output())
            )
        except BaseException:
            self.kill()
            raise
        self._port = int(said[1])
        # None is kept: the server may end one that has been idle in the moment that it is used.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._http = httpx.Client(base_url=self.url, timeout=60, trust_env=False, limits=limits)

    def options(self) -> list[str]:
        return ["--db", str(self.db), "--port", str(self._port)]

    def output(self) -> str:
        return "" if self._process is None else self._process.output()

    def database(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.db)
        connection.row_factory = sqlite3.Row
        return connection

    def stop(self) -> None:
        """Ask the process to stop; its requests in flight get a moment."""
        if self._process is not None:
            self._process.stop()
        self._close()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
        self._close()

    def counts(self, order_id: str | None = None) -> dict[str, int]:
        """Return how many effects were applied, in all or for one order, by endpoint."""
        result: dict[str, int] = self._ask("GET", "/admin/counts", params=_only(order_id))
        return result

    def world(self, order_id: str | None = None) -> dict[str, Any]:
        """Return what effects left behind, in all or for one order; comparable between shops."""
        result: dict[str, Any] = self._ask("GET", "/admin/world", params=_only(order_id))
        return result

    def requests(self, endpoint: str) -> dict[str, int]:
        """Return the requests since the start: ``received``, ``in_flight``, ``finished``."""
        none = {"received": 0, "in_flight": 0, "finished": 0}
        result: dict[str, int] = self._ask("GET", "/admin/requests").get(endpoint, none)
        return result

    def fault(self, endpoint: str, **fault: Any) -> None:
        """Replace an endpoint's fault; the fields are those of the shop's ``Fault``."""
        self._ask("PUT", f"/admin/faults/{endpoint}", json=fault)

    def clear_faults(self) -> None:
        self._http_client().delete("/admin/faults").raise_for_status()

    def new_order(self, **order: Any) -> str:
        """Create an order (paid 120.00 EUR unless told otherwise) and return its id."""
        order_id: str = self._ask("POST", "/admin/orders", json=order)["order_id"]
        return order_id

    def edit_order(self, order_id: str, *, status: str) -> None:
        """Change an order as its clerks would, past all of our calls."""
        with self.database() as connection:
            connection.execute(
                "UPDATE orders SET status = ? WHERE order_id = ?", (status, order_id)
            )

    def wait_requests(self, endpoint: str, n: int, timeout_s: float = 90) -> None:
        """Wait until the n-th request since the start has arrived, applied or not."""
        self._wait(endpoint, timeout_s, requests=n)

    def wait_effects(self, endpoint: str, n: int, timeout_s: float = 90) -> None:
        self._wait(endpoint, timeout_s, effects=n)

    def wait_finished(self, endpoint: str, n: int, timeout_s: float = 90) -> None:
        """Wait until n requests since the start have ended, answered or not."""
        self._wait(endpoint, timeout_s, finished=n)

    def _wait(self, endpoint: str, timeout_s: float, **want: int) -> None:
        query: dict[str, str | float] = {"endpoint": endpoint, "timeout_s": timeout_s, **want}
        response = self._http_client().get("/admin/wait", params=query, timeout=timeout_s + 10)
        if response.status_code == httpx.codes.REQUEST_TIMEOUT:
            raise TimeoutError(f"{endpoint}: no {want} within {timeout_s} s: {response.text}")
        response.raise_for_status()

    def _ask(self, method: str, path: str, **request: Any) -> Any:
        response = self._http_client().request(method, path, **request)
        if response.is_error:
            raise AssertionError(f"{method} {path}: {response.status_code} {response.text}")
        return response.json()

    def _http_client(self) -> httpx.Client:
        if self._http is None:
            raise RuntimeError("the shop is not running")
        return self._http

    def _close(self) -> None:
        self._process = None
        if self._http is not None:
            self._http.close()
            self._http = None


def _only(order_id: str | None) -> dict[str, str]:
    return {} if order_id is None else {"order_id": order_id}
