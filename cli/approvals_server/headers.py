"""What a request's headers have to be, and what each answer's are: the rules for browsers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
_OF_ALL: Final = {
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

Refuse = Callable[[Request, int, str], Response]


class Headers:
    """Refuses what comes from other pages, and sends the rules with each answer."""

    def __init__(self, app: ASGIApp, *, origin: str, refuse: Refuse) -> None:
        """Make it.

        Args:
            app: What answers.
            origin: Of all our pages, as browsers name it.
            refuse: Makes the answer to what is refused.
        """
        self._app = app
        self._origin = origin
        self._host = urlsplit(origin).netloc
        self._tls = origin.startswith("https:")
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_rules(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_OF_ALL)
                # Of what is no page of ours, and says so: its own policy is stricter.
                headers.setdefault("Content-Security-Policy", POLICY)
                if self._tls:
                    headers["Strict-Transport-Security"] = "max-age=31536000"
            await send(message)

        request = Request(scope, receive)
        problem = self._problem(request)
        if problem is None:
            await self._app(scope, receive, send_with_rules)
        else:
            answer = self._refuse(request, *problem)
            await answer(scope, receive, send_with_rules)

    def _problem(self, request: Request) -> tuple[int, str] | None:
        """Return status and reason where a request is not answered; ``None``: it is."""
        headers = request.headers
        if request.scope["path"] == "/health":
            return None  # probes ask by an address, and are told nothing
        if headers.get("host") != self._host:
            # A name of somebody else's that leads here: the page would be of their origin.
            return 421, f"This server is at {self._origin}."
        site = headers.get("sec-fetch-site", "none")
        navigates = request.method == "GET" and headers.get("sec-fetch-mode") == "navigate"
        if site not in _OURS and not navigates:
            return 403, "Another page may not ask for this."
        if request.method not in ("GET", "HEAD"):
            # Each browser names the origin of what changes something.
            if headers.get("origin") != self._origin:
                return 403, "Another page may not send this."
            if headers.get("content-type", "").partition(";")[0] != "application/json":
                return 415, "Send application/json."
        return None
