"""The file of cells: who reads which settings, and what is wrong with it in one line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from surehand.activities.worker.settings import load_settings
from surehand.process.connect import find_target
from surehand.process.settings import (
    CellsError,
    OwnCell,
    SettingsError,
    client_settings,
    read_cells,
    read_environment,
    read_sources,
    routed,
)
from surehand.worker import cell_of

FILE = """\
# Where everybody is.
default: east
cells:
  east: {TEMPORAL_NAMESPACE: east, SUREHAND_DATABASE_URL: "${LEDGER_EAST}"}
  west:
    TEMPORAL_ADDRESS: west.example.com:7233
    TEMPORAL_NAMESPACE: west
    SUREHAND_TASK_QUEUE: queue-west
    SUREHAND_DATABASE_URL: ${LEDGER_WEST}
tenants:
  globex: west  # since November
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cells.yaml"
    path.write_text(FILE)
    return path


@pytest.fixture
def environment(file: Path) -> dict[str, str]:
    return {
        "SUREHAND_CELLS": str(file),
        "SUREHAND_DATABASE_URL": "sqlite:///own.db",
        "TEMPORAL_NAMESPACE": "own",
        "LEDGER_WEST": "postgresql://west/ledger",
    }


@pytest.fixture
def nowhere(tmp_path: Path) -> Path:
    return tmp_path / "no.env"


def test_a_starter_reaches_the_cell_of_its_tenant(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("SUREHAND_", "TEMPORAL_")):
            monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    west, east = read_environment("globex"), read_environment("acme")

    assert find_target(west).address == "west.example.com:7233"
    assert (find_target(west).namespace, find_target(east).namespace) == ("west", "east")
    assert client_settings(west, user="ann").task_queue == "queue-west"
    monkeypatch.setenv("SUREHAND_TENANT", "globex")
    assert find_target(read_environment()).namespace == "west"


def test_a_worker_has_the_settings_of_its_cell(environment: dict[str, str], nowhere: Path) -> None:
    west = load_settings({**environment, "SUREHAND_CELL": "west"}, nowhere)
    east = load_settings({**environment, "SUREHAND_CELL": "east"}, nowhere)

    assert (west.task_queue, west.database_url) == ("queue-west", "postgresql://west/ledger")
    # What the file takes from a variable that is not set, the environment says itself.
    assert (east.task_queue, east.database_url) == ("surehand", "sqlite:///own.db")


def test_a_worker_without_a_cell_does_not_begin(environment: dict[str, str], nowhere: Path) -> None:
    with pytest.raises(SettingsError, match="SUREHAND_CELL is missing"):
        cell_of(load_settings(environment, nowhere))


def test_a_tenant_wins_over_the_cell_of_a_worker_on_the_same_machine(
    environment: dict[str, str], nowhere: Path
) -> None:
    with routed(tenant="globex"):
        found = read_sources({**environment, "SUREHAND_CELL": "east"}, nowhere)
    assert found.environment["TEMPORAL_NAMESPACE"] == "west"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- a", "needs `cells`"),
        ("cells: {a: {}}\nother: 1", "'other'"),
        ("cells: {a b: {}}", "cell 'a b'"),
        ("cells: {a: {SUREHAND_CELLS: x}}", "SUREHAND_CELLS is no setting that a cell can have"),
        ("cells: {a: {PATH: x}}", "PATH is no setting"),
        ("cells: {a: {SUREHAND_METRICS: 1}}", "is no text"),
        ("cells: {a: {}, b: {}}", "cells a and b"),
        (
            "cells: {a: {TEMPORAL_NAMESPACE: a, SUREHAND_DATABASE_URL: x},"
            " b: {TEMPORAL_NAMESPACE: b, SUREHAND_DATABASE_URL: x}}",
            "one ledger",
        ),
        ("cells: {a: {}}\ntenants: {acme: b}", "there is no cell 'b'"),
        ("cells: {a: {}}\ntenants: {'.x': a}", "tenant '.x'"),
        ("cells: {a: {}}\ndefault: b", "default: there is no cell"),
        ("cells: [", "cells.yaml"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(
    file: Path, nowhere: Path, text: str, says: str
) -> None:
    file.write_text(text)
    with pytest.raises(SettingsError) as refused:
        read_sources({"SUREHAND_CELLS": str(file)}, nowhere)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_tenant_of_no_cell_is_named(file: Path) -> None:
    file.write_text(FILE.replace("default: east\n", ""))
    with pytest.raises(CellsError, match="tenant acme is of no cell"):
        read_cells(file).cell_of("acme")


def test_a_worker_hears_of_a_change_and_keeps_to_the_last_good_file(file: Path) -> None:
    own = OwnCell(file, "west")
    assert own.problem("globex") is None
    assert own.problem("acme") == "tenant acme is of cell east, and this worker of cell west"

    rewrite(file, FILE.replace("globex: west", "globex: east"))
    assert own.problem("globex") is not None
    rewrite(file, "cells: [")
    assert own.problem("globex") is not None
    file.unlink()
    assert own.problem("acme") is not None


def rewrite(file: Path, text: str) -> None:
    """As people's editors and ConfigMaps do: a new file in the place of the old one."""
    made = file.with_suffix(".new")
    made.write_text(text)
    made.replace(file)


def test_the_settings_show_where_a_cell_s_value_comes_from(
    environment: dict[str, str], nowhere: Path
) -> None:
    with routed(tenant="globex"):
        given: Any = read_sources(environment, nowhere).settings["task_queue"]
    assert (given.value, given.origin) == ("queue-west", environment["SUREHAND_CELLS"])
