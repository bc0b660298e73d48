"""Pages that follow: each is told when what it shows has changed, over server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

from starlette.responses import Response, StreamingResponse

from surehand.process.exits import SurehandError

#: Pages that follow at a time. Each costs one small look at the ledger in `EVERY`; others are as
#: they were when they were opened.
MOST: Final = 50
EVERY: Final = timedelta(seconds=1)
#: Looks without news after which something is sent all the same: so it is found out who has gone.
_QUIET: Final = 15

#: Returns what a page shows, as a JSON value that is another one once that has changed.
Look = Callable[[], Awaitable[Any]]


class Followers:
    """The pages that follow now."""

    def __init__(self) -> None:
        self._now = 0

    def answer(self, look: Look, may_look: Callable[[], bool]) -> Response:
        """Return a stream of what has changed, or nothing where too many follow already.

        Args:
            look: What the page shows.
            may_look: Whether whoever follows is still signed in.
        """
        if self._now >= MOST:
            return Response(status_code=204)  # a browser does not ask again
        return StreamingResponse(self._events(look, may_look), media_type="text/event-stream")

    async def _events(self, look: Look, may_look: Callable[[], bool]) -> AsyncIterator[str]:
        self._now += 1
        try:
            known, quiet = "", 0
            while may_look():
                try:
                    found = json.dumps(await look())
                except SurehandError:
                    found = known  # the ledger is away: nothing is known to have changed
                quiet += 1
                if found != known:
                    known, quiet = found, 0
                    yield f"data: {found}\n\n"
                elif quiet >= _QUIET:
                    quiet = 0
                    yield ":\n\n"
                await asyncio.sleep(EVERY.total_seconds())
        finally:
            self._now -= 1
