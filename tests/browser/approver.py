"""An approver with a browser of their own, and the approvals server that it shows."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
from playwright.async_api import BrowserContext, Locator, Page, ViewportSize, expect
from playwright.async_api import TimeoutError as Timeout

from tests.browser.conftest import PATIENCE_MS
from tests.cli.starter import Starter
from tests.e2e.stage import Stage

#: What a browser says of answers that tell of an error, or that never came: no mistake of a page.
_LOADING: Final = re.compile("status of|net::ERR_")


@dataclass(frozen=True)
class Served:
    """An approvals server, and the command line beside it."""

    url: str
    starter: Starter
    state: Path

    def link(self, principal: str) -> str:
        """Return a link that signs somebody in, as an administrator asks for it."""
        asked = ["approvals", "link", "--as", principal, "--state", str(self.state), "--json"]
        done = self.starter(*asked)
        assert done.code == 0, done.err
        return str(done.document()["link"])

    def paste(self, command: str) -> None:
        typed = command.replace("python starter.py", shlex.join(self.starter.command()))
        done = subprocess.run(
            ["bash", "-ec", f"set -o pipefail; {typed}"],
            cwd=self.state,
            env=self.starter.environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr

    def register(self, principal: str, public: str) -> None:
        """Register a key as the page shows it, as an administrator does."""
        file = self.state / "public.jwk"
        file.write_text(public)
        done = self.starter("principal", "grant", principal, "--key", str(file))
        assert done.code == 0, done.err


@contextmanager
def serving(
    stage: Stage, tmp_path: Path, http: str = "localhost:0", **settings_: str
) -> Iterator[Served]:
    """Serve a stage's approvals; settings by their names without prefix."""
    settings = stage.environment(**settings_)
    starter, state = Starter(settings, tmp_path), tmp_path / "approvals"
    serve = ["approvals", "serve", "--http", http, "--state", str(state)]
    with starter.child(tmp_path / "approvals.log", *serve) as server:
        server.wait_said("approvals at")
        found = re.search(r"http://\S+", server.output())
        assert found is not None
        yield Served(found[0], starter, state)


@pytest.fixture
def served(stage: Stage, tmp_path: Path) -> Iterator[Served]:
    with serving(stage, tmp_path) as made:
        yield made


@dataclass(frozen=True)
class Approver:
    """Somebody with a browser of their own."""

    name: str
    page: Page
    served: Served

    async def signs_in(self) -> None:
        await self.page.goto(self.served.link(self.name))
        await expect(self.page.locator("#whom")).to_have_text(self.name)
        await self.page.get_by_role("button", name="Sign in").click()
        await expect(self.page.get_by_role("heading", name="To decide")).to_be_visible()

    async def gets_ready(self) -> None:
        """Sign in with a key that is registered."""
        await self.signs_in()
        self.served.register(self.name, await self.makes_a_key())

    async def makes_a_key(self) -> str:
        """Make a key in the browser; returns its public half, as the page shows it."""
        await self.page.goto(f"{self.served.url}/keys")
        await self.page.get_by_role("button", name="Make a key").click()
        await expect(self.page.locator("#with-key")).to_be_visible()
        return await self.page.locator("#public").text_content() or ""

    async def opens(self, approval_id: str) -> None:
        await self.page.goto(f"{self.served.url}/approval?id={quote(approval_id)}")

    async def sees_the_call(self) -> None:
        """Wait until the page has checked what it shows."""
        check = self.page.locator("#check")
        await expect(check).to_have_text("You decide on exactly what is shown here.")

    async def says(self, *texts: str) -> None:
        """Wait until the page has said each of these texts of what was decided."""
        for text in texts:
            await expect(self.page.locator("#said")).to_contain_text(text)

    @property
    def approve(self) -> Locator:
        return self.page.locator("#approve")

    @property
    def reject(self) -> Locator:
        return self.page.locator("#reject")

    async def reads(self) -> None:
        """Come to the end of each call that is shown: until then nothing is approved."""
        onward = self.page.locator("#onward")
        await expect(self.page.locator("#approve:enabled, #onward:visible").first).to_be_visible()
        while await onward.is_visible():
            # It may go while it is aimed at; then the end has been seen.
            with suppress(Timeout):
                await onward.click(timeout=1000)
        await expect(self.approve).to_be_enabled()

    async def approves(self) -> None:
        await self.reads()
        await self.approve.click()

    async def signs_out(self) -> None:
        await self.page.locator(".me summary").click()
        await self.page.get_by_role("button", name="Sign out").click()


#: Of a phone.
SMALL: Final[ViewportSize] = {"width": 360, "height": 740}


@asynccontextmanager
async def arriving(
    profile: BrowserContext, served: Served, name: str, **options: Any
) -> AsyncIterator[Approver]:
    """Give somebody a browser of their own; no rule of the page may be broken in it.

    Args:
        profile: Any one of the same browser.
        served: What is looked at.
        name: Of the principal.
        options: Of Playwright's browser context.
    """
    assert profile.browser is not None
    own = await profile.browser.new_context(**{"viewport": SMALL, **options})
    own.set_default_timeout(PATIENCE_MS)
    problems: list[str] = []

    def hear(page: Page) -> None:
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: said.type == "error" and problems.append(said.text))

    own.on("page", hear)
    page = await own.new_page()
    yield Approver(name, page, served)
    for one in own.pages:
        await one.unroute_all(behavior="wait")  # what a test changes may still be on its way
    await own.close()
    # A rule of the content policy that is broken is told there, too.
    assert [one for one in problems if not _LOADING.search(one)] == []


@pytest.fixture
async def ann(profile: BrowserContext, served: Served) -> AsyncIterator[Approver]:
    async with arriving(profile, served, "ann") as approver:
        yield approver
