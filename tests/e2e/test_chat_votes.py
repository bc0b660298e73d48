"""Buttons in a chat decide on a real run: whose they are, and what is not one."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx
import pytest
import yaml
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.tables import decisions
from surehand.activities.ledger.people.principals import has_principal
from surehand.activities.worker.settings import Settings
from surehand.cli.approvals_server import oidc
from surehand.cli.approvals_server.chat import chat_of
from surehand.cli.approvals_server.server import ApprovalsServer
from surehand.cli.approvals_server.sign_in import Links, Server
from surehand.client.client import Client
from surehand.process.exits import WrongUse
from surehand.workflows.contracts.approvals import CHAT
from tests.e2e.plans import plan, refund_step
from tests.e2e.runs import until
from tests.e2e.stage import Stage
from tests.ledger.people import key_of, person
from tests.notifiers import teams
from tests.notifiers.slack import SECRET, TEAM, Workspace, buttons, signed, words, workspace

ORIGIN: Final = "https://approvals.example.com"
PEOPLE: Final = {"U1": "cora", "U2": "dora", "U3": "uma", "U4": "dan", "U5": "nobody"}


@pytest.fixture
def slack() -> Iterator[Workspace]:
    with workspace("C1", "C2") as there:
        yield there


def pages_settings(stage: Stage) -> Settings:
    """Settings of the pages, with the key of the principal ``chat``."""
    key, people = stage.folder / "chat.pem", stage.folder / "chat.yaml"
    private = key_of(stage, person(stage, CHAT))
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    key.touch(0o600)
    key.write_bytes(pem)
    accounts = {f"slack:{TEAM}": PEOPLE, f"teams:{teams.DIRECTORY}": PEOPLE}
    people.write_text(yaml.safe_dump({stage.tenant: accounts}))
    given = {"slack_signing_secret": SECRET, "teams_app_id": teams.APP_ID}
    given |= {"chat_key": str(key), "chat_principals": str(people)}
    return Settings(**{"database_url": stage.ledger_url, **given})


@asynccontextmanager
async def pages(stage: Stage) -> AsyncIterator[httpx.AsyncClient]:
    """The approvers' pages, as chats reach them."""

    async def registered(name: str) -> bool:
        return await stage.ledger.transact(stage.tenant, has_principal, name)

    async def connect() -> Client:
        return await Client.connect(temporal=stage.client)

    server = ApprovalsServer(
        ledger=stage.ledger,
        connect=connect,
        tenant=stage.tenant,
        links=Links(Server.new(ORIGIN, stage.tenant)),
        schema_of=lambda tool, version: None,
        chat=chat_of(pages_settings(stage), stage.tenant, registered),
    )
    transport = httpx.ASGITransport(app=server.app(ORIGIN))
    async with httpx.AsyncClient(transport=transport, base_url=ORIGIN) as client:
        yield client


async def test_who_presses_decides_as_their_roles_say(
    stage: Stage, order_id: str, slack: Workspace, no_settings: None
) -> None:
    for name, roles in {"cora": ["finance"], "dora": ["finance"], "dan": []}.items():
        person(stage, name, *roles)
    umas = key_of(stage, person(stage, "uma", "finance"))
    asks = {"roles": ["finance"], "proof": "chat", "four_eyes": True, "quorum": 2}
    notify = {"notify": "slack", **slack.settings(finance="C1", **{"*": "C2"})}
    async with pages(stage) as there:
        with stage.ready_worker(**notify) as worker:

            async def press(action: str, by: str, **changes: Any) -> str:
                """Press a button, and return what only that person is told."""
                body, count = slack.press(message, action, by, **changes), len(slack.told)
                sent = await there.post("/chat/slack", content=body, headers=signed(body))
                assert (sent.status_code, len(slack.told)) == (200, count + 1)
                return slack.told[-1]

            run = await stage.start(plan(refund_step(order_id, approval=asks)), key=umas)
            [(channel, message)] = await until(lambda: slack.messages, bool)
            assert channel == "C1"
            body = slack.press(message, "approve", "U1")
            late = int(time.time()) - 301
            for headers in (
                signed(body, secret="of-somebody-else"),
                signed(body, at=late),
                signed(body + b"&more=1"),
                {**signed(body), "x-slack-request-timestamp": "now"},
                {},
            ):
                sent = await there.post("/chat/slack", content=body, headers=headers)
                assert sent.status_code == 401
            assert slack.told == []
            link = {"actions": [{"action_id": "open", "type": "button"}]}
            opened = slack.press(message, "approve", "U1", **link)
            assert (
                await there.post("/chat/slack", content=opened, headers=signed(opened))
            ).is_success

            assert "is nobody who may decide" in await press("approve", "U9")
            assert "is nobody who may decide" in await press("approve", "U5")
            elsewhere = {"user": {"id": "U1", "team_id": "T9"}}
            assert "is nobody who may decide" in await press("approve", "U1", **elsewhere)
            assert "no role finance" in await press("approve", "U4")
            assert "has asked for this call" in await press("approve", "U3")
            sent = await there.post("/chat/slack", content=body, headers=signed(body))
            assert slack.told[-1].startswith("approved by cora; so far 1 of 2")
            told = len(slack.told)
            sent = await there.post("/chat/slack", content=body, headers=signed(body))
            assert (sent.status_code, len(slack.told)) == (401, told)
            assert stage.shop.counts(order_id)["refunds"] == 0
            assert (await press("approve", "U2")).startswith("approved by cora, dora")
            await run.completed()
            await until(lambda: buttons(message), lambda left: not left)
            log = worker.output()

    assert stage.shop.counts(order_id)["refunds"] == 1
    assert words(message).endswith("Approved by dora")
    assert [name for name in (SECRET, slack.settings()["slack_token"]) if name in log] == []
    query = rows_of(decisions, "approver", "verdict", run_id=run.run_id)
    voted = await stage.ledger.transact(stage.tenant, lambda tx: tx.all(query))
    assert [one["approver"] for one in voted if one["verdict"] == "accepted"] == ["cora", "dora"]


