"""The example's help desk and mail server: real search, real SMTP, each mail counted."""

from __future__ import annotations

import smtplib
from collections.abc import Iterator
from email.message import EmailMessage
from typing import Any

import httpx
import pytest

from surehand import Context
from surehand.examples.support.drill import fresh, world
from tests.support_process import SupportProcess


@pytest.fixture
def http(desk: SupportProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=desk.url, timeout=20, trust_env=False) as client:
        yield client


def mail_about(ticket_id: str, message_id: str) -> EmailMessage:
    mail = EmailMessage()
    mail["Message-ID"], mail["Subject"] = message_id, f"[{ticket_id}] Re: help"
    mail["From"], mail["To"] = "support@example.com", "ada@example.com"
    mail.set_content("Grüße\nAda\n")
    return mail


def hand_in(desk: SupportProcess, mail: EmailMessage) -> None:
    host, _, port = desk.variables["SUPPORT_SMTP"].partition(":")
    with smtplib.SMTP(host, int(port), timeout=20) as server:
        server.send_message(mail)


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("I forgot my passwords", "reset-password"),  # by the stem of a word
        ("the phone with my second factor was stolen", "two-factor"),
        ("the dashboards load so slowly", "slow-dashboard"),
    ],
)
def test_the_search_finds_the_best_article(http: httpx.Client, query: str, first: str) -> None:
    found = http.get("/articles", params={"q": query}).raise_for_status().json()

    assert found[0]["article_id"] == first


@pytest.mark.parametrize("query", ['") OR title:*', "NEAR(", "AND OR NOT", "", "a b c", "'; DROP"])
def test_what_a_customer_writes_is_no_query_language(http: httpx.Client, query: str) -> None:
    assert http.get("/articles", params={"q": query}).status_code == 200


def test_message_ids_tell_mails_apart(desk: SupportProcess, http: httpx.Client) -> None:
    ticket_id = desk.open_ticket()
    mail = mail_about(ticket_id, "<twice@example.com>")

    def found() -> list[dict[str, Any]]:
        answer = http.get("/mailbox", params={"message_id": "<twice@example.com>"})
        mails: list[dict[str, Any]] = answer.raise_for_status().json()
        return mails

    assert found() == []
    hand_in(desk, mail)
    assert [one["body"] for one in found()] == ["Grüße\nAda"]
    hand_in(desk, mail)
    assert len(found()) == desk.effects(ticket_id)["mails"] == 2


def test_the_mail_server_hangs_up_on_a_client_that_falls_silent(desk: SupportProcess) -> None:
    host, _, port = desk.variables["SUPPORT_SMTP"].partition(":")
    with smtplib.SMTP(host, int(port), timeout=20) as server:
        server.ehlo()
        server.mail("support@example.com")
        assert server.sock is not None
        assert server.sock.recv(1) == b""  # it has said nothing more, and closed


def test_a_ticket_closes_once_for_each_key(desk: SupportProcess, http: httpx.Client) -> None:
    ticket_id = desk.open_ticket()

    def post(path: str, key: str) -> int:
        headers = {"Idempotency-Key": key}
        return http.post(f"/tickets/{ticket_id}/{path}", json={}, headers=headers).status_code

    assert [post("close", "k1"), post("close", "k1"), post("close", "k2")] == [201, 200, 409]
    assert [post("reopen", "k3"), post("reopen", "k3"), post("reopen", "k4")] == [201, 200, 409]
    assert desk.effects(ticket_id) == {"closings": 1, "reopenings": 1, "reports": 0, "mails": 0}


def test_a_drill_gets_a_ticket_of_its_own_and_its_fate(desk: SupportProcess) -> None:
    first, second = (fresh(Context(f"drill-{n}", {}, "")) for n in (1, 2))
    hand_in(desk, mail_about(first["ticket_id"], "<drill@example.com>"))

    assert first != second
    seen = [world(Context("drill", given, ""))["effects"]["mails"] for given in (first, second)]
    assert seen == [1, 0]
