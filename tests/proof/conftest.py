"""A tenant of a ledger of its own, on each database."""

from __future__ import annotations

import pytest

from surehand.activities.ledger.core.store import Ledger
from tests.ledger.scene import Scene
from tests.ledger_databases import DATABASES


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def scene(ledger: Ledger) -> Scene:
    return Scene.begin(ledger, "proof")
