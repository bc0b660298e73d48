"""Signing in by a provider against those who want to be somebody else.

The provider is a certified one. Where it has to lie, the test signs with its own key: so what is
refused is the claim that was changed, and never the signature around it.
"""

from __future__ import annotations

import hmac
import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

from surehand.activities.ledger.core.store import Ledger
from surehand.cli.approvals_server.oidc import LEEWAY_S, MAY_TAKE, BegunSignIns, own_path
from tests.oidc.provider_process import CONFIDENTIAL, SECRET, RealProvider
from tests.oidc.site import FLOW, ORIGIN, Browser, OidcSite, serving

pytestmark = pytest.mark.slow

Claims = dict[str, Any]
OTHER_KEY: Final = RSAKey.generate_key(2048, {"use": "sig", "alg": "RS256"})


async def signs_in_with(site: OidcSite, token: Callable[[Claims, dict[str, Any]], str]) -> Browser:
    """Have somebody come back whose ID token is another one than the provider's."""
    browser = await site.browser()
    site.way.forge = token
    told = await browser.signs_in("s-ann")
    assert ("/token" in site.way.asked) is True
    assert told.status_code == (303 if browser.is_signed_in else 401), told.text
    if not browser.is_signed_in:
        assert (await browser.get("/")).status_code == 401
    return browser


def now() -> int:
    return int(time.time())


# What an ID token says


async def test_a_token_that_is_signed_anew_and_otherwise_the_same_signs_in(site: OidcSite) -> None:
    """So that what is refused below is refused for what was changed."""
    ann = await signs_in_with(
        site, lambda said, header: jwt.encode(header, said, site.provider.key)
    )
    assert "<bdi>ann</bdi>" in (await ann.get("/")).text


@pytest.mark.parametrize(
    "changed",
    [
        {"iss": "https://evil.example"},
        {"iss": "ISSUER/"},
        {"iss": None},
        {"iss": ["ISSUER"]},
        {"aud": "another-client"},
        {"aud": ["another-client"]},
        {"aud": None},
        {"aud": ""},
        {"aud": []},
        {"aud": [CONFIDENTIAL, "another-client"]},
        {"aud": [CONFIDENTIAL, "another-client"], "azp": "another-client"},
        {"azp": "another-client"},
        {"nonce": "of-another-sign-in"},
        {"nonce": None},
        {"nonce": ""},
        {"nonce": ["NONCE"]},
        {"exp": lambda: now() - LEEWAY_S - 1},
        {"exp": None},
        {"exp": "9999999999"},
        {"exp": True},
        {"iat": lambda: now() + LEEWAY_S + 60},
        {"iat": None},
        {"nbf": lambda: now() + LEEWAY_S + 60},
        {"sub": None},
        {"sub": ""},
        {"sub": ["s-ann"]},
        {"sub": 7},
        {"sub": "s" * 256},
        {"at_hash": "of-another-token"},
    ],
    ids=lambda changed: str({name: "..." if callable(v) else v for name, v in changed.items()}),
)
async def test_a_changed_token_signs_nobody_in(site: OidcSite, changed: Claims) -> None:
    def forged(said: Claims, header: dict[str, Any]) -> str:
        for name, value in changed.items():
            text = json.dumps(value() if callable(value) else value)
            text = text.replace("ISSUER", site.provider.issuer).replace("NONCE", said["nonce"])
            said[name] = json.loads(text)
        kept = {name: value for name, value in said.items() if value is not None}
        return jwt.encode(header, kept, site.provider.key)

    assert not (await signs_in_with(site, forged)).is_signed_in


async def test_a_token_for_several_needs_the_right_party(site: OidcSite) -> None:
    def forged(said: Claims, header: dict[str, Any]) -> str:
        several = {**said, "aud": [CONFIDENTIAL, "another-client"], "azp": CONFIDENTIAL}
        return jwt.encode(header, several, site.provider.key)

    assert (await signs_in_with(site, forged)).is_signed_in


# What signs it


