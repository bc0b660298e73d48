"""The notifier ``webhook``, and what is said of wrong settings of notifiers."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from surehand.activities.ledger.outbox.notification import NotDelivered, Notification, ReceiverGone
from surehand.activities.notifiers import (
    Webhook,
    load_notifiers,
    secret_of,
    signature,
    url_of,
    where,
)
from surehand.activities.worker.settings import Secrets, Settings, load_settings
from surehand.process.exits import WrongUse
from tests.notifiers.receiver import Receiver, receiving
from tests.notifiers.samples import approval


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving(Receiver()) as one:
        yield one


def webhook(receiver: Receiver, secret: str | None = None) -> Webhook:
    return Webhook(url_of(receiver.url), secret_of(secret or receiver.secret))


async def test_a_receiver_verifies_and_finds_all(receiver: Receiver) -> None:
    await webhook(receiver).send(approval(what="Refund 120 € for Zoë"))

    [got] = receiver.got
    assert (got["type"], got["timestamp"]) == ("approval.requested", "2026-11-21T09:00:00Z")
    data = got["data"]
    assert (data["subject"], data["tool"]) == ("refund-1/refund/1", "payments.refund")
    assert data["title"] == "Approval needed: Refund 120 € for Zoë"
    assert data["commands"][1].startswith("python starter.py approve refund-1/refund/1 ")
    assert receiver.ids == [data["delivery_id"]]


async def test_a_wrong_secret_is_noticed_by_the_receiver(receiver: Receiver) -> None:
    other = "whsec_" + base64.b64encode(b"x" * 32).decode()

    with pytest.raises(NotDelivered, match="HTTP 400"):
        await webhook(receiver, other).send(approval())

    assert (receiver.got, receiver.unproven) == ([], 1)


def test_the_signature_is_that_of_the_protocols_own_example() -> None:
    # From the test of the reference library.
    secret = secret_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    body = b'{"test": 2432232314}'

    signed = signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)

    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("code", [200, 202, 204])
async def test_any_success_is_one(receiver: Receiver, code: int) -> None:
    receiver.answers = [(code, {})]

    await webhook(receiver).send(approval())


@pytest.mark.parametrize(
    ("code", "headers", "pause"),
    [
        (301, {"Location": "http://127.0.0.1:1/"}, timedelta(0)),
        (404, {"Retry-After": "60"}, timedelta(0)),
        (500, {}, timedelta(0)),
        (429, {"Retry-After": "120"}, timedelta(minutes=2)),
        (503, {"Retry-After": "9"}, timedelta(seconds=9)),
    ],
)
async def test_another_answer_is_tried_again_when_the_receiver_says(
    receiver: Receiver, code: int, headers: dict[str, str], pause: timedelta
) -> None:
    receiver.answers = [(code, headers)]

    with pytest.raises(NotDelivered, match=f"HTTP {code}") as refused:
        await webhook(receiver).send(approval())

    assert not isinstance(refused.value, ReceiverGone)
    assert refused.value.retry_after == pause


async def test_410_says_that_nothing_more_is_wanted(receiver: Receiver) -> None:
    receiver.answers = [(410, {})]

    with pytest.raises(ReceiverGone):
        await webhook(receiver).send(approval())


async def test_a_server_that_is_away_is_tried_again_and_the_url_is_not_told() -> None:
    away = Webhook(url_of("http://127.0.0.1:1/hooks/token"), b"x" * 32)

    with pytest.raises(NotDelivered) as refused:
        await away.send(approval())

    assert "ConnectError" in str(refused.value)
    assert "token" not in str(refused.value)
    assert away.where == "http://127.0.0.1:1"


def test_the_url_keeps_its_user_and_token_when_it_is_named() -> None:
    assert Webhook(url_of("https://u:p@h.example/t?k=v"), b"").where == "https://h.example"
    assert isinstance(url_of("https://h.example"), httpx.URL)


WEBHOOK = {
    "notify": "webhook",
    "webhook_url": "https://hooks.example/services/T0KEN",
    "webhook_secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
}
MAIL = {
    "notify": "smtp",
    "smtp_url": "smtp://robot:geheim%21@mail.example",
    "smtp_from": "surehand@example.com",
    "smtp_to": "ops@example.com, finance@example.com",
}
SLACK = {"notify": "slack", "slack_token": "T0KEN", "slack_channels": "*=C1"}
TEAMS = {
    "notify": "teams",
    "teams_app_id": "an-app",
    "teams_app_secret": "T0KEN",
    "teams_token_url": "https://login.example/token",
    "teams_channels": "*=19:all@thread.tacv2",
}


class Pager:
    """A notifier of somebody's own."""

    async def send(self, notification: Notification) -> None:
        """Page nobody."""


notifier = Pager()
OWN = "tests.notifiers.test_webhook:notifier"


def settings(**given: str) -> Settings:
    environ = {f"SUREHAND_{name.upper()}": value for name, value in given.items()}
    database = {"SUREHAND_DATABASE_URL": "sqlite:///x"}
    return load_settings({**database, **environ}, Path(os.devnull))


