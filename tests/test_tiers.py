"""Each guarantee has proofs in both tiers; in ``make test`` one of them kills a real process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import FOUND, TOO_LATE, UNTIL

#: ``make test`` does not load all tests.
pytestmark = pytest.mark.slow

TESTS = Path(__file__).parent
README = (TESTS.parent / "README.md").read_text(encoding="utf-8")
#: The guarantees that the README gives.
GUARANTEES = re.findall(r"^\| \[(G\d+)\]", README, flags=re.MULTILINE)

Tests = list[pytest.Item]


@pytest.fixture
def found(request: pytest.FixtureRequest) -> Tests:
    if request.config.option.file_or_dir:
        pytest.skip("looks at the marks of all tests: run them without a path")
    found = request.config.stash[FOUND]
    assert {item.path for item in found} == set(TESTS.rglob("test_*.py"))
    return found


def proven(item: pytest.Item) -> set[str]:
    """Return the guarantees that a test is marked as a proof of."""
    return {name for mark in item.iter_markers("guarantee") for name in mark.args}


def test_the_readme_gives_six_guarantees_and_no_mark_names_another(found: Tests) -> None:
    assert GUARANTEES == ["G1", "G2", "G3", "G4", "G5", "G6"]
    assert set().union(*map(proven, found)) == set(GUARANTEES)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_each_guarantee_is_proven_in_both_tiers(found: Tests, guarantee: str) -> None:
    proofs = [item for item in found if guarantee in proven(item)]
    full = [item for item in proofs if item.get_closest_marker("full")]
    fast = [item for item in proofs if item not in full]

    assert full
    assert [item for item in fast if item.get_closest_marker("crash")]


def test_make_test_needs_no_postgresql(found: Tests) -> None:
    fast = [item for item in found if not item.get_closest_marker("full")]

    assert [item.nodeid for item in fast if asks_for_postgresql(item)] == []


def asks_for_postgresql(item: pytest.Item) -> bool:
    """Return whether a test has a parameter or a fixture that is PostgreSQL."""
    if not isinstance(item, pytest.Function):
        return False
    chosen = item.callspec.params.get("database") if hasattr(item, "callspec") else None
    return "postgres_server" in item.fixturenames or chosen == "postgresql"


def test_what_would_begin_too_late_is_not_run_and_ci_is_told_how_much_it_was() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "tests", "tests/unit/test_children.py", "-q", "-n", "0"],
        env={**os.environ, UNTIL: "0"},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
    ).stdout

    assert re.search(rf"^SKIPPED \[\d+\] .*{TOO_LATE}$", told, flags=re.MULTILINE), told
    assert f".*{TOO_LATE}$" in (TESTS.parent / ".ci" / "run").read_text(encoding="utf-8")
    assert "passed" not in told
