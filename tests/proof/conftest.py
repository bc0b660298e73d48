"""A tenant of a ledger of its own, on each database; a stage; and where figures go."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from surehand.activities.ledger.core.store import Ledger
from tests.e2e.conftest import stage as stage
from tests.ledger.scene import Scene
from tests.ledger_databases import DATABASES


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def scene(ledger: Ledger) -> Scene:
    return Scene.begin(ledger, "proof")


@pytest.fixture
def show(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Write a row of figures for the page: ``python -m tests.proof`` says where they go."""

    def write(**row: Any) -> None:
        if folder := os.environ.get("PROOF_FIGURES"):
            name = re.sub(r"\W+", "-", "-".join(str(value) for value in row.values()))
            suite = request.path.stem.removeprefix("test_")
            file = Path(folder) / f"{suite}.{name}.json"
            file.write_text(json.dumps(row))

    return write
