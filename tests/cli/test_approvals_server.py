"""The approvals server against those who are not meant to use it: each request is an attack."""

from __future__ import annotations

import re
import socket
import stat
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from signal import SIGINT, SIGTERM, Signals
from typing import Any, Final, cast

import httpx
import pytest
from starlette.types import ASGIApp

from surehand.activities.ledger.approvals import requests
from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.halts import halt_calls
from surehand.cli.approvals_server import sign_in as links_
from surehand.cli.approvals_server.server import ApprovalsServer, status_of
from surehand.cli.approvals_server.sign_in import LASTS, BadLink, Links, Server, SignIns
from surehand.cli.approvals_server.verbs import checked_origin
from surehand.client.client import Client
from surehand.process.exits import ExitCode, NotReachable, Refused, WrongUse
from surehand.workflows.contracts.runs import RunView
from surehand.workflows.identity import DEFAULT_TENANT
from surehand.workflows.plan.policy import Needs, Requirement
from tests.cli.starter import Starter, Verbs
from tests.ledger.scene import Scene

ORIGIN: Final = "http://127.0.0.1:8082"


@dataclass(frozen=True)
class Runs:
    """What runs say of themselves, in the place of a Temporal server's; it stands for a client."""

    views: dict[str, RunView] = field(default_factory=dict)

    @property
    def connection(self) -> Runs:
        return self

    async def view(self, run_id: str, limit: timedelta | None = None) -> RunView:
        return self.views[run_id]

    def web_ui(self, run_id: str) -> str:
        return f"http://127.0.0.1:8233/{run_id}"

    async def connect(self) -> Client:
        """Return the way to them; without any there is no server."""
        if not self.views:
            return await no_temporal()
        return cast(Client, self)


async def no_temporal() -> Client:
    raise NotReachable("no Temporal server answers")


@dataclass(frozen=True)
class Site:
    """A server in this process, and a browser's way to it."""

    scene: Scene
    server: Server
    app: ASGIApp
    browser: httpx.AsyncClient
    runs: Runs = field(default_factory=Runs)
    schemas: dict[str, Any] = field(default_factory=dict)
    """Of tools' params, as far as they are known here."""

    async def get(self, path: str, **headers: str) -> httpx.Response:
        return await self.browser.get(path, headers=headers)

    async def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        sent = {"origin": ORIGIN, "sec-fetch-site": "same-origin", **headers}
        return await self.browser.post(path, json=body, headers=sent)

    async def sign_in(self, name: str) -> None:
        token = self.server.link(name, time.time()).partition("#")[2]
        assert (await self.post("/sign-in", {"token": token})).status_code == 200

    def asked(self, **changes: Any) -> str:
        gated = self.scene.ask_approval(self.scene.call(**changes))
        assert gated.approval_id is not None
        return gated.approval_id


@pytest.fixture
async def site(ledger: Ledger) -> AsyncIterator[Site]:
    scene = Scene.begin(ledger, DEFAULT_TENANT)
    server, runs, schemas = Server.new(ORIGIN, scene.tenant), Runs(), dict[str, Any]()
    made = ApprovalsServer(
        ledger=ledger,
        connect=runs.connect,
        tenant=scene.tenant,
        links=Links(server),
        schema_of=lambda tool, version: schemas.get(tool),
        artifacts=lambda: scene.artifacts,
    )
    app = made.app(ORIGIN)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url=ORIGIN) as browser:
        yield Site(scene, server, app, browser, runs, schemas)


# Who may look


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/approval?id=run-1/refund/1", "/keys", "/mine"),
        *("/approval.json?id=run-1/refund/1", "/story.json?run=run-1"),
        *("/artifacts?id=run-1", "/artifact?run=run-1&id=ar-1"),
        *("/halts.json", "/undo.json?id=run-1"),
    ],
)
async def test_whoever_is_not_signed_in_is_told_how_and_sees_nothing(site: Site, path: str) -> None:
    site.asked()
    told = await site.get(path)
    assert told.status_code == 401
    assert ("approvals link --as NAME" in told.text) is (".json" not in path)
    assert "payments.refund" not in told.text
    assert (await site.post("/decide", {"approval_id": "run-1/refund/1"})).status_code == 401


