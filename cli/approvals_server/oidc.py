"""Signing in by an OpenID provider: authorization code with PKCE.

Authlib has the protocol's pieces, joserfc the signatures. Our own HTTP client asks the provider,
with limits: its answers are judged here as those of a stranger.

An answer has to come back in the browser that began the sign-in: a cookie says so. So no link can
sign anybody in as somebody else (login CSRF). Each sign-in ends once; nonce and verifier bind its
code and ID token to it.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote_plus, urlencode, urlsplit

import httpx
import structlog
from authlib.oauth2.auth import ClientAuth  # type: ignore[import-untyped]
from authlib.oauth2.client import DEFAULT_HEADERS  # type: ignore[import-untyped]
from authlib.oauth2.rfc6749.parameters import (  # type: ignore[import-untyped]
    prepare_grant_uri,
    prepare_token_request,
)
from authlib.oauth2.rfc7636 import create_s256_code_challenge  # type: ignore[import-untyped]
from authlib.oidc.core import CodeIDToken  # type: ignore[import-untyped]
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from surehand.cli.approvals_server.pages import error, page
from surehand.cli.approvals_server.sign_in import Registered, Subjects, digest_of
from surehand.process import clock
from surehand.process.exits import WrongUse
from surehand.process.files import read_private
from surehand.process.settings import PREFIX, is_private
from surehand.workflows.plain_text import plain

if TYPE_CHECKING:
    from surehand.activities.worker.settings import Settings

#: Signed with a private key of the provider's. Whoever has the client's secret or the public key
#: could make the other kinds.
ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
#: The provider is asked again about itself after that.
_KNOWN_FOR: Final = timedelta(hours=1)
#: A provider that has just not answered is not asked again for so long.
_AWAY_FOR: Final = timedelta(seconds=5)
_PATIENCE_S: Final = 10.0
_LARGEST_ANSWER: Final = 1024 * 1024
_LONGEST_SUBJECT: Final = 255
#: Seconds by which the two clocks may differ.
LEEWAY_S: Final = 30
#: The same for the Bot Framework's, as it says.
_BOT_LEEWAY_S: Final = 300
#: Where the Bot Framework says which keys are its own.
BOT_FRAMEWORK: Final = "https://login.botframework.com/v1/.well-known/openidconfiguration"
#: By default a client with a secret shows it in the header (OpenID Connect Discovery 1.0).
_WITH_SECRET: Final = ("client_secret_basic", "client_secret_post")
BEGIN: Final = "/oidc/begin"
BACK: Final = "/oidc/back"
#: How long somebody may take at the provider.
MAY_TAKE: Final = timedelta(minutes=10)
#: Sign-ins that were begun and not ended; one more drops the oldest.
MOST: Final = 10_000
#: Characters; a page's path with its query has fewer.
LONGEST_PATH: Final = 2000
_BYTES: Final = 32
#: A setting that begins so names the file with the secret.
_FILE: Final = "file:"

#: Signs somebody in with an answer; asks each time whether that still counts.
Begin = Callable[[Request, Response, str, Callable[[], bool]], None]

log = structlog.get_logger()


class BadSignIn(Exception):
    """Nobody is signed in; the message is one sentence for people."""


class ProviderAway(Exception):
    """The provider cannot be asked; the message is one line for whoever runs the server."""


@dataclass(frozen=True)
class ClientOf:
    """What the provider knows the approvals server as."""

    issuer: str
    client_id: str
    client_secret: str = ""
    """Empty: a public client, which PKCE alone protects."""


class IdentityProvider:
    """Sends people to a provider, and reads what it says of them."""

    def __init__(
        self,
        client: ClientOf,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Make it; ``now``: seconds since 1970."""
        self.client = client
        self._transport = transport
        self._now = now
        self._asking = asyncio.Lock()
        self._metadata: Mapping[str, Any] = {}
        self._known_until = float("-inf")
        self._away: ProviderAway | None = None

    async def sign_in_url(self, *, back: str, state: str, nonce: str, verifier: str) -> str:
        """Return where somebody signs in; the provider sends them to ``back`` afterwards."""
        metadata = await self.metadata()
        url: str = prepare_grant_uri(
            metadata["authorization_endpoint"],
            client_id=self.client.client_id,
            response_type="code",
            redirect_uri=back,
            scope="openid",
            state=state,
            nonce=nonce,
            code_challenge=create_s256_code_challenge(verifier),
            code_challenge_method="S256",
        )
        return url

    async def subject(self, code: str, *, back: str, nonce: str, verifier: str) -> str:
        """Return who has signed in, as the provider names them.

        Raises:
            BadSignIn: The provider refuses the code, or its ID token is not for this sign-in.
            ProviderAway: It does not answer, or not as providers do.
        """
        answer = await self._exchange_code(code, back, verifier)
        told, access_token = answer.get("id_token"), answer.get("access_token")
        if not isinstance(told, str):
            raise ProviderAway("the token endpoint has sent no ID token")
        # Asked for at each sign-in: a key that was taken back counts no more at once.
        keys = await self._fetch_keys((await self.metadata())["jwks_uri"])
        try:
            token = jwt.decode(told, keys, algorithms=ALGORITHMS)
            claims = CodeIDToken(
                token.claims,
                token.header,
                options={
                    "iss": {"essential": True, "value": self.client.issuer},
                    "aud": {"essential": True, "value": self.client.client_id},
                },
                params={
                    "nonce": nonce,
                    "client_id": self.client.client_id,
                    "access_token": access_token,
                },
            )
            claims.validate(now=int(self._now()), leeway=LEEWAY_S)
        except (JoseError, ValueError, TypeError) as error:
            raise BadSignIn(
                "What the identity provider says is not for this sign-in: begin again."
            ) from error
        found = claims.get("sub")
        if not isinstance(found, str) or not 1 <= len(found) <= _LONGEST_SUBJECT:
            raise BadSignIn("The identity provider does not say who you are.")
        return found

    async def metadata(self) -> Mapping[str, Any]:
        async with self._asking:
            if clock.now() >= self._known_until:
                try:
                    self._metadata, self._away = await self._discover_endpoints(), None
                except ProviderAway as error:
                    self._away = error
                known_for = _KNOWN_FOR if self._away is None else _AWAY_FOR
                self._known_until = clock.now() + known_for.total_seconds()
            if self._away is not None:
                raise ProviderAway(str(self._away))
            return self._metadata

    async def _discover_endpoints(self) -> Mapping[str, Any]:
        issuer = self.client.issuer
        found = await self._fetch_json(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        if found.get("issuer") != issuer:
            raise ProviderAway(f"{issuer} says that its issuer is {found.get('issuer')!r}")
        tls = urlsplit(issuer).scheme == "https"
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            url = str(found.get(name))
            # Only an issuer on this machine may name endpoints without TLS.
            if not is_private(url) or (tls and urlsplit(url).scheme != "https"):
                raise ProviderAway(f"{issuer} has no {name} that others cannot read")
        methods = found.get("code_challenge_methods_supported", ["S256"])
        if not isinstance(methods, list) or "S256" not in methods:
            raise ProviderAway(f"{issuer} knows no PKCE with S256")
        return found

    async def _exchange_code(self, code: str, back: str, verifier: str) -> Mapping[str, Any]:
        metadata = await self.metadata()
        url = metadata["token_endpoint"]
        body = prepare_token_request(
            "authorization_code", redirect_uri=back, code=code, code_verifier=verifier
        )
        _, headers, body = self._proof_of(metadata).prepare(
            "POST", url, dict(DEFAULT_HEADERS), body
        )
        return await self._fetch_json(url, method="POST", headers=headers, content=body.encode())

    def _proof_of(self, metadata: Mapping[str, Any]) -> Any:
        """Return what adds to a request who the client is."""
        id_, secret = self.client.client_id, self.client.client_secret
        if not secret:
            return ClientAuth(id_, None, "none")
        known = metadata.get("token_endpoint_auth_methods_supported", _WITH_SECRET[:1])
        method = next((one for one in _WITH_SECRET if one in known), None)
        if method is None:
            raise ProviderAway("the token endpoint takes no client secret")
        if method == "client_secret_basic":
            # RFC 6749, section 2.3.1: form-encoded before they are joined.
            id_, secret = quote_plus(id_), quote_plus(secret)
        return ClientAuth(id_, secret, method)

    async def _fetch_keys(self, url: str) -> KeySet:
        found = await self._fetch_json(url)
        listed = found.get("keys")
        usable = [
            key
            for key in (listed if isinstance(listed, list) else ())
            if isinstance(key, dict)
            and key.get("kty") in ("RSA", "EC", "OKP")
            and key.get("use") != "enc"
        ]
        try:
            return KeySet.import_key_set({"keys": usable})
        except (JoseError, ValueError, TypeError, KeyError) as error:
            raise ProviderAway("the provider's keys cannot be read") from error

    async def _fetch_json(self, url: str, method: str = "GET", **more: Any) -> Mapping[str, Any]:
        body = bytearray()
        try:
            async with (
                # One that sends a byte now and then would hold up everybody else.
                asyncio.timeout(_PATIENCE_S),
                # Redirects are not followed: they could lead anywhere, with the code.
                httpx.AsyncClient(transport=self._transport, timeout=None) as client,
                client.stream(method, url, **more) as answer,
            ):
                async for chunk in answer.aiter_bytes():
                    body += chunk
                    if len(body) > _LARGEST_ANSWER:
                        raise ProviderAway(f"{url} answers with more than is taken")
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            raise ProviderAway(f"{url}: {str(error) or type(error).__name__}") from error
        if method == "POST" and answer.status_code in (400, 401):
            raise BadSignIn("The identity provider does not know this sign-in: begin again.")
        try:
            found = json.loads(bytes(body)) if answer.status_code == 200 else None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ProviderAway(f"{url} answers with {answer.status_code} and no JSON object")
        return found


class BotFramework(IdentityProvider):
    """Who signs what a bot gets. Its keys are asked for once an hour: strangers can have us ask."""

    def __init__(self, app_id: str) -> None:
        super().__init__(ClientOf("https://api.botframework.com", app_id))

    async def _discover_endpoints(self) -> Mapping[str, Any]:
        url = str((await self._fetch_json(BOT_FRAMEWORK)).get("jwks_uri"))
        if not is_private(url):
            raise ProviderAway(f"{BOT_FRAMEWORK} has no jwks_uri that others cannot read")
        return {"keys": await self._fetch_keys(url)}

    async def read_token(self, sent: str) -> Mapping[str, Any]:
        """Return the claims of a token for this bot, and its key's endorsements; else nothing."""
        try:
            keys = (await self.metadata())["keys"]
            token = jwt.decode(sent, keys, algorithms=["RS256"])
            jwt.JWTClaimsRegistry(
                leeway=_BOT_LEEWAY_S,
                iss={"essential": True, "value": self.client.issuer},
                aud={"essential": True, "value": self.client.client_id},
                exp={"essential": True},
                serviceurl={"essential": True},
            ).validate(token.claims)
            key = keys.get_by_kid(token.header.get("kid")).as_dict()
            return {**token.claims, "endorsements": key.get("endorsements", ())}
        except (JoseError, ValueError, LookupError, TypeError, RecursionError):
            return {}
        except ProviderAway as problem:
            log.warning("chat.signer_away", problem=str(problem))
            return {}


class SignIn(NamedTuple):
    """A sign-in on its way."""

    browser: str
    """Digest of the cookie."""
    nonce: str
    verifier: str
    then: str
    until: float


class BegunSignIns:
    """The sign-ins on their way, in memory, by the digests of their states."""

    def __init__(self, now: Callable[[], float] = clock.now) -> None:
        """Make it; ``now``: this process's own clock, in seconds."""
        self._now = now
        self._by_state = OrderedDict[str, SignIn]()

    def begin(self, browser: str, then: str) -> tuple[str, SignIn]:
        state, nonce, verifier = (secrets.token_urlsafe(_BYTES) for _ in range(3))
        until = self._now() + MAY_TAKE.total_seconds()
        begun = SignIn(digest_of(browser), nonce, verifier, then, until)
        self._by_state[digest_of(state)] = begun
        while len(self._by_state) > MOST:
            self._by_state.popitem(last=False)
        return state, begun

    def end(self, state: str, browser: str) -> SignIn | None:
        """Return a sign-in that this browser has begun, once; ``None``: it has begun none."""
        begun = self._by_state.get(digest_of(state))
        if begun is None or not hmac.compare_digest(begun.browser, digest_of(browser)):
            return None
        del self._by_state[digest_of(state)]
        return begun if begun.until > self._now() else None


@dataclass(eq=False)
class OidcSignIn:
    """The two paths by which people are sent to the provider and come back."""

    provider: IdentityProvider
    subjects: Subjects
    registered: Registered
    _begun: BegunSignIns = field(default_factory=BegunSignIns)

    @property
    def host(self) -> str:
        return urlsplit(self.provider.client.issuer).netloc

    def begin_at(self, then: str) -> str:
        return f"{BEGIN}?{urlencode({'then': then})}"

    def routes(self, origin: str, begin: Begin) -> list[Route]:
        """Return its paths; ``begin`` signs somebody in."""
        self._origin = origin
        self._tls = origin.startswith("https:")
        # As the cookie of those who are signed in: nothing else can set one of that name.
        self._cookie = f"{'__Host-' if self._tls else ''}surehand_oidc"
        self._sign_in = begin
        return [Route(BEGIN, self._send_away), Route(BACK, self._come_back)]

    async def _send_away(self, request: Request) -> Response:
        if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return error(request, 403, "Another page may not sign you in.")
        # Another tab may be at the provider as well, and comes back with the same cookie.
        browser = request.cookies.get(self._cookie) or secrets.token_urlsafe(_BYTES)
        state, begun = self._begun.begin(browser, own_path(request.query_params.get("then", "")))
        try:
            url = await self.provider.sign_in_url(
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
            return await self._finish_sign_in(request)
        except BadSignIn as problem:
            return error(request, 401, str(problem))
        except ProviderAway as problem:
            return _away(request, problem)

    async def _finish_sign_in(self, request: Request) -> Response:
        asked, issuer = request.query_params, self.provider.client.issuer
        begun = self._begun.end(asked.get("state", ""), request.cookies.get(self._cookie, ""))
        if begun is None:
            raise BadSignIn(
                "This sign-in was not begun in this browser, or is over, or was used: begin again."
            )
        metadata = await self.provider.metadata()
        says_who = metadata.get("authorization_response_iss_parameter_supported") is True
        if asked.get("iss", None if says_who else issuer) != issuer:  # RFC 9207
            raise BadSignIn("That answer is not of this server's identity provider.")
        if "error" in asked or "code" not in asked:
            log.warning("sign_in.refused", error=plain(asked.get("error", ""), 80))
            raise BadSignIn("The identity provider has not signed you in: begin again.")
        subject = await self.provider.subject(
            asked["code"],
            back=self._origin + BACK,
            nonce=begun.nonce,
            verifier=begun.verifier,
        )
        me = self.subjects.principal(issuer, subject)
        if me is None or not await self.registered(me):
            return page("no_principal", status=403, me=None, issuer=issuer, subject=subject)
        answer = RedirectResponse(self._origin + begun.then, status_code=303)
        subjects = self.subjects
        self._sign_in(request, answer, me, lambda: subjects.principal(issuer, subject) == me)
        return answer


def oidc_of(settings: Settings, tenant: str, registered: Registered) -> OidcSignIn:
    """Return how people sign in by the provider of the settings ``oidc_*``, whose issuer is set."""
    client = client_of(settings)
    if not settings.oidc_principals:
        raise _wrong("principals", "is missing: name the file that says who the subjects are")
    subjects = Subjects(Path(settings.oidc_principals), tenant)
    return OidcSignIn(IdentityProvider(client), subjects, registered=registered)


def client_of(settings: Settings) -> ClientOf:
    """Return what the provider knows this server as; no error shows the secret."""
    if not is_private(settings.oidc_issuer) or "?" in settings.oidc_issuer:
        raise _wrong("issuer", "looks like https://login.example.com: http is for this machine")
    if not settings.oidc_client_id:
        raise _wrong("client_id", "is missing: the provider gives it to you")
    return ClientOf(
        issuer=settings.oidc_issuer,
        client_id=settings.oidc_client_id,
        client_secret=_read_secret(settings.oidc_client_secret.get_secret_value()),
    )


def _read_secret(given: str) -> str:
    if not given.startswith(_FILE):
        return given
    file = Path(given.removeprefix(_FILE))
    what = f"setting {PREFIX}OIDC_CLIENT_SECRET {file}"
    secret = read_private(file, what).strip()
    if not secret:
        raise WrongUse(f"{what} is empty")
    return secret


def _wrong(name: str, what: str) -> WrongUse:
    return WrongUse(f"setting {PREFIX}OIDC_{name.upper()} {what}")


def own_path(text: str) -> str:
    """Return a path of these pages; anything else becomes the first page's."""
    first = text[:1] == "/" and text[1:2] not in ("/", "\\")
    shown = text.isascii() and text.isprintable() and "\\" not in text
    return text if first and shown and len(text) <= LONGEST_PATH else "/"


def _away(request: Request, problem: ProviderAway) -> Response:
    log.warning("sign_in.provider_away", problem=plain(problem, 300))
    return error(
        request, 503, "The identity provider cannot be asked now; the server's log says why."
    )
