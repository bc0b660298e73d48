"""``notifications``: an operator sees what people were told, and what they were not."""

from __future__ import annotations

import asyncio
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from surehand.activities.ledger.core.store import open_ledger
from surehand.activities.ledger.outbox.notification import NotDelivered, ReceiverGone
from surehand.workflows.identity import DEFAULT_TENANT
from tests.cli.starter import Verbs
from tests.ledger.scene import RUN, Scene
from tests.ledger.tenant_outbox import RECEIVER, Receiver, tenant_outbox


async def told(url: str) -> None:
    """Leave a sent row, one to be tried again, one given up, and one that is only due."""
    async with open_ledger(url) as ledger:
        scene = Scene.begin(ledger, DEFAULT_TENANT)
        scene.open_run("quiet")
        down = Receiver(refuses=NotDelivered("HTTP 503"))
        gone = Receiver(refuses=ReceiverGone("HTTP 410"))
        async with tenant_outbox(scene, down=down, gone=gone, due=Receiver()) as here:
            here.scene.ask_approval(
                here.scene.call(), expires_in=timedelta(hours=1), remind_every=timedelta(hours=2)
            )
            for channel in (RECEIVER, "down", "gone"):
                await here.outbox.run_once(channel)


@pytest.fixture
def verbs(sqlite_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verbs:
    """The verbs with a ledger, and with nothing else around them."""
    file = tmp_path / "ledger.db"
    shutil.copy(sqlite_template, file)
    url = f"sqlite:///{file}"
    asyncio.run(told(url))
    settings = {"SUREHAND_DATABASE_URL": url, "TEMPORAL_ADDRESS": "127.0.0.1:1"}
    return Verbs(settings, tmp_path, monkeypatch)


def rows(verbs: Verbs, *options: str) -> dict[str, dict[str, Any]]:
    document = verbs("notifications", *options, "--json").document()
    return {row["channel"]: row for row in document["rows"]}


def test_what_is_due_sent_and_failed_is_listed(verbs: Verbs) -> None:
    found = rows(verbs)

    states = {name: (row["state"], row["attempts"], row["error"]) for name, row in found.items()}
    assert states == {
        RECEIVER: ("sent", 1, None),
        "down": ("pending", 1, "HTTP 503"),
        "gone": ("failed", 1, "HTTP 410"),
        "due": ("pending", 0, None),
    }
    assert found["down"]["due_at"] > found["down"]["written_at"]
    assert found["gone"]["due_at"] is None
    assert found[RECEIVER]["subject"] == f"{RUN}/refund/1"
    shown = verbs("notifications").out
    for part in ("approval.requested", "HTTP 503", "sent", "pending"):
        assert part in shown


def test_those_that_failed_are_listed_alone_and_those_of_one_run(verbs: Verbs) -> None:
    assert set(rows(verbs, "--failed")) == {"down", "gone"}
    assert set(rows(verbs, RUN)) == {RECEIVER, "down", "gone", "due"}
    assert len(rows(verbs, "--limit", "2")) == 2
    assert verbs("notifications", "quiet").out.strip() == "No notifications"
    assert verbs("notifications", "nobody").code == 2


def test_doctor_shows_who_tells_people_or_why_nobody_can(verbs: Verbs) -> None:
    mail = {
        "SUREHAND_NOTIFY": "log,smtp",
        "SUREHAND_SMTP_URL": "smtp://robot:geheim@mail.example",
        "SUREHAND_SMTP_FROM": "surehand@example.com",
        "SUREHAND_SMTP_TO": "ops@example.com",
    }

    def notifiers(**settings: str) -> dict[str, Any]:
        checks = verbs("doctor", "--json", **settings).document()["checks"]
        return dict(next(check for check in checks if check["name"] == "notifiers"))

    well, ill = notifiers(**mail), notifiers(SUREHAND_NOTIFY="webhook")
    assert (well["ok"], ill["ok"]) == (True, False)
    assert "smtp (mail.example:587 to ops@example.com)" in well["detail"]
    assert "geheim" not in str(well)
    assert "SUREHAND_WEBHOOK_URL" in ill["detail"]