def test_without_any_setting_the_log_tells() -> None:
    assert list(load_notifiers(settings())) == ["log"]


def test_all_that_are_named_are_loaded_and_shown_without_secrets() -> None:
    loaded = load_notifiers(settings(**{**WEBHOOK, **MAIL, "notify": f"log,webhook,smtp,{OWN}"}))

    assert list(loaded) == ["log", "webhook", "smtp", OWN]
    assert loaded[OWN] is notifier
    assert where(loaded) == (
        "log (the worker's log), webhook (https://hooks.example),"
        f" smtp (mail.example:587 to ops@example.com, finance@example.com), {OWN}"
    )


def test_nobody_may_be_told() -> None:
    assert load_notifiers(settings(notify="")) == {}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"notify": "pager"}, ["SUREHAND_NOTIFY", "'pager'", "webhook"]),
        ({"notify": "log,log"}, ["SUREHAND_NOTIFY", "log twice"]),
        ({"notify": "acme.none:it"}, ["acme.none:it", "ModuleNotFoundError", "PYTHONPATH"]),
        ({"notify": "tests.notifiers.test_webhook:none"}, ["AttributeError"]),
        ({"notify": "tests.notifiers.test_webhook:Pager"}, ["is no object with `async def send"]),
        ({"notify": "tests.notifiers.test_webhook:WEBHOOK"}, ["is no object with"]),
        ({"notify": "webhook"}, ["SUREHAND_WEBHOOK_URL", "missing"]),
        ({**WEBHOOK, "webhook_secret": ""}, ["SUREHAND_WEBHOOK_SECRET", "missing"]),
        ({**WEBHOOK, "webhook_secret": "MfKQ9r8GKYqrTwjUPD8ILPZI"}, ["SECRET", "whsec_"]),
        ({**WEBHOOK, "webhook_secret": "whsec_T0KEN!"}, ["SECRET", "base64"]),
        ({**WEBHOOK, "webhook_secret": "whsec_T0KENT0K"}, ["SECRET", "24 to 64", "openssl"]),
        ({**WEBHOOK, "webhook_url": "hooks.example/T0KEN"}, ["URL", "https://host/path"]),
        ({**WEBHOOK, "webhook_url": "ftp://h/T0KEN"}, ["SUREHAND_WEBHOOK_URL"]),
        ({**WEBHOOK, "webhook_url": "https://h:port/T0KEN"}, ["SUREHAND_WEBHOOK_URL"]),
        ({**MAIL, "smtp_url": ""}, ["SUREHAND_SMTP_URL", "missing"]),
        ({**MAIL, "smtp_to": ""}, ["SUREHAND_SMTP_TO", "missing"]),
        ({**MAIL, "smtp_url": "robot:geheim@mail.example"}, ["SUREHAND_SMTP_URL", "smtps://"]),
        ({**MAIL, "smtp_url": "smtp://robot:geheim@mx:port"}, ["SUREHAND_SMTP_URL"]),
        ({**MAIL, "smtp_from": "Surehand"}, ["SUREHAND_SMTP_FROM", "'Surehand'"]),
        ({**MAIL, "smtp_to": "a@b.c\r\nBcc: d@e.f"}, ["SUREHAND_SMTP_TO"]),
        ({**SLACK, "slack_channels": "C1"}, ["SUREHAND_SLACK_CHANNELS", "*=C0123456789"]),
        ({**SLACK, "slack_url": "http://slack.example/api"}, ["SUREHAND_SLACK_URL", "https://"]),
        ({**TEAMS, "teams_url": "http://bots.example"}, ["SUREHAND_TEAMS_URL", "https://"]),
        ({**TEAMS, "teams_token_url": "http://in.example"}, ["TEAMS_TOKEN_URL", "https://"]),
    ],
)
def test_what_is_wrong_is_named_in_one_line(given: dict[str, str], says: list[str]) -> None:
    with pytest.raises(WrongUse) as refused:
        load_notifiers(settings(**given))

    said = str(refused.value)
    assert "\n" not in said
    for part in says:
        assert part in said
    for secret in ("T0KEN", "geheim"):
        assert secret not in said


def test_no_secret_of_the_settings_stays_in_a_text() -> None:
    given = settings(**{**WEBHOOK, **MAIL, "notify": "webhook,smtp"})
    hide = Secrets.of(given).hide

    for text in (
        f"POST {WEBHOOK['webhook_url']} failed",
        "GET /services/T0KEN",
        f"signed with {WEBHOOK['webhook_secret']}",
        "key MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        f"{MAIL['smtp_url']} refused",
        "login robot geheim! failed",
        "login geheim%21",
    ):
        assert "***" in hide(text)
        for secret in ("T0KEN", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "geheim"):
            assert secret not in hide(text)
    assert "T0KEN" not in repr(given)
    assert "geheim" not in repr(given)
