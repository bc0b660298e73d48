"""G1 and G4 with nothing simulated, whatever operators do: random plans with child runs and lists.

A run is reset, to its first task or to one of its steps, where its read may say something else; or
it is terminated and unwound. The shop has random faults, and a worker dies.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import pytest
from hypothesis import example, given, note
from hypothesis import strategies as st
from temporalio.service import RPCError

from surehand.activities.ledger.history.reads import runs_of
from surehand.activities.worker.crash_points import CrashPoint
from surehand.drill.judge import RunTree
from surehand.drill.people import reset_run
from surehand.drill.report import Operation
from surehand.process.exits import WrongUse
from surehand.workflows.contracts.base import ENDED
from surehand.workflows.contracts.effects import Unwound
from surehand.workflows.contracts.runs import RunResult, RunView
from surehand.workflows.contracts.steering import AnswerInterrupts
from surehand.workflows.plan.plan import Durability, Plan
from tests.e2e.runs import Run
from tests.e2e.stage import Stage
from tests.e2e.stopped_runs import unwind
from tests.property import changing
from tests.property.search import search
from tests.property.test_real_runs import FAULTS, POINTS, TOOLS, UNDOING, faulty, truth

pytestmark = pytest.mark.property

#: What people are asked when all but the last step is done.
HELD: Final = "held"
KINDS: Final = ["first", "second"]
ORDER: Final = "${newest.order_id}"
PARAMS: Final[dict[str, dict[str, Any]]] = {
    "payments.refund": {"amount": "120.00"},
    "inventory.restock": {"lines": [{"sku": "sku-1", "quantity": 1}]},
}


@dataclass(frozen=True)
class Operated:
    """A plan over the shop, what goes wrong, and what an operator does."""

    tools: tuple[str, ...]
    inside: bool
    """In a child run."""
    at_once: bool
    """At the same time, instead of one after the other."""
    mails: int
    """The items of a list."""
    fails: bool
    """Whether the last step fails for good."""
    faults: dict[str, str]
    """What the shop does, by endpoint."""
    crash: tuple[str, CrashPoint] | None
    operation: Operation
    back_to: str
    """The step that a run is reset to."""
    changes: bool
    """Whether its read says something else afterwards."""
    mode: Durability

    def plan(self, orders: list[str]) -> Plan:
        order = "${input.order_id}" if self.inside else ORDER
        steps: list[dict[str, Any]] = []
        for tool in self.tools:
            step: dict[str, Any] = {"id": tool.split(".")[0], "tool": tool}
            step["params"] = {"order_id": order, **PARAMS[tool]}
            steps.append(step | ({"after": []} if self.at_once else {}))
        if self.inside:
            child = {"name": "pay", "input": {"order_id": ""}, "steps": steps}
            steps = [{"id": "pay", "plan": child, "params": {"order_id": ORDER}}]
        if self.mails:
            mail = {"order_id": ORDER, "to": "ada@example.com", "subject": "s", "body": "b"}
            steps.append(
                {"id": "mail", "tool": "mail.send", "for_each": "${input.kinds}"}
                | {"params": {**mail, "kind": "${item}"}, "after": ["newest"]}
            )
        first, then = orders
        newest = {"id": "newest", "tool": "orders.newest", "params": {"first": first, "then": then}}
        held = {"id": HELD, "ask": "Go on?", "after": [step["id"] for step in (newest, *steps)]}
        last = {"id": "close", "tool": "tickets.close", "params": {"ticket_id": "ticket-78"}}
        return Plan.model_validate(
            {
                "input": {"kinds": KINDS[: self.mails]},
                "steps": [newest, *steps, held, *([last] if self.fails else [])],
            }
        )


_ENDPOINTS = [name for pair in TOOLS.values() for name in pair if name]
OPERATED: Final = st.builds(
    Operated,
    tools=st.lists(st.sampled_from(sorted(PARAMS)), min_size=1, unique=True).map(tuple),
    inside=st.booleans(),
    at_once=st.booleans(),
    mails=st.integers(0, len(KINDS)),
    fails=st.booleans(),
    faults=st.dictionaries(
        st.sampled_from(_ENDPOINTS), st.sampled_from(sorted(FAULTS)), max_size=1
    ),
    crash=st.none() | st.tuples(st.sampled_from([*TOOLS, *UNDOING]), st.sampled_from(POINTS)),
    operation=st.sampled_from([Operation.RESET, Operation.RESET_STEP, Operation.TERMINATE]),
    back_to=st.sampled_from(["newest", "pay", "payments", "inventory", "mail[0]"]),
    changes=st.booleans(),
    mode=st.sampled_from(Durability),
)


#: What its first life has sent cannot be undone, and the second sends something else.
SENT_BEFORE: Final = Operated(
    tools=("inventory.restock",),
    inside=False,
    at_once=False,
    mails=1,
    fails=False,
    faults={},
    crash=None,
    operation=Operation.RESET,
    back_to="newest",
    changes=True,
    mode=Durability.SYNC,
)


@search(12, functions=True)
@example(scenario=SENT_BEFORE)
@given(scenario=OPERATED)
async def test_operators_leave_no_run_untold(stage: Stage, scenario: Operated) -> None:
    orders = [stage.shop.new_order() for _ in range(2)]
    async with faulty(stage, scenario.faults, scenario.crash, tool_modules=changing.__name__):
        run = await stage.start(scenario.plan(orders), durability=scenario.mode)
        # Whichever execution of it is the newest.
        run = Run(run.run_id, stage.client.get_workflow_handle(run.run_id))
        over = asyncio.Event()
        people = asyncio.create_task(attend(stage, run, orders, over))
        try:
            end = await operated(stage, run, scenario)
        finally:
            over.set()  # Not cancelled: a transaction of theirs would lock the ledger for ever.
            await people
        tree = await tree_of(stage, run)
    counts = {order: stage.shop.counts(order) for order in orders}
    entries = tree.describe_entries(tree.entries)
    note(f"ended as {end}; in the shop: {counts}; in the ledger: {entries}")
    await stage.audit()
    stage.started.clear()
    for order, found in counts.items():
        applied_once(order, found, scenario.mails)
        as_the_ledger_says(order, found, tree)
    if isinstance(end, Unwound):
        assert list(tree.list_not_unwound(end)) == []
    else:
        assert end.state in ENDED
        assert list(tree.list_unreported(end)) == []
    assert list(tree.list_out_of_order()) == []


async def operated(stage: Stage, run: Run, scenario: Operated) -> RunResult | Unwound:
    """Do to a run what is done to it when it is held, if it gets there, and return its end."""
    view = await run.until(lambda view: is_held(view) or view.result.state in ENDED)
    if is_held(view):
        if scenario.operation is Operation.TERMINATE:
            await run.handle.terminate("by hand")
            return await unwind(stage, run)
        try:
            if scenario.changes:
                changing.CHANGED.add(run.run_id)
            await reset_run(stage.client, run.run_id, scenario.operation, scenario.back_to)
        except WrongUse:
            pass  # There is no such step in its plan.
        view = await run.until(lambda view: is_held(view) or view.result.state in ENDED)
    if is_held(view):
        answer = AnswerInterrupts(actor="ann", answers={f"{HELD}.1": "yes"}, id="go-on")
        await run.handle.signal("answer", answer)
    return await run.result()


def is_held(view: RunView) -> bool:
    return any(one.step_id == HELD for one in view.interrupts)


async def attend(stage: Stage, run: Run, orders: list[str], over: asyncio.Event) -> None:
    """Answer truthfully what a run and its child runs ask about their effects."""
    told: set[str] = set()
    while not over.is_set():
        for run_id in await stage.ledger.transact(stage.tenant, runs_of, run.run_id):
            one = Run(run_id, stage.client.get_workflow_handle(run_id))
            for row in stage.intervention_rows(one):
                id_ = row["intervention_id"]
                if row["state"] == "open" and id_ not in told:
                    told.add(id_)
                    answer = await truth(stage, one, id_, orders[0])
                    with suppress(RPCError):  # It has ended, and its question stays open.
                        await one.handle.signal("resolve", answer)
        await asyncio.sleep(0.1)


async def tree_of(stage: Stage, run: Run) -> RunTree:
    """Return what the ledger has of a run and its child runs."""
    tree = RunTree(run.run_id)
    for run_id in await stage.ledger.transact(stage.tenant, runs_of, run.run_id):
        await tree.read_run(stage.ledger, stage.tenant, run_id)
    return tree


def applied_once(order: str, counts: dict[str, int], mails: int) -> None:
    for endpoint, count in counts.items():
        most = mails if endpoint == "mails" else 1
        assert count <= most, f"G1: {order}: {counts}"


def as_the_ledger_says(order: str, counts: dict[str, int], tree: RunTree) -> None:
    """What stands in the ledger stands outside, and nothing else does."""
    for tool, (done, undone) in TOOLS.items():
        there = counts[done] - (counts[undone] if undone else 0)
        mine = [e for e in tree.entries if e["tool"] == tool and about(e["key"], order)]
        stand = sum(entry["state"] == "committed" for entry in mine)
        # Of these a human is asked whether they do.
        doubtful = sum(entry["state"] in ("in_doubt", "partial", "compensating") for entry in mine)
        assert stand <= there <= stand + doubtful, f"{order}: {tool}: {there}, ledger {stand}"


def about(key: str, order: str) -> bool:
    return order in re.findall(r"order-\w+", key)
