"""The codec server: Temporal's remote codec protocol, for one namespace and one ledger.

A token names its tenants. Whose payload it is, says the run whose key it was encrypted with; and no
key of another tenant is even looked for, so nobody learns which runs there are.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final, Literal

from google.protobuf import json_format
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from temporalio.api.common.v1 import Payload, Payloads

from surehand.process.ciphers import RunEncryption, RunKey, RunKeys
from surehand.process.exits import WrongUse
from surehand.process.files import stamp_of
from surehand.process.off_loop import ValueCounter
from surehand.workflows.identity import run_id_for, tenant_of_run, tenant_problem
from surehand.workflows.payload_codec import (
    ENCODING,
    ENCODING_KEY,
    ENCRYPTED,
    PART,
    WORKFLOW_ID,
    KeyUnavailable,
    NotDecrypted,
    Part,
    Place,
    Reference,
    Store,
    data_converter,
    place_named,
)

#: Bytes of a request's body, and payloads in it. A page of the Web UI has a hundred events.
LARGEST_BODY: Final = 16 * 1024 * 1024
MOST_PAYLOADS: Final = 1000
#: A payload has some values, above all its metadata: more of them are more payloads.
_MOST_VALUES: Final = 20 * MOST_PAYLOADS
#: Bytes of a token that is typed into the page.
_LARGEST_FORM: Final = 4096
_COOKIE: Final = "surehand_codec"
_SIGNED_IN_S: Final = 8 * 60 * 60

_LINE: Final = re.compile(r"sha256:(?P<digest>[0-9a-f]{64})\s+(?P<tenants>\S+)\s+(?P<right>\S+)")
_FORM: Final = "sha256:DIGEST TENANT[,TENANT] read|write"
#: Characters of a token that somebody shows.
LONGEST_TOKEN: Final = 400


@dataclass(frozen=True)
class Holder:
    """What whoever holds a token may do."""

    tenants: tuple[str, ...]
    right: Literal["read", "write"]
    """``write``: it may have something encrypted, too."""


class TokenFile:
    """The tokens of a file, by their digests; read again when the file has changed."""

    def __init__(self, file: Path) -> None:
        """Read the file, whose lines ``codec token`` writes."""
        self._file = file
        self._stamp: tuple[int, ...] | None = None
        self._holders = dict[str, Holder]()
        self._read_if_changed()

    def find_holder(self, token: str) -> Holder | None:
        """Return what a token's holder may do; ``None``: it is no token, or not any more."""
        self._read_if_changed()
        # Compared by digest: how long that takes tells nothing of a token.
        return self._holders.get(digest_token(token)) if len(token) <= LONGEST_TOKEN else None

    def _read_if_changed(self) -> None:
        try:
            stamp = stamp_of(self._file)
            if stamp == self._stamp:
                return
            lines = self._file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise WrongUse(f"tokens {self._file} cannot be read: {error}") from error
        holders = dict[str, Holder]()
        for number, line in enumerate(map(str.strip, lines), 1):
            if line and not line.startswith("#"):
                where, match = f"tokens {self._file}, line {number}", _LINE.fullmatch(line)
                if match is None:
                    raise WrongUse(f"{where} is not {_FORM}")
                holders[match["digest"]] = make_holder(match["tenants"], match["right"], where)
        self._stamp, self._holders = stamp, holders


