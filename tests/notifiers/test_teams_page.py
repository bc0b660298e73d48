"""The notifier for Teams that a page shows, against a receiver that takes what a workflow takes.

Written from https://learn.microsoft.com/microsoftteams/platform/webhooks-and-connectors/how-to/
connectors-using: it takes a message with one adaptive card, and answers 202.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from surehand.activities.ledger.outbox.notification import NotDelivered, Notifier
from tests.docs.pages import DOCS, blocks
from tests.notifiers.samples import approval

CHANNELS = {"default": {"finance": "https://a.example/1", "*": "https://a.example/2"}}


@pytest.fixture
def teams(monkeypatch: pytest.MonkeyPatch) -> Notifier:
    monkeypatch.setenv("TEAMS_CHANNELS", json.dumps(CHANNELS))
    shown = blocks(DOCS / "howto" / "approve-in-chat.md")
    [text] = [block.text for block in shown if block.title == "teams.py"]
    module: dict[str, Any] = {}
    exec(text, module)
    notifier: Notifier = module["notifier"]
    return notifier


async def test_a_request_is_posted_to_its_roles_channel_and_nowhere_else(
    teams: Notifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[tuple[str, Any]] = []
    answers = [202, 202, 429]

    def take(request: httpx.Request) -> httpx.Response:
        got.append((str(request.url), json.loads(request.content)))
        return httpx.Response(answers.pop(0))

    transport, client = httpx.MockTransport(take), httpx.AsyncClient
    monkeypatch.setattr(httpx, "AsyncClient", lambda **kw: client(transport=transport, **kw))
    asked = approval(roles=("finance",), page="https://approvals.example.com/approval?id=1")

    await teams.send(asked)
    await teams.send(approval(roles=("legal",)))
    with pytest.raises(NotDelivered, match="429"):
        await teams.send(asked)
    with pytest.raises(NotDelivered, match="no channel"):
        await teams.send(approval(tenant="acme", roles=("finance",)))

    assert [url for url, _ in got] == [
        *("https://a.example/1", "https://a.example/2", "https://a.example/1")
    ]
    [sent] = got[0][1]["attachments"]
    assert sent["contentType"] == "application/vnd.microsoft.card.adaptive"
    assert sent["content"]["body"][0]["inlines"][0]["text"] == asked.text
    assert [action["url"] for action in sent["content"]["actions"]] == [asked.page]
    assert "actions" not in got[1][1]["attachments"][0]["content"]
