"""Requests in a chat: in the right channel, once, and with what became of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from surehand.activities.ledger.core.statements import rows_of, update_rows
from surehand.activities.ledger.core.tables import notifications
from surehand.activities.ledger.outbox.notification_rows import take_due
from surehand.activities.notifiers import load_notifiers
from surehand.activities.outbox import LEASE, POLL
from surehand.activities.worker.settings import Settings
from surehand.workflows.plan.policy import Requirement
from tests.ledger.databases import Database
from tests.ledger.scene import WINDOW, Scene
from tests.ledger.tenant_outbox import TenantOutbox, kill_outbox_on_arrival, tenant_outbox
from tests.notifiers import teams
from tests.notifiers.slack import TOKEN, Workspace, buttons, words, workspace
from tests.notifiers.teams import Connector, connector

FINANCE = Requirement(roles=("finance",))


@pytest.fixture
def slack() -> Iterator[Workspace]:
    with workspace("C1", "C2", "C3") as there:
        yield there


def settings(scene: Scene, slack: Workspace) -> dict[str, str]:
    """Finance's channel of the scene's tenant, that of its others, and another tenant's."""
    ours = {f"{scene.tenant}/finance": "C1", f"{scene.tenant}/*": "C2"}
    return slack.settings(**ours, finance="C3", **{"*": "C3"})


def chat(scene: Scene, slack: Workspace, **also: str) -> Any:
    given = Settings(
        **{"database_url": "sqlite:///x", "notify": "slack", **settings(scene, slack), **also}
    )
    return tenant_outbox(
        scene, approvals_url="https://approvals.example.com", **load_notifiers(given)
    )


async def send(here: TenantOutbox, after: timedelta | None = None) -> dict[str, int]:
    if after is not None:
        here.clock.later = after
    return dict(+(await here.outbox.run_once("slack")))


def rows(here: TenantOutbox) -> list[tuple[str, bool]]:
    """State of each row of the chat, and whether its message has still to say how it ended."""
    found = [row for row in here.rows() if row["channel"] == "slack"]
    return [(row["state"], row["message"] is not None) for row in found]


@pytest.mark.in_turns
@pytest.mark.parametrize("proof", ["chat", "open", "signed"])
async def test_a_request_is_told_once_in_its_roles_channel(
    scene: Scene, slack: Workspace, proof: Any
) -> None:
    async with chat(scene, slack) as here:
        words_of = {"description": "Refund <https://evil.example|20.00> EUR", "proof": proof}
        here.scene.ask_approval(here.scene.call(), requirement=FINANCE, **words_of)
        assert await send(here) == {"sent": 1}
        assert await send(here, after=LEASE * 2) == {}

        [(channel, message)] = slack.messages
        assert (channel, rows(here)) == ("C1", [("sent", True)])
    assert "Refund <https://evil.example|20.00> EUR" in words(message)
    assert {block["text"]["type"] for block in message["blocks"] if "text" in block} == {
        "plain_text"
    }
    assert "<https" not in message["text"]
    page = "https://approvals.example.com/approval?id=run-1%2Frefund%2F1"
    *votes, link = buttons(message)
    assert link["url"] == page
    assert [one["action_id"] for one in votes] == (["approve", "reject"] if proof == "chat" else [])


LONG: Final = {"description": "pay " * 200, "value": 'mail.send: body="pay"…, to="ana"'}


@pytest.mark.in_turns
@pytest.mark.parametrize("cut", ["description", "value", "message"])
async def test_what_is_not_shown_whole_has_no_button(
    scene: Scene, slack: Workspace, cut: str
) -> None:
    async with chat(scene, slack) as here:
        told = {"proof": "chat", "description": LONG.get(cut, "pay")}
        here.scene.ask_approval(here.scene.call(), requirement=FINANCE, **told)
        if cut == "message":
            needs = ["x" * 400] * 9
            with here.scene.tx() as tx:
                [row] = tx.all(rows_of(notifications, channel="slack"))
                facts = {**row["facts"], "needs": needs}
                tx.execute(update_rows(notifications, channel="slack").values(facts=facts))
        assert await send(here) == {"sent": 1}
    [(_, message)] = slack.messages
    assert [one["action_id"] for one in buttons(message)] == ["open"]


