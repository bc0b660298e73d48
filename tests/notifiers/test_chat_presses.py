"""Presses of buttons, as the approvers' pages take them: for which request, and what is told."""

from __future__ import annotations

import asyncio
import json
import time
from base64 import urlsafe_b64decode
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from joserfc.jwk import RSAKey
from starlette.applications import Starlette

from surehand.activities.worker.settings import Settings
from surehand.cli.approvals_server import chat, oidc
from surehand.cli.approvals_server.sign_in import Subjects
from surehand.client.messages import new_key
from surehand.process.exits import NotReachable, NoWorker, Unanswered
from surehand.workflows.contracts.approvals import Verdict, VerdictCode
from tests.notifiers import teams
from tests.notifiers.slack import SECRET, TEAM, Workspace, signed, workspace

OURS: Final = "acme/run-1/refund/1"


@pytest.fixture
def slack() -> Iterator[Workspace]:
    with workspace("C1") as there:
        yield there


@dataclass
class Pages:
    """The pages of tenant ``acme``, and what they have handed on."""

    slack: Workspace
    votes: chat.ChatVotes
    client: httpx.AsyncClient = field(default_factory=httpx.AsyncClient)
    raises: Exception | None = None
    takes: float = 0
    """Seconds until a run has judged."""
    forwarded: list[str] = field(default_factory=list)
    nonces: list[str] = field(default_factory=list)

    async def forward(self, run_id: str, decision: Mapping[str, Any]) -> Verdict:
        await asyncio.sleep(self.takes)
        self.forwarded.append(decision["approval_id"])
        signed_part = decision["signature"].split(".")[1]
        self.nonces.append(json.loads(urlsafe_b64decode(f"{signed_part}=="))["jti"])
        if self.raises is not None:
            raise self.raises
        told = {"decision_id": "d-1", "approval_id": OURS, "message": "approved by ann"}
        return Verdict(code=VerdictCode.ACCEPTED, **told)

    async def press(self, action: str = "approve", approval_id: str = OURS) -> None:
        button = {"action_id": action, "value": f'["{approval_id}", "sha256:x"]'}
        body = self.slack.press({"blocks": [{"elements": [button]}]}, action, "U1")
        answer = await self.client.post("/chat/slack", content=body, headers=signed(body))
        assert answer.status_code == 200


@pytest.fixture
async def pages(slack: Workspace, tmp_path: Path) -> AsyncIterator[Pages]:
    async def registered(name: str) -> bool:
        return True

    people = tmp_path / "chat.yaml"
    accounts = {f"slack:{TEAM}": {"U1": "ann"}, f"teams:{teams.DIRECTORY}": {"ann-in-entra": "ann"}}
    people.write_text(yaml.safe_dump({"acme": accounts}))
    votes = chat.ChatVotes(
        {
            "slack": chat.SlackPresses(SECRET),
            "teams": chat.TeamsPresses(oidc.BotFramework(teams.APP_ID)),
        },
        key=Ed25519PrivateKey.generate(),
        subjects=Subjects(people, "acme"),
        tenant="acme",
        registered=registered,
    )
    there = Pages(slack, votes)
    transport = httpx.ASGITransport(app=Starlette(routes=votes.routes(there.forward)))
    async with httpx.AsyncClient(transport=transport, base_url="http://pages") as there.client:
        yield there


async def test_a_press_counts_for_no_request_of_the_same_name(pages: Pages) -> None:
    await pages.press(approval_id="run-1/refund/1")
    assert pages.slack.told == ["It does not count: that message is another tenant's"]
    assert pages.forwarded == []
    await pages.press()
    assert pages.slack.told[1:] == ["approved by ann"]
    assert pages.forwarded == [OURS]


@pytest.mark.parametrize(
    ("raises", "says"),
    [
        (Unanswered("run-1: it counts later"), "Sent, and not judged yet: run-1: it counts later"),
        (NotReachable("the server is away"), "Nobody knows whether it counts: look at the request"),
        (ValueError("a fault"), "Nobody knows whether it counts: look at the request"),
        (NoWorker("run-1: nothing was sent"), "It does not count: run-1: nothing was sent"),
    ],
    ids=["sent", "away", "fault", "no worker"],
)
async def test_what_is_not_known_is_not_told_as_refused(
    pages: Pages, raises: Exception, says: str
) -> None:
    pages.raises = raises
    await pages.press()
    [told] = pages.slack.told
    assert told.startswith(says)


