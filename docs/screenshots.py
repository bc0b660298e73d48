"""Takes the pictures of the approvers' pages: ``python -m docs.screenshots`` (needs Chromium).

They are of the pages as they are: a shop, a worker and runs of its plan beside an approvals server.
So two rounds give two pictures, which differ in times and hashes. Those of the docs are taken anew
when a page looks different.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from playwright.async_api import Browser, Page, async_playwright

from docs.picture_provider import CLIENT, provider
from docs.png import small
from surehand.cli.approvals_server.links import Server
from surehand.cli.operate.demo import Environment, set_up
from surehand.cli.operate.demo_page import DemoPage, served
from surehand.client.client import Client
from surehand.client.connection import Connection
from surehand.process import PACKAGE
from surehand.process.children import Child, python
from surehand.process.connect import connect, find_target
from surehand.process.settings import client_settings

PAGE: Final = Path(__file__).resolve().parent / "howto" / "approvals-page.md"
FOLDER: Final = PAGE.with_name("approvals-page")
#: Bytes of one picture, and of all of them: whoever clones the repository fetches them.
LARGEST: Final = 60_000
LARGEST_TOGETHER: Final = 400_000
NARROW: Final = (360, 740)
WIDE: Final = (1280, 800)

_ORDERS: Final = ("order-1001", "order-1004", "order-1005", "order-1006")
_QUESTION: Final = {
    "name": "gift",
    "steps": [
        {
            "id": "gift",
            "ask": {
                "question": "How many vouchers does the customer get?",
                "answer": {"type": "integer", "minimum": 1},
            },
        }
    ],
}
_STATEMENT: Final = {
    "name": "statement",
    "steps": [
        {"id": "orders", "tool": "orders.of_month", "params": {"month": "2026-10"}},
        {"id": "statement", "tool": "statements.write", "params": {"month": "2026-10"}},
    ],
}
_WHO: Final = "ana"
#: Seconds that a page may take to show something.
_PATIENCE: Final = 60


@dataclass(frozen=True)
class Shot:
    """One picture."""

    name: str
    path: str
    """Of the page; ``{}`` is filled in."""
    ready: str
    """A text that stands there once all of it does."""
    size: tuple[int, int] = WIDE
    by_provider: bool = False
    """Of a server that people sign in to by an identity provider."""

    @property
    def file(self) -> Path:
        """Return where it is kept."""
        return FOLDER / f"{self.name}.png"


_WHOLE: Final = "You decide on exactly this call."
SHOTS: Final = (
    Shot("sign-in", "/sign-in", "approvals link --as NAME"),
    Shot("keys", "/keys", "This browser's key is registered."),
    Shot("list", "/", "Refund 120.00 EUR"),
    Shot("list-narrow", "/", "Refund 120.00 EUR", NARROW),
    Shot("approval", "/approval?id={approval}", _WHOLE),
    Shot("approval-narrow", "/approval?id={approval}", _WHOLE, NARROW),
    Shot("several", "/several?id={approval}&id={other}", _WHOLE),
    Shot("others", "/others", "gift-1"),
    Shot("mine", "/mine", "wrong amount"),
    Shot("run", "/run?id=refund-1001", "waits for"),
    Shot("artifacts", "/artifacts?id=statement-10", "text/csv"),
    Shot("no-principal", "/oidc/begin?then=/", "Nobody here is you", by_provider=True),
    Shot("error", "/approval?id=refund-404%2Frefund%2F1", "That did not work"),
)


async def _client(environment: Environment) -> Client:
    target = find_target(environment.variables)
    settings = client_settings(environment.variables, tenant="default", user="uma", ui_url="")
    return Client(Connection(await connect(target, quiet=True), target, settings))


async def _waiting(client: Client) -> dict[str, str]:
    """Start what waits for people, and return the ids of requests for it."""
    plan = PACKAGE / "examples" / "refund.yaml"
    ids = []
    for order in _ORDERS:
        name = f"refund-{order.rpartition('-')[2]}"
        run = await client.start(plan, run_id=name, input={"order_id": order})
        await run.wait(or_human=True)
        ids += [one.approval_id for one in (await run.view()).pending]
    gift = await client.start(_QUESTION, run_id="gift-1")
    await gift.wait(or_human=True)
    await (await client.start(_STATEMENT, run_id="statement-10")).wait()
    names = ("approval", "other", "third", "rejected")
    return {name: quote(id_, safe="") for name, id_ in zip(names, ids, strict=True)}


def _registered(environment: Environment, public: str) -> None:
    """Register a key of a browser, as an administrator does."""
    file = environment.folder / "public.jwk"
    file.write_text(public, encoding="utf-8")
    for words in (("add", _WHO, "--as", "root"), ("key", _WHO, str(file), "--as", "root")):
        command = python("surehand.starter", "principal", *words)
        log = environment.folder / "principal.log"
        with Child(command, environment=environment.variables, log=log) as child:
            child.wait_done()


async def _ready(browser: Browser, page: DemoPage, environment: Environment) -> Page:
    """Return a page of somebody who is signed in, with a key that is registered."""
    link = page.link(_WHO)
    origin = link.partition("/sign-in")[0]
    shown = await (await browser.new_context(base_url=origin, color_scheme="light")).new_page()
    shown.set_default_timeout(_PATIENCE * 1000)
    await shown.goto(link)
    await shown.get_by_role("button", name="Sign in").click()
    await shown.wait_for_url(f"{origin}/")
    await shown.goto("/keys")
    await shown.get_by_role("button", name="Make a key").click()
    await shown.locator("#with-key").wait_for()
    public = json.loads(await shown.locator("#public").inner_text())
    await asyncio.to_thread(_registered, environment, json.dumps(public))
    return shown


async def _rejected(shown: Page, approval: str) -> None:
    """Decide something, so that there is something to show."""
    await shown.goto(f"/approval?id={approval}")
    await shown.get_by_label("Reason").fill("wrong amount")
    await shown.get_by_role("button", name="Reject").click()
    await shown.get_by_text("counts: rejected").wait_for()


def _with_tools(environment: Environment) -> Environment:
    """Return it with the tools of pictures beside the shop's."""
    variables = dict(environment.variables)
    variables["SUREHAND_TOOL_MODULES"] += ",picture_tools"
    variables["PYTHONPATH"] += f"{os.pathsep}{Path(__file__).parent}"
    return replace(environment, variables=variables)