def digest_token(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def write_line(token: str, holder: Holder) -> str:
    return f"sha256:{digest_token(token)} {','.join(holder.tenants)} {holder.right}"


def make_holder(tenants: str, right: str, where: str) -> Holder:
    names = tuple(dict.fromkeys(tenants.split(",")))
    for name in names:
        problem = tenant_problem(name)
        if problem is not None:
            raise WrongUse(f"{where}: tenant {name[:80]!r}: {problem}")
    match right:
        case "read" | "write":
            return Holder(names, right)
    raise WrongUse(f"{where}: right {right[:20]!r}: use read or write")


OpenStore = Callable[[], Store]


class BadRequest(Exception):
    """A request is not answered; with its status and one line."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class _KeysOf:
    """The keys of a holder's tenants; of other ones there are none."""

    keys: RunKeys
    holder: Holder

    async def key_of(self, root: str, *, make: bool) -> RunKey:
        _require_tenant(self.holder, root)
        return await self.keys.key_of(root, make=make)


@dataclass(kw_only=True, eq=False)
class CodecServer:
    """Answers ``/encode`` and ``/decode``, and lets people sign in by a browser."""

    tokens: TokenFile
    keys: RunKeys
    open_store: OpenStore
    namespace: str

    def app(self, origins: Sequence[str]) -> Starlette:
        self._origins = frozenset(origins)
        cors = Middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["POST"],
            allow_headers=["authorization", "content-type", "x-namespace"],
            allow_credentials=True,
        )
        routes = [
            Route("/encode", self._make_endpoint(self._encode_payloads), methods=["POST"]),
            Route("/decode", self._make_endpoint(self._decode_payloads), methods=["POST"]),
            Route("/", self._show_page, methods=["GET"]),
            Route("/sign-in", self._sign_in, methods=["POST"]),
            Route("/health", _answer_health, methods=["GET"]),
        ]
        return Starlette(routes=routes, middleware=[cors])

    def _make_endpoint(
        self, work: Callable[[Holder, list[Payload]], Awaitable[list[Payload]]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                holder = self._holder_of(request)
                payloads = await _payloads_in(request)
                done = await work(holder, payloads)
            except BadRequest as refused:
                return _make_error(refused.status, str(refused))
            except NotDecrypted as error:
                return _make_error(400, str(error))
            except KeyUnavailable as error:
                return _make_error(503, str(error))
            message = Payloads(payloads=done)
            return await asyncio.to_thread(lambda: JSONResponse(json_format.MessageToDict(message)))

        return endpoint

    def _holder_of(self, request: Request) -> Holder:
        origin = request.headers.get("origin")
        if origin is not None and origin not in self._origins:
            raise BadRequest(403, "this origin is not among those of --origin")
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            # What a browser sends without asking first is not taken.
            raise BadRequest(415, "send application/json")
        # Temporal's command line says none.
        namespace = request.headers.get("x-namespace") or self.namespace
        if namespace != self.namespace:
            raise BadRequest(403, f"this server is for namespace {self.namespace}, not {namespace}")
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer":
            token = request.cookies.get(_COOKIE, "")
        holder = self._find_holder(token.strip())
        if holder is None:
            raise BadRequest(
                401, "a bearer token is needed, or sign in at this server's first page"
            )
        return holder

    def _find_holder(self, token: str) -> Holder | None:
        try:
            return self.tokens.find_holder(token)
        except WrongUse as error:
            raise BadRequest(503, "the tokens cannot be read") from error

    async def _encode_payloads(self, holder: Holder, payloads: list[Payload]) -> list[Payload]:
        if holder.right != "write":
            raise BadRequest(403, "this token may read, and write nothing")
        encryption = RunEncryption(_KeysOf(self.keys, holder))
        return [
            await encryption.encrypt(payload, _take_place(payload, holder), kept=False)
            for payload in payloads
        ]

    async def _decode_payloads(self, holder: Holder, payloads: list[Payload]) -> list[Payload]:
        ours = [payload for payload in payloads if _is_ours(payload, holder)]
        encryption = RunEncryption(_KeysOf(self.keys, holder))
        codec = data_converter(self.open_store, waits=False, encryption=encryption).payload_codec
        assert codec is not None
        decoded = iter(await codec.decode(ours))
        return [next(decoded) if _is_ours(one, holder) else one for one in payloads]

    async def _show_page(self, request: Request) -> Response:
        return _make_page("", 200)

    async def _sign_in(self, request: Request) -> Response:
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return _make_page("Sign in on this page.", 403)
        if request.headers.get("content-length", "").isdecimal() is False or (
            int(request.headers["content-length"]) > _LARGEST_FORM
        ):
            return _make_page("That is no token.", 413)
        body = (await request.body()).decode(errors="replace")
        token = body.partition("token=")[2].strip()
        try:
            holder = self._find_holder(token)
        except BadRequest as refused:
            return _make_page(str(refused), refused.status)
        if holder is None:
            return _make_page("That is no token.", 401)
        answer = RedirectResponse("/", status_code=303)
        for path in ("/decode", "/encode"):
            # Cookies know no ports: nothing else on this host gets it.
            answer.set_cookie(
                _COOKIE,
                token,
                max_age=_SIGNED_IN_S,
                path=path,
                httponly=True,
                secure=request.url.scheme == "https",
                samesite="strict",
            )
        return answer


def _require_tenant(holder: Holder, run_id: str) -> None:
    if tenant_of_run(run_id) not in holder.tenants:
        raise BadRequest(403, "this token is for other tenants")


def _is_ours(payload: Payload, holder: Holder) -> bool:
    """Return whether a payload is to be decrypted; what is in plain goes back as it is."""
    match payload.metadata.get(ENCODING_KEY):
        case kind if kind == ENCRYPTED:
            try:
                _require_tenant(holder, place_named(payload).root)
            except NotDecrypted:
                return True  # which says what is wrong with it
            return True
        case kind if kind == ENCODING:
            try:
                uri = Reference.model_validate_json(payload.data).uri
            except ValueError:
                return True
            if uri.partition("/")[0] not in holder.tenants:
                raise BadRequest(403, "this token is for other tenants")
            return True
    return False


def _take_place(payload: Payload, holder: Holder) -> Place:
    """Return for which place a payload is, and take what says so out of it."""
    named = WORKFLOW_ID in payload.metadata
    workflow_id, part = (payload.metadata.pop(name, b"") for name in (WORKFLOW_ID, PART))
    if not named:
        # Temporal's command line: of what it sends, a run takes what people send.
        if len(holder.tenants) != 1:
            raise BadRequest(400, "name the run, or use a token of one tenant")
        return Place(run_id_for(holder.tenants[0], ""), Part.ANY)
    try:
        place = Place(workflow_id.decode(), Part(part.decode()))
    except ValueError as error:
        raise BadRequest(400, "there is no such place") from error
    _require_tenant(holder, place.root)
    if place.part is not Part.WORKFLOW:
        # Starters send to runs; what an activity returns is a worker's to say.
        raise BadRequest(403, "a token encrypts what is sent to a run, and nothing else")
    return place


async def _payloads_in(request: Request) -> list[Payload]:
    body, counter = bytearray(), ValueCounter(_MOST_VALUES)
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_BODY:
            raise BadRequest(413, f"{LARGEST_BODY} bytes are taken at most")
        if not counter.takes(chunk):
            raise BadRequest(413, f"{MOST_PAYLOADS} payloads are taken at most")
    try:
        found = await asyncio.to_thread(json_format.Parse, bytes(body), Payloads())
        payloads = list(found.payloads)
    except (json_format.ParseError, ValueError, RecursionError) as error:
        raise BadRequest(400, "that is no JSON of Payloads") from error
    if len(payloads) > MOST_PAYLOADS:
        raise BadRequest(413, f"{MOST_PAYLOADS} payloads are taken at most")
    return payloads


def _make_error(status: int, reason: str) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse({"error": reason}, status_code=status, headers=headers)


async def _answer_health(request: Request) -> Response:
    return JSONResponse({"ok": True})


def _make_page(said: str, status: int) -> Response:
    headers = {
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline';"
        " form-action 'self'; frame-ancestors 'none'",
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
    }
    text = _PAGE.replace("<!--said-->", f"<p><b>{escape(said)}</b></p>" if said else "")
    return HTMLResponse(text, status_code=status, headers=headers)


_PAGE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Surehand codec</title>
<style>body{font:16px/1.5 sans-serif;max-width:36rem;margin:4rem auto;padding:0 1rem}</style>
<h1>Read encrypted runs</h1>
<p>Sign in with your token. Temporal's Web UI shows what your tenants' runs have sent, in this
browser, for eight hours.</p>
<!--said-->
<form method="post" action="/sign-in" enctype="text/plain">
<label>Token <input name="token" type="password" autocomplete="off" required></label>
<button>Sign in</button>
</form>
</html>
"""