async def test_presses_are_kept_for_as_long_as_they_could_come_again(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pages.press("open")
    assert pages.votes.taken == {}
    now = time.time()
    for later, kept in ((0, 1), (599, 2), (1200, 1)):
        monkeypatch.setattr(time, "time", lambda at=now + later: at)
        await pages.press()
        assert len(pages.votes.taken) == kept


@pytest.fixture
def microsoft(monkeypatch: pytest.MonkeyPatch) -> Iterator[teams.Connector]:
    with teams.connector() as there:
        monkeypatch.setattr(oidc, "BOT_FRAMEWORK", there.metadata_url)
        yield there


def in_teams(approval_id: str = OURS, by: str = "ann-in-entra", **changes: Any) -> bytes:
    action = {
        "type": "Action.Execute",
        "verb": "approve",
        "data": {"vote": [approval_id, "sha256:x"]},
    }
    return json.dumps(teams.press(action, by, **changes)).encode()


@pytest.mark.parametrize(
    ("headers", "changes"),
    [
        (lambda: {}, {}),
        (lambda: teams.signed(by=RSAKey.generate_key(2048, {"kid": "for-msteams"})), {}),
        (lambda: teams.signed(iss="https://sts.windows.net/somebody/"), {}),
        (lambda: teams.signed(aud="another-app"), {}),
        (lambda: teams.signed(exp=int(time.time()) - 301), {}),
        (lambda: teams.signed(exp=None), {}),
        (lambda: teams.signed(serviceurl="https://evil.example/"), {}),
        (teams.signed, {"serviceUrl": "https://evil.example/"}),
        (lambda: teams.signed(serviceurl=None), {"serviceUrl": None}),
        # There people say who they are as they like.
        (lambda: teams.signed(by=teams.key("webchat")), {"channelId": "webchat"}),
        (lambda: teams.signed(by=teams.key("webchat")), {}),
        (teams.signed, {"channelId": "webchat"}),
    ],
    ids=[
        *("unsigned", "forged", "issuer", "audience", "expired", "no end", "token's service"),
        *("activity's service", "no service", "webchat", "webchat's key", "webchat's activity"),
    ],
)
async def test_what_the_bot_framework_has_not_signed_for_teams_is_no_press(
    pages: Pages,
    microsoft: teams.Connector,
    headers: Callable[[], dict[str, str]],
    changes: dict[str, Any],
) -> None:
    body = in_teams(**changes)
    answer = await pages.client.post("/chat/teams", content=body, headers=headers())
    assert (answer.status_code, pages.forwarded) == (401, [])


async def test_a_press_in_teams_counts_once_and_only_whoever_presses_is_told(
    pages: Pages, microsoft: teams.Connector, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def send(body: bytes) -> str:
        answer = await pages.client.post("/chat/teams", content=body, headers=teams.signed())
        assert answer.status_code == 200
        assert answer.json()["type"] == "application/vnd.microsoft.activity.message"
        return str(answer.json()["value"])

    elsewhere = in_teams(channelData={"tenant": {"id": "another-directory"}})
    for body in (in_teams(by="bob-in-entra"), elsewhere):
        assert "is nobody who may decide here" in await send(body)
    assert "another tenant's" in await send(in_teams("run-1/refund/1"))
    assert pages.forwarded == []

    body = in_teams()
    assert await send(body) == "approved by ann"
    again = await pages.client.post("/chat/teams", content=body, headers=teams.signed())
    assert (again.status_code, pages.forwarded) == (401, [OURS])
    pages.votes.taken.clear()  # as a restart does: the ledger knows the nonce
    await send(body)
    assert pages.forwarded.pop() == OURS and len(set(pages.nonces)) == 1

    added = json.dumps(teams.press({}, "ann-in-entra", type="conversationUpdate")).encode()
    # A card that refreshes itself wherever somebody looks at it.
    looked_at = in_teams(value={**json.loads(body)["value"], "trigger": "automatic"})
    for other in (added, looked_at):
        told = await pages.client.post("/chat/teams", content=other, headers=teams.signed())
        assert (told.status_code, told.content, pages.forwarded) == (200, b"", [OURS])

    pages.takes = 0.2
    monkeypatch.setattr(chat, "_TEAMS_WAITS", 0)
    assert (await send(in_teams())).startswith("Not judged yet")
    assert pages.forwarded == [OURS, OURS]
    assert microsoft.calls == ["keys"]  # strangers cannot have us ask for more


@pytest.mark.parametrize(
    ("says", "why"),
    [(b'{"jwks_uri":', "TimeoutError"), (b'{"jwks_uri": "http://keys.example"}', "no jwks_uri")],
    ids=["never whole", "without TLS"],
)
async def test_keys_come_in_time_and_over_tls(
    monkeypatch: pytest.MonkeyPatch, says: bytes, why: str
) -> None:
    class Microsoft(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            async def told() -> AsyncIterator[bytes]:
                yield says
                if not says.endswith(b"}"):
                    await asyncio.Event().wait()

            return httpx.Response(200, content=told())

    monkeypatch.setattr(oidc, "_PATIENCE_S", 0.05)
    signer = oidc.BotFramework(teams.APP_ID)
    signer._transport = Microsoft()
    with pytest.raises(oidc.ProviderAway, match=why):
        await signer.metadata()


async def test_a_chat_that_is_not_set_takes_no_press_and_none_takes_a_large_one(
    pages: Pages, tmp_path: Path
) -> None:
    large = b"x" * (256 * 1024 + 1)
    assert (await pages.client.post("/chat/slack", content=large)).status_code == 413
    new_key(key := tmp_path / "chat.pem")
    given = {"chat_key": str(key), "chat_principals": str(tmp_path / "chat.yaml")}
    settings = Settings(**{"database_url": "sqlite:///x", "teams_app_id": teams.APP_ID, **given})
    votes = chat.chat_of(settings, "acme", pages.votes.registered)
    transport = httpx.ASGITransport(app=Starlette(routes=votes.routes(pages.forward)))
    async with httpx.AsyncClient(transport=transport, base_url="http://pages") as client:
        for name, code in {"slack": 404, "teams": 401}.items():
            headers = signed(b"payload=", secret="")
            answer = await client.post(f"/chat/{name}", content=b"payload=", headers=headers)
            assert answer.status_code == code
