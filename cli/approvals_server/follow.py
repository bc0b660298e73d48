"""Pages that follow: each is told when what it shows has changed, over server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

from starlette.responses import Response, StreamingResponse

from surehand.process.exits import SurehandError

#: Pages that follow at a time. Each costs one small look at the ledger in `EVERY`; others are as
#: they were when they were opened.
MOST: Final = 50
#: Of one person. A browser has six connections to a server: one has to be free for what it sends.
MOST_OF_ONE: Final = 5
EVERY: Final = timedelta(seconds=1)
#: Looks without news after which something is sent all the same: so it is found out who has gone.
_QUIET: Final = 15

#: Returns what a page shows, as a JSON value that is another one once that has changed.
Look = Callable[[], Awaitable[Any]]


class Followers:
    """The pages that follow now."""

    def __init__(self) -> None:
        self._now = Counter[str]()

    def answer(self, look: Look, may_look: Callable[[], bool], *, who: str) -> Response:
        """Return a stream of what has changed, or nothing where too many follow already.

        Args:
            look: What the page shows.
            may_look: Whether whoever follows is still signed in.
            who: That is.
        """
        if self._now.total() >= MOST or self._now[who] >= MOST_OF_ONE:
            return Response(status_code=204)  # a browser does not ask again
        events = self._events(look, may_look, who)
        return StreamingResponse(events, media_type="text/event-stream")

    async def _events(
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
            self._now += Counter()  # nobody is kept who follows nothing
