"""What a drill runs against in the tests: the shared server and shop, and workers of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from surehand.process.dev_server import DevServer
from tests.cli.starter import ROOT, Starter
from tests.shop_process import ShopProcess

#: The user's side of a drill of the shop.
OWN = (
    "--world",
    "surehand.examples.shop.drill:world",
    "--fresh",
    "surehand.examples.shop.drill:fresh",
)


@pytest.fixture
def settings(temporal_server: DevServer, shop: ShopProcess) -> dict[str, str]:
    return {
        "TEMPORAL_ADDRESS": temporal_server.address,
        "SUREHAND_TOOL_MODULES": "surehand.examples.shop.tools",
        "SHOP_URL": shop.url,
        "PYTHONPATH": str(ROOT),
    }


@pytest.fixture
def starter(settings: dict[str, str], tmp_path: Path) -> Starter:
    """``python starter.py`` on the tests' own server, with the shop's tools."""
    return Starter({**settings, "TMPDIR": str(tmp_path)}, tmp_path)
