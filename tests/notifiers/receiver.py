"""A receiver of webhooks as its owner would write it, with the protocol's own library."""

from __future__ import annotations

import base64
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from tests.notifiers.post_server import serve_posts

#: Seconds until something that was sent has to have arrived, on a loaded machine.
PATIENCE_S: Final = 60.0


@dataclass
class Receiver:
    """What arrived, and what is answered."""

    secret: str = field(default_factory=lambda: _new_secret())
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    """Codes and headers of the next answers; 204 when there are none left."""
    on_arrival: Callable[[], None] = lambda: None
    """Called with each delivery, before it is answered."""
    url: str = ""
    got: list[dict[str, Any]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    unproven: int = 0
    """Deliveries whose signature is wrong."""
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def take(self, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str]]:
        try:
            document = Webhook(self.secret).verify(body, headers)
        except WebhookVerificationError:
            self.unproven += 1
            return 400, {}
        with self._changed:
            self.got.append(document)
            self.ids.append(headers["webhook-id"])
            self._changed.notify_all()
        self.on_arrival()
        return self.answers.pop(0) if self.answers else (204, {})

    def wait(self, found: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
        """Return what arrived once it is as wanted."""
        with self._changed:
            assert self._changed.wait_for(lambda: found(self.got), PATIENCE_S), self.got
            return list(self.got)

    def settings(self) -> dict[str, str]:
        return {"webhook_url": self.url, "webhook_secret": self.secret}


def _new_secret() -> str:
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


@contextmanager
def receiving(receiver: Receiver) -> Iterator[Receiver]:
    """Have it listen on a port of its own; the path of its URL is as secret as a token."""

    def answer(
        path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        return (*receiver.take(headers, body), b"")

    with serve_posts(answer) as url:
        receiver.url = f"{url}/hooks/{secrets.token_hex(8)}"
        yield receiver


def documents(got: list[dict[str, Any]], type_: str) -> list[dict[str, Any]]:
    """The data of those of one type."""
    return [one["data"] for one in got if one["type"] == type_]