async def test_a_link_signs_in_once(site: Site) -> None:
    token = site.server.link("ann", time.time()).partition("#")[2]
    assert (await site.post("/sign-in", {"token": token})).status_code == 200
    again = await site.post("/sign-in", {"token": token})
    assert (again.status_code, "used already" in again.json()["error"]) == (401, True)


def test_a_link_is_over_after_ten_minutes_and_its_nonce_is_forgotten_then() -> None:
    server = Server.new(ORIGIN, "default")
    now = [1_000_000.0]
    links = Links(server, lambda: now[0])
    first, second = (server.link("ann", now[0]).partition("#")[2] for _ in "12")
    assert links.spend(first) == "ann"
    now[0] += links_.LINK_LASTS.total_seconds()
    for token in (first, second):
        with pytest.raises(BadLink, match="is over"):
            links.spend(token)


@pytest.mark.parametrize("broken", ["", ".", "x", "a.b", "é.x", "x" * 3000])
def test_what_nobody_has_made_is_no_link(broken: str) -> None:
    with pytest.raises(BadLink):
        Links(Server.new(ORIGIN, "default")).spend(broken)


def test_a_link_of_another_start_another_name_or_another_tenant_is_none() -> None:
    server = Server.new(ORIGIN, "default")
    token = server.link("ann", time.time()).partition("#")[2]
    said, _, mac = token.rpartition(".")
    eves = server.link("eve", time.time()).partition("#")[2].rpartition(".")[0]
    assert said != eves
    with pytest.raises(BadLink):
        Links(Server.new(ORIGIN, "default")).spend(token)
    with pytest.raises(BadLink):
        Links(server).spend(f"{eves}.{mac}")
    other = Server(ORIGIN, "acme", server.secret)
    with pytest.raises(BadLink, match="another tenant"):
        Links(other).spend(token)


