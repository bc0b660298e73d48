"""The notifiers that the settings name, loaded once at the worker's start."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping
from typing import cast

import structlog

from surehand.activities.ledger.outbox.notification import Notification, Notifier
from surehand.activities.notify.mail import ADDRESS, Mail, mail_server
from surehand.activities.notify.webhook import Webhook, secret_of, url_of
from surehand.activities.worker.settings import Settings
from surehand.process.settings import PREFIX, NotLoaded, is_named, load_named

log = structlog.get_logger()


class NotifiersMisconfigured(Exception):
    """A notifier cannot be used; one line that names the setting and says what to do."""


class LogNotifier:
    """Writes notifications to the worker's log, where they can be looked for."""

    where = "the worker's log"

    async def send(self, notification: Notification) -> None:
        """Write one line."""
        facts = notification.model_dump(mode="json", exclude_defaults=True)
        log.info("notification", title=notification.title, **facts)


def load_notifiers(settings: Settings) -> dict[str, Notifier]:
    """Return the notifiers by their names in ``SUREHAND_NOTIFY``.

    Raises:
        NotifiersMisconfigured: One is unknown, or one of its settings is missing or wrong.
    """
    twice = [name for name, count in Counter(settings.notify).items() if count > 1]
    if twice:
        raise _wrong("NOTIFY", f"names {twice[0]} twice")
    return {name: _load(name, settings) for name in settings.notify}


def where(notifiers: Mapping[str, Notifier]) -> str:
    """Return the notifiers in one line, with the servers they reach and without secrets."""
    shown = []
    for name, notifier in notifiers.items():
        place = getattr(notifier, "where", None)
        shown.append(f"{name} ({place})" if isinstance(place, str) else name)
    return ", ".join(shown)


def _load(name: str, settings: Settings) -> Notifier:
    match name:
        case "log":
            return LogNotifier()
        case "webhook":
            return _webhook(settings)
        case "smtp":
            return _mail(settings)
        case _ if is_named(name):
            return _own(name)
        case _:
            raise _wrong(
                "NOTIFY", f"{name!r} is neither log, webhook, smtp nor module:name of your own"
            )


def _webhook(settings: Settings) -> Webhook:
    url, secret = settings.webhook_url.get_secret_value(), settings.webhook_secret
    _require("webhook", {"WEBHOOK_URL": url, "WEBHOOK_SECRET": secret.get_secret_value()})
    try:
        target = url_of(url)
    except ValueError as error:
        raise _wrong("WEBHOOK_URL", str(error)) from error
    try:
        return Webhook(target, secret_of(secret.get_secret_value()))
    except ValueError as error:
        raise _wrong("WEBHOOK_SECRET", str(error)) from error


def _mail(settings: Settings) -> Mail:
    url = settings.smtp_url.get_secret_value()
    given = {
        "SMTP_URL": url,
        "SMTP_FROM": settings.smtp_from,
        "SMTP_TO": ",".join(settings.smtp_to),
    }
    _require("smtp", given)
    for name, addresses in (("SMTP_FROM", (settings.smtp_from,)), ("SMTP_TO", settings.smtp_to)):
        for address in addresses:
            if not ADDRESS.fullmatch(address):
                raise _wrong(name, f"{address!r} is no mail address such as ops@example.com")
    try:
        server = mail_server(url)
    except ValueError as error:
        raise _wrong("SMTP_URL", str(error)) from error
    return Mail(server, settings.smtp_from, settings.smtp_to)


def _own(name: str) -> Notifier:
    try:
        found = load_named(name)
    except NotLoaded as error:
        raise _wrong("NOTIFY", str(error)) from error
    if isinstance(found, type) or not inspect.iscoroutinefunction(getattr(found, "send", None)):
        raise _wrong("NOTIFY", f"{name} is no object with `async def send(self, notification)`")
    return cast(Notifier, found)


def _require(notifier: str, given: Mapping[str, str]) -> None:
    for name, value in given.items():
        if not value:
            raise _wrong(name, f"is missing: {PREFIX}NOTIFY names {notifier}, which needs it")


def _wrong(name: str, reason: str) -> NotifiersMisconfigured:
    line = " ".join(reason.split())
    return NotifiersMisconfigured(f"setting {PREFIX}{name}: {line}")