def unsigned(said: Claims, header: dict[str, Any], alg: str = "none") -> str:
    encoded = [in_base64(json.dumps(part).encode()) for part in ({**header, "alg": alg}, said)]
    return ".".join([*encoded, ""])


def in_base64(part: bytes) -> str:
    return urlsafe_b64encode(part).rstrip(b"=").decode()


def by_secret(secret: bytes | str) -> Callable[[Claims, dict[str, Any]], str]:
    """By hand: joserfc does not sign with such secrets."""
    key = secret.encode() if isinstance(secret, str) else secret

    def forged(said: Claims, header: dict[str, Any]) -> str:
        text = unsigned(said, header, "HS256").removesuffix(".")
        return f"{text}.{in_base64(hmac.digest(key, text.encode(), 'sha256'))}"

    return forged


def with_own_key(**more: Any) -> Callable[[Claims, dict[str, Any]], str]:
    def forged(said: Claims, header: dict[str, Any]) -> str:
        return jwt.encode({"alg": "RS256", **header, **more}, said, OTHER_KEY)

    return forged


FORGERIES: Final[dict[str, Callable[[RealProvider], Callable[[Claims, dict[str, Any]], str]]]] = {
    "none": lambda of: unsigned,
    "None": lambda of: lambda said, header: unsigned(said, header, "None"),
    "none without a kid": lambda of: lambda said, header: unsigned(said, {}),
    "RS256 without a signature": lambda of: lambda said, header: unsigned(said, header, "RS256"),
    "HS256 by the client's secret": lambda of: by_secret(SECRET),
    "HS256 by the client's id": lambda of: by_secret(CONFIDENTIAL),
    "HS256 by the public key, PEM": lambda of: by_secret(of.key.as_pem(private=False)),
    "HS256 by the public key, DER": lambda of: by_secret(of.key.as_der(private=False)),
    "HS256 by the public key, JWK": lambda of: by_secret(json.dumps(of.key.as_dict(private=False))),
    "another key of that id": lambda of: with_own_key(),
    "another key without an id": lambda of: (
        lambda said, header: jwt.encode({"alg": "RS256"}, said, OTHER_KEY)
    ),
    "another key that the token names itself": lambda of: with_own_key(
        jwk=OTHER_KEY.as_dict(private=False)
    ),
    "a key that lies elsewhere": lambda of: with_own_key(jku="https://evil.example/jwks"),
    "no token": lambda of: lambda said, header: "",
    "half a token": lambda of: lambda said, header: "e30.e30",
    "no text": lambda of: lambda said, header: "\u20ac.\ud800.x",
}


@pytest.mark.parametrize("name", FORGERIES)
async def test_a_foreign_signature_signs_nobody_in(site: OidcSite, name: str) -> None:
    forged = FORGERIES[name](site.provider)
    assert not (await signs_in_with(site, forged)).is_signed_in


async def test_a_shared_secret_among_the_provider_s_keys_signs_nobody_in(site: OidcSite) -> None:
    public = site.provider.key.as_dict(private=False)
    shared = OctKey.import_key("known-to-many" * 4, {"kid": "shared"}).as_dict(private=True)
    site.way.answers["/jwks"] = {"keys": [public, shared]}

    def forged(said: Claims, header: dict[str, Any]) -> str:
        named = {**header, "alg": "HS256", "kid": "shared"}
        return jwt.encode(named, said, OctKey.import_key(shared), algorithms=["HS256"])

    assert not (await signs_in_with(site, forged)).is_signed_in


async def test_a_key_that_was_taken_back_counts_no_more_at_once(site: OidcSite) -> None:
    def own(said: Claims, header: dict[str, Any]) -> str:
        return jwt.encode({**header, "kid": "newer"}, said, OTHER_KEY)

    public = {**OTHER_KEY.as_dict(private=False), "kid": "newer"}
    site.way.answers["/jwks"] = {"keys": [site.provider.key.as_dict(private=False), public]}
    assert (await signs_in_with(site, own)).is_signed_in
    site.way.answers["/jwks"] = {"keys": [site.provider.key.as_dict(private=False)]}
    assert not (await signs_in_with(site, own)).is_signed_in


