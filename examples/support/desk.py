"""The help desk's endpoints, its mail server beside them, and the application made of both."""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from surehand.examples.shop import endpoints
from surehand.examples.shop.admin import Admin, problem
from surehand.examples.shop.connections import Connections
from surehand.examples.shop.effects import Answer, counts, refusal
from surehand.examples.shop.faults import Faults
from surehand.examples.shop.serving import Serving
from surehand.examples.shop.store import Store
from surehand.examples.shop.traffic import Traffic
from surehand.examples.shop.writes import Refused
from surehand.examples.support.mailserver import MAILS, MailServer
from surehand.examples.support.store import (
    NewTicket,
    add_ticket,
    article_of,
    mails_of,
    open_store,
    search,
    ticket_of,
)
from surehand.examples.support.writes import WRITES

_READS: Final = ("tickets", "articles", "mailbox")
_WRITES: Final = tuple(write.name for write in WRITES)


def build(db: Path, connections: Connections, *, mail: socket.socket) -> Starlette:
    """Return the application on its database file; it takes mails where ``mail`` listens."""
    store, faults, traffic = open_store(db), Faults(), Traffic()
    serving = Serving(faults, traffic, connections)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with MailServer(store, faults, traffic).serving(mail):
            yield

    def counted(ticket_id: str | None) -> dict[str, int]:
        return dict.fromkeys(_WRITES, 0) | counts(store, ticket_id) | _mails(store, ticket_id)

    reads = _Reads(store)
    names = (*_READS, *_WRITES, MAILS)
    routes = [
        Route("/tickets/{ticket_id}", endpoints.read(serving, "tickets", reads.ticket)),
        Route("/articles", endpoints.read(serving, "articles", reads.articles)),
        Route("/articles/{article_id}", endpoints.read(serving, "articles", reads.article)),
        Route("/mailbox", endpoints.read(serving, "mailbox", reads.mailbox)),
        *(Route(w.path, endpoints.write(serving, store, w), methods=["POST"]) for w in WRITES),
        Route("/admin/tickets", reads.open_ticket, methods=["POST"]),
        *Admin(faults, traffic, names, counted=counted, about="ticket_id").routes(),
    ]
    handlers: Any = {ValidationError: endpoints.invalid}
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)


class _Reads:
    """What is told of the desk, and how a customer opens a ticket."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def ticket(self, request: Request) -> Answer:
        with self._store.transaction() as connection:
            return _found(ticket_of(connection, request.path_params["ticket_id"]))

    def article(self, request: Request) -> Answer:
        with self._store.transaction() as connection:
            return _found(article_of(connection, request.path_params["article_id"]))

    def articles(self, request: Request) -> Answer:
        with self._store.transaction() as connection:
            return Answer(200, search(connection, request.query_params.get("q", "")))

    def mailbox(self, request: Request) -> Answer:
        """Search what the mail server has, as IMAP's ``SEARCH HEADER`` does."""
        message_id = request.query_params.get("message_id", "")
        with self._store.transaction() as connection:
            return Answer(200, mails_of(connection, "message_id", message_id))

    async def open_ticket(self, request: Request) -> Response:
        ticket = NewTicket.model_validate_json(await request.body() or b"{}")
        try:
            with self._store.transaction() as connection:
                add_ticket(connection, ticket)
        except sqlite3.IntegrityError:
            return problem(409, f"there is already a ticket {ticket.ticket_id}")
        return JSONResponse(ticket.model_dump(), 201)


def _found(row: dict[str, Any] | None) -> Answer:
    return Answer(200, row) if row else refusal(Refused(404, "not_found", "there is no such thing"))


def _mails(store: Store, ticket_id: str | None) -> dict[str, int]:
    """Count the mails, in all or those about one ticket: each has it in its subject."""
    statement = "SELECT count(*) FROM mails WHERE ? IS NULL OR instr(subject, '[' || ? || ']')"
    with store.transaction() as connection:
        [count] = connection.execute(statement, (ticket_id, ticket_id)).fetchone()
    return {MAILS: count}
