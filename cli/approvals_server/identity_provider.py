"""An OpenID provider, as somebody who signs people in by it sees it: discovery, codes, ID tokens.

The protocol's pieces are Authlib's, the signatures joserfc's. What is asked goes by our own HTTP
client, with limits: the provider's answers are judged here as those of a stranger.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from urllib.parse import quote_plus, urlsplit

import httpx
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

from surehand.cli.approvals_server.texts import OF_PAGES
from surehand.cli.serving import is_loopback
from surehand.process import clock

#: Signed with a private key of the provider's. What is signed with a secret, or with nothing, could
#: be made by whoever has the client's secret, the public key, or nothing.
ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
#: What the provider says of itself is asked anew after that.
_KNOWN_FOR: Final = timedelta(hours=1)
#: So long nobody waits for a provider again that has just not answered.
_AWAY_FOR: Final = timedelta(seconds=5)
_PATIENCE_S: Final = 10.0
_LARGEST_ANSWER: Final = 1024 * 1024
_LONGEST_SUBJECT: Final = 255
#: Seconds by which the two clocks may differ.
LEEWAY_S: Final = 30
#: By default a client with a secret shows it in the header (OpenID Connect Discovery 1.0).
_WITH_SECRET: Final = ("client_secret_basic", "client_secret_post")


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
    claim: str = "sub"
    """Which claim of an ID token is somebody's subject."""


class IdentityProvider:
    """Sends people to a provider, and reads what it says of them."""

    def __init__(
        self,
        client: ClientOf,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Make it.

        Args:
            client: What the provider knows this server as.
            transport: By which it is asked; ``None``: HTTP.
            now: Seconds since 1970.
        """
        self.client = client
        self._transport = transport
        self._now = now
        self._asking = asyncio.Lock()
        self._metadata: Mapping[str, Any] = {}
        self._known_until = float("-inf")
        self._away: ProviderAway | None = None

    async def sign_in_url(self, *, back: str, state: str, nonce: str, verifier: str) -> str:
        """Return where somebody signs in.

        Args:
            back: Where they are sent afterwards.
            state: Comes back with them.
            nonce: Comes back in the ID token.
            verifier: Whose digest goes along (PKCE): only who has it can use the code.

        Raises:
            ProviderAway: The provider does not say where.
        """
        metadata = await self.metadata()
        url: str = prepare_grant_uri(
            metadata["authorization_endpoint"],
            client_id=self.client.client_id,
            response_type="code",
            redirect_uri=back,
            scope="openid" if self.client.claim == "sub" else "openid profile email",
            state=state,
            nonce=nonce,
            code_challenge=create_s256_code_challenge(verifier),
            code_challenge_method="S256",
        )
        return url

    async def subject(self, code: str, *, back: str, nonce: str, verifier: str) -> str:
        """Return who has signed in, as the provider names them.

        Args:
            code: What the provider has sent along with them.
            back: As they were sent there.
            nonce: The same.
            verifier: The same.

        Raises:
            BadSignIn: The provider does not take the code, or its ID token is not for this sign-in.
            ProviderAway: It does not answer, or not as providers do.
        """
        answer = await self._exchange(code, back, verifier)
        told, access_token = answer.get("id_token"), answer.get("access_token")
        if not isinstance(told, str):
            raise ProviderAway("the token endpoint has sent no ID token")
        # Asked for at each sign-in: a key that was taken back counts no more at once.
        keys = await self._keys()
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
            raise BadSignIn(OF_PAGES.oidc_bad_token) from error
        return self._subject_in(claims)

    def _subject_in(self, claims: Mapping[str, Any]) -> str:
        name = self.client.claim
        found = claims.get(name)
        if not isinstance(found, str) or not 1 <= len(found) <= _LONGEST_SUBJECT:
            raise BadSignIn(OF_PAGES.oidc_no_claim)
        if name == "email" and claims.get("email_verified") is not True:
            # Anybody may have written it into their own account.
            raise BadSignIn(OF_PAGES.oidc_no_claim)
        return found

    async def metadata(self) -> Mapping[str, Any]:
        """Return what the provider says of itself.

        Raises:
            ProviderAway: It says nothing, or something else than it should.
        """
        async with self._asking:
            if clock.now() >= self._known_until:
                try:
                    self._metadata, self._away = await self._discovered(), None
                except ProviderAway as error:
                    self._away = error
                known_for = _KNOWN_FOR if self._away is None else _AWAY_FOR
                self._known_until = clock.now() + known_for.total_seconds()
            if self._away is not None:
                raise ProviderAway(str(self._away))
            return self._metadata

    async def _discovered(self) -> Mapping[str, Any]:
        issuer = self.client.issuer
        found = await self._asked(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        if found.get("issuer") != issuer:
            raise ProviderAway(f"{issuer} says that its issuer is {found.get('issuer')!r}")
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            url = found.get(name)
            # Only an issuer on this machine has anything to name on it.
            if not is_private(url) or (_is_plain(url) and not _is_plain(issuer)):
                raise ProviderAway(f"{issuer} has no {name} that others cannot read")
        methods = found.get("code_challenge_methods_supported", ["S256"])
        if not isinstance(methods, list) or "S256" not in methods:
            raise ProviderAway(f"{issuer} knows no PKCE with S256")
        return found

    async def _exchange(self, code: str, back: str, verifier: str) -> Mapping[str, Any]:
        metadata = await self.metadata()
        url = metadata["token_endpoint"]
        body = prepare_token_request(
            "authorization_code", redirect_uri=back, code=code, code_verifier=verifier
        )
        _, headers, body = self._proof_of(metadata).prepare(
            "POST", url, dict(DEFAULT_HEADERS), body
        )
        return await self._asked(url, method="POST", headers=headers, content=body.encode())

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
            # RFC 6749, section 2.3.1: as in forms, before they are put together.
            id_, secret = quote_plus(id_), quote_plus(secret)
        return ClientAuth(id_, secret, method)

    async def _keys(self) -> KeySet:
        found = await self._asked((await self.metadata())["jwks_uri"])
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

    async def _asked(self, url: str, method: str = "GET", **more: Any) -> Mapping[str, Any]:
        """Return the JSON object that is answered."""
        body = bytearray()
        try:
            async with (
                # Redirects are not followed: they could lead anywhere, with the code.
                httpx.AsyncClient(transport=self._transport, timeout=_PATIENCE_S) as client,
                client.stream(method, url, **more) as answer,
            ):
                async for chunk in answer.aiter_bytes():
                    body += chunk
                    if len(body) > _LARGEST_ANSWER:
                        raise ProviderAway(f"{url} answers with more than is taken")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ProviderAway(f"{url}: {error or type(error).__name__}") from error
        if method == "POST" and answer.status_code in (400, 401):
            raise BadSignIn(OF_PAGES.oidc_bad_code)
        try:
            found = json.loads(bytes(body)) if answer.status_code == 200 else None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ProviderAway(f"{url} answers with {answer.status_code} and no JSON object")
        return found


def _is_plain(url: object) -> bool:
    return urlsplit(str(url)).scheme == "http"


def is_private(url: object) -> bool:
    """Return whether nobody between can read what is sent to a URL: by TLS, or on this machine."""
    if not isinstance(url, str):
        return False
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    if parts.fragment or parts.username is not None or not host:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))
