"""The example shop, of whose requests a share is disturbed; a seed says which.

A file beside its database has, for each endpoint, ``p``, what may happen (``faults``), and ``of``:
each ``request`` is drawn by itself, or only the ``first`` one of a key, or a ``key`` with all
its requests.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

from starlette.requests import Request
from starlette.responses import Response

from surehand.examples.shop import server
from surehand.examples.shop.faults import Fault, Faults, Serving, Told, Work
from surehand.examples.shop.program import parser_of, serve
from tests.shop_process import ShopProcess


class UnsteadyShop(ShopProcess):
    """Starts it as a process."""

    module = "tests.proof.unsteady_shop"

    def __init__(self, db: Path, seed: str, disturbed: dict[str, Any]) -> None:
        super().__init__(db)
        db.with_suffix(".json").write_text(json.dumps([seed, disturbed]))

    def applied(self, endpoint: str) -> Counter[str]:
        """Return how often the shop has applied something, by its order."""
        with self.database() as connection:
            rows = connection.execute("SELECT about FROM effects WHERE endpoint = ?", [endpoint])
            return Counter(row["about"] for row in rows)

    def standing(self, endpoint: str) -> set[str]:
        """Return the orders of which something was applied and not undone."""
        with self.database() as connection:
            told = "SELECT about FROM effects WHERE endpoint = ? AND NOT undone"
            return {row["about"] for row in connection.execute(told, [endpoint])}


class Drawn(Faults):
    """One fault, for all requests."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self._fault = fault

    def take(self, endpoint: str) -> Told:
        return Told(self._fault, None)


class UnsteadyServing(Serving):
    """Serves requests, and draws what disturbs each."""

    told: ClassVar[tuple[str, dict[str, Any]]]
    seen: ClassVar[dict[str, Counter[str]]] = {}
    """How often a key was seen, by endpoint, in the order in which they came."""

    async def serve(self, request: Request, endpoint: str, work: Work) -> Response:
        seed, disturbed = self.told
        how = disturbed.get(endpoint)
        if how is None:
            return await super().serve(request, endpoint, work)
        key = request.headers.get("Idempotency-Key") or request.query_params.get("key")
        key = key or (await request.body()).decode()  # a read has no key
        seen = self.seen.setdefault(endpoint, Counter())
        seen[key] += 1
        number, place = seen[key], list(seen).index(key)  # keys are random, but not their order
        drawn_by = (seed, endpoint, place, None if how["of"] == "key" else number)
        draw = random.Random(repr(drawn_by))
        hit = draw.random() < how["p"] and (how["of"] != "first" or number == 1)
        base = self._faults.take(endpoint).fault
        changes = draw.choice(how["faults"]) if hit else {}
        drawn = Drawn(Fault.model_validate(base.model_dump() | changes))
        return await Serving(drawn, self._traffic, self._connections).serve(request, endpoint, work)


if __name__ == "__main__":
    server.Serving = UnsteadyServing  # type: ignore[misc]
    options = parser_of("shop", 8090, __doc__).parse_args()
    UnsteadyServing.told = json.loads(options.db.with_suffix(".json").read_text())
    sys.exit(serve("shop", options, server.build))
