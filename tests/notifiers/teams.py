"""Teams as its documentation has it: the bot's token, channels, and presses as it signs them.

Written from https://learn.microsoft.com/azure/bot-service/rest-api/ (``…-connector-authentication``
and ``…-connector-api-reference``) and, for presses, from
https://learn.microsoft.com/adaptive-cards/authoring-cards/universal-action-model; nothing here asks
the real one.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final
from urllib.parse import parse_qs, unquote

from joserfc import jwt
from joserfc.jwk import RSAKey

from tests.notifiers.post_server import serve_posts

APP_ID: Final = "11111111-aaaa-4bbb-8ccc-222222222222"
SECRET: Final = "a-client-secret-of-the-tests"
DIRECTORY: Final = "33333333-aaaa-4bbb-8ccc-444444444444"
SERVICE: Final = "https://smba.trafficmanager.net/emea/"
FINANCE, OTHERS = "19:finance@thread.tacv2", "19:others@thread.tacv2"
_TOKEN: Final = "the-token-of-the-bot"


@cache
def key(channel: str) -> RSAKey:
    """Return a key of the Bot Framework that signs for a channel."""
    return RSAKey.generate_key(2048, {"kid": f"for-{channel}", "use": "sig"})


@dataclass
class Connector:
    """Channels with their messages."""

    channels: dict[str, dict[str, dict[str, Any]]]
    """By channel and activity."""
    calls: list[str] = field(default_factory=list)
    """What was done with messages, or asked for keys."""
    url: str = ""
    _ids: Iterator[int] = field(default_factory=lambda: itertools.count(1_700_000_000_000))

    @property
    def messages(self) -> list[tuple[str, dict[str, Any]]]:
        return [(name, one) for name, its in self.channels.items() for one in its.values()]

    @property
    def metadata_url(self) -> str:
        return f"{self.url}/v1/.well-known/openidconfiguration"

    def settings(self, **channels: str) -> dict[str, str]:
        return {
            "teams_app_id": APP_ID,
            "teams_app_secret": SECRET,
            "teams_token_url": f"{self.url}/{DIRECTORY}/oauth2/v2.0/token",
            "teams_url": f"{self.url}/teams/",
            "teams_channels": ",".join(f"{role}={name}" for role, name in channels.items()),
        }

    def answer(self, path: str, token: str, body: bytes) -> tuple[int, Any]:
        match [unquote(part) for part in path.strip("/").split("/")]:
            case ["v1", ".well-known", "openidconfiguration"]:
                return 200, {"jwks_uri": f"{self.url}/v1/.well-known/keys"}
            case ["v1", ".well-known", "keys"]:
                self.calls.append("keys")
                known = ("msteams", "webchat")
                return 200, {
                    "keys": [key(of).as_dict(False) | {"endorsements": [of]} for of in known]
                }
            case [directory, "oauth2", "v2.0", "token"] if directory == DIRECTORY:
                asked = {"grant_type": "client_credentials", "client_id": APP_ID}
                asked |= {"client_secret": SECRET, "scope": "https://api.botframework.com/.default"}
                given = {name: value for name, [value] in parse_qs(body.decode()).items()}
                return (200, {"access_token": _TOKEN}) if given == asked else (401, {})
            case ["teams", "v3", "conversations", channel, "activities", *posted]:
                if token != f"Bearer {_TOKEN}":
                    return 401, {}
                its = self.channels.get(channel)
                if its is None or not set(posted) <= its.keys():
                    return 404, {}
                self.calls.append("update" if posted else "post")
                [name] = posted or [str(next(self._ids))]
                its[name] = json.loads(body)
                return (200 if posted else 201), {"id": name}
        return 404, {}


def card(message: dict[str, Any]) -> dict[str, Any]:
    [attached] = message["attachments"]
    assert attached["contentType"] == "application/vnd.microsoft.card.adaptive"
    found: dict[str, Any] = attached["content"]
    return found


def words(message: dict[str, Any]) -> list[str]:
    """Return the lines that people read."""
    return ["".join(block["inlines"]) for block in card(message)["body"]]


def press(action: dict[str, Any], by: str, **changes: Any) -> dict[str, Any]:
    """Return the activity that somebody's use of a card's button is."""
    return {
        "type": "invoke",
        "name": "adaptiveCard/action",
        "id": f"f:{time.time_ns()}",
        "channelId": "msteams",
        "serviceUrl": SERVICE,
        "from": {"id": f"29:{by}", "aadObjectId": by},
        "conversation": {"conversationType": "channel", "id": f"{FINANCE};messageid=1"},
        "channelData": {"tenant": {"id": DIRECTORY}},
        "value": {"action": action, "trigger": "manual"},
        **changes,
    }


def signed(*, by: RSAKey | None = None, **changes: Any) -> dict[str, str]:
    """Return the headers with which the Bot Framework sends an activity; no claim is ``None``."""
    now, by = int(time.time()), by or key("msteams")
    claims = {"iss": "https://api.botframework.com", "aud": APP_ID, "serviceurl": SERVICE}
    claims |= {"nbf": now - 60, "exp": now + 3600, **changes}
    said = {name: value for name, value in claims.items() if value is not None}
    token = jwt.encode({"alg": "RS256", "kid": by.kid}, said, by)
    return {"authorization": f"Bearer {token}", "content-type": "application/json"}


@contextmanager
def connector() -> Iterator[Connector]:
    """Have it listen on a port of its own, with two channels."""
    there = Connector({FINANCE: {}, OTHERS: {}})

    def answer(
        path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        code, said = there.answer(path, headers.get("authorization", ""), body)
        return code, {}, json.dumps(said).encode()

    with serve_posts(answer) as there.url:
        yield there
