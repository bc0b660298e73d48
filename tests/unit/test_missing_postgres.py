"""A PostgreSQL that is not there skips the tests of a laptop, and fails those of CI."""

from __future__ import annotations

import pytest

from tests.ledger.databases import postgres
from tests.postgres_server import PostgresMissing, PostgresServer


@pytest.fixture(autouse=True)
def no_postgres(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> PostgresServer:
        raise PostgresMissing("initdb is nowhere")

    monkeypatch.setattr(PostgresServer, "start", missing)


def test_on_a_laptop_the_suite_skips_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)

    with pytest.raises(pytest.skip.Exception, match="initdb is nowhere"), postgres():
        raise AssertionError("there is no server to use")


def test_in_ci_the_suite_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")

    with pytest.raises(PostgresMissing, match="initdb is nowhere"), postgres():
        raise AssertionError("there is no server to use")
