"""Encrypts by a codec server, for starters that reach neither the ledger nor a key.

It speaks Temporal's remote codec protocol, and says beside each payload which run it is for:
nothing in the protocol does.
"""

from __future__ import annotations

import json
from typing import Final

import httpx
from google.protobuf import json_format
from temporalio.api.common.v1 import Payload, Payloads

from surehand.process.exits import WrongUse
from surehand.process.sources import CODEC_ENDPOINT, CODEC_TOKEN
from surehand.workflows.encryption import (
    ENCODING_KEY,
    ENCRYPTED,
    PART,
    WORKFLOW_ID,
    KeyUnavailable,
    NotDecrypted,
    Place,
    place_named,
    require_place,
)

#: Seconds; whoever types a command waits for it.
_LIMIT: Final = 15.0


class RemoteEncryption:
    """Encrypts and decrypts by asking a codec server."""

    def __init__(self, endpoint: str, token: str, namespace: str) -> None:
        """Make it; nobody is asked yet.

        Args:
            endpoint: The server's address; ``/encode`` and ``/decode`` are added.
            token: Shown to it.
            namespace: Temporal's, in which the payloads are.

        Raises:
            WrongUse: The address is none.
        """
        url = httpx.URL(endpoint.rstrip("/"))
        if url.scheme not in ("http", "https") or not url.host:
            raise WrongUse(f"setting {CODEC_ENDPOINT}: {endpoint!r} is no http(s)://host")
        self._endpoint = str(url)
        self._headers = {"X-Namespace": namespace}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    async def encrypt(self, payload: Payload, place: Place, *, kept: bool) -> Payload:
        """Encrypt a payload, as the port says; a client replays nothing, so ``kept`` is no matter.

        Raises:
            KeyUnavailable: The server does not answer, or refuses, or has not encrypted it for
                that place.
        """
        asked = Payload()
        asked.CopyFrom(payload)
        asked.metadata[WORKFLOW_ID] = place.workflow_id.encode()
        asked.metadata[PART] = place.part.encode()
        answer = await self._ask("encode", asked)
        try:
            encrypted = answer.metadata.get(ENCODING_KEY) == ENCRYPTED
            if not encrypted or not place.holds(place_named(answer)):
                raise NotDecrypted("it is not")
        except NotDecrypted as error:
            # Whatever answers there, what is secret is not sent on in plain.
            raise KeyUnavailable(f"{self._endpoint} has not encrypted a payload") from error
        return answer

    async def decrypt(self, payload: Payload, place: Place | None) -> Payload:
        """Decrypt a payload, as the port says."""
        require_place(payload, place)
        answer = await self._ask("decode", payload)
        if answer.metadata.get(ENCODING_KEY) == ENCRYPTED:
            raise NotDecrypted(f"{self._endpoint} does not decrypt it")
        return answer

    async def _ask(self, what: str, payload: Payload) -> Payload:
        body = json_format.MessageToDict(Payloads(payloads=[payload]))
        try:
            async with httpx.AsyncClient(timeout=_LIMIT, headers=self._headers) as client:
                answer = await client.post(f"{self._endpoint}/{what}", json=body)
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            raise KeyUnavailable(f"codec server {self._endpoint} does not answer: {why}") from error
        if answer.status_code in (401, 403):
            raise KeyUnavailable(
                f"codec server {self._endpoint} refuses to {what}: {_reason(answer)}"
                f" ({CODEC_TOKEN})"
            )
        try:
            if answer.status_code != 200:
                raise ValueError(_reason(answer))
            [found] = json_format.ParseDict(answer.json(), Payloads()).payloads
        except (ValueError, json_format.ParseError) as error:
            reason = " ".join(str(error).split())[:300]
            raise KeyUnavailable(f"codec server {self._endpoint}: {reason}") from error
        return found


def _reason(answer: httpx.Response) -> str:
    try:
        told = json.loads(answer.text)["error"]
    except (ValueError, KeyError, TypeError):
        told = f"HTTP {answer.status_code}"
    return str(told)