async def test_without_the_policys_word_there_is_no_button_and_no_vote(
    stage: Stage, order_id: str, slack: Workspace, no_settings: None
) -> None:
    person(stage, "cora", "finance")
    notify = {"notify": "slack", **slack.settings(**{"*": "C2"})}
    async with pages(stage) as there:
        with stage.ready_worker(**notify):
            run = await stage.start(plan(refund_step(order_id)))
            [(_, message)] = await until(lambda: slack.messages, bool)
            assert buttons(message) == []
            request = await run.asks()
            # As whoever has the bot's token could post it.
            value = f'["{request.approval_id}", "{request.params_hash}"]'
            button = {"action_id": "approve", "value": value}
            body = slack.press({"blocks": [{"elements": [button]}]}, "approve", "U1")
            await there.post("/chat/slack", content=body, headers=signed(body))
            assert "takes votes from the chat" in slack.told[-1]
            await run.handle.terminate("done with")
    assert stage.shop.counts(order_id)["refunds"] == 0


async def test_who_presses_in_teams_decides_and_the_card_says_so(
    stage: Stage, order_id: str, no_settings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    person(stage, "cora", "finance")
    asks = {"roles": ["finance"], "proof": "chat"}
    with teams.connector() as there:
        monkeypatch.setattr(oidc, "BOT_FRAMEWORK", there.metadata_url)
        notify = {"notify": "teams", **there.settings(finance=teams.FINANCE)}
        async with pages(stage) as served:
            with stage.ready_worker(**notify) as worker:
                run = await stage.start(plan(refund_step(order_id, approval=asks)))
                [(_, message)] = await until(lambda: there.messages, bool)
                [approve, _] = teams.card(message)["actions"]

                async def press(by: str, **claims: Any) -> httpx.Response:
                    body, headers = json.dumps(teams.press(approve, by)), teams.signed(**claims)
                    return await served.post("/chat/teams", content=body, headers=headers)

                assert (await press("U1", aud="another-app")).status_code == 401
                assert "is nobody who may decide" in (await press("U9")).json()["value"]
                assert stage.shop.counts(order_id)["refunds"] == 0
                assert (await press("U1")).json()["value"].startswith("approved by cora")
                await run.completed()
                await until(
                    lambda: teams.words(there.messages[0][1])[-1],
                    lambda last: last == "Approved by cora",
                )
                assert teams.SECRET not in worker.output()
        assert teams.card(there.messages[0][1])["actions"] == []
    assert stage.shop.counts(order_id)["refunds"] == 1


@pytest.mark.parametrize("missing", ["chat_key", "chat_principals"])
async def test_a_setting_that_is_missing_is_named(stage: Stage, missing: str) -> None:
    given = pages_settings(stage).model_copy(update={missing: ""})
    with pytest.raises(WrongUse, match=f"SUREHAND_{missing.upper()} is missing"):
        chat_of(given, stage.tenant, lambda name: asyncio.sleep(0, True))
