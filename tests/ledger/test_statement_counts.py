"""How many statements a refund's activities send to the ledger: the figures may only fall."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import Engine, event
from temporalio import activity
from temporalio.client import Client

from surehand.activities.ledger.core.store import Ledger, open_ledger
from tests.e2e.runs import refund_plan
from tests.e2e.stage import Stage
from tests.ledger_databases import DATABASES
from tests.shop_process import ShopProcess

#: By database and activity: statements of all its calls together, with BEGIN and COMMIT. On
#: PostgreSQL each of the two reads locks halts out by one more, in the same trip as the next.
MOST: Final[dict[str, dict[str, int]]] = {
    "sqlite": {
        "open_run": 8,
        "request_approval": 14,
        "verify_decision": 11,
        "execute_tools": 62,
        "close_run": 7,
    },
    "postgresql": {
        "open_run": 8,
        "request_approval": 16,
        "verify_decision": 12,
        "execute_tools": 68,
        "close_run": 8,
    },
}


@pytest.fixture
def database(request: pytest.FixtureRequest) -> str:
    """Its name: each test has a ledger of its own, which nobody else writes to."""
    return str(request.param)


@pytest.fixture
async def ledger(ledger_url: str) -> AsyncIterator[Ledger]:
    async with open_ledger(ledger_url) as opened:
        yield opened


@pytest.mark.parametrize("database", DATABASES, indirect=True)
async def test_a_refund_sends_no_more_statements_than_it_has_to(
    database: str,
    client: Client,
    shop: ShopProcess,
    ledger: Ledger,
    ledger_url: str,
    task_queue: str,
    tmp_path: Path,
) -> None:
    stage = Stage(client, shop, ledger, ledger_url, task_queue, tmp_path)
    # On a busy machine, too, no lease is renewed meanwhile.
    async with stage.worker_here(lease="10m"):
        with counting(ledger.engine) as sent:
            run = await stage.start(refund_plan(shop.new_order()))
            await run.approve()
            await run.completed()

    assert sent.keys() == MOST[database].keys()
    more = {name: count for name, count in sent.items() if count > MOST[database][name]}
    assert not more, (dict(sent), more)


@contextmanager
def counting(engine: Engine) -> Iterator[Counter[str]]:
    """Count by activity what an engine sends, BEGIN and COMMIT with it."""
    sent, one_at_a_time = Counter[str](), threading.Lock()

    def note(_connection: Any, _cursor: Any = None, sql: str = "", *_: Any) -> None:
        # It is told of once more when SQLAlchemy does it.
        if activity.in_activity() and sql != "COMMIT":
            with one_at_a_time:
                sent[activity.info().activity_type] += 1

    heard = ("before_cursor_execute", "commit")
    for name in heard:
        event.listen(engine, name, note)
    try:
        yield sent
    finally:
        for name in heard:
            event.remove(engine, name, note)
