"""Who tells people: ``log``, ``webhook``, ``smtp``, ``slack``, ``teams``, or a user's own notifier.

``webhook`` follows Standard Webhooks 1.0 (https://www.standardwebhooks.com, file
``spec/standard-webhooks.md`` of github.com/standard-webhooks/standard-webhooks): the headers
``webhook-id``, ``webhook-timestamp`` and ``webhook-signature``, an HMAC-SHA256 over id, timestamp
and body with dots between them. Receivers verify it with that project's libraries, which refuse
what is older than five minutes, and drop an id that they know.

``smtp`` sends one plain mail for each notification, by the standard library: one mail now and then
needs no client that can do many at once, and the notifier has a thread of its own.

``slack`` posts to channels by Slack's Web API (https://docs.slack.dev/reference/methods), and says
later in each message what has become of its request. A message has its delivery's id as metadata:
an attempt that follows one that was cut off finds what that has posted.

``teams`` does the same as a bot, by the Bot Connector's API
(https://learn.microsoft.com/azure/bot-service/rest-api/bot-framework-rest-connector-api-reference).
A bot cannot read what a channel has: an attempt that follows one that was cut off may post again.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import inspect
import json
import re
import smtplib
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from email.utils import format_datetime
from html import escape
from typing import Any, Final, TypeVar, cast
from urllib.parse import quote, unquote, urlsplit

import httpx
import structlog

from surehand.activities.ledger.outbox.notification import (
    ANSWER_LIMIT,
    Kind,
    MaybeDelivered,
    NotDelivered,
    Notification,
    Notifier,
    ReceiverGone,
)
from surehand.activities.tools.failures import read_retry_after
from surehand.activities.worker.settings import Settings
from surehand.process.settings import (
    PREFIX,
    SettingsError,
    is_loopback,
    is_named,
    is_private,
    load_named,
)
from surehand.workflows.identity import DEFAULT_TENANT

log = structlog.get_logger()
T = TypeVar("T")

SECRET_PREFIX: Final = "whsec_"
#: Bytes, as the protocol has it.
SHORTEST_SECRET: Final = 24
LONGEST_SECRET: Final = 64
_GONE: Final = 410
#: Answers that may say when to come again.
_LATER: Final = (429, 503)


def secret_of(text: str) -> bytes:
    """Return the key that a ``whsec_...`` text stands for. Raises ``ValueError``."""
    if not text.startswith(SECRET_PREFIX):
        raise ValueError(f"must start with {SECRET_PREFIX}")
    try:
        secret = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"must be {SECRET_PREFIX} and base64") from error
    if not SHORTEST_SECRET <= len(secret) <= LONGEST_SECRET:
        raise ValueError(
            f"must stand for {SHORTEST_SECRET} to {LONGEST_SECRET} bytes, this one for"
            f" {len(secret)}; `echo {SECRET_PREFIX}$(openssl rand -base64 32)` makes one"
        )
    return secret


def url_of(text: str) -> httpx.URL:
    """Return where to post to. Raises ``ValueError``."""
    form = "must be http://host/path or https://host/path"
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise ValueError(form) from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(form)
    return url


def private_url_of(text: str) -> httpx.URL:
    """Return where a secret is sent to. Raises ``ValueError``."""
    if not is_private(text):
        raise ValueError("must be https://host/path: http is for this machine")
    return url_of(text)


def signature(secret: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    signed = f"{message_id}.{timestamp}.".encode() + body
    return f"v1,{base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()}"


def body_of(notification: Notification) -> bytes:
    """Return what is posted: type, timestamp and data, as the protocol recommends."""
    data = notification.model_dump(mode="json")
    data |= {"title": notification.title, "commands": list(notification.commands)}
    document = {"type": data.pop("kind"), "timestamp": data.pop("at"), "data": data}
    return json.dumps(document, ensure_ascii=False).encode()


class Webhook:
    """Posts notifications to one URL."""

    def __init__(self, url: httpx.URL, secret: bytes) -> None:
        self._url, self._secret = url, secret
        self.where = f"{self._url.scheme}://{self._url.netloc.decode()}"
        """The server, without what may be secret of the URL."""

    async def send(self, notification: Notification) -> None:
        """Post it; 2xx is success, 410 ends it, anything else is tried again."""
        body, now = body_of(notification), int(time.time())
        headers = {
            "content-type": "application/json",
            "user-agent": "surehand",
            "webhook-id": notification.delivery_id,
            "webhook-timestamp": str(now),
            "webhook-signature": signature(self._secret, notification.delivery_id, now, body),
        }
        limit = ANSWER_LIMIT.total_seconds()
        try:
            async with (
                asyncio.timeout(limit),
                httpx.AsyncClient(timeout=limit) as client,
                # What it answers beside the code is not read, however much that is.
                client.stream("POST", self._url, content=body, headers=headers) as response,
            ):
                pass
        except (httpx.HTTPError, TimeoutError) as error:
            # It may have arrived all the same: its id tells the receiver that it comes again.
            raise NotDelivered(f"{type(error).__name__}: {error}") from error
        if response.status_code == _GONE:
            raise ReceiverGone("HTTP 410: the receiver wants nothing more")
        _check_status(response, "webhook")


_PORTS: Final = {"smtp": 587, "smtps": 465}
#: A plain address. No spaces, no comments, and nothing that could begin another header.
ADDRESS: Final = re.compile(r"[^\s@<>,;:\"()\\\x00-\x1f\x7f]+@[A-Za-z0-9.\-]+")


@dataclass(frozen=True)
class MailServer:
    """Where mails are handed in."""

    host: str
    port: int
    tls: bool
    """From the first byte on; else STARTTLS."""
    user: str = ""
    password: str = field(default="", repr=False)


def mail_server(url: str) -> MailServer:
    """Return what a URL names: ``smtp[s]://[user:password@]host[:port]``. Raises ``ValueError``."""
    form = "must be smtp://host or smtps://host, with user:password@ before it and :port after it"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(form) from error
    if parts.scheme not in _PORTS or not host or parts.path not in ("", "/") or parts.query:
        raise ValueError(form)
    return MailServer(
        host=host,
        port=port or _PORTS[parts.scheme],
        tls=parts.scheme == "smtps",
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
    )


