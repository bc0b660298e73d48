"""A run of 10,000 steps: whether a step costs more the later it comes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from benchmarks.played import played
from surehand.activities.ledger.core.store import open_ledger
from surehand.activities.ledger.history.reads import chain_of
from surehand.client.connection import Connection
from surehand.workflows.plan.plan import Plan

#: Lists of a plan, and items of each: a plan has 1,000 steps at most, and a list 1,000 items.
LISTS: Final = 10
ITEMS: Final = 1000
#: Steps whose cost is told, each with that many before it.
AT: Final = (20, 1000, LISTS * ITEMS)
_AROUND: Final = 20


@dataclass(frozen=True)
class LongRun:
    """What steps cost early and late in one run."""

    mode: str
    store: str
    began: list[float]
    """When each step's effect was claimed, in seconds, by the database's clock."""
    executions: int
    """Times that the run has continued as new, and one."""

    def around(self, step: int) -> float:
        """Return what a step costs there, in milliseconds."""
        return 1000 * (self.began[step - 1] - self.began[step - _AROUND]) / (_AROUND - 1)

    @property
    def ms(self) -> float:
        """Milliseconds a step, from the first to the last."""
        return 1000 * (self.began[-1] - self.began[0]) / (len(self.began) - 1)

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "mode": self.mode,
            "store": self.store,
            "effect": "write",
            "runs": 1,
            "ms_per_step": round(self.ms, 2),
            "plain_ms_per_step": None,
            "steps_per_s": round(1000 / self.ms, 1),
            "steps": len(self.began),
            "executions": self.executions,
            "ms_at_step": {str(step): round(self.around(step), 2) for step in AT},
        }

    def row(self) -> list[str]:
        """Return it as a line of the table."""
        costs = [f"{self.around(step):.1f}" for step in AT]
        ratio = self.around(AT[-1]) / self.around(AT[0])
        told = [self.mode, self.store, *costs, f"{self.ms:.1f}"]
        return [*told, f"{ratio:.2f}", str(self.executions)]


HEAD: Final = [
    *("mode", "ledger"),
    *(f"ms at step {step:,}" for step in AT),
    *("ms a step", "last / first", "executions"),
]


async def last(server: Connection, store: str, url: str, mode: str) -> LongRun:
    """Play one run of 10,000 writes.

    Raises:
        SurehandError: It did not complete.
    """
    tenant = server.settings.tenant
    each = {"for_each": "${input.items}", "tool": "quick.write", "params": {}}
    plan = Plan.model_validate(
        {"name": "long_run", "input": {"items": list(range(ITEMS))}, "steps": [each] * LISTS}
    )
    run_id = (await played(server, f"long_run-{mode}", plan, mode)).run_id
    async with open_ledger(url) as ledger:
        events, _, _ = await ledger.transact(tenant, chain_of, run_id)
    began = [event["at_ms"] / 1000 for event in events if event["type"] == "effect.claimed"]
    runs = [one async for one in server.client.list_workflows(f"WorkflowId = '{run_id}'")]
    return LongRun(mode, store, began, len(runs))
