"""Votes by buttons in a chat: whose press it is, and a decision that this server vouches for.

Slack signs each press (https://docs.slack.dev/authentication/verifying-requests-from-slack) by the
app's signing secret. A reviewed file says whose the account is, as for sign-ins. The decision is
then signed with a key of the principal ``chat``. The ledger takes such decisions only if the
policies of a call say ``proof: chat``, and judges at each count whether key and roles still hold.
So whoever takes this server over can decide such calls, and no other.

One press is one nonce: the ledger judges it once, also after a restart of this server.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qs

import httpx
import structlog
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from surehand.cli.approvals_server.sign_in import Registered, Subjects
from surehand.cli.options import translated
from surehand.client.messages import find_approval, fresh_claims, read_key, sign
from surehand.process.exits import NoWorker, Unanswered, WrongUse
from surehand.process.settings import PREFIX
from surehand.workflows.contracts.approvals import ChatClaims, DecisionOutcome, Verdict

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from surehand.activities.worker.settings import Settings

log = structlog.get_logger()

SLACK: Final = "/chat/slack"
#: How old a press may be, as Slack recommends.
_LASTS: Final = timedelta(minutes=5)
#: Bytes of a press, which carries the whole message.
_LARGEST: Final = 256 * 1024
#: Hands on a decision to its run.
Forward = Callable[[str, Mapping[str, Any]], Awaitable[Verdict]]


class Press(NamedTuple):
    """A button that somebody has pressed."""

    issuer: str
    user: str
    outcome: DecisionOutcome
    approval_id: str
    params_hash: str
    answer_to: str
    """Where only that person reads what is told. Whoever has this URL may write there."""
    nonce: str


class ChatVotes:
    """Takes presses, and hands on the decisions that they are."""

    def __init__(
        self,
        *,
        secret: str,
        key: Ed25519PrivateKey,
        subjects: Subjects,
        tenant: str,
        registered: Registered,
    ) -> None:
        self._secret, self._key, self._subjects = secret, key, subjects
        self._tenant, self._registered = tenant, registered
        self.taken = dict[str, float]()
        """Nonces of presses, and when each was taken."""

    def routes(self, forward: Forward) -> list[Route]:
        async def take(request: Request) -> Response:
            sent = bytearray()
            async for chunk in request.stream():
                sent += chunk
                if len(sent) > _LARGEST:
                    return Response("too large", 413)
            body = bytes(sent)
            nonce = f"slack-{hashlib.sha256(body).hexdigest()}"
            if not self._is_slacks(request.headers, body) or nonce in self.taken:
                return Response("not signed by Slack, too old, or taken already", 401)
            press = read_press(body, nonce)
            if press is None:
                return Response()
            # Slack's clock may be ahead by as much as a press may be old.
            now, longest = time.time(), 2 * _LASTS.total_seconds()
            self.taken = {one: at for one, at in self.taken.items() if now - at <= longest}
            self.taken[nonce] = now
            # Slack waits for 3 s, and a run may take longer.
            return Response(background=BackgroundTask(self._decide, press, forward))

        return [Route(SLACK, take, methods=["POST"])]

    def _is_slacks(self, headers: Mapping[str, str], body: bytes) -> bool:
        at = headers.get("x-slack-request-timestamp", "")
        if not (at.isascii() and at.isdecimal() and len(at) < 16):
            return False
        made = hmac.digest(self._secret.encode(), f"v0:{at}:".encode() + body, hashlib.sha256)
        given = headers.get("x-slack-signature", "").encode()
        fresh = abs(time.time() - int(at)) <= _LASTS.total_seconds()
        return hmac.compare_digest(given, b"v0=" + made.hex().encode()) and fresh

    async def _decide(self, press: Press, forward: Forward) -> None:
        me, now = self._subjects.principal(press.issuer, press.user), int(time.time())
        try:
            with translated():
                if me is None or not await self._registered(me):
                    raise WrongUse(f"{press.issuer}, {press.user} is nobody who may decide here")
                run_id, approval_id = find_approval(self._tenant, press.approval_id)
                # A message has whole ids, and a short one would be taken for one of this tenant's.
                if approval_id != press.approval_id:
                    raise WrongUse("that message is another tenant's")
                claims = ChatClaims(
                    **fresh_claims(me, self._tenant, now) | {"jti": press.nonce},
                    run_id=run_id,
                    approval_id=approval_id,
                    params_hash=press.params_hash,
                    outcome=press.outcome,
                    account=f"{press.issuer}:{press.user}",
                )
                decision = claims.model_dump(include={"approval_id", "params_hash", "outcome"})
                decision |= {"approver": me, "signature": sign(self._key, claims)}
                told = (await forward(run_id, decision)).message
        except (WrongUse, NoWorker) as problem:
            told = f"It does not count: {problem}"
        except Unanswered as problem:
            told = f"Sent, and not judged yet: {problem}"
        except Exception:
            log.exception("chat.unknown")
            told = "Nobody knows whether it counts: look at the request"
        answer = {"response_type": "ephemeral", "replace_original": False, "text": told}
        try:
            async with httpx.AsyncClient() as client:
                (await client.post(press.answer_to, json=answer)).raise_for_status()
        except httpx.HTTPError as error:
            # Not its text, which has the URL.
            log.warning("chat.not_told", error=type(error).__name__)


def read_press(body: bytes, nonce: str) -> Press | None:
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
            nonce=nonce,
        )
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def chat_of(settings: Settings, tenant: str, registered: Registered) -> ChatVotes:
    """Return how buttons decide, whose signing secret is set."""
    for name in ("chat_key", "chat_principals"):
        if not getattr(settings, name):
            raise WrongUse(f"setting {PREFIX}{name.upper()} is missing: votes in Slack need it")
    return ChatVotes(
        secret=settings.slack_signing_secret.get_secret_value(),
        key=read_key(Path(settings.chat_key)),
        subjects=Subjects(Path(settings.chat_principals), tenant),
        tenant=tenant,
        registered=registered,
    )
