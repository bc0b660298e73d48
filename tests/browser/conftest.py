"""What an approver has: a browser, Temporal's Web UI of an embedded server, the page's modules."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from surehand.process.dev_server import DevServer
from tests.browser.static_files import ELSEWHERE, Modules, StaticFiles
from tests.conftest import missing
from tests.e2e.conftest import stage

__all__ = ["stage"]

#: The system's browser, never a download of Playwright's. The one without windows of its own takes
#: a third of the processor's time for each page.
BROWSERS: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
#: Milliseconds that the page may take to show something: as long as a busy machine needs.
PATIENCE_MS: Final = 60_000


@pytest.fixture(scope="package")
def web_ui(temporal_cli: Path) -> Iterator[DevServer]:
    """A server of these tests' own: the others' has no Web UI."""
    server = DevServer.start(cli=temporal_cli)
    yield server
    server.kill()


@pytest.fixture(scope="package")
async def client(web_ui: DevServer) -> Client:
    return await Client.connect(web_ui.address, data_converter=pydantic_data_converter)


@pytest.fixture(scope="package")
async def browser() -> AsyncIterator[Browser]:
    programs = [found for name in BROWSERS if (found := shutil.which(name))]
    if not programs:
        missing(f"none of {', '.join(BROWSERS)} is on PATH: install Debian's package chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=programs[0],
            args=[
                # Root gets no sandbox of Chromium's, and containers have little shared memory.
                *("--no-sandbox", "--disable-dev-shm-usage"),
                f"--host-resolver-rules=MAP {ELSEWHERE} 127.0.0.1",
            ],
        )
        expect.set_options(timeout=PATIENCE_MS)
        yield browser
        await browser.close()


@pytest.fixture(scope="module")
async def profile(browser: Browser, web_ui: DevServer) -> AsyncIterator[BrowserContext]:
    """One approver's browser: what it has loaded of the Web UI stays in its cache."""
    profile = await browser.new_context(base_url=web_ui.ui_url)
    profile.set_default_timeout(PATIENCE_MS)
    yield profile
    await profile.close()


@pytest.fixture
async def page(profile: BrowserContext) -> AsyncIterator[Page]:
    page = await profile.new_page()
    yield page
    await page.close()


@pytest.fixture(scope="package")
def static_files() -> Iterator[StaticFiles]:
    with StaticFiles() as server:
        yield server


@pytest.fixture
async def modules(browser: Browser, static_files: StaticFiles) -> AsyncIterator[Modules]:
    """The page's modules in a browser of their own; no rule of the page may be broken."""
    profile = await browser.new_context()
    profile.set_default_timeout(PATIENCE_MS)
    modules = await Modules.opened(await profile.new_page(), static_files.url())
    yield modules
    await profile.close()
    assert modules.complaints == []