class Mail:
    """Sends notifications through one server, all to the same people."""

    def __init__(
        self,
        server: MailServer,
        sender: str,
        to: tuple[str, ...],
        limit: timedelta = ANSWER_LIMIT,
    ) -> None:
        """Say where to, and how long a whole conversation with the server may take."""
        self._server, self._sender, self._to, self._limit = server, sender, to, limit
        self.where = f"{server.host}:{server.port} to {', '.join(to)}"

    async def send(self, notification: Notification) -> None:
        """Hand it to the server; what that refuses, or does not take in time, is tried again."""
        limit = self._limit.total_seconds()
        # Whoever takes it first: the thread, to hand the mail in, or the limit, so it never does.
        handing_in = threading.Lock()
        message = self.message(notification)
        talking = asyncio.ensure_future(asyncio.to_thread(self._talk, message, handing_in))
        # A thread cannot be stopped: what it says when its time is over is for nobody.
        talking.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        try:
            await asyncio.wait({talking}, timeout=limit)
        finally:
            began = not handing_in.acquire(blocking=False)
        try:
            if not talking.done():
                raise TimeoutError(f"the server took longer than {limit:g} s")
            refused = talking.result()
        except (OSError, smtplib.SMTPException) as error:
            why = f"{type(error).__name__}: {error}"
            if began and not isinstance(error, smtplib.SMTPResponseException):
                raise MaybeDelivered(f"handed in and not answered: {why}") from error
            raise NotDelivered(why) from error
        if refused:
            # The others have it: sending it again would be for all.
            log.warning("notification.refused_in_part", recipients=sorted(refused))

    def message(self, notification: Notification) -> EmailMessage:
        message = EmailMessage()
        message["Subject"] = notification.title
        message["From"] = self._sender
        message["To"] = ", ".join(self._to)
        message["Date"] = format_datetime(notification.at)
        # The same at each attempt, so that a second one can be recognised.
        message["Message-ID"] = f"<{notification.delivery_id}@{self._sender.rpartition('@')[2]}>"
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(notification.text)
        return message

    def _talk(
        self, message: EmailMessage, handing_in: threading.Lock
    ) -> dict[str, tuple[int, bytes]]:
        server = self._server
        with closing(self._connected()) as client:
            client.handing_in = handing_in
            if not server.tls:
                client.ehlo()
                if client.has_extn("starttls"):
                    client.starttls(context=_trust(server))
                elif not is_loopback(server.host):
                    raise NotDelivered(f"{server.host} offers no STARTTLS: nothing goes in clear")
            if server.user:
                client.login(server.user, server.password)
            refused = client.send_message(message)
            # It has the mail: whatever it says now, sending it again would be a second one.
            with suppress(OSError, smtplib.SMTPException):
                client.quit()
            return refused

    def _connected(self) -> _Smtp:
        server, limit = self._server, self._limit.total_seconds()
        if not server.tls:
            return _Smtp(server.host, server.port, timeout=limit)
        return _SmtpOverTls(server.host, server.port, timeout=limit, context=_trust(server))


