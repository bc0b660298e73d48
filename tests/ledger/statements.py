"""A plugin of pytest: keeps each statement that a ledger gets, once, with values it came with."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import pytest
from sqlalchemy import Engine, event

#: Names the file that they are written to when the tests are over.
FILE: Final = "TESTS_STATEMENTS"
#: Names the database whose tests are run.
DATABASE: Final = "TESTS_STATEMENTS_DATABASE"
#: Whose cases send statements that the first one does not.
EVERY_CASE: Final = ("test_claims", "test_late_calls", "test_run_tree")
_ROOT: Final = Path(__file__).resolve().parent.parent.parent
_HERE: Final = Path(__file__).resolve().relative_to(_ROOT)
#: What passes on the statements of others.
_PASSING: Final = (_ROOT / "activities" / "ledger" / "core",)


class Sent(NamedTuple):
    """How a statement was sent."""

    values: Any
    by: str
    """The file."""


#: By the statement.
Statements = dict[str, Sent]

_found: Final[Statements] = {}


def pytest_configure() -> None:
    """Listen in this process, and in none that only reads what was written."""
    event.listen(Engine, "before_cursor_execute", _keep)


def _keep(conn: Any, cursor: Any, sql: str, values: Any, context: Any, many: bool) -> None:
    explained = sql.split(maxsplit=1)[0] in ("SELECT", "UPDATE", "DELETE", "WITH") and not many
    ours = conn.dialect.name == os.environ[DATABASE]
    if explained and ours and sql not in _found:
        sender = _sender()
        if not sender.startswith("tests/"):
            _found[sql] = Sent(_kept(values), sender)


def _sender() -> str:
    """Return the file that sends a statement now, from the folder of the project on."""
    frame: FrameType | None = sys._getframe()
    while frame := frame and frame.f_back:
        if name := _sending(frame.f_code.co_filename):
            return name
    return ""


@cache
def _sending(filename: str) -> str:
    """Return the name of a file of code if it may be a sender."""
    file = Path(filename).resolve()
    if file.is_relative_to(_ROOT) and file.parent not in _PASSING and file.suffix == ".py":
        name = file.relative_to(_ROOT)
        if name.parts[0] in ("activities", "cli", "tests") and name != _HERE:
            return name.as_posix()
    return ""


def _kept(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _kept(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_kept, value))
    return bytes(value) if isinstance(value, memoryview) else value


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what is run on another database, and most cases: they send the same statements."""
    others = {"sqlite", "postgresql"} - {os.environ[DATABASE]}
    kept: dict[str, pytest.Item] = {}
    for item in items:
        if others.isdisjoint(_parameters(item)):
            every_case = item.path.stem in EVERY_CASE
            kept.setdefault(item.nodeid if every_case else item.nodeid.partition("[")[0], item)
    items[:] = kept.values()


def _parameters(item: pytest.Item) -> list[str]:
    called = getattr(item, "callspec", None)
    return [] if called is None else [one for one in called.params.values() if isinstance(one, str)]


def pytest_sessionfinish() -> None:
    """Write them."""
    Path(os.environ[FILE]).write_bytes(pickle.dumps(_found))


def read(file: Path) -> Statements:
    found: Statements = pickle.loads(file.read_bytes())
    return found