async def test_new_requests_come_before_what_has_become_of_others(
    scene: Scene, slack: Workspace
) -> None:
    async with chat(scene, slack) as here:
        for number in range(3):
            here.scene.decide(here.scene.ask_approval(here.scene.call(), number=number + 1))
            with here.scene.tx() as tx:
                posted = update_rows(notifications, channel="slack", number=0)
                tx.execute(posted.values(state="sent", sent_ms=tx.now_ms, message="C1:1"))
        here.scene.ask_approval(here.scene.call(), number=4)
        with here.scene.tx() as tx:
            taken, *_ = take_due(tx, "slack", tx.now_ms, limit=2, lease=LEASE)
        assert [one.notification.message for one in taken] == [None, "C1:1"]
        assert rows(here).count(("sent", True)) == 2


@pytest.mark.parametrize("gone", ["message", "channel"])
async def test_a_message_that_slack_cannot_change_is_forgotten(
    scene: Scene, slack: Workspace, gone: str
) -> None:
    async with chat(scene, slack) as here:
        gated = here.scene.ask_approval(here.scene.call(), requirement=FINANCE)
        await send(here)
        if gone == "message":
            slack.channels["C1"].clear()
        else:
            del slack.channels["C1"]
        here.scene.close(gated, "void", after=WINDOW)
        assert await send(here, after=POLL) == {"sent": 1}
        assert rows(here) == [("sent", False)]


async def test_what_is_for_nobodys_channel_goes_into_no_other_ones(
    scene: Scene, slack: Workspace
) -> None:
    async with chat(scene, slack, slack_channels="finance=C1,*=C3") as here:
        here.scene.ask_approval(here.scene.call(), requirement=FINANCE)
        assert await send(here) == {"failed": 1}
        [row] = [row for row in here.rows() if row["channel"] == "slack"]
    assert "SUREHAND_SLACK_CHANNELS has none for" in row["error"]
    assert slack.messages == []


@pytest.mark.in_turns
@pytest.mark.parametrize("how", ["approve", "reject", "expired", "void", "too late"])
async def test_a_message_says_what_has_become_of_its_request(
    scene: Scene, slack: Workspace, how: str
) -> None:
    async with chat(scene, slack) as here:
        gated = here.scene.ask_approval(
            here.scene.call(), proof="chat" if how == "void" else "open"
        )
        await send(here)
        [(_, before)] = slack.messages
        assert "decide" not in before["text"]
        if how in ("approve", "reject"):
            assert here.scene.decide(gated, how).code == "accepted"
        elif how != "too late":
            here.scene.close(gated, how, after=WINDOW)
        late = WINDOW if how == "too late" else POLL
        assert await send(here, after=late) == {"sent": 1}
        assert await send(here, after=late + LEASE * 2) == {}

        said = {"approve": "Approved by alice", "reject": "Rejected by alice", "void": "Void"}
        [(_, message)] = slack.messages
        assert words(message).splitlines()[-1].startswith(said.get(how, "Expired"))
        assert buttons(message) == []
        assert rows(here) == [("sent", False)]
    assert slack.calls == ["chat.postMessage", "chat.update"]


async def test_slack_is_left_alone_for_as_long_as_it_says(scene: Scene, slack: Workspace) -> None:
    slack.refuses = [120]
    async with chat(scene, slack) as here:
        here.scene.ask_approval(here.scene.call())
        assert await send(here) == {"failed": 1}
        assert await send(here, after=timedelta(seconds=115)) == {}
        assert await send(here, after=timedelta(seconds=125)) == {"sent": 1}
        assert len(slack.messages) == 1