class _Smtp(smtplib.SMTP):
    """Hands a mail in only if nobody has given it up before."""

    handing_in: threading.Lock

    def data(self, msg: Any) -> tuple[int, bytes]:
        if not self.handing_in.acquire(blocking=False):
            raise TimeoutError("given up before it was handed in")
        return super().data(msg)


class _SmtpOverTls(_Smtp, smtplib.SMTP_SSL):
    """The same over TLS from the first byte on."""


def _trust(server: MailServer) -> ssl.SSLContext:
    """Return whom TLS believes: the system's authorities; on this machine any certificate."""
    context = ssl.create_default_context()
    if is_loopback(server.host):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


#: What messages that ask for a decision tell of.
_ASKING: Final = (Kind.APPROVAL, Kind.REMINDER)
#: Characters that a text of a message may have, says Slack; a card of Teams may have more.
_LONGEST_TEXT: Final = 3000
#: Errors of Slack after which a message never says what has become of its request.
_FINAL: Final = (
    *("message_not_found", "cant_update_message", "edit_window_closed"),
    *("channel_not_found", "is_archived", "not_in_channel"),
)


class _Unreachable(NotDelivered):
    """A message, or its channel, cannot be reached: what is posted there stays as it is."""


#: How far the ledger's clock and Slack's may differ when we look for a posted message.
_CLOCKS_APART: Final = timedelta(hours=1)
#: What the bot's token is for.
_TEAMS_SCOPE: Final = "https://api.botframework.com/.default"
_CARD: Final = "application/vnd.microsoft.card.adaptive"
_SLACK_CHANNEL: Final = re.compile(r"[A-Za-z0-9]+")
_TEAMS_CHANNEL: Final = re.compile(r"19:[A-Za-z0-9_-]+@thread\.[a-z0-9]+")


class ChatNotifier:
    """Posts to the channels of a chat, which have a role or ``TENANT/ROLE``."""

    name: str

    def __init__(self, url: httpx.URL, channels: Mapping[str, str]) -> None:
        self._url, self._channels = str(url).rstrip("/"), channels
        self.where = str(url.host)

    async def send(self, notification: Notification) -> str | None:
        """Post it, or change what is posted; returns the message that asks for a decision."""
        limit = ANSWER_LIMIT.total_seconds()
        try:
            async with asyncio.timeout(limit), httpx.AsyncClient(timeout=limit) as client:
                return await self._send(client, notification)
        except _Unreachable as error:
            if notification.outcome is None:
                raise
            log.warning("chat.not_updated", chat=self.name, error=str(error))
            return None
        except (httpx.HTTPError, TimeoutError) as error:
            raise NotDelivered(f"{type(error).__name__}: {error}") from error

    async def _send(self, client: httpx.AsyncClient, note: Notification) -> str | None:
        channel, _, posted = (note.message or f"{self._find_channel(note)}:").rpartition(":")
        posted = await self._write(client, channel, posted, note)
        return f"{channel}:{posted}" if note.kind in _ASKING and note.outcome is None else None

    def _find_channel(self, note: Notification) -> str:
        """Return the channel of the first role that has one; no tenant's are another one's."""
        prefix = "" if note.tenant == DEFAULT_TENANT else f"{note.tenant}/"
        for role in (*note.roles, "*"):
            if (channel := self._channels.get(f"{prefix}{role}")) is not None:
                return channel
        raise NotDelivered(f"{PREFIX}{self.name.upper()}_CHANNELS has none for {prefix}*")

    async def _write(
        self, client: httpx.AsyncClient, channel: str, posted: str, note: Notification
    ) -> str:
        """Post a message, or change what is posted; returns the message.

        What is over and was never posted is not posted any more.
        """
        raise NotImplementedError


