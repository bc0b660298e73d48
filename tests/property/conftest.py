"""What all properties have in common."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

from tests.e2e.conftest import stage
from tests.property.search import TIMEOUT_S

__all__ = ["quiet", "stage"]


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
