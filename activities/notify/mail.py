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
from contextlib import closing, suppress
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Final
from urllib.parse import unquote, urlsplit

import structlog

from surehand.activities.ledger.outbox.notification import (
    NotDelivered,
    Notification,
)

log = structlog.get_logger()

#: Seconds that one command may take; several of them make up a mail.
_COMMAND_LIMIT: Final = 5
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

    def __init__(self, server: MailServer, sender: str, to: tuple[str, ...]) -> None:
        self._server, self._sender, self._to = server, sender, to
        self.where = f"{server.host}:{server.port} to {', '.join(to)}"

    async def send(self, notification: Notification) -> None:
        """Hand it to the server; what that refuses is tried again."""
        message = self.message(notification)
        try:
            refused = await asyncio.to_thread(self._hand_in, message)
        except (OSError, smtplib.SMTPException, ssl.SSLError) as error:
            raise NotDelivered(f"{type(error).__name__}: {error}") from error
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

    def _hand_in(self, message: EmailMessage) -> dict[str, tuple[int, bytes]]:
        server = self._server
        with closing(self._connected()) as client:
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

    def _connected(self) -> smtplib.SMTP:
        server = self._server
        if server.tls:
            return smtplib.SMTP_SSL(
                server.host, server.port, timeout=_COMMAND_LIMIT, context=_trust(server)
            )
        return smtplib.SMTP(server.host, server.port, timeout=_COMMAND_LIMIT)


def _trust(server: MailServer) -> ssl.SSLContext:
    """Return whom TLS believes: the system's authorities; on this machine any certificate."""
    context = ssl.create_default_context()
    if server.loopback:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
