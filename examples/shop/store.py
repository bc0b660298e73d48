"""A service's SQLite file: the shop's tables, and transactions committed before it answers."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from uuid import uuid4

from surehand.examples.shop.bodies import Line, NewOrder

TABLES: Final = """
CREATE TABLE IF NOT EXISTS orders (
    order_id TEXT PRIMARY KEY,
    status TEXT NOT NULL CHECK (status IN ('paid', 'shipped', 'refunded')),
    currency TEXT NOT NULL,
    customer_email TEXT NOT NULL,
    lines TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS payments (
    payment_id TEXT PRIMARY KEY,
    order_id TEXT NOT NULL REFERENCES orders,
    amount TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS refunds (
    refund_id TEXT PRIMARY KEY,
    order_id TEXT NOT NULL REFERENCES orders,
    amount TEXT NOT NULL,
    currency TEXT NOT NULL,
    reason TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS refund_cancellations (
    cancellation_id TEXT PRIMARY KEY,
    refund_id TEXT NOT NULL REFERENCES refunds,
    amount TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS mails (
    mail_id TEXT PRIMARY KEY,
    order_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    recipient TEXT NOT NULL,
    subject TEXT NOT NULL,
    body TEXT NOT NULL,
    delivered INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS stock (
    sku TEXT PRIMARY KEY,
    quantity INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS restocks (
    restock_id TEXT PRIMARY KEY,
    order_id TEXT NOT NULL REFERENCES orders,
    lines TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS restock_undos (
    undo_id TEXT PRIMARY KEY,
    restock_id TEXT NOT NULL REFERENCES restocks,
    lines TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS tickets (
    ticket_id TEXT PRIMARY KEY,
    status TEXT NOT NULL CHECK (status IN ('open', 'closing', 'closed', 'locked'))
);
"""

EFFECTS: Final = """
-- One row for each application of a request. There is deliberately no unique index on the key:
-- a service that is told to ignore keys applies a request twice, and the count has to show it.
CREATE TABLE IF NOT EXISTS effects (
    effect_id INTEGER PRIMARY KEY,
    endpoint TEXT NOT NULL,
    key TEXT,
    about TEXT,
    at TEXT NOT NULL,
    body TEXT NOT NULL,
    receipt TEXT NOT NULL,
    half INTEGER NOT NULL,
    undone INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS effects_by_key ON effects (endpoint, key);
"""


def new_id(kind: str) -> str:
    """Return a fresh id such as ``refund-1f0c9a2b7d41``."""
    return f"{kind}-{uuid4().hex[:12]}"


def lines_json(lines: tuple[Line, ...]) -> str:
    """Return order lines as they are stored."""
    return json.dumps([line.model_dump() for line in lines])


def add_order(connection: sqlite3.Connection, order: NewOrder) -> str:
    """Create a paid order and return its id; ``sqlite3.IntegrityError`` if the id is taken."""
    order_id = order.order_id or new_id("order")
    # An article of its own by default, so that runs on different orders never share a stock count.
    lines = order.lines or (Line(sku=f"article-of-{order_id}", quantity=2),)
    connection.execute(
        "INSERT INTO orders VALUES (?, ?, ?, ?, ?)",
        (order_id, order.status, order.currency, order.customer_email, lines_json(lines)),
    )
    connection.execute(
        "INSERT INTO payments VALUES (?, ?, ?)", (new_id("payment"), order_id, str(order.paid))
    )
    for line in lines:
        connection.execute("INSERT OR IGNORE INTO stock VALUES (?, 10)", (line.sku,))
    return order_id


def _seed(connection: sqlite3.Connection) -> None:
    if connection.execute("SELECT 1 FROM orders").fetchone() is not None:
        return
    lamp = Line(sku="desk-lamp", quantity=2)
    chair = Line(sku="office-chair", quantity=1)
    # An order for each example: a business key is used once.
    for order_id, status, paid, line in (
        ("order-1001", "paid", "120.00", lamp),
        ("order-1004", "paid", "120.00", lamp),
        ("order-1005", "paid", "120.00", lamp),
        ("order-1006", "paid", "120.00", lamp),
        ("order-1002", "refunded", "80.00", lamp),
        ("order-1003", "shipped", "349.90", chair),
    ):
        order = {"order_id": order_id, "status": status, "paid": paid, "lines": [line]}
        add_order(connection, NewOrder.model_validate(order))
    # Refunded by hand, long before any agent: there is nothing left to refund.
    connection.execute(
        "INSERT INTO refunds VALUES (?, 'order-1002', '80.00', 'EUR', 'damaged')",
        (new_id("refund"),),
    )
    connection.execute("INSERT INTO tickets VALUES ('ticket-77', 'open'), ('ticket-78', 'locked')")


class Store:
    """The file.

    Used from the event loop's thread only: a statement takes well under a millisecond, and with
    one connection no two requests' transactions interleave.
    """

    def __init__(
        self,
        path: Path,
        tables: str = TABLES,
        seed: Callable[[sqlite3.Connection], None] = _seed,
    ) -> None:
        """Open the file of a service.

        Args:
            path: Where it is.
            tables: The service's own; ``effects`` is there beside them.
            seed: Fills it, if it is empty.
        """
        # Autocommit: transactions are begun and ended by transaction() alone.
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.row_factory = sqlite3.Row
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.executescript(tables + EFFECTS)
        with self.transaction() as connection:
            seed(connection)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit what the block does, or nothing of it."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")
