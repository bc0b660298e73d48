"""How the tools talk to the shop: one request each, no retries, and its answers as values."""

from __future__ import annotations

import os
import ssl
from functools import cache
from typing import Any, Final

import httpx
from pydantic import BaseModel

from surehand import Found, LookupAnswer, No, NotFound, Partial, ToolContext, Unknown

DEFAULT_URL: Final = "http://127.0.0.1:8090"

#: Below the tools' own deadline of 5 s, so that a slow shop is seen as a read time-out, whose
#: meaning is known, and not as a call cut off from outside.
TIMEOUT: Final = httpx.Timeout(4.5, connect=1.0)

#: With these the shop says "no" to a request that it understood.
_SAYS_NO: Final = frozenset({httpx.codes.NOT_FOUND, httpx.codes.CONFLICT})


async def send(method: str, path: str, ctx: ToolContext, body: Any = None) -> httpx.Response:
    """Send one request. Retries are left to the worker, which knows what may be repeated."""
    async with _client() as client:
        headers = {"Idempotency-Key": ctx.idempotency_key}
        return await client.request(method, path, json=body, headers=headers)


def said_no(response: httpx.Response) -> No | None:
    """Return the shop's "no", or ``None`` when it did what was asked."""
    if response.status_code in _SAYS_NO:
        answer = _refusal(response)
        if answer is not None:
            return answer
    response.raise_for_status()
    return None


async def look_up(endpoint: str, receipt: type[BaseModel], ctx: ToolContext) -> LookupAnswer:
    """Ask the shop what it applied under the key of this call."""
    async with _client() as client:
        response = await client.get(f"/{endpoint}", params={"key": ctx.idempotency_key})
    if response.status_code == httpx.codes.NOT_IMPLEMENTED:
        return Unknown("the shop does not tell by key")
    response.raise_for_status()
    match response.json()["applied"]:
        case []:
            return NotFound()
        case [{"half": True, "receipt": applied}]:
            return Partial(f"applied by half: {applied}", receipt=applied)
        case [{"undone": True, "receipt": applied}]:
            return Unknown(f"applied, but taken back since: {applied}")
        case [{"receipt": applied}]:
            return Found(receipt.model_validate(applied).model_dump(mode="json"))
        case several:
            return Unknown(f"applied {len(several)} times under one key")


@cache
def _trusted(url: str) -> ssl.SSLContext:
    """Return who is trusted at an address; made once, because that takes longer than a call."""
    if url.startswith("https:"):
        return ssl.create_default_context()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # nobody: there is no TLS


def _client() -> httpx.AsyncClient:
    url = os.environ.get("SHOP_URL", DEFAULT_URL)
    # The transport's default of no retries is said aloud: a retry here would be invisible.
    transport = httpx.AsyncHTTPTransport(verify=_trusted(url), retries=0)
    return httpx.AsyncClient(base_url=url, timeout=TIMEOUT, transport=transport)


def _refusal(response: httpx.Response) -> No | None:
    """Return the "no" in the answer; a 404 of a wrong address or of a proxy has none."""
    try:
        answer = response.json()
    except ValueError:
        return None
    if not isinstance(answer, dict) or not {"code", "message"} <= answer.keys():
        return None
    return No(reason=answer["message"], code=answer["code"])