async def test_what_slack_refuses_is_tried_again_and_its_token_is_not_told(
    scene: Scene, slack: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    async with chat(scene, slack, slack_token="xoxb-another-token") as here:
        here.scene.ask_approval(here.scene.call())
        assert await send(here) == {"failed": 1}
        [row] = [row for row in here.rows() if row["channel"] == "slack"]
    assert row["error"] == "chat.postMessage: invalid_auth"
    assert "xoxb-another-token" not in capsys.readouterr().out


@pytest.mark.crash
@pytest.mark.in_turns
@pytest.mark.parametrize("decided", [False, True])
async def test_what_was_posted_and_not_recorded_is_not_posted_again(
    scene: Scene, database: Database, slack: Workspace, tmp_path: Path, decided: bool
) -> None:
    given = {"database_url": database.url, "notify": "slack", **settings(scene, slack)}
    async with chat(scene, slack) as here:
        gated = here.scene.ask_approval(here.scene.call())
        log = tmp_path / "outbox.log"
        assert TOKEN not in await kill_outbox_on_arrival(slack, scene.tenant, given, log)
        for number in range(3):  # others write there, too
            slack.channels["C2"][f"9999999999.{number}"] = {"ts": f"9999999999.{number}"}
        if decided:
            assert here.scene.decide(gated).code == "accepted"

        assert await send(here, after=LEASE * 1.1) == {"sent": 1}

        assert rows(here) == [("sent", not decided)]
    assert slack.calls.count("chat.postMessage") == 1
    [message] = [one for _, one in slack.messages if "blocks" in one]
    assert words(message).endswith("Approved by alice (unverified)") is decided


@asynccontextmanager
async def teams_chat(scene: Scene, **also: str) -> AsyncIterator[tuple[TenantOutbox, Connector]]:
    with connector() as there:
        channels = {f"{scene.tenant}/finance": teams.FINANCE, f"{scene.tenant}/*": teams.OTHERS}
        given = {"database_url": "sqlite:///x", "notify": "teams"}
        given |= {**there.settings(**channels), **also}
        pages, loaded = "https://approvals.example.com", load_notifiers(Settings(**given))
        async with tenant_outbox(scene, approvals_url=pages, **loaded) as here:
            yield here, there


@pytest.mark.in_turns
@pytest.mark.parametrize("how", ["approve", "void", "gone"])
async def test_a_card_in_teams_asks_and_says_what_has_become_of_it(scene: Scene, how: str) -> None:
    async with teams_chat(scene) as (here, there):
        asks: dict[str, Any] = {} if how == "approve" else {"requirement": FINANCE, "proof": "chat"}
        gated = here.scene.ask_approval(here.scene.call(), description="[1](http://evil)", **asks)
        assert dict(+(await here.outbox.run_once("teams"))) == {"sent": 1}
        [(channel, message)] = there.messages
        assert channel == (teams.OTHERS if how == "approve" else teams.FINANCE)
        assert {block["type"] for block in teams.card(message)["body"]} == {"RichTextBlock"}
        assert "[1](http://evil)" in teams.words(message)
        *votes, link = teams.card(message)["actions"]
        assert [one["verb"] for one in votes] == ([] if how == "approve" else ["approve", "reject"])
        assert link["url"] == "https://approvals.example.com/approval?id=run-1%2Frefund%2F1"

        if how == "approve":
            assert here.scene.decide(gated).code == "accepted"
        else:
            here.scene.close(gated, "void", after=WINDOW)
        if how == "gone":
            there.channels[channel].clear()
        here.clock.later = POLL
        assert dict(+(await here.outbox.run_once("teams"))) == {"sent": 1}
        [row] = [row for row in here.rows() if row["channel"] == "teams"]
        assert (row["state"], row["message"]) == ("sent", None)
    if how != "gone":
        [(_, message)] = there.messages
        said = {"approve": "Approved by alice (unverified)", "void": "Void"}
        assert (teams.words(message)[-1], teams.card(message)["actions"]) == (said[how], [])
        assert there.calls == ["post", "update"]


async def test_a_bot_whose_secret_is_wrong_posts_nothing(scene: Scene) -> None:
    async with teams_chat(scene, teams_app_secret="another") as (here, there):
        here.scene.ask_approval(here.scene.call())
        assert dict(+(await here.outbox.run_once("teams"))) == {"failed": 1}
        [row] = [row for row in here.rows() if row["channel"] == "teams"]
        assert (row["error"], there.messages) == ("token: HTTP 401", [])
