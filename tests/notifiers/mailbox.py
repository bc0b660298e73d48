"""A real SMTP server on this machine that keeps what it is handed."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any, Final, cast

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

#: Whom the server knows.
LOGIN: Final = (b"robot", b"p@ss:word")


@dataclass
class Mailbox:
    """What was handed in, and how."""

    port: int = 0
    refuses: str = ""
    """The answer to the next mails; empty takes them."""
    bye: str = "221 Bye"
    """The answer to whoever leaves."""
    silent_at: str = ""
    """The command that is not answered before ``goes_on`` is set."""
    cuts: bool = False
    """Whether it ends the connection instead of saying that it has a mail."""
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once nobody talks to it any more."""
    got: list[EmailMessage] = field(default_factory=list)
    envelopes: list[Envelope] = field(default_factory=list)
    tls: list[bool] = field(default_factory=list)
    logins: list[tuple[bytes, bytes]] = field(default_factory=list)

    async def handle_RCPT(
        self, server: Any, session: Any, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        await self._answered("RCPT")
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Envelope) -> str:
        if self.refuses:
            return self.refuses
        content = cast(bytes, envelope.content)
        self.got.append(cast(EmailMessage, message_from_bytes(content, policy=policy.default)))
        self.envelopes.append(envelope)
        self.tls.append(session.ssl is not None)
        await self._answered("DATA")
        if self.cuts:
            server.transport.abort()
        return "250 OK"

    async def _answered(self, command: str) -> None:
        if command == self.silent_at:
            await self.goes_on.wait()

    async def handle_QUIT(self, server: Any, session: Any, envelope: Envelope) -> str:
        return self.bye

    def authenticate(self, *given: Any) -> AuthResult:
        login = cast(LoginPassword, given[-1])
        self.logins.append((login.login, login.password))
        # Not handled: the server itself says no.
        return AuthResult(success=self.logins[-1] == LOGIN, handled=False)


@asynccontextmanager
async def mailbox(
    folder: Path, *, starttls: bool = False, auth: bool = False
) -> AsyncIterator[Mailbox]:
    """Have one listen on all addresses of this machine, on a port of its own."""
    box, loop = Mailbox(), asyncio.get_running_loop()
    context = _tls(folder) if starttls else None

    class Connection(SMTP):
        def connection_lost(self, error: Exception | None) -> None:
            super().connection_lost(error)
            box.left.set()

    def connection() -> SMTP:
        return Connection(
            box,
            hostname="mail.example",
            tls_context=context,
            authenticator=box.authenticate if auth else None,
            auth_require_tls=starttls,
            loop=loop,
        )

    server = await loop.create_server(connection, "0.0.0.0", 0)
    box.port = server.sockets[0].getsockname()[1]
    try:
        yield box
    finally:
        server.close()
        await server.wait_closed()


def _tls(folder: Path) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mail.example")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    file = folder / "mail.pem"
    pem = serialization.Encoding.PEM
    own = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file.write_bytes(own + made.public_bytes(pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context
