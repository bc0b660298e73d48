"""The notifier ``webhook``: one signed POST for each notification.

The protocol is that of Standard Webhooks 1.0 (https://www.standardwebhooks.com, file
``spec/standard-webhooks.md`` of github.com/standard-webhooks/standard-webhooks): the headers
``webhook-id``, ``webhook-timestamp`` and ``webhook-signature``, the last one an HMAC-SHA256 over
id, timestamp and body with dots between them. Receivers verify it with that project's libraries,
which refuse what is older than five minutes, and drop an id that they know.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import time
from datetime import UTC, datetime
from typing import Final

import httpx

from surehand.activities.ledger.outbox.notification import (
    ANSWER_LIMIT,
    NotDelivered,
    Notification,
    ReceiverGone,
)
from surehand.activities.tools.retries import retry_after

SECRET_PREFIX: Final = "whsec_"
#: Bytes, as the protocol has it.
SHORTEST_SECRET: Final = 24
LONGEST_SECRET: Final = 64
_GONE: Final = 410
#: Answers that may say when to come again.
_LATER: Final = (429, 503)


def secret_of(text: str) -> bytes:
    """Return the key that a ``whsec_...`` text stands for.

    Raises:
        ValueError: A sentence that says what is wrong, without the secret.
    """
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
    """Return where to post to.

    Raises:
        ValueError: A sentence that says what is wrong, without the URL.
    """
    form = "must be http://host/path or https://host/path"
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise ValueError(form) from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(form)
    return url


def signature(secret: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the value of ``webhook-signature``."""
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
                code, later = response.status_code, response.headers.get("Retry-After")
        except (httpx.HTTPError, TimeoutError) as error:
            # It may have arrived all the same: its id tells the receiver that it comes again.
            raise NotDelivered(f"{type(error).__name__}: {error}") from error
        if code == _GONE:
            raise ReceiverGone("HTTP 410: the receiver wants nothing more")
        if not 200 <= code < 300:
            message = f"HTTP {code}"
            if later is None or code not in _LATER:
                raise NotDelivered(message)
            raise NotDelivered(message, retry_after(later, datetime.now(UTC)))
