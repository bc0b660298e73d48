"""What browsers get: templates whose every value is text, static files, and strict headers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from pydantic import JsonValue
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from surehand.cli.printer import rough_time
from surehand.process.exits import SurehandError
from surehand.workflows.plain_text import plain

_HERE: Final = Path(__file__).parent
_TYPES: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
#: Nothing but our own files; no script makes markup out of text.
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    # Another person may sit down at the browser: its cache and its history keep nothing.
    "Cache-Control": "no-store",
}
#: How a browser names who has caused a request: ourselves, or a person.
_OURS: Final = ("same-origin", "none")
#: Pages that follow at a time. Each costs one small look at the ledger in `EVERY`; further pages
#: stay as they were when they were opened.
MOST: Final = 50
#: Of one person. A browser has six connections to a server: one stays free for what it sends.
MOST_OF_ONE: Final = 5
EVERY: Final = timedelta(seconds=1)
#: Looks without news after which something is sent all the same, to find out who has gone.
_QUIET: Final = 15


def _show_text(value: Any) -> Any:
    """Return a value as it stands on a page, with invisible characters written out."""
    return value if isinstance(value, Markup) else plain(value)


_ENVIRONMENT: Final = Environment(
    loader=FileSystemLoader(_HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_show_text,
    trim_blocks=True,
    lstrip_blocks=True,
)


def page(name: str, *, status: int = 200, me: str | None, **values: Any) -> Response:
    """Return a page by its template's name; ``me`` is who is signed in."""
    text = _ENVIRONMENT.get_template(f"{name}.html").render(me=me, here=name, **values)
    return HTMLResponse(text, status_code=status)


def error(request: Request, status: int, reason: str, me: str | None = None) -> Response:
    """Return what is wrong in one line: as a page, or to a script."""
    if request.method != "GET" or request.url.path.endswith(".json"):
        return JSONResponse({"error": reason}, status_code=status)
    return page("error", status=status, me=me, reason=reason)


def link_more(path: str, more: tuple[object, object] | None, **query: str) -> str | None:
    """Return where a list goes on, which is behind this place; ``None``: it does not."""
    return (
        None
        if more is None
        else f"{path}?{urlencode({**query, 'after': ':'.join(map(str, more))})}"
    )


def static_files() -> Mapping[str, tuple[bytes, str]]:
    """Return the files that pages load, by name, with their types; no other ones are served."""
    return {
        file.name: (file.read_bytes(), f"{_TYPES[file.suffix]}; charset=utf-8")
        for file in sorted((_HERE / "static").iterdir())
        if file.suffix in _TYPES
    }


def as_text(value: JsonValue) -> str:
    """Return JSON that nothing is signed for as a text within JSON.

    So a number that a browser cannot hold does not keep the page away.
    """
    return json.dumps(value, ensure_ascii=False)


def time_left(expires_ms: int, now_ms: int) -> str:
    """Return how long something has, in its two largest units: ``in 3 h 12 min``."""
    return "now" if expires_ms <= now_ms else f"in {rough_left(expires_ms, now_ms)}"


def rough_left(expires_ms: int, now_ms: int) -> str:
    """Return the same for a column: ``3 h 12 min``."""
    return rough_time(timedelta(milliseconds=max(0, expires_ms - now_ms)))


def iso(ms: int) -> str:
    """Return a time of the ledger's, in milliseconds since 1970, as :func:`utc` writes it."""
    return utc(datetime.fromtimestamp(ms / 1000, UTC))


def utc(at: datetime) -> str:
    """Return a time to read, as HTML's ``time`` takes it too: ``2026-10-01 09:00:00Z``."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


class Headers:
    """Refuses what comes from other pages, and sends the rules with each answer."""

    def __init__(self, app: ASGIApp, *, origin: str) -> None:
        """Make it around an application; ``origin`` is that of all our pages."""
        self._app = app
        self._origin = origin
        self._host = urlsplit(origin).netloc
        self._tls = origin.startswith("https:")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_rules(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                # An artifact brings a stricter policy of its own.
                headers.setdefault("Content-Security-Policy", POLICY)
                if self._tls:
                    headers["Strict-Transport-Security"] = "max-age=31536000"
            await send(message)

        request = Request(scope, receive)
        problem = self._find_problem(request)
        answer = self._app if problem is None else error(request, *problem)
        await answer(scope, receive, send_with_rules)

    def _find_problem(self, request: Request) -> tuple[int, str] | None:
        headers = request.headers
        if request.scope["path"] == "/health":
            return None  # probes ask by an address, and are told nothing
        if headers.get("host") != self._host:
            # Somebody else's name that leads here: the page would be of their origin.
            return 421, f"This server is at {self._origin}."
        if request.scope["path"].startswith("/chat/"):
            return None  # no browser's: each request there proves who sends it
        site = headers.get("sec-fetch-site", "none")
        navigates = request.method == "GET" and headers.get("sec-fetch-mode") == "navigate"
        if site not in _OURS and not navigates:
            return 403, "Another page may not ask for this."
        if request.method not in ("GET", "HEAD"):
            # Each browser names the origin of a request that changes something.
            if headers.get("origin") != self._origin:
                return 403, "Another page may not send this."
            if headers.get("content-type", "").partition(";")[0] != "application/json":
                return 415, "Send application/json."
        return None


#: Returns what a page shows, as a JSON value that differs once that has changed.
Look = Callable[[], Awaitable[Any]]


class Followers:
    """The pages that follow now: each is told of changes, by server-sent events."""

    def __init__(self) -> None:
        self._now = Counter[str]()

    def answer(self, look: Look, may_look: Callable[[], bool], *, who: str) -> Response:
        """Return a stream of changes, or nothing if too many follow already.

        It ends once ``may_look`` says that ``who`` is signed in no more.
        """
        if self._now.total() >= MOST or self._now[who] >= MOST_OF_ONE:
            return Response(status_code=204)  # a browser does not ask again
        events = self._stream_events(look, may_look, who)
        return StreamingResponse(events, media_type="text/event-stream")

    async def _stream_events(
        self, look: Look, may_look: Callable[[], bool], who: str
    ) -> AsyncIterator[str]:
        self._now[who] += 1
        try:
            known, quiet = "", 0
            while may_look():
                try:
                    found = json.dumps(await look())
                except SurehandError:
                    found = known  # the ledger is away: nothing is known to have changed
                if not may_look():
                    return
                quiet += 1
                if found != known:
                    known, quiet = found, 0
                    yield f"data: {found}\n\n"
                elif quiet >= _QUIET:
                    quiet = 0
                    yield ":\n\n"
                await asyncio.sleep(EVERY.total_seconds())
        finally:
            self._now[who] -= 1
            self._now += Counter()  # drops those who follow nothing
