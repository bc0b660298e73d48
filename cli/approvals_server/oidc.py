"""Signing in by an identity provider: authorization code with PKCE, begun and ended here.

What comes back has to be of this browser: a cookie that nothing else has is compared with the one
that the sign-in was begun with. So nobody is signed in as somebody else by a link (login CSRF).
Each sign-in that was begun ends once. What its code was given for, the nonce and the verifier say.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, NamedTuple
from urllib.parse import urlencode, urlsplit

import structlog
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from surehand.cli.approvals_server.identity_provider import (
    BadSignIn,
    IdentityProvider,
    ProviderAway,
)
from surehand.cli.approvals_server.pages import error, page
from surehand.cli.approvals_server.subjects import Subjects
from surehand.cli.approvals_server.texts import OF_PAGES
from surehand.process import clock
from surehand.workflows.plain_text import plain

BEGIN: Final = "/oidc/begin"
BACK: Final = "/oidc/back"
#: How long somebody may take at the provider.
MAY_TAKE: Final = timedelta(minutes=10)
#: Sign-ins that were begun and not ended; the oldest goes where there is one more.
MOST: Final = 10_000
#: Characters; a page's path with its query has fewer.
LONGEST_PATH: Final = 2000
_BYTES: Final = 32

#: Of a principal's name: whether there is one.
Registered = Callable[[str], Awaitable[bool]]
#: Signs somebody in with an answer; asks each time whether that still counts.
Begin = Callable[[Request, Response, str, Callable[[], bool]], None]

log = structlog.get_logger()


class Begun(NamedTuple):
    """A sign-in on its way."""

    browser: str
    """Digest of the cookie."""
    nonce: str
    verifier: str
    then: str
    until: float


class BegunSignIns:
    """The sign-ins on their way, by the digest of their state.

    In memory: state and verifier are of use to this process alone.
    """

    def __init__(self, now: Callable[[], float] = clock.now) -> None:
        """Make it; ``now``: this process's own clock, in seconds."""
        self._now = now
        self._by_state = OrderedDict[str, Begun]()

    def begin(self, browser: str, then: str) -> tuple[str, Begun]:
        """Return the state of a new one, and what is known of it."""
        state = secrets.token_urlsafe(_BYTES)
        until = self._now() + MAY_TAKE.total_seconds()
        nonce, verifier = secrets.token_urlsafe(_BYTES), secrets.token_urlsafe(_BYTES)
        begun = Begun(_digest(browser), nonce, verifier, then, until)
        self._by_state[_digest(state)] = begun
        while len(self._by_state) > MOST:
            self._by_state.popitem(last=False)
        return state, begun

    def end(self, state: str, browser: str) -> Begun | None:
        """Return a sign-in that a browser has begun, once; ``None``: it has begun none of these."""
        begun = self._by_state.get(_digest(state))
        if begun is None or not hmac.compare_digest(begun.browser, _digest(browser)):
            return None
        del self._by_state[_digest(state)]
        return begun if begun.until > self._now() else None


class OidcSignIn:
    """The two paths by which people are sent to the provider and come back."""

    def __init__(
        self, provider: IdentityProvider, subjects: Subjects, *, registered: Registered
    ) -> None:
        """Make it.

        Args:
            provider: Where people sign in.
            subjects: Who they are.
            registered: Whether there is a principal of a name.
        """
        self._provider = provider
        self._subjects = subjects
        self._registered = registered
        self._begun = BegunSignIns()

    @property
    def host(self) -> str:
        """The provider's host, for people."""
        return urlsplit(self._provider.client.issuer).netloc

    def begin_at(self, then: str) -> str:
        """Return the path at which a sign-in begins that leads to another path of the pages."""
        return f"{BEGIN}?{urlencode({'then': then})}"

    def routes(self, origin: str, begin: Begin) -> list[Route]:
        """Return its paths.

        Args:
            origin: Of all pages.
            begin: Signs somebody in.
        """
        self._origin = origin
        self._tls = origin.startswith("https:")
        # As the cookie of those who are signed in: nothing else can set one of that name.
        self._cookie = f"{'__Host-' if self._tls else ''}surehand_oidc"
        self._sign_in = begin
        return [Route(BEGIN, self._send_away), Route(BACK, self._come_back)]

    async def _send_away(self, request: Request) -> Response:
        if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return error(request, 403, OF_PAGES.oidc_other_page)
        # Another tab may be at the provider as well, and comes back with the same cookie.
        browser = request.cookies.get(self._cookie) or secrets.token_urlsafe(_BYTES)
        state, begun = self._begun.begin(browser, own_path(request.query_params.get("then", "")))
        try:
            url = await self._provider.sign_in_url(
                back=self._origin + BACK, state=state, nonce=begun.nonce, verifier=begun.verifier
            )
        except ProviderAway as problem:
            return _away(request, problem)
        answer = RedirectResponse(url, status_code=303)
        answer.set_cookie(
            self._cookie,
            browser,
            max_age=int(MAY_TAKE.total_seconds()),
            httponly=True,
            secure=self._tls,
            samesite="lax",  # it has to come back from the provider's page
        )
        return answer

    async def _come_back(self, request: Request) -> Response:
        try:
            answer = await self._ended(request)
        except BadSignIn as problem:
            answer = error(request, 401, str(problem))
        except ProviderAway as problem:
            answer = _away(request, problem)
        return answer

    async def _ended(self, request: Request) -> Response:
        asked, issuer = request.query_params, self._provider.client.issuer
        begun = self._begun.end(asked.get("state", ""), request.cookies.get(self._cookie, ""))
        if begun is None:
            raise BadSignIn(OF_PAGES.oidc_not_begun)
        metadata = await self._provider.metadata()
        says_who = metadata.get("authorization_response_iss_parameter_supported") is True
        if asked.get("iss", None if says_who else issuer) != issuer:
            raise BadSignIn(OF_PAGES.oidc_other_issuer)  # RFC 9207
        if "error" in asked or "code" not in asked:
            log.warning("sign_in.refused", error=plain(asked.get("error", ""), 80))
            raise BadSignIn(OF_PAGES.oidc_refused)
        subject = await self._provider.subject(
            asked["code"],
            back=self._origin + BACK,
            nonce=begun.nonce,
            verifier=begun.verifier,
        )
        me = self._subjects.principal(issuer, subject)
        if me is None or not await self._registered(me):
            return page("no_principal", status=403, me=None, issuer=issuer, subject=subject)
        answer = RedirectResponse(self._origin + begun.then, status_code=303)
        subjects = self._subjects
        self._sign_in(request, answer, me, lambda: subjects.principal(issuer, subject) == me)
        return answer


def own_path(text: str) -> str:
    """Return a path of these pages; what is none becomes the first page's."""
    first = text[:1] == "/" and text[1:2] not in ("/", "\\")
    shown = text.isascii() and text.isprintable() and "\\" not in text
    return text if first and shown and len(text) <= LONGEST_PATH else "/"


def _away(request: Request, problem: ProviderAway) -> Response:
    log.warning("sign_in.provider_away", problem=plain(problem, 300))
    return error(request, 503, OF_PAGES.oidc_away)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