def test_the_secret_file_is_its_owners_alone(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    Server.new(ORIGIN, "default").write(folder)
    file = folder / "server.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert Server.read(folder).origin == ORIGIN
    file.chmod(0o640)
    with pytest.raises(WrongUse, match="only the user"):
        Server.read(folder)


def test_a_sign_in_ends_after_eight_hours_and_when_its_owner_says_so() -> None:
    now = [0.0]
    sign_ins = SignIns(lambda: now[0])
    first, second = sign_ins.begin("ann"), sign_ins.begin("ann")
    sign_ins.end(first)
    assert (sign_ins.principal(first), sign_ins.principal(second)) == (None, "ann")
    now[0] = LASTS.total_seconds()
    assert sign_ins.principal(second) is None


async def test_the_cookie_is_out_of_reach_of_scripts_and_other_pages(site: Site) -> None:
    await site.sign_in("ann")
    token = site.server.link("ann", time.time()).partition("#")[2]
    told = await site.post("/sign-in", {"token": token})
    cookie = told.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert "domain=" not in cookie


async def test_behind_tls_the_cookie_belongs_to_the_host_alone(ledger: Ledger) -> None:
    origin = "https://approvals.example.com"
    scene = Scene.begin(ledger, DEFAULT_TENANT)
    server = Server.new(origin, scene.tenant)
    made = ApprovalsServer(
        ledger=ledger,
        connect=no_temporal,
        tenant=scene.tenant,
        links=Links(server),
        schema_of=lambda tool, version: None,
    )
    transport = httpx.ASGITransport(app=made.app(origin))
    async with httpx.AsyncClient(transport=transport, base_url=origin) as browser:
        token = server.link("ann", time.time()).partition("#")[2]
        told = await browser.post("/sign-in", json={"token": token}, headers={"origin": origin})
    assert told.headers["set-cookie"].startswith("__Host-surehand_approvals=")
    assert "; Secure" in told.headers["set-cookie"] and "Path=/" in told.headers["set-cookie"]
    assert "strict-transport-security" in told.headers


# Other pages


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost:8082"}, 403),
        ({"origin": "", "sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
    ],
)
async def test_other_pages_send_nothing(site: Site, headers: dict[str, str], status: int) -> None:
    await site.sign_in("ann")
    one = site.asked()
    told = await site.post("/decide", {"approval_id": one, "approver": "ann"}, **headers)
    assert told.status_code == status
    assert (await site.post("/sign-out", {}, **headers)).status_code == status
    assert (await site.get("/")).status_code == 200  # still signed in


async def test_another_page_loads_nothing_but_may_lead_here(site: Site) -> None:
    await site.sign_in("ann")
    one = site.asked()
    there = {"sec-fetch-site": "cross-site"}
    assert (await site.get(f"/approval.json?id={one}", **there)).status_code == 403
    follows = await site.get("/", **there, **{"sec-fetch-mode": "navigate"})
    assert follows.status_code == 200


async def test_a_name_of_somebody_else_s_that_leads_here_is_not_answered(site: Site) -> None:
    await site.sign_in("ann")
    told = await site.get("/", host="rebound.example:8082")
    assert told.status_code == 421
    assert "payments.refund" not in told.text


@pytest.mark.parametrize("path", ["/", "/sign-in", "/nothing", "/static/page.js", "/approval.json"])
async def test_each_answer_has_the_rules_for_browsers(site: Site, path: str) -> None:
    headers = (await site.get(path)).headers
    policy = headers["content-security-policy"]
    for rule in (
        "default-src 'none'",
        "script-src 'self';",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ):
        assert rule in f"{policy};"
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-opener-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"


async def test_our_mistake_is_one_line_too(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await site.sign_in("ann")

    def fails(*given: Any) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr("surehand.cli.approvals_server.approvals.Viewed.detailed", fails)
    transport = httpx.ASGITransport(app=site.app, raise_app_exceptions=False)
    cookies = site.browser.cookies
    async with httpx.AsyncClient(transport=transport, base_url=ORIGIN, cookies=cookies) as browser:
        told = await browser.get(f"/approval?id={site.asked()}")
    assert (told.status_code, "mistake of ours" in told.text) == (500, True)
    assert "secret" not in told.text
    assert "default-src 'none'" in told.headers["content-security-policy"]


# What is shown


HOSTILE: Final = '</script><script>alert(1)</script><img src=x onerror="alert(1)">'


def shown_hostile(site: Site) -> str:
    call = site.scene.call(params={"to": HOSTILE, "about": "5\u202e0002 €\u200b"})
    with site.scene.tx() as tx:
        needs = Needs(requirements=(Requirement(),), expires_in=timedelta(hours=1))
        text = f"{HOSTILE} pay \u202e0005\u0007"
        row = requests.request_approval(tx, call, number=1, description=text, needs=needs)
    return str(row["approval_id"])


@pytest.mark.parametrize("path", ["/", "/approval?id={}"])
async def test_strangers_texts_are_text_and_stay_visible(site: Site, path: str) -> None:
    await site.sign_in("ann")
    one = shown_hostile(site)
    text = (await site.get(path.format(one))).text
    assert "<img" not in text and "alert(1)</script>" not in text
    assert "&lt;img src=x" in text
    assert "\\u202e0005\\u0007" in text
    assert "\u202e" not in text and "\u200b" not in text


async def test_a_vote_that_did_not_count_stands_once_in_words_and_a_halted_call_has_no_time(
    site: Site,
) -> None:
    await site.sign_in("ann")
    gated = site.scene.ask_approval(site.scene.call())
    for _ in "12":
        site.scene.decide(gated, params_hash="sha256:" + "0" * 64)
    with site.scene.tx() as tx:
        halt_calls(tx, "oscar", "it pays twice")
    text = (await site.get(f"/approval?id={gated.approval_id}")).text
    assert text.count("for another version of this call did not count.") == 1
    assert "wrong_hash" not in text and "What people have said" not in text
    assert ">halted</time>" in (await site.get("/")).text


async def test_params_reach_the_script_whole_and_as_they_are_however_many(site: Site) -> None:
    await site.sign_in("ann")
    params = {"body": "x" * 1_000_000, "amounts": [1.5, 10, "10"], "to": HOSTILE}
    one = site.asked(params=params)
    told = await site.get(f"/approval.json?id={one}")
    assert told.headers["content-type"] == "application/json"
    assert told.json()["params"] == params


@pytest.mark.parametrize(
    "path",
    [
        "/approval?id=other/run-1/s/1",
        "/approval.json?id=other/run-1/s/1",
        "/approval.json?id=run-1/s/1",
        "/approval.json?id=run-1/../s/1",
        "/approval.json?id=",
        "/approval.json?id=%00/s/1",
        "/story.json?run=other/run-1",
        "/?after=x",
        "/?after=1:",
    ],
)
async def test_what_is_not_there_is_one_line_and_tells_nothing_more(site: Site, path: str) -> None:
    await site.sign_in("ann")
    told = await site.get(path)
    assert told.status_code in (400, 404)
    assert "Traceback" not in told.text


async def test_another_tenant_s_request_is_not_found_by_its_id(site: Site, ledger: Ledger) -> None:
    await site.sign_in("ann")
    other = Scene.begin(ledger, "acme")
    there = other.ask_approval(other.call(step_id="secret")).approval_id
    assert there is not None
    for one in (there, f"{other.tenant}/{there}"):
        told = await site.get(f"/approval?id={one}")
        assert told.status_code in (400, 404)
    assert "nothing" in (await site.get("/?of=all")).text


@pytest.mark.parametrize(
    "path", ["//evil.example", "/\\evil.example", "/?next=https://evil.example"]
)
async def test_no_path_leads_to_another_site(site: Site, path: str) -> None:
    await site.sign_in("ann")
    told = await site.browser.get(httpx.URL(ORIGIN).copy_with(raw_path=path.encode()))
    assert "location" not in told.headers
    assert 'href="https://evil' not in told.text


@pytest.mark.parametrize("name", ["../server.py", "..%2fserver.py", "nothing.js", "page.js.map"])
async def test_only_the_pages_own_files_are_served(site: Site, name: str) -> None:
    assert (await site.get(f"/static/{name}")).status_code == 404


async def test_every_file_that_a_page_or_a_script_loads_is_served(site: Site) -> None:
    await site.sign_in("ann")
    one = site.asked()
    pages = [(await site.get(path)).text for path in ("/", f"/approval?id={one}", "/keys")]
    pages.append((await site.get("/sign-in")).text)
    left = {name for text in pages for name in re.findall(r'(?:src|href)="/static/([^"]+)"', text)}
    seen = set[str]()
    while left:
        name = left.pop()
        found = await site.get(f"/static/{name}")
        assert found.status_code == 200, name
        seen.add(name)
        left |= set(re.findall(r'from "\./([^"]+)"', found.text)) - seen
    assert "canonical.js" in seen


# Deciding


@pytest.mark.parametrize(
    ("approver", "approval_id", "status", "said"),
    [
        ("ann", "", 504, "no Temporal server answers"),
        ("eve", "", 400, "no other name"),
        ("ann", "acme/run-1/s/1", 404, "run not found"),
    ],
    ids=["that cannot be sent", "in another name", "on another tenant's request"],
)
async def test_a_decision_goes_nowhere(
    site: Site, approver: str, approval_id: str, status: int, said: str
) -> None:
    await site.sign_in("ann")
    sent = {"params_hash": "sha256:0", "outcome": "approve", "approver": approver}
    told = await site.post("/decide", {**sent, "approval_id": approval_id or site.asked()})
    assert (told.status_code, said in told.json()["error"]) == (status, True)


async def test_a_decision_with_a_field_of_any_name_is_refused_in_one_line(site: Site) -> None:
    await site.sign_in("ann")
    sent = {"approval_id": site.asked(), "approver": "ann", "outcome": "approve", "model": "m"}
    told = await site.post("/decide", {**sent, "params_hash": "sha256:0"})
    assert told.status_code in (400, 504)
    assert set(told.json()) == {"error"}


@pytest.mark.parametrize("body", ["[]", "{", '"x"', "1e999", "[" * 100_000])
async def test_what_is_no_decision_is_refused_in_one_line(site: Site, body: str) -> None:
    await site.sign_in("ann")
    headers = {"origin": ORIGIN, "content-type": "application/json"}
    told = await site.browser.post("/decide", content=body, headers=headers)
    assert told.status_code == 400
    assert set(told.json()) == {"error"}


async def test_a_body_that_does_not_end_is_cut_off(site: Site) -> None:
    await site.sign_in("ann")
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 2**26:
            sent += 2**16
            yield b" " * 2**16

    headers = {"origin": ORIGIN, "content-type": "application/json"}
    told = await site.browser.post("/decide", content=endless(), headers=headers)
    assert told.status_code == 400
    assert "at most" in told.json()["error"]


@pytest.mark.parametrize(
    "origin",
    [
        "http://approvals.example.com",
        "ftp://localhost",
        "https://",
        "https://a.example/path",
        "https://a.example?x=1",
        "https://eve@a.example",
        "approvals.example.com",
        "https://a.example:port",
    ],
)
def test_an_origin_without_tls_or_with_more_than_a_host_is_refused(origin: str) -> None:
    with pytest.raises(WrongUse, match="--origin"):
        checked_origin(origin)


def test_an_origin_is_named_as_browsers_name_it() -> None:
    assert checked_origin("https://Approvals.Example.com:443/") == "https://approvals.example.com"
    assert checked_origin("http://localhost:8082") == "http://localhost:8082"
    assert checked_origin("http://[::1]:8082") == "http://[::1]:8082"


async def test_a_probe_asks_for_health_by_an_address_and_for_nothing_else(site: Site) -> None:
    assert (await site.get("/health", host="10.0.0.7:8082")).json() == {"ok": True}
    assert (await site.get("/sign-in", host="10.0.0.7:8082")).status_code == 421


def test_what_a_run_refuses_was_sent_and_is_told_apart_from_what_was_not() -> None:
    assert status_of(Refused("only what is signed counts here")) == 409
    assert status_of(WrongUse("a decision is an object")) == 400


@pytest.mark.slow
@pytest.mark.parametrize("how", [SIGINT, SIGTERM], ids=lambda how: how.name)
def test_early_signals_end_it_well(ledger_url: str, tmp_path: Path, how: Signals) -> None:
    serve = ["approvals", "serve", "--http", "127.0.0.1:0", "--state", str(tmp_path / "state")]
    starter = Starter({"SUREHAND_DATABASE_URL": ledger_url}, tmp_path)
    with starter.child(tmp_path / "approvals.log", *serve) as process:
        process.wait_said("approvals at")

        assert process.stop(how) == 0
        # No browser makes a passkey for an IP address.
        [line] = process.output().splitlines()
        assert "approvals at http://localhost:" in line


def test_an_address_that_is_taken_is_named_by_its_option(
    ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verbs = Verbs({"SUREHAND_DATABASE_URL": ledger_url}, tmp_path, monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = verbs("approvals", "serve", "--http", address)
    assert done.code == ExitCode.NOT_REACHABLE
    assert f"--http {address}" in done.err
    assert "approvals at" not in done.err
