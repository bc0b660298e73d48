"""Views of what is in the shop: one order, and everything that effects have left behind."""

from __future__ import annotations

import json
from sqlite3 import Connection
from typing import Any

from surehand.examples.shop.money import total
from surehand.examples.shop.store import Store


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
