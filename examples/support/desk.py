"""The help desk's endpoints, a real mail server beside them, and the application made of both.

The mail server takes mails by SMTP, keeps them, and knows them by their Message-ID.
"""

from __future__ import annotations

import asyncio
import socket
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any, Final, cast

from aiosmtpd.smtp import SMTP, Envelope
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from surehand.examples.shop.effects import Answer, Refused, counts, refusal
from surehand.examples.shop.faults import Connections, Faults, Serving, Traffic
from surehand.examples.shop.server import (
    Admin,
    answer_invalid,
    problem,
    read_handler,
    write_handler,
)
from surehand.examples.shop.store import Store
from surehand.examples.support.store import (
    WRITES,
    NewTicket,
    add_mail,
    add_ticket,
    article_of,
    mails_of,
    open_store,
    search,
    ticket_of,
)

MAILS: Final = "mails"
#: Seconds after which it hangs up on a client that says nothing: what is not handed in by then
#: never arrives. The ``settle`` of the tool that sends rests on that.
SILENCE_S: Final = 4.0


class MailServer:
    """What becomes of a mail that is handed in."""

    def __init__(self, store: Store, faults: Faults, traffic: Traffic) -> None:
        self._store = store
        self._faults = faults
        self._traffic = traffic

    async def handle_DATA(self, server: SMTP, session: Any, envelope: Envelope) -> str:
        """Keep a mail, then say so."""
        with self._traffic.request(MAILS):
            told = self._faults.take(MAILS)
            fault = told.fault
            await told.before()
            if fault.fail == "before":
                return f"{fault.status} told to fail"
            mail = message_from_bytes(cast(bytes, envelope.content), policy=policy.default)
            with self._store.transaction() as connection:
                text = "\n".join(mail.get_content().splitlines())
                add_mail(connection, mail["Message-ID"], envelope.rcpt_tos, mail["Subject"], text)
            self._traffic.changed()
            await told.after()
            if fault.fail == "drop_after" and isinstance(server.transport, asyncio.Transport):
                server.transport.abort()
            return "250 OK"

    @asynccontextmanager
    async def serving(self, listener: socket.socket) -> AsyncIterator[None]:
        """Take mails while the block runs."""
        loop = asyncio.get_running_loop()

        def conversation() -> SMTP:
            return SMTP(self, hostname="mail.example.com", timeout=SILENCE_S, loop=loop)

        server = await loop.create_server(conversation, sock=listener)
        async with server:
            yield


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
        Route("/tickets/{ticket_id}", read_handler(serving, "tickets", reads.ticket)),
        Route("/articles", read_handler(serving, "articles", reads.articles)),
        Route("/articles/{article_id}", read_handler(serving, "articles", reads.article)),
        Route("/mailbox", read_handler(serving, "mailbox", reads.mailbox)),
        *(Route(w.path, write_handler(serving, store, w), methods=["POST"]) for w in WRITES),
        Route("/admin/tickets", reads.open_ticket, methods=["POST"]),
        *Admin(faults, traffic, names, counted=counted, about="ticket_id").routes(),
    ]
    handlers: Any = {ValidationError: answer_invalid}
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
