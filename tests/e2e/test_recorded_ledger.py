"""A ledger that ``python -m tests.record_histories ledger`` has kept is read, and goes on."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import select

from surehand.activities.ledger.core.migrate import migrate
from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.core.tables import effects, runs
from surehand.activities.ledger.history.audit import chain_of, verify_run
from surehand.activities.ledger.history.run_display import read_run_view
from surehand.workflows.contracts.base import RunState
from surehand.workflows.identity import DEFAULT_TENANT
from tests.e2e.runs import refund_plan
from tests.e2e.stage import Stage
from tests.record_histories import LEDGER, SCENES_OF_LEDGER


@pytest.fixture
def ledger_url(tmp_path: Path) -> str:
    file = tmp_path / "ledger.db"
    with closing(sqlite3.connect(file)) as rows:
        rows.executescript(LEDGER.read_text("utf-8"))
    url = f"sqlite:///{file}"
    migrate(url)
    return url


def schema_of(url: str) -> set[tuple[str, str, tuple[str, ...]]]:
    """Return what a ledger is made of; the order of columns and rules may differ."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as rows:
        made = rows.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL")
        return {
            (type_, name, tuple(sorted(line.strip(" \t,") for line in sql.splitlines())))
            for type_, name, sql in made
        }


def test_migrated_a_recorded_ledger_is_made_as_a_new_one(ledger_url: str, tmp_path: Path) -> None:
    new = f"sqlite:///{tmp_path / 'new.db'}"
    migrate(new)

    assert schema_of(ledger_url) == schema_of(new)


async def test_each_run_of_a_recorded_ledger_is_whole_and_shown(ledger: Ledger) -> None:
    with ledger.transaction(DEFAULT_TENANT) as tx:
        recorded = tx.all(select(runs.c.run_id, runs.c.state).where(runs.c.tenant_id == tx.tenant))
        assert len(recorded) == len(SCENES_OF_LEDGER)
        for row in recorded:
            events, entries, head = chain_of(tx, row["run_id"])
            assert verify_run(events, entries, [head]) is None
            assert read_run_view(tx, row["run_id"]).result.state == row["state"]


async def test_what_a_recorded_ledger_has_paid_is_not_paid_again(stage: Stage) -> None:
    paid = {"tool": "payments.refund", "state": "committed"}
    with stage.ledger.transaction(DEFAULT_TENANT) as tx:
        mine = [effects.c[name] == value for name, value in paid.items()]
        found = tx.all(select(effects.c.params).where(effects.c.tenant_id == tx.tenant, *mine))
    orders = [row["params"]["order_id"] for row in found]
    assert orders

    async with stage.worker_here():
        for order in orders:
            run = await stage.start(refund_plan(stage.shop.new_order(order_id=order)))
            assert (await run.result()).state is RunState.COMPLETED
            assert stage.shop.counts(order)["refunds"] == 0
