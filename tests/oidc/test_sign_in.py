"""Signing in by a certified OpenID provider: who somebody is then, how long, and what it is for."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import httpx
import pytest

from surehand.activities.ledger.core.store import Ledger
from tests.oidc.provider_process import PUBLIC, RealProvider
from tests.oidc.site import FLOW, ORIGIN, TLS_ORIGIN, Browser, OidcSite, serving

pytestmark = pytest.mark.slow


async def test_a_sign_in_leads_back_to_where_people_were(site: OidcSite, ann: Browser) -> None:
    one = site.asked()
    path = f"/approval?id={quote(one, safe='')}"
    refused = await ann.get(path)
    assert refused.status_code == 401
    assert f"/oidc/begin?then={quote(path, safe='')}" in refused.text
    back = await ann.signs_in("s-ann", f"/oidc/begin?then={quote(path, safe='')}")
    assert (back.status_code, back.headers["location"]) == (303, f"{ORIGIN}{path}")
    looked = await ann.get(back.headers["location"])
    assert looked.status_code == 200
    assert "<bdi>ann</bdi>" in looked.text


async def test_a_public_client_signs_people_in_without_a_secret(
    ledger: Ledger, provider: RealProvider, tmp_path: Path
) -> None:
    async with serving(ledger, provider, tmp_path, client_id=PUBLIC, client_secret="") as site:
        ann = await site.browser()
        assert (await ann.signs_in("s-ann")).status_code == 303
        assert (await ann.get("/")).status_code == 200


async def test_a_code_is_worth_nothing_without_the_verifier_that_only_the_server_has(
    ledger: Ledger, provider: RealProvider, tmp_path: Path
) -> None:
    async with serving(ledger, provider, tmp_path, client_id=PUBLIC, client_secret="") as site:
        ann = await site.browser()
        begun = await ann.get("/oidc/begin")
        asked = parse_qs(urlsplit(begun.headers["location"]).query)
        assert asked["code_challenge_method"] == ["S256"]
        back = httpx.URL(await ann.sent_back("s-ann"))
        sent = {
            "grant_type": "authorization_code",
            "client_id": PUBLIC,
            "code": back.params["code"],
            "redirect_uri": f"{ORIGIN}/oidc/back",
            "code_verifier": asked["code_challenge"][0],
        }
        async with httpx.AsyncClient() as thief:
            told = await thief.post(f"{provider.issuer}/token", data=sent)
        assert (told.status_code, told.json()["error"]) == (400, "invalid_grant")


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"default": {}},
        {"default": {"ISSUER": {"s-eve": "bob"}}},
        {"default": {"https://other.example.com": {"s-ann": "ann"}}},
        {"default": {"ISSUER/": {"s-ann": "ann"}}},
        {"acme": {"ISSUER": {"s-ann": "ann"}}},
        {"default": {"ISSUER": {"S-ANN": "ann"}}},
        {"default": {"ISSUER": {"s-ann": "whom-nobody-has-registered"}}},
    ],
    ids=str,
)
async def test_a_subject_that_is_no_principal_of_this_tenant_is_told_so_and_gets_no_session(
    site: OidcSite, ann: Browser, said: dict[str, Any]
) -> None:
    site.subjects.write_text(json.dumps(said).replace("ISSUER", site.provider.issuer))
    told = await ann.signs_in("s-ann")
    assert told.status_code == 403
    assert "s-ann" in told.text and site.provider.issuer in told.text
    assert not ann.is_signed_in
    assert (await ann.get("/")).status_code == 401


async def test_a_subject_of_strangers_is_text_on_its_page(site: OidcSite, ann: Browser) -> None:
    told = await ann.signs_in("<script>alert(1)</script>\u202e")
    assert told.status_code == 403
    assert "<script>alert" not in told.text
    assert "\u202e" not in told.text


async def test_whoever_leaves_the_file_is_signed_out(site: OidcSite, ann: Browser) -> None:
    bob = await site.browser()
    await ann.signs_in("s-ann")
    await bob.signs_in("s-bob")
    assert (await ann.get("/")).status_code == 200
    site.say({"s-bob": "bob"})
    assert (await ann.get("/")).status_code == 401
    assert (await ann.get(f"/approval.json?id={site.asked()}")).status_code == 401
    assert (await bob.get("/")).status_code == 200
    site.subjects.unlink()  # nobody knows any more who anybody is
    assert (await bob.get("/")).status_code == 401


async def test_another_principal_gets_another_session(site: OidcSite, ann: Browser) -> None:
    await ann.signs_in("s-ann")
    site.say({"s-ann": "bob"})
    assert (await ann.get("/")).status_code == 401


async def test_signing_out_lasts(site: OidcSite, ann: Browser) -> None:
    await ann.signs_in("s-ann")
    cookies = dict(ann.pages.cookies)
    assert (await ann.post("/sign-out", {})).status_code == 200
    assert not ann.is_signed_in
    ann.pages.cookies.update(cookies)  # somebody has kept it
    told = await ann.get("/")
    assert (told.status_code, "location" in told.headers) == (401, False)


async def test_a_new_sign_in_ends_the_one_before(site: OidcSite, ann: Browser) -> None:
    await ann.signs_in("s-ann")
    before = dict(ann.pages.cookies)
    await ann.signs_in("s-ann")
    assert dict(ann.pages.cookies) != before
    eve = await site.browser()
    eve.pages.cookies.update(before)
    assert (await eve.get("/")).status_code == 401


async def test_elsewhere_a_link_is_no_second_way_in(site: OidcSite, eve: Browser) -> None:
    token = site.links.link("ann", time.time()).partition("#")[2]
    told = await eve.post("/sign-in", {"token": token})
    assert (told.status_code, "takes no links" in told.json()["error"]) == (401, True)
    assert not eve.is_signed_in
    assert "approvals link" not in (await eve.get("/sign-in")).text


async def test_on_one_machine_a_link_signs_in_beside_the_provider(
    ledger: Ledger, provider: RealProvider, tmp_path: Path
) -> None:
    async with serving(ledger, provider, tmp_path, takes_links=True) as site:
        ann = await site.browser()
        shown = (await ann.get("/sign-in")).text
        assert "approvals link --as NAME" in shown and "/oidc/begin" in shown
        token = site.links.link("ann", time.time()).partition("#")[2]
        assert (await ann.post("/sign-in", {"token": token})).status_code == 200


async def test_two_sign_ins_of_one_browser_at_once_both_count(site: OidcSite, ann: Browser) -> None:
    # The provider gives one code to a session of its own: the other tab is at it in another one.
    tab = replace(ann, provider=(await site.browser()).provider)
    one, other = await ann.sent_back("s-ann"), await tab.sent_back("s-ann")
    for url in (one, other):
        told = await ann.comes_back(url)
        assert told.status_code == 303, told.text
        assert (await ann.get("/")).status_code == 200


async def test_behind_tls_the_browser_s_cookie_belongs_to_the_host_alone(
    ledger: Ledger, provider: RealProvider, tmp_path: Path
) -> None:
    async with serving(ledger, provider, tmp_path, origin=TLS_ORIGIN) as site:
        ann = await site.browser()
        begun = await ann.get("/oidc/begin")
        cookie = begun.headers["set-cookie"]
        assert cookie.startswith(f"__Host-{FLOW}=")
        for part in ("HttpOnly", "Secure", "Path=/", "SameSite=lax"):
            assert part in cookie
        assert "domain" not in cookie.lower()
        back = await ann.signs_in("s-ann")
        assert back.headers["location"] == f"{TLS_ORIGIN}/"
        assert any(
            one.startswith("__Host-surehand_approvals=") and "Secure" in one
            for one in back.headers.get_list("set-cookie")
        )


async def test_a_provider_that_does_not_answer_is_one_line_and_is_not_waited_for_by_all(
    ledger: Ledger, tmp_path: Path, provider: RealProvider
) -> None:
    gone = RealProvider("http://127.0.0.1:9", provider.key)
    async with serving(ledger, gone, tmp_path) as site:
        ann = await site.browser()
        for _ in "12":
            told = await ann.get("/oidc/begin")
            assert (told.status_code, "cannot be asked now" in told.text) == (503, True)
            assert "127.0.0.1:9" not in told.text
        assert len(site.way.asked) == 1
