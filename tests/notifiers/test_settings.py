"""A notifier that could not work is named at the start, in one line and without its secrets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from surehand.activities.ledger.outbox.notification import Notification
from surehand.activities.notifiers import NotifiersMisconfigured, load_notifiers, where
from surehand.activities.worker.settings import Secrets, Settings, load_settings

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


class Pager:
    """A notifier of somebody's own."""

    async def send(self, notification: Notification) -> None:
        """Page nobody."""


notifier = Pager()
OWN = "tests.notifiers.test_settings:notifier"


def settings(**given: str) -> Settings:
    environ = {f"SUREHAND_{name.upper()}": value for name, value in given.items()}
    database = {"SUREHAND_DATABASE_URL": "sqlite:///x"}
    return load_settings({**database, **environ}, Path(os.devnull), Path(os.devnull))


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
        ({"notify": "tests.notifiers.test_settings:none"}, ["AttributeError"]),
        ({"notify": "tests.notifiers.test_settings:Pager"}, ["is no object with `async def send"]),
        ({"notify": "tests.notifiers.test_settings:WEBHOOK"}, ["is no object with"]),
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
    ],
)
def test_what_is_wrong_is_named_in_one_line(given: dict[str, str], says: list[str]) -> None:
    with pytest.raises(NotifiersMisconfigured) as refused:
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
