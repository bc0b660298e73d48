"""Presses of buttons, as the approvers' pages take them: for which request, and what is told."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from starlette.applications import Starlette

from surehand.cli.approvals_server.chat import SLACK, ChatVotes
from surehand.cli.approvals_server.sign_in import Subjects
from surehand.process.exits import NotReachable, NoWorker, Unanswered
from surehand.workflows.contracts.approvals import Verdict, VerdictCode
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
    votes: ChatVotes
    client: httpx.AsyncClient = field(default_factory=httpx.AsyncClient)
    raises: Exception | None = None
    forwarded: list[str] = field(default_factory=list)

    async def forward(self, run_id: str, decision: Mapping[str, Any]) -> Verdict:
        self.forwarded.append(decision["approval_id"])
        if self.raises is not None:
            raise self.raises
        told = {"decision_id": "d-1", "approval_id": OURS, "message": "approved by ann"}
        return Verdict(code=VerdictCode.ACCEPTED, **told)

    async def press(self, action: str = "approve", approval_id: str = OURS) -> None:
        button = {"action_id": action, "value": f'["{approval_id}", "sha256:x"]'}
        body = self.slack.press({"blocks": [{"elements": [button]}]}, action, "U1")
        answer = await self.client.post(SLACK, content=body, headers=signed(body))
        assert answer.status_code == 200


@pytest.fixture
async def pages(slack: Workspace, tmp_path: Path) -> AsyncIterator[Pages]:
    async def registered(name: str) -> bool:
        return True

    people = tmp_path / "chat.yaml"
    people.write_text(yaml.safe_dump({"acme": {f"slack:{TEAM}": {"U1": "ann"}}}))
    votes = ChatVotes(
        secret=SECRET,
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
    await pages.press()
    now = time.time()
    for later, kept in ((599, 2), (1200, 1)):
        monkeypatch.setattr(time, "time", lambda at=now + later: at)
        await pages.press()
        assert len(pages.votes.taken) == kept
