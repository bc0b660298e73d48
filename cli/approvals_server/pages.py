"""The pages: templates whose every value is text, and the files that they load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from surehand.cli.approvals_server.texts import OF_PAGES, OF_SCRIPTS
from surehand.workflows.plain_text import plain

_HERE: Final = Path(__file__).parent
_TYPES: Final = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}


def _shown(value: Any) -> Any:
    """Return a value as it stands on a page: what cannot be seen is written out."""
    return value if isinstance(value, Markup) else plain(value)


_ENVIRONMENT: Final = Environment(
    loader=FileSystemLoader(_HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_shown,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.globals["say"] = OF_PAGES
# As a text that no script runs: it can end no element, and begin none.
_ENVIRONMENT.globals["say_in_scripts"] = Markup(
    json.dumps(OF_SCRIPTS).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
)


def page(name: str, *, status: int = 200, me: str | None, **values: Any) -> Response:
    """Return a page.

    Args:
        name: Of its template.
        status: Of the answer.
        me: Who is signed in.
        values: For the template.
    """
    text = _ENVIRONMENT.get_template(f"{name}.html").render(me=me, here=name, **values)
    return HTMLResponse(text, status_code=status)


def error(request: Request, status: int, reason: str, me: str | None = None) -> Response:
    """Return what is wrong in one line: as a page, or to a script."""
    if request.method != "GET" or request.url.path.endswith(".json"):
        return JSONResponse({"error": reason}, status_code=status)
    return page("error", status=status, me=me, reason=reason)


def static_files() -> Mapping[str, tuple[bytes, str]]:
    """Return the files that pages load, by name, with their types; no other ones are served."""
    return {
        file.name: (file.read_bytes(), _TYPES[file.suffix])
        for file in sorted((_HERE / "static").iterdir())
        if file.suffix in _TYPES
    }
