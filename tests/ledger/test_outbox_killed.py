"""Kill a worker between sending and recording: people are told again, under the id they know."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from surehand.activities.notifiers import Webhook, secret_of, url_of
from surehand.activities.outbox import LEASE
from surehand.process.children import Child, python
from tests.ledger.databases import Database
from tests.ledger.scene import Scene
from tests.ledger.tenant_outbox import tenant_outbox
from tests.notifiers.receiver import Receiver, receiving

ROOT = Path(__file__).parents[2]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving(Receiver()) as one:
        yield one


@pytest.mark.crash
async def test_what_was_sent_and_not_recorded_is_sent_again_with_its_id_and_recorded_once(
    scene: Scene, database: Database, receiver: Receiver, tmp_path: Path
) -> None:
    webhook = Webhook(url_of(receiver.url), secret_of(receiver.secret))
    settings = {"database_url": database.url, "notify": "webhook", **receiver.settings()}
    environment = {f"SUREHAND_{name.upper()}": value for name, value in settings.items()}
    async with tenant_outbox(scene, webhook=webhook) as here:
        here.scene.ask_approval(here.scene.call())
        doomed = Child(
            python("tests.outbox_process", scene.tenant),
            environment={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
            log=tmp_path / "outbox.log",
        )
        # It has sent, and waits for the answer.
        receiver.on_arrival = lambda: doomed.signal(signal.SIGKILL)
        assert await asyncio.to_thread(doomed.wait, 60) == -signal.SIGKILL
        receiver.on_arrival = lambda: None
        [row] = [row for row in here.rows() if row["channel"] == "webhook"]
        assert (row["state"], row["attempts"], len(receiver.got)) == ("pending", 1, 1)

        assert +(await here.outbox.run_once("webhook")) == {}
        here.clock.later = LEASE * 1.1
        assert +(await here.outbox.run_once("webhook")) == {"sent": 1}
        assert +(await here.outbox.run_once("webhook")) == {}

        [row] = [row for row in here.rows() if row["channel"] == "webhook"]
    assert receiver.ids == [row["notification_id"]] * 2
    assert receiver.got[0] == receiver.got[1]
    assert (row["state"], row["attempts"]) == ("sent", 2)
