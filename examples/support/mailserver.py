"""A real mail server: it takes mails by SMTP, keeps them, and knows them by their Message-ID."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email import message_from_bytes, policy
from typing import Any, Final, cast

from aiosmtpd.smtp import SMTP, Envelope

from surehand.examples.shop.faults import Faults
from surehand.examples.shop.store import Store
from surehand.examples.shop.traffic import Traffic
from surehand.examples.support.store import add_mail

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
