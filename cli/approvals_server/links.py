"""One-time links: how somebody signs in where there is no identity provider, or on one machine.

The server makes a secret each time it starts, and writes it into a file that only its own user
reads. Whoever reads that file makes links: it is the user who reads the ledger's settings, too. A
link's token says in whose name, and until when; an HMAC by the secret says that it was not made up.
So the server need not be asked for one, and keeps nothing but which tokens were spent. After a
restart the secret is another one, and no earlier link counts.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import stat
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from surehand.cli.approvals_server.texts import OF_PAGES
from surehand.process.exits import NotReachable, WrongUse
from surehand.process.files import replace_whole

#: How long a link counts, unless it was used.
LINK_LASTS: Final = timedelta(minutes=10)
#: Where server and ``approvals link`` meet, if nothing else is said.
DEFAULT_FOLDER: Final = Path(".surehand/approvals")
_FILE: Final = "server.json"
_BYTES: Final = 32
#: Characters; a principal's name has 200 at most.
LONGEST_TOKEN: Final = 2000
#: What is signed here is nothing else.
_DOMAIN: Final = b"surehand-approvals-link\n"
_OTHERS: Final = 0o077


class BadLink(Exception):
    """A link signs nobody in; the message is one sentence for people."""


@dataclass(frozen=True)
class Server:
    """A server that runs, as those know it who make links to it."""

    origin: str
    tenant: str
    secret: str
    takes_links: bool = True
    """Whether people sign in by them; else by an identity provider alone."""

    @classmethod
    def new(cls, origin: str, tenant: str, *, takes_links: bool = True) -> Server:
        """Return a server with a secret of its own."""
        return cls(origin, tenant, secrets.token_urlsafe(_BYTES), takes_links)

    def write(self, folder: Path) -> None:
        """Let ``approvals link`` know.

        Raises:
            WrongUse: The folder cannot be written.
        """
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_whole(folder / _FILE, json.dumps(self.__dict__), mode=0o600)
        except OSError as error:
            raise WrongUse(f"--state {folder}: {error.strerror}") from error

    @classmethod
    def read(cls, folder: Path) -> Server:
        """Return the server that has written to a folder last.

        Raises:
            NotReachable: None has.
            WrongUse: Others may have written or read it.
        """
        file = folder / _FILE
        try:
            with file.open(encoding="utf-8") as opened:
                found = os.fstat(opened.fileno())
                content = opened.read()
        except FileNotFoundError as error:
            raise NotReachable(f"{file} is not there: start `approvals serve` first") from error
        except OSError as error:
            raise WrongUse(f"--state {folder}: {error.strerror}") from error
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & _OTHERS:
            raise WrongUse(f"{file}: only the user who runs the server may read it")
        try:
            return cls(**json.loads(content))
        except (TypeError, ValueError) as error:
            raise WrongUse(f"{file} is not what `approvals serve` writes") from error

    def link(self, principal: str, now_s: float) -> str:
        """Return a link that signs somebody in once.

        The token stands behind ``#``: browsers send that to no server, and write it into no log.
        The page sends it once its reader presses the button. So nothing that looks at links in
        mails spends one.

        Args:
            principal: In whose name.
            now_s: Seconds since 1970.
        """
        claims = {
            "aud": self.tenant,
            "sub": principal,
            "exp": int(now_s + LINK_LASTS.total_seconds()),
            "jti": secrets.token_urlsafe(_BYTES),
        }
        said = urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
        return f"{self.origin}/sign-in#{said}.{self._mac(said)}"

    def claims(self, token: str) -> dict[str, object]:
        """Return what a token claims that was made with this server's secret.

        Raises:
            BadLink: It was not.
        """
        said, _, mac = token.partition(".")
        if len(token) > LONGEST_TOKEN or not token.isascii():
            raise BadLink("That is no link of this server.")
        if not hmac.compare_digest(mac, self._mac(said)):
            raise BadLink("That link is not of this server, or of an earlier start of it.")
        claims: dict[str, object] = json.loads(urlsafe_b64decode(said + "=" * (-len(said) % 4)))
        return claims

    def _mac(self, said: str) -> str:
        made = hmac.digest(self.secret.encode(), _DOMAIN + said.encode(), hashlib.sha256)
        return urlsafe_b64encode(made).rstrip(b"=").decode()


class Links:
    """The server's side: each link counts once."""

    def __init__(self, server: Server, clock: Callable[[], float] = time.time) -> None:
        """Make it; ``clock``: seconds since 1970."""
        self._server = server
        self._clock = clock
        self._spent = dict[str, int]()

    @property
    def taken(self) -> bool:
        """Whether people sign in by links."""
        return self._server.takes_links

    def spend(self, token: str) -> str:
        """Return whom a link signs in; it signs in nobody from now on.

        Raises:
            BadLink: It counts no more, or never did.
        """
        if not self._server.takes_links:
            raise BadLink(OF_PAGES.no_links)
        claims, now = self._server.claims(token), self._clock()
        nonce, until = str(claims["jti"]), int(str(claims["exp"]))
        if claims["aud"] != self._server.tenant:
            raise BadLink("That link is for another tenant.")
        if until <= now:
            raise BadLink("That link is over: ask for a new one.")
        if nonce in self._spent:
            raise BadLink("That link was used already: ask for a new one.")
        self._spent = {one: end for one, end in self._spent.items() if end > now}
        self._spent[nonce] = until
        return str(claims["sub"])
