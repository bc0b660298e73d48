"""Who is signed in: kept in this process's memory, and known by the digest of a cookie.

A sign-in only lets somebody look. What they decide is proven by their signature, or by nothing.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable
from datetime import timedelta
from typing import Final, NamedTuple

from surehand.process import clock

#: How long somebody stays signed in.
LASTS: Final = timedelta(hours=8)
#: The oldest goes where there is one more: of all, and of one person.
MOST: Final = 1000
MOST_OF_ONE: Final = 20
_BYTES: Final = 32


class _SignedIn(NamedTuple):
    principal: str
    until: float
    counts: Callable[[], bool]


def always() -> bool:
    """Return that a sign-in still counts: nothing but its time ends it."""
    return True


class SignIns:
    """The sign-ins of one server."""

    def __init__(self, now: Callable[[], float] = clock.now) -> None:
        """Make it; ``now``: this process's own clock, in seconds."""
        self._now = now
        self._by_digest = OrderedDict[str, _SignedIn]()

    def begin(self, principal: str, counts: Callable[[], bool] = always) -> str:
        """Return the cookie of a new sign-in.

        Args:
            principal: Who signs in.
            counts: Whether they still may; asked each time.
        """
        cookie = secrets.token_urlsafe(_BYTES)
        now = self._now()
        until = now + LASTS.total_seconds()
        known = self._by_digest.items()
        own = [digest for digest, one in known if one.principal == principal]
        over = {digest for digest, one in known if one.until <= now}
        for digest in over.union(own[: max(0, len(own) - MOST_OF_ONE + 1)]):
            del self._by_digest[digest]
        self._by_digest[_digest(cookie)] = _SignedIn(principal, until, counts)
        while len(self._by_digest) > MOST:
            self._by_digest.popitem(last=False)
        return cookie

    def principal(self, cookie: str) -> str | None:
        """Return who is signed in; ``None``: nobody, or not any more."""
        found = self._by_digest.get(_digest(cookie))
        if found is None or found.until <= self._now() or not found.counts():
            return None
        return found.principal

    def end(self, cookie: str) -> None:
        """Sign out."""
        self._by_digest.pop(_digest(cookie), None)


def _digest(cookie: str) -> str:
    return hashlib.sha256(cookie.encode()).hexdigest()
