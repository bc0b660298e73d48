"""Kill a worker between sending and recording: people are told again, under the id they know."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from surehand.activities.notifiers import Webhook, secret_of, url_of
from surehand.activities.outbox import LEASE
from tests.ledger.databases import Database
from tests.ledger.scene import Scene
from tests.ledger.tenant_outbox import kill_outbox_on_arrival, tenant_outbox
from tests.notifiers.receiver import Receiver, receiving


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
    async with tenant_outbox(scene, webhook=webhook) as here:
        here.scene.ask_approval(here.scene.call())
        await kill_outbox_on_arrival(receiver, scene.tenant, settings, tmp_path / "outbox.log")
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
