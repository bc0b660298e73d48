"""The effects that the shop applies: once for each key, inside one transaction."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from sqlite3 import Connection, Row
from typing import Any, Final

from pydantic import BaseModel

from surehand.examples.shop.params import (
    CloseTicketParams,
    MailParams,
    RefundParams,
    RestockParams,
    UndoRestockParams,
    to_cents,
)
from surehand.examples.shop.store import CancelRefundBody, Store, new_id


@dataclass(frozen=True)
class Applied:
    """The effect is in the database; ``receipt`` is what the caller is told."""

    receipt: dict[str, Any]
    about: str | None = None
    """What its effects are counted by: the order."""


@dataclass(frozen=True)
class Refused:
    """Nothing was applied, and the caller is told why."""

    status: int
    code: str
    message: str


@dataclass(frozen=True)
class Write:
    """An endpoint that applies an effect."""

    name: str
    """Also the path at which its effects are asked for by key: ``GET /{name}?key=``."""
    path: str
    """What is posted to."""
    body: type[BaseModel]
    apply: Callable[[Connection, Any, bool], Applied | Refused]
    """``(connection, body, half)``: ``half`` leaves the work half done."""
    undoes: tuple[str, str] | None = None
    """Which endpoint's effect it takes back, and the field that both receipts name it by."""


def _refund(connection: Connection, body: RefundParams, half: bool) -> Applied | Refused:
    order = _one(connection, "SELECT status FROM orders WHERE order_id = ?", body.order_id)
    if order is None:
        return Refused(404, "order_not_found", f"there is no order {body.order_id}")
    if order["status"] == "shipped":
        return Refused(409, "already_shipped", f"{body.order_id} is on its way to the customer")
    receipt = {
        "refund_id": new_id("refund"),
        "order_id": body.order_id,
        "amount": _part_of(body.amount, half),
        "currency": body.currency,
    }
    return Applied(receipt, body.order_id)


def _cancel_refund(connection: Connection, body: CancelRefundBody, half: bool) -> Applied | Refused:
    refund = _find_receipt(connection, "refund_id", body.refund_id)
    if refund is None:
        return Refused(404, "refund_not_found", f"there is no refund {body.refund_id}")
    receipt = {
        "cancellation_id": new_id("cancellation"),
        "refund_id": body.refund_id,
        "amount": _part_of(Decimal(refund["amount"]), half),
    }
    return Applied(receipt, refund["order_id"])


def _send_mail(connection: Connection, body: MailParams, half: bool) -> Applied | Refused:
    return Applied({"mail_id": new_id("mail"), "to": body.to}, body.order_id)


def _restock(connection: Connection, body: RestockParams, half: bool) -> Applied | Refused:
    if _one(connection, "SELECT 1 FROM orders WHERE order_id = ?", body.order_id) is None:
        return Refused(404, "order_not_found", f"there is no order {body.order_id}")
    lines = _lines([line.model_dump() for line in body.lines], half)
    receipt = {"restock_id": new_id("restock"), "order_id": body.order_id, "lines": lines}
    return Applied(receipt, body.order_id)


def _undo_restock(connection: Connection, body: UndoRestockParams, half: bool) -> Applied | Refused:
    restock = _find_receipt(connection, "restock_id", body.restock_id)
    if restock is None:
        return Refused(404, "restock_not_found", f"there is no restock {body.restock_id}")
    lines = _lines(restock["lines"], half)
    receipt = {"undo_id": new_id("undo"), "restock_id": body.restock_id, "lines": lines}
    return Applied(receipt, restock["order_id"])


def _close_ticket(connection: Connection, body: CloseTicketParams, half: bool) -> Applied | Refused:
    ticket = _one(connection, "SELECT status FROM tickets WHERE ticket_id = ?", body.ticket_id)
    if ticket is None:
        return Refused(404, "ticket_not_found", f"there is no ticket {body.ticket_id}")
    if ticket["status"] == "locked":
        # Not a "no" to choose another way after, but an error that stays: a legal hold.
        return Refused(422, "ticket_locked", f"{body.ticket_id} is on legal hold")
    status = "closing" if half else "closed"
    connection.execute(
        "UPDATE tickets SET status = ? WHERE ticket_id = ?", (status, body.ticket_id)
    )
    return Applied({"ticket_id": body.ticket_id, "status": status})