@contextmanager
def _by_provider(environment: Environment) -> Iterator[str]:
    """Serve the pages beside an identity provider for as long as the block lasts.

    Yields:
        Their origin.
    """
    folder = environment.folder / "by-provider"
    folder.mkdir()
    with provider() as issuer:
        subjects = folder / "principals.yaml"
        subjects.write_text(f"default:\n  {issuer}:\n    00u1bnabc: {_WHO}\n", encoding="utf-8")
        variables = environment.variables | {
            "SUREHAND_OIDC_ISSUER": issuer,
            "SUREHAND_OIDC_CLIENT_ID": CLIENT,
            "SUREHAND_OIDC_PRINCIPALS": str(subjects),
        }
        with served(folder, environment.database_url, variables) as page:
            assert page is not None
            yield Server.read(page.state).origin


async def _taken(somebodys: Page, nobodys: Page, ids: dict[str, Any]) -> None:
    await _rejected(somebodys, ids["rejected"])
    for one in SHOTS:
        shown = nobodys if one.by_provider else somebodys
        width, height = one.size
        await shown.set_viewport_size({"width": width, "height": height})
        await shown.goto(one.path.format(**ids))
        await shown.get_by_text(one.ready).first.wait_for()
        one.file.write_bytes(small(await shown.screenshot()))


async def _play(environment: Environment, page: DemoPage, by_provider: str) -> None:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    client = await _client(environment)
    with environment.worker("worker"):
        ids = await _waiting(client)
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(
                executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"]
            )
            context = await browser.new_context(base_url=by_provider, color_scheme="light")
            nobodys = await context.new_page()
            await _taken(await _ready(browser, page, environment), nobodys, ids)
            await browser.close()


def main() -> None:
    """Take all pictures."""
    FOLDER.mkdir(exist_ok=True)
    with ExitStack() as running:
        environment = _with_tools(running.enter_context(set_up(print)))
        page = running.enter_context(environment.page())
        if page is None:
            raise SystemExit("the approvers' pages need Starlette and Jinja2")
        by_provider = running.enter_context(_by_provider(environment))
        asyncio.run(_play(environment, page, by_provider))
    for one in SHOTS:
        print(f"{one.file.stat().st_size:7} {one.file.name}")


if __name__ == "__main__":
    main()
