"""What a run has kept: listed, and handed out as files that no browser shows.

What is in them, tools, models and strangers have written. So an answer says that it is a file of
bytes, to be saved under a name of ours, and its own content policy lets it do nothing at all.
"""

from __future__ import annotations

import asyncio
import mimetypes
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from surehand.activities.artifacts import ArtifactStore
from surehand.activities.ledger.core.store import Ledger, Transaction
from surehand.activities.ledger.history.artifact_pages import Shelf, artifact_page, one_artifact
from surehand.cli.approvals_server.pages import error, page
from surehand.cli.approvals_server.texts import OF_PAGES
from surehand.cli.approvals_server.times import iso
from surehand.client.messages import find_run_id
from surehand.process.exits import NoSuchRun, WrongUse
from surehand.workflows.contracts.artifacts import Artifact

#: Artifacts on a page.
ON_A_PAGE: Final = 50
#: Bytes that are handed out here: each is verified as a whole before the first byte is sent.
LARGEST: Final = 64 * 1024 * 1024
#: Over the pages' own policy: nothing loads, nothing runs, and its origin is nobody's.
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "sandbox",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
#: Endings that no program takes for something to run, nor a browser for a page.
_ENDINGS: Final = frozenset((".json", ".txt", ".csv", ".pdf", ".png", ".jpg", ".gif", ".webp"))
#: How a browser says that it asks for a file of its own, and not for a part of a page.
_ASKED_FOR: Final = ("document", "empty")
_LONGEST_ID: Final = 80
#: Contents that are read at a time: each is in memory as a whole, and twice while it is opened.
_AT_ONCE: Final = asyncio.Semaphore(4)
_LONGEST_NAME: Final = 100
_SHA256: Final = re.compile("[0-9a-f]{64}")

#: Opens the store once it is needed: whoever only decides needs none.
OpenStore = Callable[[], ArtifactStore]


async def show_artifacts(ledger: Ledger, tenant: str, request: Request, me: str) -> Response:
    """Return a page of a run's artifacts.

    Args:
        ledger: Has their rows.
        tenant: Whose runs may be looked at.
        request: For which run, and from where on.
        me: Who is signed in.
    """
    run_id = find_run_id(tenant, request.query_params.get("id", ""))
    after = _shelf(request.query_params.get("after"))
    look = partial(artifact_page, run_id=run_id, most=ON_A_PAGE, after=after)
    found = await ledger.transact(tenant, lambda tx: look(tx))
    more = None
    if found.more is not None:
        where = f"{found.more.sha256}:{found.more.step_id}"
        more = f"/artifacts?{urlencode({'id': run_id, 'after': where})}"
    lines = [_line(run_id, row) for row in found.rows]
    return page("artifacts", me=me, run_id=run_id, lines=lines, more=more)


async def hand_out(
    ledger: Ledger,
    open_store: OpenStore | None,
    tenant: str,
    request: Request,
    me: str,
    *,
    record: Callable[[str, str], Awaitable[None]],
) -> Response:
    """Return one artifact's content as a file to be saved.

    Args:
        ledger: Has its row, and the run's key.
        open_store: Opens the store that has its content.
        tenant: Whose runs may be looked at.
        request: For which one of which run.
        me: Who is signed in.
        record: Told run and step before anything of it is handed out.

    Raises:
        NoSuchRun: There is none.
        WrongUse: It is too large for a page, or there is no store here.
    """
    if request.headers.get("sec-fetch-dest", "empty") not in _ASKED_FOR:
        return error(request, 403, OF_PAGES.artifacts_no_part, me)
    run_id = find_run_id(tenant, request.query_params.get("run", ""))
    wanted = request.query_params.get("id", "")

    def look(tx: Transaction) -> Mapping[str, Any] | None:
        known = 0 < len(wanted) <= _LONGEST_ID and wanted.isprintable()
        return one_artifact(tx, run_id, wanted) if known else None

    row = await ledger.transact(tenant, look)
    if row is None:
        raise NoSuchRun(OF_PAGES.artifacts_not_there)
    if row["bytes"] > LARGEST:
        raise WrongUse(OF_PAGES.artifacts_too_large)
    if open_store is None:
        raise WrongUse(OF_PAGES.artifacts_no_store)
    await record(run_id, row["step_id"])
    async with _AT_ONCE:
        content = await open_store().read_bytes(tenant, run_id, Artifact.model_validate({**row}))
    return Response(
        content,
        # Never its own type: what it is, the list says as text.
        media_type="application/octet-stream",
        headers={
            "Content-Disposition": f'attachment; filename="{file_name(row)}"',
            "Content-Security-Policy": POLICY,
        },
    )


def file_name(row: Mapping[str, Any]) -> str:
    """Return the name to save an artifact under: no path, nothing hidden, nothing that runs."""
    ending = mimetypes.guess_extension(str(row["type"]).partition(";")[0].strip()) or ""
    stem = re.sub("[^A-Za-z0-9_-]+", "_", f"{row['step_id']}-{row['artifact_id']}").strip("_-")
    return f"{stem[:_LONGEST_NAME] or 'artifact'}{ending if ending in _ENDINGS else '.bin'}"


def _line(run_id: str, row: Mapping[str, Any]) -> dict[str, Any]:
    query = urlencode({"run": run_id, "id": row["artifact_id"]})
    return {
        "name": file_name(row),
        "href": f"/artifact?{query}",
        "step_id": row["step_id"],
        "type": row["type"],
        "size": f"{row['bytes']:,}",
        "too_large": row["bytes"] > LARGEST,
        "sealed": row["sealed_for"] is not None,
        "sha256": row["sha256"],
        "at": iso(row["created_ms"]),
    }


def _shelf(text: str | None) -> Shelf | None:
    """Return where a page begins.

    Raises:
        WrongUse: The text was not made by the page before.
    """
    if text is None:
        return None
    sha256, _, step_id = text.partition(":")
    if not _SHA256.fullmatch(sha256) or not 0 < len(step_id) <= _LONGEST_ID or "\0" in step_id:
        raise WrongUse("there is no such page of artifacts")
    return Shelf(step_id, sha256)
