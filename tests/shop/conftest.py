"""One shop for the tests in this directory; each test makes orders of its own."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.shop_process import ShopProcess


@pytest.fixture(scope="module")
def running_shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShopProcess]:
    with ShopProcess(tmp_path_factory.mktemp("shop") / "shop.sqlite") as shop:
        yield shop


@pytest.fixture
def shop(running_shop: ShopProcess) -> Iterator[ShopProcess]:
    yield running_shop
    running_shop.clear_faults()


@pytest.fixture
def http(shop: ShopProcess) -> Iterator[httpx.Client]:
    """A client of the shop's own endpoints, as a tool would be."""
    with httpx.Client(base_url=shop.url, timeout=20, trust_env=False) as client:
        yield client
