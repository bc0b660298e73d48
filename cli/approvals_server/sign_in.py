"""Who is signed in, one-time links that sign people in, and whose an account elsewhere is.

The server makes a secret each time it starts, and writes it into a file that only its own user
reads. Whoever reads that file makes links; the same user reads the ledger's settings, too. A link's
token is a JWT that says who it signs in, and until when, with an HMAC by the secret. So the server
keeps only the tokens that were spent, and a restart makes all earlier links void.

Elsewhere a provider signs people in, or a chat has them. A file says which subject of which issuer
is which principal. It is reviewed like other settings, and holds no secret. It is not in the
ledger, because a sign-in proves nothing there.

A sign-in lets somebody look. What they decide is proven by their signature, or by nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import OctKey
from pydantic import TypeAdapter, ValidationError

from surehand.cli.people import check_name
from surehand.process import clock
from surehand.process.exits import NotReachable, WrongUse
from surehand.process.files import FOR_OTHERS, BadDocument, read_document, replace_whole, stamp_of

#: How long a link counts, unless it was used.
LINK_LASTS: Final = timedelta(minutes=10)
#: How long somebody stays signed in.
LASTS: Final = timedelta(hours=8)
#: Sign-ins of all people, and of one; one more ends the oldest.
MOST: Final = 1000
MOST_OF_ONE: Final = 20
#: Where server and ``approvals link`` meet by default.
DEFAULT_FOLDER: Final = Path(".surehand/approvals")
_FILE: Final = "server.json"
_BYTES: Final = 32
#: Characters; a principal's name has 200 at most.
LONGEST_TOKEN: Final = 2000
#: HMAC with SHA-256: the secret makes nothing else.
_MAC: Final = "HS256"
_TENANTS: Final = TypeAdapter(dict[str, dict[str, dict[str, str]]])

#: Tells whether there is a principal of a name.
Registered = Callable[[str], Awaitable[bool]]


class BadLink(Exception):
    """A link signs nobody in; the message is one sentence for people."""


@dataclass(frozen=True)
class Server:
    """A running server, as ``approvals link`` knows it."""

    origin: str
    tenant: str
    secret: str
    takes_links: bool = True
    """False: people sign in by an identity provider alone."""

    @classmethod
    def new(cls, origin: str, tenant: str, *, takes_links: bool = True) -> Server:
        return cls(origin, tenant, secrets.token_urlsafe(_BYTES), takes_links)

    def write(self, folder: Path) -> None:
        """Let ``approvals link`` know; WrongUse: the folder cannot be written."""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_whole(folder / _FILE, json.dumps(self.__dict__), mode=0o600)
        except OSError as error:
            raise WrongUse(f"--state {folder}: {error.strerror}") from error

    @classmethod
    def read(cls, folder: Path) -> Server:
        """Return the server that wrote to a folder last.

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
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & FOR_OTHERS:
            raise WrongUse(f"{file}: only the user who runs the server may read it")
        try:
            return cls(**json.loads(content))
        except (TypeError, ValueError) as error:
            raise WrongUse(f"{file} is not what `approvals serve` writes") from error

    def link(self, principal: str, now_s: float) -> str:
        """Return a link that signs somebody in once.

        The token stands behind ``#``: browsers send that to no server, and write it into no log.
        The page sends it once its reader presses the button. So a mail scanner that opens the link
        does not spend it.
        """
        claims = {
            "aud": self.tenant,
            "sub": principal,
            "exp": int(now_s + LINK_LASTS.total_seconds()),
            "jti": secrets.token_urlsafe(_BYTES),
        }
        token = jwt.encode({"alg": _MAC}, claims, OctKey.import_key(self.secret))
        return f"{self.origin}/sign-in#{token}"

    def claims(self, token: str) -> dict[str, Any]:
        """Return the claims of a token that this server's secret made; else raise BadLink."""
        if len(token) > LONGEST_TOKEN:
            raise BadLink("That is no link of this server.")
        try:
            return jwt.decode(token, OctKey.import_key(self.secret), algorithms=[_MAC]).claims
        except (JoseError, ValueError) as error:
            raise BadLink(
                "That link is not of this server, or of an earlier start of it."
            ) from error


