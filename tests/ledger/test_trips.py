"""How often a claim and an outcome wait for PostgreSQL: what nobody reads goes with the next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.effects import claims, outcomes
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.entries import Claimed
from tests.ledger.scene import Scene


@contextmanager
def counted_trips(ledger: Ledger, trace: Path) -> Iterator[list[int]]:
    """Yield a list that has, at the end, how often the server has said that it is ready again."""
    found = list[int]()

    def begin(connection: Any, *_: Any) -> None:
        connection.pgconn.trace(file.fileno())

    def end(connection: Any, *_: Any) -> None:
        connection.pgconn.untrace()

    with trace.open("w") as file:
        event.listen(ledger.engine, "checkout", begin)
        event.listen(ledger.engine, "checkin", end)
        try:
            yield found
        finally:
            event.remove(ledger.engine, "checkout", begin)
            event.remove(ledger.engine, "checkin", end)
    found.append(trace.read_text().count("ReadyForQuery"))


@pytest.mark.postgres
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_claim_and_an_outcome_take_four_trips_each(scene: Scene, tmp_path: Path) -> None:
    call = scene.call()
    with counted_trips(scene.ledger, tmp_path / "claim") as claiming, scene.tx() as tx:
        claimed = claims.claim(tx, call)
    assert isinstance(claimed, Claimed)
    with counted_trips(scene.ledger, tmp_path / "outcome") as recording, scene.tx() as tx:
        assert outcomes.commit(tx, call, claimed.entry, Kept({"paid": True})) is not None

    assert (claiming, recording) == ([4], [4])


@pytest.mark.postgres
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_an_unread_statement_takes_one_trip(scene: Scene, tmp_path: Path) -> None:
    with counted_trips(scene.ledger, tmp_path / "trace") as trips, scene.tx() as tx:
        tx.tick()

    assert trips == [3]  # with the transaction's begin and its end