class Slack(ChatNotifier):
    """Posts to the channels of one workspace."""

    name = "slack"

    def __init__(self, url: httpx.URL, token: str, channels: Mapping[str, str]) -> None:
        super().__init__(url, channels)
        self._token = token

    async def _write(
        self, client: httpx.AsyncClient, channel: str, posted: str, note: Notification
    ) -> str:
        if not posted and note.attempt > 1:
            posted = await self._find_posted(client, channel, note)
        # Lock screens show this text, and Slack reads markup in it.
        text = escape(note.outcome or note.title, quote=False)
        content = {"channel": channel, "text": text, "blocks": json.dumps(blocks_of(note))}
        if posted:
            await self._call(client, "chat.update", {**content, "ts": posted})
        if posted or note.outcome is not None:
            return posted
        about = {"event_type": "surehand", "event_payload": {"id": note.delivery_id}}
        content |= {"metadata": json.dumps(about), "unfurl_links": "false"}
        return str((await self._call(client, "chat.postMessage", content))["ts"])

    async def _find_posted(
        self, client: httpx.AsyncClient, channel: str, note: Notification
    ) -> str:
        """Return the message that an earlier attempt has posted; empty: there is none."""
        asked = {"channel": channel, "limit": "200", "include_all_metadata": "true"}
        asked["oldest"] = f"{(note.at - _CLOCKS_APART).timestamp():.6f}"
        while True:
            answer = await self._call(client, "conversations.history", asked)
            for message in answer["messages"]:
                if message.get("metadata", {}).get("event_payload") == {"id": note.delivery_id}:
                    return str(message["ts"])
            asked["cursor"] = answer.get("response_metadata", {}).get("next_cursor", "")
            if not asked["cursor"]:
                return ""

    async def _call(
        self, client: httpx.AsyncClient, method: str, form: Mapping[str, str]
    ) -> dict[str, Any]:
        token = {"authorization": f"Bearer {self._token}"}
        response = await client.post(f"{self._url}/{method}", data=form, headers=token)
        _check_status(response, method)
        answer: dict[str, Any] = response.json()
        if not answer["ok"]:
            kind = _Unreachable if answer["error"] in _FINAL else NotDelivered
            raise kind(f"{method}: {answer['error']}")
        return answer


class Teams(ChatNotifier):
    """Posts to channels of Teams as a bot, whose token goes nowhere else."""

    name = "teams"

    def __init__(
        self, url: httpx.URL, channels: Mapping[str, str], token_url: httpx.URL, bot: dict[str, str]
    ) -> None:
        super().__init__(url, channels)
        self._token_url, self._bot = token_url, bot

    async def _write(
        self, client: httpx.AsyncClient, channel: str, posted: str, note: Notification
    ) -> str:
        if not posted and note.outcome is not None:
            return ""
        # One for each message, of which there are few: none has to be kept, or has gone stale.
        asked = {"grant_type": "client_credentials", "scope": _TEAMS_SCOPE, **self._bot}
        answer = await client.post(self._token_url, data=asked)
        _check_status(answer, "token")
        token = {"authorization": f"Bearer {answer.json()['access_token']}"}
        card = {"contentType": _CARD, "content": card_of(note)}
        # Lock screens show the summary.
        message = {"type": "message", "summary": note.outcome or note.title, "attachments": [card]}
        url = f"{self._url}/v3/conversations/{quote(channel, safe='')}/activities"
        if posted:
            url += f"/{quote(posted, safe='')}"
        answer = await client.request("PUT" if posted else "POST", url, json=message, headers=token)
        _check_status(answer, "message", unreachable=(403, 404))
        return posted or str(answer.json()["id"])


