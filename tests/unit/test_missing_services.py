"""A service that is not there skips the tests of a laptop, and fails those of CI."""

from __future__ import annotations

import pytest

from tests.conftest import missing


def test_on_a_laptop_the_test_is_skipped_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)

    with pytest.raises(pytest.skip.Exception, match="initdb is nowhere"):
        missing("initdb is nowhere")


def test_in_ci_the_test_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")

    with pytest.raises(pytest.fail.Exception, match="initdb is nowhere"):
        missing("initdb is nowhere")
