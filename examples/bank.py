"""A bank in a file, where your provider's client would be. It knows nothing of Surehand.

It lies at ``BANK_FILE`` (``.surehand/bank.sqlite``) and, as an outside system does, outlives every
worker.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

_TABLE = """
CREATE TABLE IF NOT EXISTS bookings (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,     -- refund, cancellation
    about TEXT NOT NULL,    -- the order; the refund that is taken back
    amount TEXT NOT NULL,
    key TEXT NOT NULL       -- what the caller calls this request
)
"""


class Bank:
    """Books refunds, finds them by the caller's key, and takes them back once for each key."""

    def __init__(self, file: Path) -> None:
        self._file = file

    async def knows(self, order_id: str) -> bool:
        """Say whether there is such an order: those that are called ``order-...``."""
        return order_id.startswith("order-")

    async def refund(self, order_id: str, amount: Decimal, *, key: str) -> dict[str, Any]:
        """Pay an amount back; does so each time it is called."""
        with self._open() as db:
            return _book(db, "refund", order_id, str(amount), key)

    async def find(self, key: str) -> dict[str, Any] | None:
        """Return the refund that was booked under a key."""
        with self._open() as db:
            return _booked(db, "refund", key)

    async def cancel(self, refund_id: str, *, key: str) -> dict[str, Any]:
        """Take a refund back; a second call with the same key returns what the first did."""
        with self._open() as db:
            return _booked(db, "cancellation", key) or _book(db, "cancellation", refund_id, "", key)

    def counts(self, about: str = "") -> dict[str, int]:
        """Return how much was booked, by kind; of one order, or of all."""
        counted = "SELECT kind, count(*) FROM bookings WHERE ? IN ('', about) GROUP BY kind"
        with self._open() as db:
            return dict(db.execute(counted, (about,)))

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self._file, isolation_level=None)) as db:
            db.execute(_TABLE)
            db.execute("BEGIN IMMEDIATE")
            yield db
            db.execute("COMMIT")


def _book(db: sqlite3.Connection, kind: str, about: str, amount: str, key: str) -> dict[str, Any]:
    booking = "INSERT INTO bookings (kind, about, amount, key) VALUES (?, ?, ?, ?)"
    number = db.execute(booking, (kind, about, amount, key)).lastrowid
    return {"id": f"{kind}-{number}", "about": about, "amount": amount}


def _booked(db: sqlite3.Connection, kind: str, key: str) -> dict[str, Any] | None:
    found = "SELECT id, about, amount FROM bookings WHERE kind = ? AND key = ?"
    for number, about, amount in db.execute(found, (kind, key)):
        return {"id": f"{kind}-{number}", "about": about, "amount": amount}
    return None


bank = Bank(Path(os.environ.get("BANK_FILE", ".surehand/bank.sqlite")))