# What the provider says of itself


@pytest.mark.parametrize(
    "changed",
    [
        {"issuer": "https://evil.example"},
        {"issuer": None},
        {"token_endpoint": "http://login.example.com/token"},
        {"jwks_uri": "http://login.example.com/jwks"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"authorization_endpoint": None},
        {"code_challenge_methods_supported": ["plain"]},
    ],
    ids=str,
)
async def test_an_odd_provider_is_not_used(site: OidcSite, ann: Browser, changed: Claims) -> None:
    path = "/.well-known/openid-configuration"
    async with httpx.AsyncClient() as client:
        honest = (await client.get(f"{site.provider.issuer}{path}")).json()
    site.way.answers[path] = {**honest, **changed}
    told = await ann.get("/oidc/begin")
    assert (told.status_code, "location" in told.headers) == (503, False)


# Whose sign-in it is


async def test_where_somebody_comes_back_to_counts_once(site: OidcSite, ann: Browser) -> None:
    back = await ann.sent_back("s-ann")
    cookies = dict(ann.pages.cookies)
    assert (await ann.comes_back(back)).status_code == 303
    ann.pages.cookies.clear()
    ann.pages.cookies.update(cookies)
    asked = len(site.way.asked)
    assert (await ann.comes_back(back)).status_code == 401
    assert not ann.is_signed_in
    assert len(site.way.asked) == asked  # the provider is not even asked


async def test_nobody_is_led_into_a_sign_in(site: OidcSite, ann: Browser, eve: Browser) -> None:
    """Login CSRF: Ann would look as Eve, and tell her page what is meant for Ann's."""
    led = await eve.sent_back("s-bob")
    for begins_first in (False, True):
        if begins_first:
            await ann.sent_back("s-ann")
        told = await ann.comes_back(led)
        assert (told.status_code, "not begun in this browser" in told.text) == (401, True)
        assert not ann.is_signed_in
    # And nobody ends another one's sign-in by that.
    assert (await eve.comes_back(led)).status_code == 303


async def test_another_code_signs_nobody_in(site: OidcSite, ann: Browser, eve: Browser) -> None:
    """Code injection: Eve has read Ann's code, and puts it into a sign-in of her own."""
    stolen = httpx.URL(await ann.sent_back("s-ann")).params["code"]
    own = httpx.URL(await eve.sent_back("s-bob"))
    told = await eve.comes_back(str(own.copy_set_param("code", stolen)))
    assert told.status_code == 401
    assert not eve.is_signed_in


@pytest.mark.parametrize(
    "changed",
    [
        {"state": ""},
        {"state": "x"},
        {"state": "\u20ac"},
        {"iss": "https://evil.example"},
        {"iss": None},
        {"code": ""},
        {"code": None},
        {"code": "x" * 3000},
        {"error": "access_denied", "error_description": "call <b>+1</b>", "code": None},
    ],
    ids=str,
)
async def test_an_answer_that_is_not_the_provider_s_signs_nobody_in(
    site: OidcSite, ann: Browser, changed: dict[str, str | None]
) -> None:
    back = httpx.URL(await ann.sent_back("s-ann"))
    for name, value in changed.items():
        removed = back.copy_remove_param(name)
        back = removed if value is None else removed.copy_set_param(name, value)
    told = await ann.comes_back(str(back))
    assert told.status_code == 401
    assert "+1" not in told.text  # nobody writes on our page by a link
    assert not ann.is_signed_in


def test_a_sign_in_that_was_begun_is_over_after_ten_minutes_and_ends_once() -> None:
    time_ = [0.0]
    begun = BegunSignIns(lambda: time_[0])
    first, second = begun.begin("ann's", "/")[0], begun.begin("ann's", "/")[0]
    assert begun.end(first, "eve's") is None
    assert begun.end(first, "ann's") is not None
    assert begun.end(first, "ann's") is None
    time_[0] = MAY_TAKE.total_seconds()
    assert begun.end(second, "ann's") is None