def _check_status(response: httpx.Response, what: str, unreachable: Collection[int] = ()) -> None:
    code, later = response.status_code, response.headers.get("Retry-After")
    if not response.is_success:
        named = later is not None and code in _LATER
        pause = read_retry_after(later, datetime.now(UTC)) if named else timedelta(0)
        kind = _Unreachable if code in unreachable else NotDelivered
        raise kind(f"{what}: HTTP {code}", pause)


def _compose(note: Notification) -> tuple[list[str], list[str]]:
    """Return the texts of a message in a chat, and the outcomes that its buttons vote for."""
    told = note.text
    if note.page is not None or note.outcome is not None:
        told = told.rpartition("\n\n")[0]  # the commands are for those who have no page
    if note.outcome is not None:
        return [told[:_LONGEST_TEXT], note.outcome], []
    # Nobody votes by a button on what was cut.
    votes = note.chat and note.kind in _ASKING and len(told) <= _LONGEST_TEXT
    return [told[:_LONGEST_TEXT]], ["approve", "reject"] if votes else []


def blocks_of(note: Notification) -> list[dict[str, Any]]:
    """Return a message of Slack: what is asked, and how it ended or who may decide.

    It has no marks, links or mentions of strangers. A button carries what it is a vote on.
    """
    texts, votes = _compose(note)
    blocks: list[dict[str, Any]] = [{"type": "section", "text": _plain(text)} for text in texts]
    value, styles = json.dumps([note.subject, note.params_hash]), ("primary", "danger")
    buttons: list[dict[str, Any]] = []
    for outcome, style in zip(votes, styles, strict=False):
        button = {"action_id": outcome, "text": _plain(outcome.capitalize()), "style": style}
        buttons.append({"type": "button", "value": value, **button})
    if note.outcome is None and note.page is not None:
        link = {"action_id": "open", "text": _plain("Open"), "url": note.page}
        buttons.append({"type": "button", **link})
    return [*blocks, {"type": "actions", "elements": buttons}] if buttons else blocks


def _plain(text: str) -> dict[str, Any]:
    return {"type": "plain_text", "text": text, "emoji": False}


def card_of(note: Notification) -> dict[str, Any]:
    """Return the same as a card of Teams, with text that it reads no marks in."""
    texts, votes = _compose(note)
    body = [
        # An empty line has no height.
        {"type": "RichTextBlock", "spacing": "None", "inlines": [line or " "]}
        for text in texts
        for line in text.splitlines()
    ]
    data = {"vote": [note.subject, note.params_hash]}
    actions: list[dict[str, Any]] = [
        {"type": "Action.Execute", "verb": outcome, "title": outcome.capitalize(), "data": data}
        for outcome in votes
    ]
    if note.outcome is None and note.page is not None:
        actions.append({"type": "Action.OpenUrl", "title": "Open", "url": note.page})
    return {"type": "AdaptiveCard", "version": "1.4", "body": body, "actions": actions}


class LogNotifier:
    """Writes notifications to the worker's log, where they can be looked for."""

    where = "the worker's log"

    async def send(self, notification: Notification) -> None:
        facts = notification.model_dump(mode="json", exclude_defaults=True)
        log.info("notification", title=notification.title, **facts)


def load_notifiers(settings: Settings) -> dict[str, Notifier]:
    """Return the notifiers by their names in ``SUREHAND_NOTIFY``. Raises ``SettingsError``."""
    twice = [name for name, count in Counter(settings.notify).items() if count > 1]
    if twice:
        raise _wrong("NOTIFY", f"names {twice[0]} twice")
    return {name: _load_notifier(name, settings) for name in settings.notify}


def where(notifiers: Mapping[str, Notifier]) -> str:
    """Return the notifiers in one line, with the servers they reach and without secrets."""
    shown = []
    for name, notifier in notifiers.items():
        place = getattr(notifier, "where", None)
        shown.append(f"{name} ({place})" if isinstance(place, str) else name)
    return ", ".join(shown)


