"""What all properties have in common."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import structlog
from sqlalchemy import Engine, event

from surehand.activities.effects import leases, recorder, write
from surehand.activities.ledger.core.engine import make_engine
from tests.e2e.conftest import stage
from tests.property.attempts import Clock, take_the_tests_clock
from tests.property.search import TIMEOUT_S

__all__ = ["quiet", "stage"]


class Place(NamedTuple):
    """Where a machine works on a real ledger, by the test's clock."""

    loop: asyncio.AbstractEventLoop
    engine: Engine
    clock: Clock


@pytest.fixture
def place(ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    clock, engine = Clock(), make_engine(ledger_url)
    for module in (write, leases):
        monkeypatch.setattr(module, "clock", clock)
    # Limits are looked at when the test says, and not a second later by another clock.
    monkeypatch.setattr(leases, "_LOOK_EVERY", 3600.0)
    for module in (write, recorder):
        monkeypatch.setattr(module, "DATABASE_PAUSE", 0)
    if ledger_url.startswith("sqlite"):
        event.listen(engine, "connect", _no_fsync)
    else:
        take_the_tests_clock(ledger_url)
    with asyncio.Runner() as runner:
        yield Place(runner.get_loop(), engine, clock)
    engine.dispose()


def _no_fsync(connection: Any, _record: Any) -> None:
    # An example has a hundred transactions, and no power is cut here.
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous=OFF")
    cursor.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the properties, which look for the smallest failing example, time to do so."""
    for item in items:
        if item.path.parent.name == "property":
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Keep thousands of events out of what a failure shows: its example says it all."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    temporal = logging.getLogger("temporalio")
    temporal.setLevel(logging.CRITICAL)
    yield
    temporal.setLevel(logging.NOTSET)
    structlog.reset_defaults()
