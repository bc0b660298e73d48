"""Votes by buttons in a chat: whose press it is, and a decision that this server vouches for.

Slack signs each press (https://docs.slack.dev/authentication/verifying-requests-from-slack) by the
app's signing secret. For Teams the Bot Framework signs a token, which it sends with each activity
(https://learn.microsoft.com/azure/bot-service/rest-api/bot-framework-rest-connector-authentication).
A reviewed file says whose the account is, as for sign-ins. The decision is then signed with a key
of the principal ``chat``. The ledger takes such decisions only if the policies of a call say
``proof: chat``, and judges at each count whether key and roles still hold. So whoever takes this
server over can decide such calls, and no other.

One press is one nonce: the ledger judges it once, also after a restart of this server.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qs

import httpx
import structlog
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from surehand.cli.approvals_server.sign_in import Registered, Subjects
from surehand.client.messages import find_approval, fresh_claims, read_key, sign
from surehand.process.exits import NoWorker, Unanswered, WrongUse
from surehand.process.settings import PREFIX, load_extra
from surehand.workflows.contracts.approvals import ChatClaims, DecisionOutcome, Verdict

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from surehand.activities.worker.settings import Settings
    from surehand.cli.approvals_server.oidc import BotFramework

log = structlog.get_logger()

#: How old a press may be, as Slack recommends.
_LASTS: Final = timedelta(minutes=5)
#: Bytes of a press, which carries the whole message.
_LARGEST: Final = 256 * 1024
#: The Bot Framework's name for Teams. In some other channels people say themselves who they are.
_CHANNEL: Final = "msteams"
#: Seconds for which Teams surely waits for an answer.
_TEAMS_WAITS: Final = 4
#: Hands on a decision to its run.
Forward = Callable[[str, Mapping[str, Any]], Coroutine[Any, Any, Verdict]]


class Press(NamedTuple):
    """A button that somebody has pressed."""

    issuer: str
    user: str
    outcome: DecisionOutcome
    approval_id: str
    params_hash: str
    answer_to: str = ""
    """Where only that person reads what is told. Whoever has this URL may write there."""


@dataclass(eq=False)
class ChatVotes:
    """Takes presses, and hands on the decisions that they are."""

    chats: Mapping[str, SlackPresses | TeamsPresses]
    key: Ed25519PrivateKey
    subjects: Subjects
    tenant: str
    registered: Registered
    taken: dict[str, float] = field(default_factory=dict)
    """Nonces of presses, and when each was taken."""

    def routes(self, forward: Forward) -> list[Route]:
        async def take(request: Request) -> Response:
            name = request.path_params["chat"]
            if (chat := self.chats.get(name)) is None:
                return Response("no such chat", 404)
            sent = bytearray()
            async for chunk in request.stream():
                sent += chunk
                if len(sent) > _LARGEST:
                    return Response("too large", 413)
            body = bytes(sent)
            nonce = f"{name}-{hashlib.sha256(body).hexdigest()}"
            if not await chat.verify_request(request.headers, body) or nonce in self.taken:
                return Response("not signed by the chat, too old, or taken already", 401)
            press = chat.read_press(body)
            if press is None:
                return Response()
            # The chat's clock may be ahead by as much as a press may be old.
            now, longest = time.time(), 2 * _LASTS.total_seconds()
            self.taken = {one: at for one, at in self.taken.items() if now - at <= longest}
            self.taken[nonce] = now
            return await chat.answer_press(press, self._decide(press, nonce, forward))

        return [Route("/chat/{chat}", take, methods=["POST"])]

    async def _decide(self, press: Press, nonce: str, forward: Forward) -> str:
        """Return what to tell whoever has pressed."""
        me, now = self.subjects.principal(press.issuer, press.user), int(time.time())
        try:
            if me is None or not await self.registered(me):
                raise WrongUse(f"{press.issuer}, {press.user} is nobody who may decide here")
            run_id, approval_id = find_approval(self.tenant, press.approval_id)
            # A message has whole ids, and a short one would be taken for one of this tenant's.
            if approval_id != press.approval_id:
                raise WrongUse("that message is another tenant's")
            claims = ChatClaims(
                **fresh_claims(me, self.tenant, now) | {"jti": nonce},
                run_id=run_id,
                approval_id=approval_id,
                params_hash=press.params_hash,
                outcome=press.outcome,
                account=f"{press.issuer}:{press.user}",
            )
            decision = claims.model_dump(include={"approval_id", "params_hash", "outcome"})
            decision |= {"approver": me, "signature": sign(self.key, claims)}
            return (await forward(run_id, decision)).message
        except (WrongUse, NoWorker) as problem:
            return f"It does not count: {problem}"
        except Unanswered as problem:
            return f"Sent, and not judged yet: {problem}"
        except Exception:
            log.exception("chat.unknown")
            return "Nobody knows whether it counts: look at the request"


@dataclass(frozen=True, repr=False)
class SlackPresses:
    """Presses of buttons in a workspace of Slack."""

    secret: str

    async def verify_request(self, headers: Mapping[str, str], body: bytes) -> bool:
        """Return whether the chat has signed it, and lately."""
        at = headers.get("x-slack-request-timestamp", "")
        if not (at.isascii() and at.isdecimal() and len(at) < 16):
            return False
        made = hmac.digest(self.secret.encode(), f"v0:{at}:".encode() + body, hashlib.sha256)
        given = headers.get("x-slack-signature", "").encode()
        fresh = abs(time.time() - int(at)) <= _LASTS.total_seconds()
        return hmac.compare_digest(given, b"v0=" + made.hex().encode()) and fresh

    def read_press(self, body: bytes) -> Press | None:
        """Return the press of a button that decides; ``None``: there is nothing to decide."""
        try:
            said = json.loads(parse_qs(body.decode(), strict_parsing=True)["payload"][0])
            [action] = said["actions"]
            approval_id, params_hash = json.loads(action["value"])
            return Press(
                issuer=f"slack:{said['user']['team_id']}",
                user=str(said["user"]["id"]),
                outcome=DecisionOutcome(action["action_id"]),
                approval_id=str(approval_id),
                params_hash=str(params_hash),
                answer_to=str(said["response_url"]),
            )
        except (ValueError, LookupError, TypeError, RecursionError):
            return None

    async def answer_press(self, press: Press, judged: Coroutine[Any, Any, str]) -> Response:
        """Tell whoever has pressed it, and nobody else, what has become of it."""
        # Slack waits for 3 s, and a run may take longer.
        return Response(background=BackgroundTask(self._tell, press, judged))

    async def _tell(self, press: Press, judged: Coroutine[Any, Any, str]) -> None:
        answer = {"response_type": "ephemeral", "replace_original": False, "text": await judged}
        try:
            async with httpx.AsyncClient() as client:
                (await client.post(press.answer_to, json=answer)).raise_for_status()
        except httpx.HTTPError as error:
            # Not its text, which has the URL.
            log.warning("chat.not_told", error=type(error).__name__)


@dataclass(frozen=True)
class TeamsPresses:
    """Presses of buttons in Teams, as activities of the Bot Framework.

    This server has no secret of the bot and calls no URL that an activity names.
    """

    signer: BotFramework

    async def verify_request(self, headers: Mapping[str, str], body: bytes) -> bool:
        scheme, _, sent = headers.get("authorization", "").partition(" ")
        claims = await self.signer.read_token(sent) if scheme == "Bearer" else {}
        try:
            activity = json.loads(body)
            # A key that signs for other channels alone vouches for nobody in Teams.
            is_for = activity["channelId"] == _CHANNEL and _CHANNEL in claims["endorsements"]
            return bool(is_for and activity["serviceUrl"] == claims["serviceurl"])
        except (ValueError, LookupError, TypeError, RecursionError):
            return False

    def read_press(self, body: bytes) -> Press | None:
        try:
            said = json.loads(body)
            action = said["value"]["action"]
            # Whoever has the bot's token can post a card that refreshes itself where it is seen.
            if said["value"].get("trigger", "manual") != "manual":
                return None
            approval_id, params_hash = action["data"]["vote"]
            return Press(
                issuer=f"teams:{said['channelData']['tenant']['id']}",
                user=str(said["from"]["aadObjectId"]),
                outcome=DecisionOutcome(action["verb"]),
                approval_id=str(approval_id),
                params_hash=str(params_hash),
            )
        except (ValueError, LookupError, TypeError, AttributeError):
            return None

    async def answer_press(self, press: Press, judged: Coroutine[Any, Any, str]) -> Response:
        judging = asyncio.ensure_future(judged)
        await asyncio.wait({judging}, timeout=_TEAMS_WAITS)
        told = judging.result() if judging.done() else "Not judged yet: look at the request"
        answer = {"statusCode": 200, "type": "application/vnd.microsoft.activity.message"}
        after = BackgroundTask(asyncio.wait, {judging})
        return JSONResponse({**answer, "value": told}, background=after)


def chat_of(settings: Settings, tenant: str, registered: Registered) -> ChatVotes:
    """Return how buttons decide in the chats of the settings."""
    for name in ("chat_key", "chat_principals"):
        if not getattr(settings, name):
            raise WrongUse(f"setting {PREFIX}{name.upper()} is missing: votes in a chat need it")
    chats = dict[str, SlackPresses | TeamsPresses]()
    if secret := settings.slack_signing_secret.get_secret_value():
        chats["slack"] = SlackPresses(secret)
    if settings.teams_app_id:
        need = f"{PREFIX}TEAMS_APP_ID needs Authlib"
        loaded = load_extra("surehand.cli.approvals_server.oidc", "approvals", need)
        chats["teams"] = TeamsPresses(loaded.BotFramework(settings.teams_app_id))
    if not chats:
        names = f"{PREFIX}SLACK_SIGNING_SECRET or {PREFIX}TEAMS_APP_ID"
        raise WrongUse(f"setting {names} is missing: it says in which chat buttons count")
    return ChatVotes(
        chats,
        key=read_key(Path(settings.chat_key)),
        subjects=Subjects(Path(settings.chat_principals), tenant),
        tenant=tenant,
        registered=registered,
    )
