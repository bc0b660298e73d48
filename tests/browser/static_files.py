"""The page's ES modules in a real browser, with nothing around them but the page's strict rules."""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from playwright.async_api import ConsoleMessage, Page

STATIC: Final = Path(__file__).parent.parent.parent / "cli" / "approvals_server" / "static"
#: A name that is not this machine's own: browsers trust no page of it without TLS.
ELSEWHERE: Final = "page.test"
_RULES: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "base-uri 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_PAGE: Final = b"<!doctype html><html lang='en'><title>Test</title><main></main></html>"


class _Handler(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/":
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(_PAGE)
        else:
            super().do_GET()

    def end_headers(self) -> None:
        for name, value in _RULES.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


class StaticFiles:
    """A server of the modules, on loopback."""

    def __init__(self) -> None:
        handler = functools.partial(_Handler, directory=str(STATIC))
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> StaticFiles:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def url(self, host: str = "localhost") -> str:
        return f"http://{host}:{self._server.server_port}/"


@dataclass(frozen=True)
class Modules:
    """A page that has loaded nothing yet."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    """What the browser has said was wrong: rules that were broken, and errors nobody has caught."""

    @classmethod
    async def opened(cls, page: Page, url: str) -> Modules:
        modules = cls(page)
        page.on("console", lambda said: modules._hear(said))
        page.on("pageerror", lambda error: modules.complaints.append(str(error)))
        await page.goto(url)
        return modules

    def _hear(self, said: ConsoleMessage) -> None:
        if said.type == "error":
            self.complaints.append(said.text)

    async def run(self, module: str, names: str, body: str, given: Any = None) -> Any:
        """Return what a function body returns that uses names of a module.

        Args:
            module: Its file, without ``.js``.
            names: Separated by commas.
            body: JavaScript, with ``given``.
            given: A JSON value.
        """
        code = f"const {{ {names} }} = await import('/{module}.js'); {body}"
        return await self.page.evaluate(f"async (given) => {{ {code} }}", given)

    async def refused(self, module: str, names: str, body: str, given: Any = None) -> str:
        """Return the message of the error that a function body raises."""
        kept = f"try {{ {body} }} catch (error) {{ return `${{error.message}}`; }}"
        message = await self.run(module, names, kept, given)
        assert isinstance(message, str), f"nothing was raised, but returned: {message!r}"
        return message
