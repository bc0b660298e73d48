"""One certified provider for all tests here; pages of its own for each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from surehand.activities.ledger.core.store import Ledger
from tests.oidc.provider_process import RealProvider, running
from tests.oidc.site import BACK, ORIGIN, TLS_ORIGIN, Browser, OidcSite, serving


@pytest.fixture(scope="session")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealProvider]:
    back = [f"{origin}{BACK}" for origin in (ORIGIN, TLS_ORIGIN)]
    with running(back, tmp_path_factory.mktemp("provider")) as provider:
        yield provider


@pytest.fixture
async def site(ledger: Ledger, provider: RealProvider, tmp_path: Path) -> AsyncIterator[OidcSite]:
    async with serving(ledger, provider, tmp_path) as site:
        yield site


@pytest.fixture
async def ann(site: OidcSite) -> Browser:
    return await site.browser()


@pytest.fixture
async def eve(site: OidcSite) -> Browser:
    return await site.browser()