def _load_notifier(name: str, settings: Settings) -> Notifier:
    if name in _LOADERS:
        return _LOADERS[name](settings)
    if is_named(name):
        return _own(name)
    raise _wrong("NOTIFY", f"{name!r} is neither {', '.join(_LOADERS)} nor module:name of your own")


def _webhook(settings: Settings) -> Webhook:
    url = settings.webhook_url.get_secret_value()
    secret = settings.webhook_secret.get_secret_value()
    _require("webhook", {"WEBHOOK_URL": url, "WEBHOOK_SECRET": secret})
    return Webhook(_read("WEBHOOK_URL", url, url_of), _read("WEBHOOK_SECRET", secret, secret_of))


def _mail(settings: Settings) -> Mail:
    url, sender, to = settings.smtp_url.get_secret_value(), settings.smtp_from, settings.smtp_to
    _require("smtp", {"SMTP_URL": url, "SMTP_FROM": sender, "SMTP_TO": ",".join(to)})
    for name, addresses in (("SMTP_FROM", (sender,)), ("SMTP_TO", to)):
        for address in addresses:
            if not ADDRESS.fullmatch(address):
                raise _wrong(name, f"{address!r} is no mail address such as ops@example.com")
    return Mail(_read("SMTP_URL", url, mail_server), sender, to)


def _slack(settings: Settings) -> Slack:
    token, given = settings.slack_token.get_secret_value(), settings.slack_channels
    _require("slack", {"SLACK_TOKEN": token, "SLACK_CHANNELS": ",".join(given)})
    channels = _read_channels("SLACK_CHANNELS", given, _SLACK_CHANNEL, "C0123456789")
    return Slack(_read("SLACK_URL", settings.slack_url, private_url_of), token, channels)


def _teams(settings: Settings) -> Teams:
    given, app, url = settings.teams_channels, settings.teams_app_id, settings.teams_token_url
    bot = {"client_id": app, "client_secret": settings.teams_app_secret.get_secret_value()}
    needed = {"TEAMS_APP_ID": app, "TEAMS_APP_SECRET": bot["client_secret"], "TEAMS_TOKEN_URL": url}
    _require("teams", {**needed, "TEAMS_CHANNELS": ",".join(given)})
    example = "19:0123abcd@thread.tacv2"
    channels = _read_channels("TEAMS_CHANNELS", given, _TEAMS_CHANNEL, example)
    to = _read("TEAMS_URL", settings.teams_url, private_url_of)
    return Teams(to, channels, _read("TEAMS_TOKEN_URL", url, private_url_of), bot)


_LOADERS: Final[Mapping[str, Callable[[Settings], Notifier]]] = {
    "log": lambda _: LogNotifier(),
    "webhook": _webhook,
    "smtp": _mail,
    "slack": _slack,
    "teams": _teams,
}


def _read_channels(
    name: str, given: Sequence[str], is_one: re.Pattern[str], example: str
) -> dict[str, str]:
    channels = {whose: channel for whose, _, channel in (one.partition("=") for one in given)}
    if len(channels) != len(given) or not all(map(is_one.fullmatch, channels.values())):
        raise _wrong(name, f"looks like finance={example},*={example}, each once")
    return channels


def _read(name: str, text: str, parse: Callable[[str], T]) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise _wrong(name, str(error)) from error


def _own(name: str) -> Notifier:
    found = load_named(name, f"setting {PREFIX}NOTIFY")
    if isinstance(found, type) or not inspect.iscoroutinefunction(getattr(found, "send", None)):
        raise _wrong("NOTIFY", f"{name} is no object with `async def send(self, notification)`")
    return cast(Notifier, found)


def _require(notifier: str, given: Mapping[str, str]) -> None:
    for name, value in given.items():
        if not value:
            raise _wrong(name, f"is missing: {PREFIX}NOTIFY names {notifier}, which needs it")


def _wrong(name: str, reason: str) -> SettingsError:
    line = " ".join(reason.split())
    return SettingsError(f"setting {PREFIX}{name}: {line}")
