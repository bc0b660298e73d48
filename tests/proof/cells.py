"""Cells of experiments: runs at an unsteady shop, by workers that are killed, and their figures.

``PROOF_SEED`` draws other faults and other kills, and ``PROOF_TIMES`` makes each cell so many
times as large.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from surehand.workflows.contracts.effects import Resolution
from surehand.workflows.contracts.runs import RunResult
from tests.e2e.plans import mail_step, plan, refund_step
from tests.e2e.runs import Run
from tests.e2e.stage import Stage
from tests.proof.unsteady_shop import UnsteadyShop

SEED: Final = os.environ.get("PROOF_SEED", "0")
TIMES: Final = int(os.environ.get("PROOF_TIMES", "1"))
#: Many tries: that half of all calls fail is no reason to give up.
TOOLS: Final = {
    "tool_modules": "tests.variants.settled_by",
    "retries_in_doubt": ",".join(["1s"] * 30),
    "compensation_limit": "4s",
}
#: By what settles a doubt: the tool, and where the shop counts its effects.
KINDS: Final = {
    "lookup": ("inventory.restock", "restocks"),
    "key": ("mail.send", "mails"),
    "nothing": ("payments.refund", "refunds"),
}
ENDED_S: Final = 200.0
Show = Callable[..., None]


def seldom(*values: object) -> list[Any]:
    """Return cells of a table that `make proof` plays, and `make test-full` does not."""
    return [pytest.param(value, marks=pytest.mark.exhaustive) for value in values]


def call(kind: str, order_id: str, **more: Any) -> dict[str, Any]:
    """Return a step that makes a kind's effect for an order, whose id it has."""
    tool, _ = KINDS[kind]
    if kind == "key":
        made = mail_step(order_id, "notice")
    elif kind == "nothing":
        made = refund_step(order_id)
    else:
        lines = [{"sku": "sku-1", "quantity": 1}]
        made = {"params": {"order_id": order_id, "lines": lines}}
    return {**made, "tool": tool, "id": order_id, **more}


@dataclass
class Cell:
    """One cell of an experiment: its runs, which work on orders of their own."""

    stage: Stage
    shop: UnsteadyShop
    labels: dict[str, str]
    """What tells it from the others; each is a column."""
    kind: str
    endpoints: tuple[str, ...]
    """Where the shop counts the effects of each order."""
    runs: list[Run] = field(default_factory=list)
    orders: list[str] = field(default_factory=list)
    results: list[RunResult | None] = field(default_factory=list)
    """``None``: the run was blocked."""
    kills: int = 0

    async def start(self, *steps: dict[str, Any], **more: Any) -> Run:
        self.runs.append(run := await self.stage.start(plan(*steps, **more)))
        return run

    async def end(self) -> None:
        """Wait for the ends of its runs."""

        async def end(run: Run) -> RunResult | None:
            with suppress(TimeoutError):
                return await run.result(ENDED_S)
            return None

        self.results = list(await asyncio.gather(*map(end, self.runs)))

    def state(self) -> set[str]:
        return {"blocked" if one is None else one.state.value for one in self.results}

    def judge(self, show: Show, **more: Any) -> dict[str, Any]:
        """Return its figures, and show them."""
        applied = [self.shop.applied(one) for one in self.endpoints]
        counts = [its[order] for its in applied for order in self.orders]
        asked = [row for run in self.runs for row in self.stage.intervention_rows(run)]
        row = {
            **self.labels,
            "settled by": self.kind,
            "runs": len(self.runs),
            "calls": len(counts),
            "kills": self.kills,
            "doubled": sum(n - 1 for n in counts if n > 1),
            "lost": counts.count(0),
            "in doubt": len({(one["run_id"], one["step_id"]) for one in asked}),
            "blocked": self.results.count(None),
            **more,
        }
        show(**row)
        return row


#: What is promised of each cell; a doubt needs a human only if nothing else can settle it.
KEPT: Final = ("doubled", "lost", "wrong", "blocked", "in doubt")


def assert_kept(row: dict[str, Any], **more: int) -> None:
    kept = dict.fromkeys(KEPT if row["settled by"] != "nothing" else KEPT[:-1], 0)
    assert row.items() >= ({k: v for k, v in kept.items() if k in row} | more).items(), row


@contextmanager
def shop_of(stage: Stage, of: str = "request", **disturbed: Any) -> Iterator[UnsteadyShop]:
    """Yield a shop of its own; ``disturbed`` has (p, faults) by endpoint.

    Only mails honour keys, and nobody can ask about refunds: what is repeated blindly counts twice.
    """
    told = {name: {"p": p, "faults": faults, "of": of} for name, (p, faults) in disturbed.items()}
    with UnsteadyShop(stage.folder / "unsteady.sqlite", SEED, told) as shop:
        shop.fault("restocks", ignore_keys=True)
        shop.fault("refunds", ignore_keys=True)
        yield shop


def happened(shop: UnsteadyShop, endpoint: str, order: str) -> str:
    """Return what a human who looks into the shop's books says of an order's effect."""
    return "happened" if shop.applied(endpoint)[order] else "not_happened"


@asynccontextmanager
async def people(runs: list[Run], stage: Stage, told: Callable[[str], str]) -> AsyncIterator[None]:
    """Answer what only people can settle, by its step, while the block runs."""
    over = asyncio.Event()

    async def answer() -> None:
        while not over.is_set():
            for run in runs:
                for row in stage.intervention_rows(run):
                    if row["state"] == "open":  # also: it was too early to say, so once more
                        said = {"outcome": told(row["step_id"]), "evidence": "the shop's books"}
                        about = {"intervention_id": row["intervention_id"], "actor": "oscar"}
                        await run.handle.signal("resolve", Resolution(**about, **said))
            await asyncio.sleep(1)

    answering = asyncio.create_task(answer())
    yield
    over.set()
    await answering


@asynccontextmanager
async def dying_workers(
    stage: Stage, kills: int, draw: random.Random, **settings: str
) -> AsyncIterator[list[int]]:
    """Work while the block runs; so many workers are killed at instants that are drawn.

    Yields who was killed.
    """
    over, killed = asyncio.Event(), list[int]()

    async def work() -> None:
        for number in range(kills + 1):
            with stage.worker(**TOOLS | settings) as worker:
                await asyncio.to_thread(worker.wait_ready)
                if number == kills:
                    await over.wait()
                await asyncio.sleep(draw.uniform(0.5, 2.5))
                worker.kill()
                killed.append(worker.pid)

    working = asyncio.create_task(work())
    yield killed
    over.set()
    await working
