"""Whoever observes the ledger is told what has been committed, and of nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from structlog.testing import capture_logs

from surehand.activities.ledger.core.store import LedgerUnavailable, open_ledger
from tests.ledger.databases import Database
from tests.ledger.scene import RUN, Scene


@dataclass
class Heard:
    transactions: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)

    def transaction(self, outcome: str, seconds: float) -> None:
        assert seconds > 0
        self.transactions.append(outcome)

    def event(self, type_: str, body: Mapping[str, Any]) -> None:
        self.events.append(type_)


async def test_an_observer_hears_of_each_transaction_and_of_committed_events_only(
    database: Database, scene: Scene
) -> None:
    heard = Heard()
    async with open_ledger(database.url, heard) as ledger:
        with ledger.transaction(scene.tenant) as tx:
            tx.event(RUN, "test.kept")
        with pytest.raises(ZeroDivisionError), ledger.transaction(scene.tenant) as tx:
            tx.event(RUN, "test.lost")
            raise ZeroDivisionError
        with pytest.raises(LedgerUnavailable), ledger.transaction(scene.tenant):
            raise ConnectionError("cut off")

    assert heard.transactions == ["committed", "rolled_back", "unavailable"]
    assert heard.events == ["test.kept"]


def test_an_events_line_in_the_log_says_where_it_stands_in_its_runs_chain(scene: Scene) -> None:
    with capture_logs() as lines, scene.tx() as tx:
        tx.event(RUN, "test.first")
        tx.event(RUN, "test.second")

    told = [(line["event"], line["run_id"], line["seq"]) for line in lines]
    rows = [(row["type"], RUN, row["seq"]) for row in scene.events()]
    assert told == rows[-2:]
