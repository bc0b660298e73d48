"""The shop's SQLite file: what requests bring, the tables, transactions, and what is in them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Final, Literal
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


class CancelRefundBody(Body):
    """Takes a refund back."""

    refund_id: str


#: All else that the shop has is what its effects come to.
TABLES: Final = """
CREATE TABLE IF NOT EXISTS orders (
    order_id TEXT PRIMARY KEY,
    status TEXT NOT NULL CHECK (status IN ('paid', 'shipped', 'refunded')),
    currency TEXT NOT NULL,
    customer_email TEXT NOT NULL,
    lines TEXT NOT NULL,
    paid TEXT NOT NULL,
    refunded_by_hand TEXT NOT NULL
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


def add_order(connection: Connection, order: NewOrder, refunded_by_hand: str = "0.00") -> str:
    """Create a paid order and return its id; ``sqlite3.IntegrityError`` if the id is taken."""
    order_id = order.order_id or new_id("order")
    # An article of its own by default, so that runs on different orders never share a stock count.
    lines = order.lines or (Line(sku=f"article-of-{order_id}", quantity=2),)
    connection.execute(
        "INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            *(order_id, order.status, order.currency, order.customer_email),
            *(json.dumps([line.model_dump() for line in lines]), str(order.paid)),
            refunded_by_hand,
        ),
    )
    return order_id


def _seed(connection: Connection) -> None:
    if connection.execute("SELECT 1 FROM orders").fetchone() is not None:
        return
    # An order for each example: a business key is used once. One was refunded by hand, long before
    # any agent: there is nothing left to refund.
    for order_id, status, paid, by_hand, sku in (
        *((f"order-100{n}", "paid", "120.00", "0.00", "desk-lamp") for n in (1, 4, 5, 6)),
        ("order-1002", "refunded", "80.00", "80.00", "desk-lamp"),
        ("order-1003", "shipped", "349.90", "0.00", "office-chair"),
    ):
        lines = [{"sku": sku, "quantity": 1 if sku == "office-chair" else 2}]
        order = {"order_id": order_id, "status": status, "paid": paid, "lines": lines}
        add_order(connection, NewOrder.model_validate(order), by_hand)
    connection.execute("INSERT INTO tickets VALUES ('ticket-77', 'open'), ('ticket-78', 'locked')")


class Store:
    """The file.

    Used from the event loop's thread only: a statement takes well under a millisecond, and with
    one connection no two requests' transactions interleave.
    """

    def __init__(
        self, path: Path, tables: str = TABLES, seed: Callable[[Connection], None] = _seed
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
    def transaction(self) -> Iterator[Connection]:
        """Commit what the block does, or nothing of it."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")


def order_view(store: Store, order_id: str) -> dict[str, Any] | None:
    with store.transaction() as connection:
        row = connection.execute("SELECT * FROM orders WHERE order_id = ?", (order_id,)).fetchone()
        return None if row is None else _order(row, _effects(connection, order_id))


def world(store: Store, order_id: str | None = None) -> dict[str, Any]:
    """Return a snapshot, of all or of one order, that compares equal between two runs.

    It has no ids the shop made up and no times, and lists are sorted. Stock is given for the
    articles of the orders in the snapshot, of each of which there were ten.
    """
    with store.transaction() as connection:
        effects, rows = _effects(connection, order_id), connection.execute("SELECT * FROM orders")
        all_effects = _effects(connection, None)
        orders = [
            _order(row, [one for one in all_effects if one["about"] == row["order_id"]])
            for row in rows
            if order_id in (None, row["order_id"])
        ]
        tickets = connection.execute("SELECT * FROM tickets ORDER BY ticket_id").fetchall()
    stock = dict.fromkeys((line["sku"] for one in orders for line in one["lines"]), 10)
    for one in all_effects:
        sign = {"restocks": 1, "restock_undos": -1}.get(one["endpoint"])
        for line in one["receipt"]["lines"] if sign else ():
            if line["sku"] in stock:
                stock[line["sku"]] += sign * line["quantity"]

    def undone(endpoint: str, field: str, id_: str) -> int:
        return sum(one["endpoint"] == endpoint and one["receipt"][field] == id_ for one in effects)

    def listed(endpoint: str, *fields: str) -> list[dict[str, Any]]:
        found = []
        for one in effects:
            if one["endpoint"] == endpoint:
                said = {**one["body"], **one["receipt"], "delivered": not one["half"]}
                shown = {"order_id": one["about"], **{name: said[name] for name in fields}}
                if endpoint == "refunds":
                    id_ = said["refund_id"]
                    shown["cancellations"] = undone("refund_cancellations", "refund_id", id_)
                elif endpoint == "restocks":
                    id_ = said["restock_id"]
                    shown["undos"] = undone("restock_undos", "restock_id", id_)
                found.append(shown)
        return sorted(found, key=lambda shown: json.dumps(shown, sort_keys=True))

    return {
        "orders": orders,
        "refunds": listed("refunds", "amount", "currency", "reason"),
        "restocks": listed("restocks", "lines"),
        "mails": listed("mails", "kind", "to", "subject", "body", "delivered"),
        "stock": dict(sorted(stock.items())),
        "tickets": {row["ticket_id"]: row["status"] for row in tickets},
    }


def _effects(connection: Connection, order_id: str | None) -> list[dict[str, Any]]:
    rows = connection.execute(
        "SELECT endpoint, about, body, receipt, half FROM effects WHERE ? IS NULL OR about = ?",
        (order_id, order_id),
    )
    return [
        {**dict(row), "body": json.loads(row["body"]), "receipt": json.loads(row["receipt"])}
        for row in rows
    ]


def _order(row: sqlite3.Row, effects: list[dict[str, Any]]) -> dict[str, Any]:
    order = dict(row)
    by_hand, amounts = order.pop("refunded_by_hand"), dict[str, list[str]]()
    for one in effects:
        amounts.setdefault(one["endpoint"], []).append(one["receipt"].get("amount", "0"))
    paid_back = total([by_hand, *amounts.get("refunds", ())])
    cancelled = total(amounts.get("refund_cancellations", ()))
    return {**order, "lines": json.loads(row["lines"]), "refunded": str(paid_back - cancelled)}
