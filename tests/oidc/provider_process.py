"""A certified OpenID provider (npm's oidc-provider), as published, in a process of its own."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urljoin

import httpx
from joserfc.jwk import RSAKey

from surehand.process.children import Child, clean_environment
from tests.conftest import missing
from tests.locked_packages import NPM, PackagesMissing, installed

LOCKS: Final = Path(__file__).parent / "provider"
#: With characters that a header and a form write in different ways.
SECRET: Final = "p+q/r%41 :~"
CONFIDENTIAL, PUBLIC, NATIVE = "pages", "public-pages", "pages-at-any-port"
_MOST_STEPS: Final = 10


@dataclass(frozen=True)
class RealProvider:
    """Where it is, and what it signs with: tests that play it false sign with the same."""

    issuer: str
    key: RSAKey


@contextmanager
def running(back: list[str], folder: Path) -> Iterator[RealProvider]:
    """Run it, for clients whose people come back to one of these URLs."""
    names = ("package.json", "package-lock.json", "provider.mjs")
    try:
        there = installed("oidc-provider", [LOCKS / name for name in names], (NPM,))
    except PackagesMissing as error:
        missing(str(error))
    node = shutil.which("node")
    if node is None:
        missing("node is not on PATH: install Debian's package nodejs")
    key = RSAKey.generate_key(2048, {"use": "sig", "alg": "RS256", "kid": "of-the-provider"})
    clients: list[dict[str, Any]] = [
        {"client_id": CONFIDENTIAL, "client_secret": SECRET},
        {"client_id": PUBLIC, "token_endpoint_auth_method": "none"},
    ]
    clients = [{"redirect_uris": back, **one} for one in clients]
    # RFC 8252: programs on somebody's own machine come back at whichever port they have.
    at_any_port = {"application_type": "native", "redirect_uris": ["http://localhost/oidc/back"]}
    clients.append({**clients[-1], "client_id": NATIVE, **at_any_port})
    told = {"clients": clients, "jwks": {"keys": [key.as_dict(private=True)]}}
    environment = clean_environment({"PROVIDER": json.dumps(told)})
    log = folder / "provider.log"
    with Child([node, there / "provider.mjs"], environment=environment, log=log) as process:
        process.wait_said("issuer http")
        found = re.search(r"^issuer (\S+)$", process.output(), re.MULTILINE)
        assert found is not None
        yield RealProvider(found[1], key)


async def signed_in_at(browser: httpx.AsyncClient, url: str, login: str, back: str) -> httpx.URL:
    """Sign in at the provider's page in a browser; returns where that sends the browser back.

    Args:
        browser: With the provider's cookies, once it has some.
        url: Where the pages have sent it.
        login: By which somebody names themselves.
        back: What the URL begins with that ends it.
    """
    answer = await browser.get(url)
    for _ in range(_MOST_STEPS):
        if answer.is_redirect:
            leads = urljoin(str(answer.url), answer.headers["location"])
            if leads.startswith(back):
                return httpx.URL(leads)
            answer = await browser.get(leads)
            continue
        assert answer.status_code == 200, answer.text
        form = re.search(r'action="([^"]+)"', answer.text)
        assert form is not None and 'name="login"' in answer.text
        sent = {"prompt": "login", "login": login, "password": "any"}
        answer = await browser.post(urljoin(str(answer.url), form[1]), data=sent)
    raise AssertionError(f"the provider sends {login} round and round")
