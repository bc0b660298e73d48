"""The approvers' pages with a real identity provider, and people with browsers of their own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
from starlette.types import ASGIApp

from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.people import principals
from surehand.cli.approvals_server.oidc import ClientOf, IdentityProvider, OidcSignIn
from surehand.cli.approvals_server.server import ApprovalsServer
from surehand.cli.approvals_server.sign_in import Links, Server, Subjects
from surehand.client.client import Client
from surehand.process.exits import NotReachable
from surehand.workflows.identity import DEFAULT_TENANT
from tests.ledger.scene import Scene
from tests.oidc.provider_process import CONFIDENTIAL, SECRET, RealProvider, signed_in_at

ORIGIN: Final = "http://localhost:8082"
TLS_ORIGIN: Final = "https://approvals.example.com"
BACK: Final = "/oidc/back"
SESSION, FLOW = "surehand_approvals", "surehand_oidc"

#: Of claims and header as the provider has signed them: the ID token that comes in its place.
Forge = Callable[[dict[str, Any], dict[str, Any]], str]


async def no_temporal() -> Client:
    raise NotReachable("no Temporal server answers")


@dataclass
class OnTheWay(httpx.AsyncBaseTransport):
    """What lies between pages and provider: HTTP as it is, or with something else in an answer."""

    forge: Forge | None = None
    answers: dict[str, Any] = field(default_factory=dict)
    """What is answered under a path, in the place of the provider."""
    asked: list[str] = field(default_factory=list)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.path)
        if request.url.path in self.answers:
            return httpx.Response(200, json=self.answers[request.url.path])
        async with httpx.AsyncClient() as client:
            answer = await client.send(request)
        if self.forge is not None and request.url.path == "/token" and answer.status_code == 200:
            said = answer.json()
            header, claims, _ = said["id_token"].split(".")
            said["id_token"] = self.forge(_decoded(claims), _decoded(header))
            # Escaped: what a forged token has in it need not be text.
            return httpx.Response(200, content=json.dumps(said).encode())
        return httpx.Response(answer.status_code, headers=_plain(answer), content=answer.content)


def _plain(answer: httpx.Response) -> dict[str, str]:
    return {"content-type": answer.headers.get("content-type", "")}


def _decoded(part: str) -> dict[str, Any]:
    from base64 import urlsafe_b64decode

    found = json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    assert isinstance(found, dict)
    return found


@dataclass(frozen=True)
class Browser:
    """One person's browser: its cookies of the pages, and those of the provider."""

    origin: str
    pages: httpx.AsyncClient
    provider: httpx.AsyncClient

    async def get(self, path: str, **headers: str) -> httpx.Response:
        return await self.pages.get(path, headers=headers)

    async def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        sent = {"origin": self.origin, "sec-fetch-site": "same-origin", **headers}
        return await self.pages.post(path, json=body, headers=sent)

    async def sent_back(self, login: str, begin: str = "/oidc/begin") -> str:
        """Begin, and sign in at the provider; returns where that sends the browser then."""
        begun = await self.get(begin)
        assert begun.status_code == 303, begun.text
        url = begun.headers["location"]
        return str(await signed_in_at(self.provider, url, login, f"{self.origin}{BACK}"))

    async def comes_back(self, url: str) -> httpx.Response:
        """Open a URL as the provider's page leads to it."""
        return await self.pages.get(
            url, headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
        )

    async def signs_in(self, login: str, begin: str = "/oidc/begin") -> httpx.Response:
        return await self.comes_back(await self.sent_back(login, begin))

    @property
    def is_signed_in(self) -> bool:
        """Whether it has been given a session."""
        return any(SESSION in one.name for one in self.pages.cookies.jar)


@dataclass(frozen=True)
class OidcSite:
    """Pages that people sign in to by a provider."""

    scene: Scene
    provider: RealProvider
    way: OnTheWay
    subjects: Path
    app: ASGIApp
    origin: str
    links: Server
    opened: AsyncExitStack

    async def browser(self) -> Browser:
        pages = httpx.AsyncClient(transport=httpx.ASGITransport(app=self.app), base_url=self.origin)
        own = [await self.opened.enter_async_context(one) for one in (pages, httpx.AsyncClient())]
        return Browser(self.origin, *own)

    def say(self, subjects: dict[str, Any], *, tenant: str = DEFAULT_TENANT) -> None:
        """Say who the provider's subjects are."""
        self.subjects.write_text(json.dumps({tenant: {self.provider.issuer: subjects}}))

    def asked(self, **changes: Any) -> str:
        gated = self.scene.ask_approval(self.scene.call(**changes))
        assert gated.approval_id is not None
        return gated.approval_id


@asynccontextmanager
async def serving(
    ledger: Ledger,
    provider: RealProvider,
    folder: Path,
    *,
    origin: str = ORIGIN,
    takes_links: bool = False,
    **client: Any,
) -> AsyncIterator[OidcSite]:
    """Serve the pages of a ledger that has the principals ann and bob, ann being ``ann``."""
    scene, way = Scene.begin(ledger, DEFAULT_TENANT), OnTheWay()
    with ledger.transaction(scene.tenant) as tx:
        for name in ("ann", "bob"):
            principals.add_principal(tx, name, "root")
    file = folder / "principals.json"
    file.write_text(json.dumps({scene.tenant: {provider.issuer: {"s-ann": "ann", "s-bob": "bob"}}}))
    known = {"client_id": CONFIDENTIAL, "client_secret": SECRET, **client}

    async def registered(name: str) -> bool:
        return await ledger.transact(scene.tenant, principals.has_principal, name)

    oidc = OidcSignIn(
        IdentityProvider(ClientOf(provider.issuer, **known), transport=way),
        Subjects(file, scene.tenant),
        registered=registered,
    )
    server = Server.new(origin, scene.tenant, takes_links=takes_links)
    made = ApprovalsServer(
        ledger=ledger,
        connect=no_temporal,
        tenant=scene.tenant,
        links=Links(server),
        schema_of=lambda tool, version: None,
        oidc=oidc,
    )
    async with AsyncExitStack() as opened:
        app = made.app(origin)
        yield OidcSite(scene, provider, way, file, app, origin, server, opened)
