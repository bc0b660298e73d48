"""G1 to G4 and G6 with nothing simulated: real server, real ledger, a shop with random faults."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from surehand.activities.worker.crash_points import Crash, CrashPoint
from surehand.workflows.contracts.base import ENDED, RunState
from surehand.workflows.contracts.runs import RunResult
from surehand.workflows.plan.plan import Durability, Plan
from tests.e2e.runs import Run, decision_on
from tests.e2e.stage import Stage
from tests.property.search import search

pytestmark = pytest.mark.property

#: What the shop does to the first request at an endpoint.
FAULTS: Final[dict[str, dict[str, Any]]] = {
    "answers late": {"delay_after_s": 1.2, "times": 1},
    "answer lost": {"fail": "drop_after", "times": 1},
    "answer lost, and cannot be asked": {"fail": "drop_after", "ignore_lookup": True},
    "request lost": {"fail": "drop_before", "times": 1},
    "fails": {"fail": "before", "status": 503, "times": 1},
    "refuses": {"fail": "before", "status": 422},
    "says later": {"retry_after": 1, "times": 1},
}
#: Tools, the shop's names for what they do, and for what undoes it.
TOOLS: Final = {
    "payments.refund": ("refunds", "refund_cancellations"),
    "inventory.restock": ("restocks", "restock_undos"),
    "mail.send": ("mails", None),
}
PARAMS: Final[dict[str, dict[str, Any]]] = {
    "payments.refund": {"amount": "120.00"},
    "inventory.restock": {"lines": "${order.lines}"},
    "mail.send": {"kind": "notice", "to": "${order.customer_email}", "subject": "s", "body": "b"},
}
UNDOING: Final = ("payments.cancel_refund", "inventory.undo_restock")
QUICK: Final[dict[str, Any]] = {
    "lease": "1s",
    "tool_modules": "tests.variants.quick_shop",
}
POINTS: Final = [point for point in CrashPoint if point is not CrashPoint.DURING_CALL]


class Died(Exception):
    """The attempt is abandoned where it is."""


class DiesOnce(Crash):
    """Abandons one attempt at its crash point, as a dead process would; its worker lives on."""

    def __init__(self, tool: str, point: CrashPoint) -> None:
        super().__init__(tool, point)
        self.left = [1]

    def at(self, tool: str, step: str, point: CrashPoint) -> None:
        """End the attempt here, if this is the place."""
        if tool == self.tool and point is self.point and self.left:
            self.left.clear()
            raise Died(f"at {point}")

    @contextmanager
    def during(self, tool: str, step: str) -> Iterator[None]:
        """Do nothing: only a process can die in the middle of a call."""
        yield


@dataclass(frozen=True)
class RealScenario:
    """A plan over the shop, and what goes wrong."""

    tools: tuple[str, ...]
    at_once: bool
    """All steps at the same time, instead of one after the other."""
    faults: dict[str, str]
    """What the shop does, by endpoint."""
    crash: tuple[str, CrashPoint] | None
    ending: Literal["good", "legal hold", "cancelled while asked", "rejected"]
    mode: Durability

    def plan(self, order_id: str) -> Plan:
        steps: list[dict[str, Any]] = [
            {"id": "order", "tool": "orders.read", "params": {"order_id": order_id}}
        ]
        for tool in self.tools:
            step = {"id": tool.split(".")[0], "tool": tool}
            step["params"] = {"order_id": order_id, **PARAMS[tool]}
            steps.append(step | ({"after": ["order"]} if self.at_once else {}))
        if self.ending == "legal hold":
            closing = {"id": "close", "tool": "tickets.close", "params": {"ticket_id": "ticket-78"}}
            steps.append(closing | {"after": [step["id"] for step in steps]})
        return Plan.model_validate(steps)


_ENDPOINTS = [name for pair in TOOLS.values() for name in pair if name]
SCENARIOS: Final = st.builds(
    RealScenario,
    tools=st.lists(st.sampled_from(sorted(TOOLS)), min_size=1, unique=True).map(tuple),
    at_once=st.booleans(),
    faults=st.dictionaries(
        st.sampled_from(_ENDPOINTS), st.sampled_from(sorted(FAULTS)), max_size=2
    ),
    crash=st.none() | st.tuples(st.sampled_from([*TOOLS, *UNDOING]), st.sampled_from(POINTS)),
    ending=st.sampled_from(["good", "legal hold", "cancelled while asked", "rejected"]),
    mode=st.sampled_from(Durability),
)


@search(8, functions=True)
@given(scenario=SCENARIOS)
async def test_a_faulty_shop_breaks_no_promise(stage: Stage, scenario: RealScenario) -> None:
    order_id = stage.shop.new_order()
    async with faulty(stage, scenario.faults, scenario.crash):
        run = await stage.start(scenario.plan(order_id), durability=scenario.mode)
        people = asyncio.create_task(attend(stage, scenario.ending, run, order_id))
        result = await run.result()
        people.cancel()
        await asyncio.wait({people})
        assert people.cancelled(), people.exception()
    counts = stage.shop.counts(order_id)
    note(f"ended as {result.state}, {result.error}; in the shop: {counts}")
    await stage.audit()
    stage.started.clear()
    assert result.state in ENDED
    assert all(count <= 1 for count in counts.values()), f"G1: {counts}"
    await only_as_approved(stage, run, counts)
    told_truly(scenario, result, counts)
    unwound(result, counts)


@asynccontextmanager
async def faulty(
    stage: Stage, faults: dict[str, str], crash: tuple[str, CrashPoint] | None, **settings: str
) -> AsyncIterator[None]:
    """Let a worker run over a shop with faults, which dies once at a crash point."""
    stage.shop.clear_faults()
    for endpoint, fault in faults.items():
        stage.shop.fault(endpoint, **FAULTS[fault])
    dies = DiesOnce(*crash) if crash else Crash()
    async with stage.worker_here(crash=dies, **(QUICK | settings)):
        yield


async def attend(stage: Stage, ending: str, run: Run, order_id: str) -> None:
    """Decide, cancel and answer what the run asks, truthfully."""
    told: set[str] = set()
    while True:
        view = await run.until(
            lambda view: any(waiting.id not in told for waiting in view.result.waiting_for)
        )
        for request in view.pending:
            if request.approval_id not in told:
                told.add(request.approval_id)
                if ending == "cancelled while asked":
                    await run.handle.signal("cancel", {"actor": "oscar"})
                outcome = "reject" if ending == "rejected" else "approve"
                await run.send(decision_on(request, outcome=outcome))
        for waiting in view.result.waiting_for:
            if waiting.kind == "intervention" and waiting.id not in told:
                told.add(waiting.id)
                await run.handle.signal("resolve", await truth(stage, run, waiting.id, order_id))


async def truth(stage: Stage, run: Run, intervention_id: str, order_id: str) -> dict[str, Any]:
    """Look into the shop's books, and undo by hand what nothing else can."""
    await stage.no_call_may_arrive(run)
    rows = stage.intervention_rows(run)
    [row] = [r for r in rows if r["intervention_id"] == intervention_id]
    [entry] = [e for e in await stage.effects(run) if e["entry_id"] == row["entry_id"]]
    answer = {"intervention_id": intervention_id, "actor": "oscar", "evidence": "looked"}
    if entry["state"] == "compensating":
        return answer | {"outcome": "give_up"}
    endpoints = {tool: names[0] for tool, names in TOOLS.items()}
    endpoints |= {"payments.cancel_refund": "refund_cancellations"}
    endpoints |= {"inventory.undo_restock": "restock_undos", "tickets.close": "ticket_closures"}
    # An item of a list is about an order of its own.
    own = re.search(r"order-\w+", entry["key"])
    there = stage.shop.counts(own[0] if own else order_id)[endpoints[entry["tool"]]]
    return answer | {"outcome": "happened" if there else "not_happened"}


