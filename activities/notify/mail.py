"""The notifier ``smtp``: one plain mail for each notification.

The standard library does it: one mail now and then needs no client that can do many at once, and
the notifier has a thread of its own.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import smtplib
import ssl
import threading
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import structlog

from surehand.activities.ledger.outbox.notification import (
    ANSWER_LIMIT,
    MaybeDelivered,
    NotDelivered,
    Notification,
)

log = structlog.get_logger()

_PORTS: Final = {"smtp": 587, "smtps": 465}
#: A plain address. No spaces, no comments, and nothing that could begin another header.
ADDRESS: Final = re.compile(r"[^\s@<>,;:\"()\\\x00-\x1f\x7f]+@[A-Za-z0-9.\-]+")


@dataclass(frozen=True)
class MailServer:
    """Where mails are handed in."""

    host: str
    port: int
    tls: bool
    """From the first byte on; else STARTTLS."""
    user: str = ""
    password: str = field(default="", repr=False)

    @property
    def loopback(self) -> bool:
        """Whether it is on this machine, where nobody can listen in between."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def mail_server(url: str) -> MailServer:
    """Return what a URL names: ``smtp[s]://[user:password@]host[:port]``.

    Raises:
        ValueError: A sentence that says what is wrong, without the password.
    """
    form = "must be smtp://host or smtps://host, with user:password@ before it and :port after it"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(form) from error
    if parts.scheme not in _PORTS or not host or parts.path not in ("", "/") or parts.query:
        raise ValueError(form)
    return MailServer(
        host=host,
        port=port or _PORTS[parts.scheme],
        tls=parts.scheme == "smtps",
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
    )


class Mail:
    """Sends notifications through one server, all to the same people."""

    def __init__(
        self,
        server: MailServer,
        sender: str,
        to: tuple[str, ...],
        limit: timedelta = ANSWER_LIMIT,
    ) -> None:
        """Say where to, and how long a whole conversation with the server may take."""
        self._server, self._sender, self._to, self._limit = server, sender, to, limit
        self.where = f"{server.host}:{server.port} to {', '.join(to)}"

    async def send(self, notification: Notification) -> None:
        """Hand it to the server; what that refuses, or does not take in time, is tried again."""
        limit = self._limit.total_seconds()
        # Whoever takes it first: the thread, to hand the mail in, or the limit, so it never does.
        handing_in = threading.Lock()
        message = self.message(notification)
        talking = asyncio.ensure_future(asyncio.to_thread(self._talk, message, handing_in))
        # A thread cannot be stopped: what it says when its time is over is for nobody.
        talking.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        try:
            await asyncio.wait({talking}, timeout=limit)
        finally:
            began = not handing_in.acquire(blocking=False)
        try:
            if not talking.done():
                raise TimeoutError(f"the server took longer than {limit:g} s")
            refused = talking.result()
        except (OSError, smtplib.SMTPException) as error:
            why = f"{type(error).__name__}: {error}"
            if began and not isinstance(error, smtplib.SMTPResponseException):
                raise MaybeDelivered(f"handed in and not answered: {why}") from error
            raise NotDelivered(why) from error
        if refused:
            # The others have it: sending it again would be for all.
            log.warning("notification.refused_in_part", recipients=sorted(refused))

    def message(self, notification: Notification) -> EmailMessage:
        """Return the mail."""
        message = EmailMessage()
        message["Subject"] = notification.title
        message["From"] = self._sender
        message["To"] = ", ".join(self._to)
        message["Date"] = format_datetime(notification.at)
        # The same at each attempt, so that a second one can be recognised.
        message["Message-ID"] = f"<{notification.delivery_id}@{self._sender.rpartition('@')[2]}>"
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(notification.text)
        return message

    def _talk(
        self, message: EmailMessage, handing_in: threading.Lock
    ) -> dict[str, tuple[int, bytes]]:
        server = self._server
        with closing(self._connected()) as client:
            client.handing_in = handing_in
            if not server.tls:
                client.ehlo()
                if client.has_extn("starttls"):
                    client.starttls(context=_trust(server))
                elif not server.loopback:
                    raise NotDelivered(f"{server.host} offers no STARTTLS: nothing goes in clear")
            if server.user:
                client.login(server.user, server.password)
            refused = client.send_message(message)
            # It has the mail: whatever it says now, sending it again would be a second one.
            with suppress(OSError, smtplib.SMTPException):
                client.quit()
            return refused

    def _connected(self) -> _Smtp:
        server, limit = self._server, self._limit.total_seconds()
        if not server.tls:
            return _Smtp(server.host, server.port, timeout=limit)
        return _SmtpOverTls(server.host, server.port, timeout=limit, context=_trust(server))


class _Smtp(smtplib.SMTP):
    """Hands a mail in only if nobody has given it up before."""

    handing_in: threading.Lock

    def data(self, msg: Any) -> tuple[int, bytes]:
        if not self.handing_in.acquire(blocking=False):
            raise TimeoutError("given up before it was handed in")
        return super().data(msg)


class _SmtpOverTls(_Smtp, smtplib.SMTP_SSL):
    """The same over TLS from the first byte on."""


def _trust(server: MailServer) -> ssl.SSLContext:
    """Return whom TLS believes: the system's authorities; on this machine any certificate."""
    context = ssl.create_default_context()
    if server.loopback:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