# Where it leads


@pytest.mark.parametrize(
    "then",
    [
        "https://evil.example",
        "//evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "/\t/evil.example",
        "/%0d%0aSet-Cookie:x=1",
        "@evil.example",
        ".evil.example",
        ":1@evil.example/",
        "javascript:alert(1)",
        "",
        "/" + "x" * 3000,
        "/\r\nSet-Cookie: x=1",
    ],
)
async def test_sign_ins_lead_to_these_pages(site: OidcSite, ann: Browser, then: str) -> None:
    begin = str(httpx.URL("/oidc/begin").copy_set_param("then", then))
    told = await ann.signs_in("s-ann", begin)
    there = httpx.URL(ORIGIN).join(told.headers["location"])
    assert (there.scheme, there.netloc) == ("http", b"localhost:8082")
    assert told.headers["location"].startswith(f"{ORIGIN}/")
    assert "x=1" not in "".join(told.headers.get_list("set-cookie"))


def test_a_path_of_these_pages_stays_as_it_is() -> None:
    for path in ("/", "/approval?id=run-1%2Fs%2F1", "/run?id=a#b"):
        assert own_path(path) == path


# Other pages


async def test_another_page_signs_nobody_in(site: OidcSite, ann: Browser) -> None:
    navigates = {"sec-fetch-mode": "navigate"}
    for origin in ("cross-site", "same-site"):
        told = await ann.get("/oidc/begin", **{"sec-fetch-site": origin}, **navigates)
        assert (told.status_code, "set-cookie" in told.headers) == (403, False)
    assert (await ann.post("/oidc/begin", {})).status_code == 404
    assert (await ann.post("/oidc/back", {})).status_code == 404
    framed = await ann.get("/oidc/back?state=x", **{"sec-fetch-site": "cross-site"})
    assert framed.status_code == 403
    assert site.way.asked == []


async def test_each_answer_has_browser_rules(site: OidcSite, ann: Browser, eve: Browser) -> None:
    answers = [await ann.get("/oidc/begin"), await ann.get("/oidc/back?state=x")]
    answers += [await ann.signs_in("s-ann"), await eve.signs_in("s-eve")]
    assert [one.status_code for one in answers] == [303, 401, 303, 403]
    for one in answers:
        assert "frame-ancestors 'none'" in one.headers["content-security-policy"]
        assert one.headers["x-frame-options"] == "DENY"
        assert one.headers["cache-control"] == "no-store"  # there is a code in the path
        assert one.headers["referrer-policy"] == "no-referrer"
    cookies = [text for one in answers for text in one.headers.get_list("set-cookie")]
    flows = [text for text in cookies if FLOW in text]
    assert flows and all("HttpOnly" in text and "SameSite=lax" in text for text in flows)


async def test_a_foreign_host_begins_no_sign_in(site: OidcSite, ann: Browser) -> None:
    assert (await ann.get("/oidc/begin", host="rebound.example:8082")).status_code == 421


# What it is for


async def test_a_stolen_session_lets_look_and_decides_nothing_in_another_name(
    ledger: Ledger, provider: RealProvider, tmp_path: Path
) -> None:
    async with serving(ledger, provider, tmp_path) as site:
        ann, eve = await site.browser(), await site.browser()
        await ann.signs_in("s-ann")
        eve.pages.cookies.update(dict(ann.pages.cookies))
        one = site.asked()
        assert (await eve.get("/")).status_code == 200
        sent = {"approval_id": one, "params_hash": "sha256:0", "outcome": "approve"}
        told = await eve.post("/decide", {**sent, "approver": "bob"})
        assert (told.status_code, "no other name" in told.json()["error"]) == (400, True)
        evil = await eve.post("/decide", {**sent, "approver": "ann"}, origin="https://evil.example")
        assert evil.status_code == 403