class Links:
    """The server's side: each link counts once."""

    def __init__(self, server: Server, clock: Callable[[], float] = time.time) -> None:
        """Make it; ``clock``: seconds since 1970."""
        self._server = server
        self._clock = clock
        self._spent = dict[str, int]()

    @property
    def taken(self) -> bool:
        return self._server.takes_links

    def spend(self, token: str) -> str:
        """Return whom a link signs in, and let it count no more; else raise BadLink."""
        if not self._server.takes_links:
            raise BadLink("This server takes no links: sign in with its identity provider.")
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


class _SignedIn(NamedTuple):
    principal: str
    until: float
    counts: Callable[[], bool]


class SignIns:
    """The sign-ins of one server, in memory, by the digests of their cookies."""

    def __init__(self, now: Callable[[], float] = clock.now) -> None:
        """Make it; ``now``: this process's own clock, in seconds."""
        self._now = now
        self._by_digest = OrderedDict[str, _SignedIn]()

    def begin(self, principal: str, counts: Callable[[], bool] = lambda: True) -> str:
        """Return the cookie of a new sign-in, which counts while ``counts`` says so."""
        cookie = secrets.token_urlsafe(_BYTES)
        now = self._now()
        until = now + LASTS.total_seconds()
        known = self._by_digest.items()
        own = [digest for digest, one in known if one.principal == principal]
        over = {digest for digest, one in known if one.until <= now}
        for digest in over.union(own[: max(0, len(own) - MOST_OF_ONE + 1)]):
            del self._by_digest[digest]
        self._by_digest[digest_of(cookie)] = _SignedIn(principal, until, counts)
        while len(self._by_digest) > MOST:
            self._by_digest.popitem(last=False)
        return cookie

    def principal(self, cookie: str) -> str | None:
        """Return who is signed in; ``None``: nobody, or not any more."""
        found = self._by_digest.get(digest_of(cookie))
        if found is None or found.until <= self._now() or not found.counts():
            return None
        return found.principal

    def end(self, cookie: str) -> None:
        self._by_digest.pop(digest_of(cookie), None)


def digest_of(secret: str) -> str:
    """Return the digest by which a cookie or a token is remembered."""
    return hashlib.sha256(secret.encode()).hexdigest()


class Subjects:
    """Which subject of which issuer is which principal of a tenant; read again on changes.

    Two providers may give the same subject to two people. So tenant, issuer and subject are
    compared letter by letter, and no other claim takes part.
    """

    def __init__(self, file: Path, tenant: str) -> None:
        """Read the file; WrongUse: it cannot be read, or says something else."""
        self._file = file
        self._tenant = tenant
        self._stamp = self._stamp_now()
        self._subjects = self._read_subjects()

    def principal(self, issuer: str, subject: str) -> str | None:
        """Return who that is; ``None``: nobody, or not any more, or the file cannot be read."""
        try:
            stamp = self._stamp_now()
            if stamp != self._stamp:
                self._subjects, self._stamp = self._read_subjects(), stamp
        except WrongUse:
            return None
        return self._subjects.get(issuer, {}).get(subject)

    def _read_subjects(self) -> Mapping[str, Mapping[str, str]]:
        try:
            document = _TENANTS.validate_python(read_document(self._file), strict=True)
            for issuers in document.values():
                for name in (name for subjects in issuers.values() for name in subjects.values()):
                    check_name(name)
        except BadDocument as error:
            raise WrongUse(f"{self._file} cannot be read: {error}") from error
        except ValidationError as error:
            raise WrongUse(
                f"{self._file} is not TENANT: {{ISSUER: {{SUBJECT: PRINCIPAL}}}}"
            ) from error
        except WrongUse as error:
            raise WrongUse(f"{self._file}: {error}") from error
        return document.get(self._tenant, {})

    def _stamp_now(self) -> tuple[int, ...]:
        try:
            return stamp_of(self._file)
        except OSError as error:
            raise WrongUse(f"{self._file} cannot be read: {error.strerror}") from error
