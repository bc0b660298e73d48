"""G1 and G4 for the items of lists, with nothing simulated: random faults, deaths and modes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from surehand.activities.worker.crash_points import CrashPoint
from surehand.workflows.contracts.base import ENDED, RunState
from surehand.workflows.contracts.runs import RunResult
from surehand.workflows.plan.plan import Durability, Plan
from tests.e2e.stage import Stage
from tests.property.search import search
from tests.property.test_real_runs import FAULTS, POINTS, attend, faulty

pytestmark = pytest.mark.property

#: Tools, the shop's names for what they do, and for what undoes it.
TOOLS: Final = {"inventory.restock": ("restocks", "restock_undos"), "mail.send": ("mails", None)}
NAMES: Final = {"inventory.restock": "restock", "mail.send": "mail"}
UNDOING: Final = "inventory.undo_restock"


@dataclass(frozen=True)
class RealLists:
    """Two lists over the shop, one after the other, and what goes wrong."""

    items: int
    parallel: int
    faults: dict[str, str]
    """What the shop does, by endpoint."""
    crash: tuple[str, CrashPoint] | None
    fails: bool
    """Whether a step behind the lists fails for good."""
    mode: Durability

    def plan(self, orders: list[str]) -> Plan:
        each = {"for_each": "${input.orders}", "parallel": self.parallel}
        lines = [{"sku": "sku-1", "quantity": 1}]
        mail = {"kind": "k", "to": "ada@example.com", "subject": "s", "body": "b"}
        steps: list[dict[str, Any]] = [
            {"id": "restock", "tool": "inventory.restock", "params": {"lines": lines}, **each},
            {"id": "mail", "tool": "mail.send", "params": mail, **each},
        ]
        for step in steps:
            step["params"] = {"order_id": "${item}", **step["params"]}
        if self.fails:
            steps.append({"tool": "tickets.close", "params": {"ticket_id": "ticket-78"}})
        return Plan.model_validate({"steps": steps, "input": {"orders": orders}})


_ENDPOINTS: Final = [name for pair in TOOLS.values() for name in pair if name]
LISTS: Final = st.builds(
    RealLists,
    items=st.integers(1, 4),
    parallel=st.sampled_from([1, 1, 3]),
    faults=st.dictionaries(
        st.sampled_from(_ENDPOINTS), st.sampled_from(sorted(FAULTS)), max_size=2
    ),
    crash=st.none() | st.tuples(st.sampled_from([*TOOLS, UNDOING]), st.sampled_from(POINTS)),
    fails=st.booleans(),
    mode=st.sampled_from(Durability),
)


@search(8, functions=True)
@given(lists=LISTS)
async def test_lists_over_a_faulty_shop_keep_their_promises(stage: Stage, lists: RealLists) -> None:
    orders = [stage.shop.new_order() for _ in range(lists.items)]
    async with faulty(stage, lists.faults, lists.crash):
        run = await stage.start(lists.plan(orders), durability=lists.mode)
        people = asyncio.create_task(attend(stage, "good", run, orders[0]))
        result = await run.result()
        people.cancel()
        await asyncio.wait({people})
        assert people.cancelled(), people.exception()
    made = {order: stage.shop.counts(order) for order in orders}
    note(f"ended as {result.state}, {result.error}; in the shop: {made}")
    await stage.audit()
    stage.started.clear()
    assert result.state in ENDED
    for number, order in enumerate(orders):
        item_is_told_truly(result, number, made[order])


def item_is_told_truly(result: RunResult, number: int, counts: dict[str, int]) -> None:
    """Nothing of an item was done twice, and what is there is what the result says."""
    effects = {one.step_id: one.state for one in result.effects if one.undoes is None}
    left = {view.step_id for view in result.uncompensated}
    for tool, (done, undone) in TOOLS.items():
        step_id = f"{NAMES[tool]}[{number}]"
        there = counts[done] - (counts[undone] if undone else 0)
        assert counts[done] <= 1, f"G1: {step_id}: {counts}"
        assert there == (effects.get(step_id) == "committed"), f"{step_id}: {effects}, {counts}"
        if result.state is RunState.COMPLETED:
            assert there == 1, f"{step_id}: {counts}"
        else:
            assert there == (step_id in left), f"G4: {step_id}: {counts}, listed {left}"
