"""Applies writes, at most once for each honoured key, and remembers each application."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from sqlite3 import Connection
from typing import Any

from surehand.examples.shop.bodies import Body
from surehand.examples.shop.store import Store
from surehand.examples.shop.writes import Refused, Write


@dataclass(frozen=True)
class Answer:
    """What the shop answers when nothing disturbs it."""

    status: int
    body: Any


def refusal(refused: Refused) -> Answer:
    """Return the answer to a request that was refused."""
    return Answer(refused.status, {"code": refused.code, "message": refused.message})


def apply(
    store: Store, write: Write, body: Body, *, key: str | None, honour_key: bool, half: bool
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
