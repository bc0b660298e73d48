"""Starts the example shop as a process of its own, and steers it."""

from __future__ import annotations

import os
import selectors
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx

ROOT: Final = Path(__file__).parent.parent

#: Seconds until a started shop has to listen; it takes half a one, and several on a loaded machine.
START_S: Final = 30.0
#: Seconds until a shop that was told to stop has to be gone; it gives its requests one.
STOP_S: Final = 10.0


class ShopProcess:
    """A shop on a free port, with its own database file. Use it in a ``with`` statement.

    After ``stop`` or ``kill`` it can be started again: on the same port and file, with no faults.
    """

    def __init__(self, db: Path) -> None:
        self.db = db
        self._log = db.with_suffix(".log")
        self._port = 0
        self._process: subprocess.Popen[str] | None = None
        self._http: httpx.Client | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Where the shop listens; what ``SHOP_URL`` has to be for its tools."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start the process and return when it listens."""
        command = [sys.executable, "-m", "examples.shop", "--db", str(self.db)]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [*command, "--port", str(self._port)],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        try:
            self._port = int(self._announced().rsplit(":", 1)[1])
        except BaseException:
            self.kill()
            raise
        self._http = httpx.Client(base_url=self.url, timeout=60, trust_env=False)

    def stop(self) -> None:
        """Ask the process to stop; its requests in flight get a moment."""
        if self._process is not None:
            self._process.terminate()
            self._reap()

    def kill(self) -> None:
        """Kill the process, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            self._reap()

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
        """Replace an endpoint's fault; the fields are those of ``examples.shop.faults.Fault``."""
        self._ask("PUT", f"/admin/faults/{endpoint}", json=fault)

    def clear_faults(self) -> None:
        """Let all endpoints behave well."""
        self._http_client().delete("/admin/faults").raise_for_status()

    def new_order(self, **order: Any) -> str:
        """Create an order (paid 120.00 EUR unless told otherwise) and return its id."""
        order_id: str = self._ask("POST", "/admin/orders", json=order)["order_id"]
        return order_id

    def edit_order(self, order_id: str, *, status: str) -> None:
        """Change an order as its clerks would, past all of our calls."""
        with sqlite3.connect(self.db) as connection:
            connection.execute(
                "UPDATE orders SET status = ? WHERE order_id = ?", (status, order_id)
            )

    def wait_requests(self, endpoint: str, n: int, timeout_s: float = 20) -> None:
        """Wait until the n-th request since the start has arrived, applied or not."""
        self._wait(endpoint, timeout_s, requests=n)

    def wait_effects(self, endpoint: str, n: int, timeout_s: float = 20) -> None:
        """Wait until n effects are in the database."""
        self._wait(endpoint, timeout_s, effects=n)

    def wait_finished(self, endpoint: str, n: int, timeout_s: float = 20) -> None:
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

    def _announced(self) -> str:
        """Return the line that says where the shop listens."""
        assert self._process is not None and self._process.stdout is not None
        stdout = self._process.stdout
        line, deadline = "", time.monotonic() + START_S
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while not line.endswith("\n"):
                ready = selector.select(max(deadline - time.monotonic(), 0))
                read = os.read(stdout.fileno(), 200).decode() if ready else ""
                if not read:
                    raise RuntimeError(f"the shop did not start: {self._log.read_text()}")
                line += read
        return line.strip()

    def _reap(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_S)
        self._process.stdout.close()
        self._process = None
        if self._http is not None:
            self._http.close()
            self._http = None


def _only(order_id: str | None) -> dict[str, str]:
    return {} if order_id is None else {"order_id": order_id}
