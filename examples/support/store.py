"""What the help desk keeps, and the effects that it applies, each in the caller's transaction.

It keeps tickets, articles with a full-text index, and the mails that it took.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from surehand.examples.shop.effects import Applied, Refused, Write
from surehand.examples.shop.store import Body, Store, new_id

TABLES: Final = """
CREATE TABLE IF NOT EXISTS tickets (
    ticket_id TEXT PRIMARY KEY,
    customer TEXT NOT NULL,
    subject TEXT NOT NULL,
    body TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('open', 'closed')),
    report TEXT
);
CREATE VIRTUAL TABLE IF NOT EXISTS articles
    USING fts5 (article_id UNINDEXED, title, body, tokenize = 'porter unicode61');
CREATE TABLE IF NOT EXISTS mails (
    mail_id INTEGER PRIMARY KEY,
    message_id TEXT NOT NULL,
    recipients TEXT NOT NULL,
    subject TEXT NOT NULL,
    body TEXT NOT NULL
);
"""
_ARTICLES: Final = Path(__file__).with_name("articles.json")


class NewTicket(BaseModel):
    """A ticket to open; the desk makes up what is left out."""

    model_config = ConfigDict(extra="forbid")

    ticket_id: str = Field(default_factory=lambda: new_id("ticket"))
    customer: str = "ada@example.com"
    subject: str = "I cannot sign in"
    body: str = "I have forgotten my password, and the link to reset it has expired."


def open_store(path: Path) -> Store:
    """Open the desk's file."""
    return Store(path, TABLES, _seed)


def add_ticket(connection: Connection, ticket: NewTicket) -> None:
    """Open a ticket; ``sqlite3.IntegrityError`` if its id is taken."""
    connection.execute(
        "INSERT INTO tickets VALUES (:ticket_id, :customer, :subject, :body, 'open', NULL)",
        ticket.model_dump(),
    )


def ticket_of(connection: Connection, ticket_id: str) -> dict[str, Any] | None:
    """Return a ticket, or ``None``."""
    return _one(connection, "SELECT * FROM tickets WHERE ticket_id = ?", ticket_id)


def article_of(connection: Connection, article_id: str) -> dict[str, Any] | None:
    """Return an article, or ``None``."""
    return _one(connection, "SELECT * FROM articles WHERE article_id = ?", article_id)


def search(connection: Connection, query: str) -> list[dict[str, Any]]:
    """Return the three articles that have most of a text's words, best first."""
    words = {word.lower() for word in re.findall(r"\w{4,}", query)}
    # Quoted, because what a customer has written is no query language.
    match = " OR ".join(f'"{word}"' for word in sorted(words))
    statement = (
        "SELECT article_id, title, snippet(articles, 2, '', '', '...', 24) AS excerpt"
        " FROM articles WHERE articles MATCH ? ORDER BY rank LIMIT 3"
    )
    return [dict(row) for row in connection.execute(statement, (match,))] if words else []


def add_mail(
    connection: Connection, message_id: str, to: list[str], subject: str, body: str
) -> None:
    """Keep a mail. As in any mailbox, the same one twice is two."""
    connection.execute(
        "INSERT INTO mails (message_id, recipients, subject, body) VALUES (?, ?, ?, ?)",
        (message_id, json.dumps(to), subject, body),
    )


def mails_of(connection: Connection, column: str, value: str) -> list[dict[str, Any]]:
    """Return the mails that have a value in a column, oldest first."""
    statement = f"SELECT * FROM mails WHERE {column} = ? ORDER BY mail_id"
    rows = [dict(row) for row in connection.execute(statement, (value,))]
    return [{**row, "recipients": json.loads(row["recipients"])} for row in rows]


def _one(connection: Connection, statement: str, value: str) -> dict[str, Any] | None:
    row = connection.execute(statement, (value,)).fetchone()
    return None if row is None else dict(row)


def _seed(connection: Connection) -> None:
    if connection.execute("SELECT 1 FROM articles").fetchone() is not None:
        return
    for article in json.loads(_ARTICLES.read_text(encoding="utf-8")):
        connection.execute("INSERT INTO articles VALUES (:article_id, :title, :body)", article)
    add_ticket(connection, NewTicket(ticket_id="ticket-1"))


class OfTicket(Body):
    """Which ticket."""

    ticket_id: str


class ReportBody(OfTicket):
    """Where a ticket's report is."""

    report: str


def _close(connection: Connection, body: OfTicket, half: bool) -> Applied | Refused:
    return _moved(connection, body, "open", "closed")


def _reopen(connection: Connection, body: OfTicket, half: bool) -> Applied | Refused:
    return _moved(connection, body, "closed", "open")


def _file(connection: Connection, body: ReportBody, half: bool) -> Applied | Refused:
    connection.execute(
        "UPDATE tickets SET report = :report WHERE ticket_id = :ticket_id", body.model_dump()
    )
    return Applied(body.model_dump(), body.ticket_id)


def _moved(connection: Connection, body: OfTicket, old: str, new: str) -> Applied | Refused:
    ticket = ticket_of(connection, body.ticket_id)
    if ticket is None:
        return Refused(404, "no_ticket", f"there is no ticket {body.ticket_id}")
    if ticket["status"] != old:
        return Refused(409, f"not_{old}", f"{body.ticket_id} is {ticket['status']}")
    connection.execute("UPDATE tickets SET status = ? WHERE ticket_id = ?", (new, body.ticket_id))
    return Applied({"ticket_id": body.ticket_id, "status": new}, body.ticket_id)


WRITES: Final = (
    Write("closings", "/tickets/{ticket_id}/close", OfTicket, _close),
    Write("reopenings", "/tickets/{ticket_id}/reopen", OfTicket, _reopen),
    Write("reports", "/tickets/{ticket_id}/report", ReportBody, _file),
)