async def only_as_approved(stage: Stage, run: Run, counts: dict[str, int]) -> None:
    """G3: a refund was approved, and its approval used once."""
    consumed = await stage.events(run, "approval.consumed")
    assert len(consumed) <= 1
    if counts["refunds"]:
        [approval] = [row for row in stage.approval_rows(run) if row["consumed_entry"]]
        assert approval["state"] == "approved"


def told_truly(scenario: RealScenario, result: RunResult, counts: dict[str, int]) -> None:
    """The result's effects are what the shop's books say."""
    states = {view.tool: view.state for view in result.effects}
    for tool, (done, undone) in TOOLS.items():
        state = states.get(tool)
        there = counts[done] - (counts[undone] if undone else 0)
        assert state not in ("claimed", "in_doubt", "partial", "compensating"), states
        assert there == (1 if state == "committed" else 0), f"{tool} is {state}"
        if result.state is RunState.COMPLETED and tool in scenario.tools:
            assert state == "committed"


def unwound(result: RunResult, counts: dict[str, int]) -> None:
    """G4: nothing is left of a run that has failed, but what it lists."""
    if result.state is RunState.COMPLETED:
        return
    left = {view.tool for view in result.uncompensated}
    for tool, (done, undone) in TOOLS.items():
        there = counts[done] - (counts[undone] if undone else 0)
        assert there == (1 if tool in left else 0), f"{tool}: {counts}, listed {left}"
