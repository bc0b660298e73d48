"""The shop's SQLite file: what requests bring, the tables, transactions, and what is in them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from sqlite3 import Connection
from typing import Annotated, Any, Final, Literal
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field

from surehand.examples.shop.params import Money, total


class Body(BaseModel):
    """Base of all bodies: a field the shop does not know is refused, not ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Line(Body):
    """How many of an article."""

    sku: str = Field(min_length=1)
    quantity: int = Field(gt=0)


class NewOrder(Body):
    """An order to create; the shop makes up what is left out."""

    order_id: str | None = None
    status: Literal["paid", "shipped", "refunded"] = "paid"
    """``shipped`` is on its way to the customer and cannot be refunded yet; ``refunded`` was paid
    back by hand."""
    paid: Money = Decimal("120.00")
    currency: str = "EUR"
    customer_email: str = "ada@example.com"
    lines: tuple[Line, ...] | None = None


class RefundBody(Body):
    """Pays money back to the customer of an order."""

    order_id: str
    amount: Annotated[Money, Field(gt=0)]
    currency: str
    reason: str = ""


class CancelRefundBody(Body):
    """Takes a refund back."""

    refund_id: str


class MailBody(Body):
    """Sends a mail about an order."""

    order_id: str
    kind: str
    to: str
    subject: str
    body: str


class RestockBody(Body):
    """Puts the articles of a returned order back on the shelf."""

    order_id: str
    lines: tuple[Line, ...] = Field(min_length=1)


class UndoRestockBody(Body):
    """Takes the articles of a restock off the shelf again."""

    restock_id: str


class CloseTicketBody(Body):
    """Closes a customer's ticket."""

    ticket_id: str


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
        """Open the file of a service."""
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


def order_view(store: Store, order_id: str) -> dict[str, Any] | None:
    """Return an order with what was paid and refunded for it, or ``None``."""
    with store.transaction() as connection:
        return _order(connection, order_id)


def world(store: Store, order_id: str | None = None) -> dict[str, Any]:
    """Return a snapshot, of all or of one order, that compares equal between two runs.

    It has no ids the shop made up and no times, and lists are sorted. Stock is given for the
    articles of the orders in the snapshot.
    """
    with store.transaction() as connection:
        ids = [row["order_id"] for row in connection.execute("SELECT order_id FROM orders")]
        orders = [_order(connection, one) for one in ids if order_id in (None, one)]
        skus = {line["sku"] for order in orders if order for line in order["lines"]}
        stock = {row["sku"]: row["quantity"] for row in connection.execute("SELECT * FROM stock")}
        tickets = connection.execute("SELECT * FROM tickets ORDER BY ticket_id").fetchall()
        return {
            "orders": orders,
            "refunds": _rows(
                connection,
                "SELECT order_id, amount, currency, reason, (SELECT count(*) "
                "FROM refund_cancellations c WHERE c.refund_id = r.refund_id) AS cancellations "
                "FROM refunds r",
                order_id,
            ),
            "restocks": _rows(
                connection,
                "SELECT order_id, lines, (SELECT count(*) "
                "FROM restock_undos u WHERE u.restock_id = r.restock_id) AS undos "
                "FROM restocks r",
                order_id,
            ),
            "mails": _rows(
                connection,
                "SELECT order_id, kind, recipient, subject, body, delivered FROM mails",
                order_id,
            ),
            "stock": {sku: stock[sku] for sku in sorted(skus)},
            "tickets": {row["ticket_id"]: row["status"] for row in tickets},
        }


def _order(connection: Connection, order_id: str) -> dict[str, Any] | None:
    order = connection.execute("SELECT * FROM orders WHERE order_id = ?", (order_id,)).fetchone()
    if order is None:
        return None
    paid = _amounts(connection, "SELECT amount FROM payments WHERE order_id = ?", order_id)
    refunded = _amounts(connection, "SELECT amount FROM refunds WHERE order_id = ?", order_id)
    cancelled = _amounts(
        connection,
        "SELECT c.amount FROM refund_cancellations c JOIN refunds r USING (refund_id) "
        "WHERE r.order_id = ?",
        order_id,
    )
    return {
        **dict(order),
        "lines": json.loads(order["lines"]),
        "paid": str(total(paid)),
        "refunded": str(total(refunded) - total(cancelled)),
    }


def _amounts(connection: Connection, statement: str, order_id: str) -> list[str]:
    return [row["amount"] for row in connection.execute(statement, (order_id,))]


def _rows(connection: Connection, statement: str, order_id: str | None) -> list[dict[str, Any]]:
    rows = [dict(row) for row in connection.execute(statement)]
    wanted = [row for row in rows if order_id in (None, row["order_id"])]
    return sorted(wanted, key=lambda row: json.dumps(row, sort_keys=True))
