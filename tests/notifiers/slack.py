"""Slack as its documentation has it: its Web API, and presses of buttons as it signs them.

Written from https://docs.slack.dev/reference/methods (``chat.postMessage``, ``chat.update``,
``conversations.history``), ``/apis/web-api/rate-limits``,
``/authentication/verifying-requests-from-slack`` and
``/reference/interaction-payloads/block_actions-payload``; nothing here asks the real one.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, urlencode, urlsplit

from tests.notifiers.post_server import serve_posts

TEAM: Final = "T0123"
TOKEN: Final = "xoxb-a-token-of-the-tests"
SECRET: Final = "8f742231b10e8888abcd99yyyzzz85a5"
_PAGE: Final = 2


@dataclass
class Workspace:
    """Channels with their messages, and what was told to single people."""

    channels: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    """By channel and ``ts``."""
    told: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    refuses: list[int] = field(default_factory=list)
    """Seconds for which the next calls are refused with 429."""
    on_arrival: Callable[[], None] = lambda: None
    """Called with each message that was posted, before that is answered."""
    url: str = ""
    _times: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def messages(self) -> list[tuple[str, dict[str, Any]]]:
        return [(name, one) for name, its in self.channels.items() for one in its.values()]

    def settings(self, **channels: str) -> dict[str, str]:
        given = ",".join(f"{role}={channel}" for role, channel in channels.items())
        return {"slack_url": f"{self.url}/api", "slack_token": TOKEN, "slack_channels": given}

    def answer(self, path: str, token: str, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        method = path.removeprefix("/api/")
        if path.startswith("/actions/"):
            self.told.append(asked["text"])
            return 200, {}
        self.calls.append(method)
        if self.refuses:
            return 429, {"ok": False, "error": "ratelimited"}
        if token != f"Bearer {TOKEN}":
            return 200, {"ok": False, "error": "invalid_auth"}
        its = self.channels.get(asked["channel"])
        if its is None:
            return 200, {"ok": False, "error": "channel_not_found"}
        match method:
            case "chat.postMessage":
                ts = f"{time.time():.0f}.{next(self._times):06}"
                its[ts] = {"ts": ts, **asked}
                self.on_arrival()
                return 200, {"ok": True, "channel": asked["channel"], "ts": ts}
            case "chat.update":
                if asked["ts"] not in its:
                    return 200, {"ok": False, "error": "message_not_found"}
                its[asked["ts"]] |= asked
                return 200, {"ok": True}
            case _:
                return 200, self._history(its, asked)

    def _history(self, its: dict[str, dict[str, Any]], asked: dict[str, Any]) -> dict[str, Any]:
        """Answer newest first; metadata only where it is asked for."""
        found = [its[ts] for ts in sorted(its, reverse=True) if ts > asked.get("oldest", "")]
        if asked.get("include_all_metadata") != "true":
            found = [{k: v for k, v in one.items() if k != "metadata"} for one in found]
        at = int(asked.get("cursor") or 0)
        more = str(at + _PAGE) if at + _PAGE < len(found) else ""
        page = found[at : at + _PAGE]
        return {"ok": True, "messages": page, "response_metadata": {"next_cursor": more}}

    def press(self, message: dict[str, Any], action: str, by: str, **changes: Any) -> bytes:
        """Return the body that Slack sends if somebody presses a button of a message."""
        [found] = [one for one in buttons(message) if one["action_id"] == action]
        payload = {
            "type": "block_actions",
            "user": {"id": by, "username": "ann", "team_id": TEAM},
            "team": {"id": TEAM, "domain": "acme"},
            "trigger_id": f"{next(self._times)}.1.abc",
            "response_url": f"{self.url}/actions/{TEAM}/1/secret",
            "actions": [{**found, "type": "button", "action_ts": f"{time.time():.6f}"}],
            "message": message,
            **changes,
        }
        return urlencode({"payload": json.dumps(payload)}).encode()


def signed(body: bytes, *, secret: str = SECRET, at: int | None = None) -> dict[str, str]:
    """Return the headers with which Slack sends a body."""
    sent = str(int(time.time()) if at is None else at)
    base = b":".join((b"v0", sent.encode(), body))
    return {
        "content-type": "application/x-www-form-urlencoded",
        "x-slack-request-timestamp": sent,
        "x-slack-signature": "v0=" + hmac.new(secret.encode(), base, hashlib.sha256).hexdigest(),
    }


def buttons(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for block in message["blocks"] for one in block.get("elements", [])]


def words(message: dict[str, Any]) -> str:
    """Return what people read of a message."""
    return "\n".join(block["text"]["text"] for block in message["blocks"] if "text" in block)


@contextmanager
def workspace(*channels: str) -> Iterator[Workspace]:
    """Have a workspace with these channels listen on a port of its own."""
    there = Workspace({name: {} for name in channels})

    def answer(
        path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        asked: dict[str, Any]
        if headers["content-type"] == "application/json":
            asked = json.loads(body)
        else:
            asked = {name: value for name, [value] in parse_qs(body.decode()).items()}
        for name in ("blocks", "metadata"):
            if name in asked:
                asked[name] = json.loads(asked[name])
        token = headers.get("authorization", "")
        code, said = there.answer(urlsplit(path).path, token, asked)
        later = {"retry-after": str(there.refuses.pop(0))} if code == 429 else {}
        return code, later, json.dumps(said).encode()

    with serve_posts(answer) as there.url:
        yield there