WRITES: Final = (
    Write("refunds", "/refunds", RefundParams, _refund),
    Write(
        "refund_cancellations",
        "/refunds/{refund_id}/cancel",
        CancelRefundBody,
        _cancel_refund,
        undoes=("refunds", "refund_id"),
    ),
    Write("mails", "/mails", MailParams, _send_mail),
    Write("restocks", "/restocks", RestockParams, _restock),
    Write(
        "restock_undos",
        "/restocks/{restock_id}/undo",
        UndoRestockParams,
        _undo_restock,
        undoes=("restocks", "restock_id"),
    ),
    Write("ticket_closures", "/tickets/{ticket_id}/close", CloseTicketParams, _close_ticket),
)


def _one(connection: Connection, statement: str, value: str) -> Row | None:
    row: Row | None = connection.execute(statement, (value,)).fetchone()
    return row


def _find_receipt(connection: Connection, field: str, id_: str) -> dict[str, Any] | None:
    """Return the receipt of the effect that an id names; what undoes it names the same id."""
    row = connection.execute(
        "SELECT receipt FROM effects WHERE json_extract(receipt, '$.' || ?) = ? ORDER BY effect_id",
        (field, id_),
    ).fetchone()
    return None if row is None else json.loads(row["receipt"])


def _part_of(amount: Decimal, half: bool) -> str:
    return str(to_cents(amount / 2 if half else amount))


def _lines(lines: list[dict[str, Any]], half: bool) -> list[dict[str, Any]]:
    return [{**line, "quantity": line["quantity"] // 2} for line in lines] if half else lines


@dataclass(frozen=True)
class Answer:
    """What the shop answers when nothing disturbs it."""

    status: int
    body: Any


def refusal(refused: Refused) -> Answer:
    return Answer(refused.status, {"code": refused.code, "message": refused.message})


def apply(
    store: Store, write: Write, body: BaseModel, *, key: str | None, honour_key: bool, half: bool
) -> Answer:
    """Apply a request in one transaction, unless its key is honoured and was seen before."""
    text = body.model_dump_json()
    with store.transaction() as connection:
        if honour_key and key is not None:
            earlier = _earlier(connection, write, key, text)
            if earlier is not None:
                return earlier
        result = write.apply(connection, body, half)
        if isinstance(result, Refused):
            return refusal(result)
        connection.execute(
            "INSERT INTO effects (endpoint, key, about, at, body, receipt, half) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                write.name,
                key,
                result.about,
                datetime.now(UTC).isoformat(),
                text,
                json.dumps(result.receipt),
                half,
            ),
        )
        if write.undoes:
            endpoint, field = write.undoes
            connection.execute(
                "UPDATE effects SET undone = 1 "
                "WHERE endpoint = ? AND json_extract(receipt, '$.' || ?) = ?",
                (endpoint, field, result.receipt[field]),
            )
    return _half_done() if half else Answer(201, result.receipt)


def look_up(store: Store, write: Write, key: str) -> Answer:
    """Return every application under a key; none is an ordinary answer."""
    with store.transaction() as connection:
        rows = connection.execute(
            "SELECT receipt, half, undone FROM effects WHERE endpoint = ? AND key = ? "
            "ORDER BY effect_id",
            (write.name, key),
        ).fetchall()
    applied = [
        {
            "receipt": json.loads(row["receipt"]),
            "half": bool(row["half"]),
            "undone": bool(row["undone"]),
        }
        for row in rows
    ]
    return Answer(200, {"applied": applied})


def counts(store: Store, about: str | None = None) -> dict[str, int]:
    """Return how many effects each endpoint has applied that has any, in all or about one thing."""
    with store.transaction() as connection:
        rows = connection.execute(
            "SELECT endpoint, count(*) FROM effects WHERE ? IS NULL OR about = ? GROUP BY endpoint",
            (about, about),
        ).fetchall()
    return dict(map(tuple, rows))


def _earlier(connection: Connection, write: Write, key: str, text: str) -> Answer | None:
    """Return the recorded answer to a key.

    As with real providers that is the first answer, failures included: a request left half done
    is not completed by repeating it.
    """
    row = connection.execute(
        "SELECT body, receipt, half FROM effects WHERE endpoint = ? AND key = ? "
        "ORDER BY effect_id LIMIT 1",
        (write.name, key),
    ).fetchone()
    if row is None:
        return None
    if row["body"] != text:
        return refusal(Refused(422, "key_reused", "the key was used for another request"))
    return _half_done() if row["half"] else Answer(200, json.loads(row["receipt"]))


def _half_done() -> Answer:
    return Answer(500, {"code": "half_done", "message": "it failed in the middle of this"})
