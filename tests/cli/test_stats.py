"""``stats``: figures for people and for scripts, and an exit code for who watches them."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from pathlib import Path

import pytest

from surehand.activities.ledger.core.store import open_ledger
from surehand.activities.ledger.history.stats import Stats
from surehand.workflows.identity import DEFAULT_TENANT
from tests.cli.starter import Verbs
from tests.ledger.scene import RUN, Scene


@pytest.fixture
def file(sqlite_template: Path, tmp_path: Path) -> Path:
    """A ledger with one run that has one effect."""
    copied = Path(shutil.copy(sqlite_template, tmp_path / "ledger.db"))

    async def fill() -> None:
        async with open_ledger(f"sqlite:///{copied}") as ledger:
            scene = Scene.begin(ledger, DEFAULT_TENANT)
            scene.committed(scene.call())

    asyncio.run(fill())
    return copied


@pytest.fixture
def verbs(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verbs:
    """The verbs with a ledger, and neither server nor worker."""
    return Verbs({"SUREHAND_DATABASE_URL": f"sqlite:///{file}"}, tmp_path, monkeypatch)


def test_figures_need_neither_server_nor_endpoint(verbs: Verbs) -> None:
    told = verbs("stats", "--run", RUN, "--probe", "3", "--json")
    found = Stats.model_validate(told.document())

    assert told.code == 0
    assert (found.run_id, found.leases.claims, found.invariants.ok) == (RUN, 1, 1)
    assert found.checkpoint is not None and found.checkpoint.transactions == 3
    said = verbs("stats")
    assert said.code == 0
    for part in ("leases kept", "100.0%", "invariants hold", "1 of 1", "--probe N measures"):
        assert part in said.out
    assert "surehand_lease_wait_seconds" in said.out


def test_a_broken_chain_is_said_and_exits_with_3(verbs: Verbs, file: Path) -> None:
    connection = sqlite3.connect(file)
    with connection:
        connection.execute("DROP TRIGGER events_no_update")
        connection.execute("UPDATE events SET body = '{}' WHERE type = 'effect.committed'")
    connection.close()

    ended = verbs("stats")

    assert ended.code == 3
    assert f"BROKEN {RUN}: event 3" in ended.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["--since", "soon"], "not a duration"), (["--run", "nobody"], "run not found: nobody")],
)
def test_wrong_use_is_said_in_one_line(verbs: Verbs, arguments: list[str], says: str) -> None:
    ended = verbs("stats", *arguments)

    assert ended.code == 2
    assert says in ended.line()
