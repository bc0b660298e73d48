"""What a plan would do from a moment of a run: only what is recorded is taken for known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.history.recordings import PastOutput, RunAt, RunPast
from surehand.activities.tools.toolbox import Toolbox, load_toolbox
from surehand.cli.simulate import PlanWalk, SimulatedStep, change_plan
from surehand.process.exits import WrongUse
from surehand.workflows.contracts.base import Artifact, ForeignContent
from surehand.workflows.identity import identity_hash
from surehand.workflows.plan.plan import Plan

PAY: Final = {
    "input": {"order": "o-1"},
    "steps": [
        {"id": "order", "tool": "shop.read", "params": {"id": "${input.order}"}},
        {"id": "pay", "tool": "shop.pay", "params": {"amount": "${order.total}"}},
        {"id": "mail", "tool": "shop.mail", "params": {"text": "${pay.receipt}"}},
    ],
}
ORDER: Final = {"total": 10, "paid": True, "lines": ["a", "b"]}
READ: Final = {"order": ORDER}
SAID: Final = PastOutput({"no": {"reason": "not today", "code": "late"}}, "not today")


@dataclass(frozen=True)
class Known:
    """A ledger that is not there: who holds which key."""

    held: Mapping[tuple[str, str], Any] = field(default_factory=dict)
    keys: None = None

    async def with_keys(self, work: Callable[[], Any]) -> Any:
        return work()

    async def transact(self, tenant: str, work: Any, tool: str, key: str) -> Any:
        return self.held.get((tool, key))


@dataclass(frozen=True)
class Simulated:
    steps: list[SimulatedStep]
    facts: dict[str, Any]
    ends: str | None


def at(plan: Plan, outputs: Mapping[str, Any] = READ, **past: Any) -> RunAt:
    """Return a run in which some steps were done, and what they had given."""
    given = {
        k: one if isinstance(one, PastOutput) else PastOutput(one) for k, one in outputs.items()
    }
    return RunAt("r", 1, plan, {}, RunPast(**past), frozenset(outputs), given)


def simulated(
    start: RunAt, plan: Any = None, known: Known | None = None, toolbox: Toolbox | None = None
) -> Simulated:
    changed = start.plan if plan is None else Plan.model_validate(plan)
    walk = PlanWalk(start, changed, cast(Ledger, known or Known()), toolbox)
    ends = asyncio.run(walk.run())
    return Simulated(list(walk.rows.values()), walk.facts, ends)


def told(found: Simulated) -> dict[str, str]:
    return {row.id: row.outcome for row in found.steps}


def planned(*steps: dict[str, Any], **more: Any) -> Plan:
    first = {"id": "order", "tool": "shop.read", "params": {"id": "o-1"}}
    return Plan.model_validate({"steps": [first, *steps], **more})


def test_what_was_done_is_a_fact_and_what_hangs_on_a_call_is_unknown() -> None:
    found = simulated(at(Plan.model_validate(PAY)), {**PAY, "input": {"order": "o-2"}})

    assert told(found) == {"order": "done", "pay": "would call", "mail": "would call"}
    _, paid, mailed = found.steps
    assert (paid.params, paid.depends_on) == ({"amount": 10}, [])
    assert (mailed.params, mailed.depends_on) == (None, ["pay"])
    assert found.facts.keys() == {"input", "order"}
    assert found.ends is None


@pytest.mark.parametrize(("paid", "outcome"), [(True, "would call"), (False, "would skip")])
def test_a_branch_is_taken_as_its_condition_is_with_the_facts(paid: bool, outcome: str) -> None:
    step = {"id": "pay", "tool": "shop.pay", "when": "order.paid", "params": {"amount": 10}}
    then = {"id": "end", "tool": "shop.log", "when": "input.loud", "params": {}}

    found = simulated(at(planned(step, then, input={"loud": False}), {"order": {"paid": paid}}))

    assert told(found) == {"order": "done", "pay": outcome, "end": "would skip"}


def test_a_condition_on_what_is_unknown_is_neither_taken_nor_left() -> None:
    step = {"id": "pay", "tool": "shop.pay", "params": {"amount": 10}}
    then = {"id": "end", "tool": "shop.log", "when": "pay.late", "params": {}}

    found = simulated(at(planned(step, then)))

    assert told(found) == {"order": "done", "pay": "would call", "end": "unknown"}
    assert found.steps[2].depends_on == ["pay"]


def test_a_condition_that_cannot_be_evaluated_ends_the_run_as_its_plan_says() -> None:
    step = {"id": "pay", "tool": "shop.pay", "when": "order.gone > 1", "params": {"amount": 10}}
    then = {"id": "end", "tool": "shop.log", "params": {}}

    ends = simulated(at(planned(step, then)))
    goes_on = simulated(at(planned({**step, "on_failure": "continue"}, then)))

    assert told(ends) == {"order": "done", "pay": "would fail"}
    assert ends.ends is not None and "order.gone" in ends.ends
    assert told(goes_on) == {"order": "done", "pay": "would fail", "end": "would call"}
    assert goes_on.ends is None


def test_a_recorded_no_goes_on_where_the_plan_says() -> None:
    step = {**{"id": "pay", "tool": "shop.pay", "params": {"amount": 10}}, "on_no": {"goto": "end"}}
    between = {"id": "mail", "tool": "shop.mail", "params": {}}
    end = {"id": "end", "tool": "shop.log", "params": {}}

    found = simulated(at(planned(step, between, end), {**READ, "pay": SAID}))

    assert told(found) == {
        **{"order": "done", "pay": "done"},
        **{"mail": "would skip", "end": "would call"},
    }
    assert found.steps[1].why == "shop.pay answered no: not today"


def test_the_items_of_a_list_are_each_done_or_not() -> None:
    step = {
        **{"id": "ship", "tool": "shop.ship", "for_each": "${order.lines}"},
        "params": {"sku": "${item}"},
    }
    then = {"id": "end", "tool": "shop.log", "params": {"all": "${ship}"}}

    both = simulated(at(planned(step, then), {**READ, "ship[0]": 1, "ship[1]": 2}))
    one = simulated(at(planned(step, then), {**READ, "ship[0]": 1}))
    lost = simulated(at(planned(step, then), {}))

    assert both.steps[-1].params == {"all": [1, 2]}
    assert told(one) == {
        **{"order": "done", "ship": "list"},
        **{"ship[0]": "done", "ship[1]": "would call", "end": "would call"},
    }
    assert one.steps[-1].depends_on == ["ship"]
    assert told(lost) == {"order": "would call", "ship": "unknown", "end": "would call"}


def test_questions_events_and_child_runs_are_told_and_give_nothing_known() -> None:
    inner = {"name": "inner", "steps": [{"id": "one", "tool": "shop.read", "params": {}}]}
    steps = (
        {"id": "why", "ask": {"question": "Why ${order.total}?"}},
        {"id": "back", "wait": {"event": "parcel", "about": "${order.paid}"}},
        {"id": "sub", "plan": inner, "params": {"n": "${why}"}},
    )
    found = simulated(at(planned(*steps)))

    assert told(found) == {
        **{"order": "done", "why": "would ask", "back": "would wait", "sub": "would run plan"},
    }
    assert [one.why for one in found.steps[1:3]] == ["Why 10?", "for parcel True"]
    assert found.steps[3].depends_on == ["why"]
    done = at(planned(*steps), {**READ, "why": "broken", "back": {"ok": True}})
    assert set(told(simulated(done)).values()) == {"done", "would run plan"}


def test_a_list_that_a_run_has_no_room_for_would_fail() -> None:
    child = {"steps": [{"id": f"s{n}", "tool": "shop.log"} for n in range(200)]}
    each = {"id": "each", "for_each": "${order.lines}", "plan": child, "after": ["order"]}

    found = simulated(at(planned(each), {"order": {"lines": [1] * 900}}))

    assert told(found) == {"order": "done", "each": "would fail"}
    assert found.ends is not None and "is too much" in found.ends


def test_an_output_that_was_replaced_or_is_kept_elsewhere_is_unknown() -> None:
    plan = Plan.model_validate(PAY)
    large = Artifact(sha256="ab" * 32, uri="default/x", bytes=9).reference()
    starts = (at(plan, replaced={"order"}), at(plan, {"order": large}))

    for found in map(simulated, starts):
        assert [row.depends_on for row in found.steps] == [[], ["order"], ["pay"]]


def test_a_step_that_had_failed_and_was_let_go_is_not_done_again() -> None:
    step = {"id": "pay", "tool": "shop.pay", "params": {}, "on_failure": "continue"}
    then = {"id": "end", "tool": "shop.log", "params": {}}

    let_go = simulated(at(planned(step, then), failed={"pay"}))
    again = simulated(at(planned({**step, "on_failure": "pause"}), failed={"pay"}))
    undoes = simulated(at(planned({**step, "on_failure": "compensate"}, then), failed={"pay"}))

    assert undoes.ends == "step pay: it had failed by then"
    assert told(undoes) == {"order": "done", "pay": "would fail"}
    assert told(let_go) == {"order": "done", "pay": "done", "end": "would call"}
    assert told(again)["pay"] == "would call"


REFUND: Final = {"order_id": "o-1", "amount": "5.00"}
TOOLS: Final = load_toolbox(["surehand.examples.bank_tools"])


def holding(state: str, params: dict[str, str], *, foreign: bool = False) -> Known:
    """What a ledger knows in which another run has refunded the order."""
    tool, key = "bank.refund", "refund:o-1"
    entry = SimpleNamespace(
        tool=tool,
        key=key,
        state=state,
        run_id="other",
        step_id="pay",
        identity_hash=identity_hash(tool, params),
        receipt={"id": "re-1"},
        foreign_receipt=foreign,
    )
    return Known({(tool, key): entry})


def refunding(state: str, params: dict[str, str]) -> tuple[Simulated, Simulated]:
    """What it would do if nothing holds its key, and with an entry that does."""
    step = {"id": "refund", "tool": "bank.refund", "params": REFUND}
    start = at(Plan.model_validate([step]), {})
    first = simulated(start, toolbox=TOOLS)
    return first, simulated(start, known=holding(state, params), toolbox=TOOLS)


def test_a_key_that_is_committed_with_the_same_params_is_replayed() -> None:
    first, found = refunding("committed", REFUND)

    assert (first.steps[0].outcome, first.steps[0].approval) == ("would call", "yes")
    assert (found.steps[0].outcome, found.facts["refund"]) == ("would replay", {"id": "re-1"})


def test_a_foreign_receipt_that_is_replayed_has_a_policy_ask_behind_it() -> None:
    rules = [{"when": "not run.foreign", "required": False}]
    first = {"id": "refund", "tool": "bank.refund", "params": REFUND}
    then = {"id": "undo", "tool": "bank.cancel", "params": {"refund_id": "re-1"}}
    plan = Plan.model_validate([first, {**then, "approval": {"rules": rules}}])
    approvals = []
    for foreign in (False, True):
        known = holding("committed", REFUND, foreign=foreign)
        found = simulated(at(plan, {}), known=known, toolbox=TOOLS)
        approvals.append(found.steps[1].approval)
    assert approvals == ["no", "yes"]


@pytest.mark.parametrize(
    ("state", "params", "said"),
    [
        ("committed", {**REFUND, "amount": "4.00"}, "with other params: refused"),
        ("in_doubt", REFUND, "refund:o-1 is in_doubt (step pay, run other)"),
    ],
)
def test_a_key_held_otherwise_is_told(state: str, params: dict[str, str], said: str) -> None:
    _, found = refunding(state, params)

    assert (found.steps[0].outcome, "refund" in found.facts) == ("would call", False)
    assert said in found.steps[0].why


@pytest.mark.parametrize(
    ("refund_id", "toolbox", "approval"),
    [
        ("small", TOOLS, "no"),
        ("large", TOOLS, "yes"),
        ("small", None, "by its rules"),
        ("${order.id}", TOOLS, "by its rules"),
    ],
)
def test_rules_of_policies_are_evaluated_on_params_that_are_known(
    refund_id: str, toolbox: Toolbox | None, approval: str
) -> None:
    rules = [{"when": "refund_id == 'small'", "required": False}]
    step = {
        **{"id": "undo", "tool": "bank.cancel", "approval": {"rules": rules}},
        "params": {"refund_id": refund_id},
    }

    found = simulated(at(planned(step), {}), toolbox=toolbox)

    assert found.steps[1].approval == approval


def test_params_that_the_tool_does_not_take_would_fail() -> None:
    step = {"id": "undo", "tool": "bank.cancel", "params": {"refund_id": "${order.total}"}}

    found = simulated(at(planned(step)), toolbox=TOOLS)

    assert told(found)["undo"] == "would fail"
    assert found.ends is not None and "refund_id" in found.ends


def test_a_run_whose_steps_are_made_by_code_is_refused_in_one_line() -> None:
    start = at(Plan.model_validate({"code": "MyRun", "steps": []}), {})

    with pytest.raises(WrongUse, match=r"^run r is made by code \(MyRun\): [^\n]*$"):
        change_plan(start, None, None)


@pytest.mark.parametrize(("reads", "asked"), [("mail.read", "yes"), ("mail.count", "no")])
def test_a_policy_asks_behind_a_foreign_read(reads: str, asked: str) -> None:
    first = {"id": "look", "tool": reads, "params": {"folder": "f"}}
    send = {"id": "send", "tool": "mail.send", "params": {"folder": "f", "text": "hello"}}
    plan = Plan.model_validate({"steps": [first, send]})
    toolbox = load_toolbox(["tests.variants.mailbox"])

    found = simulated(at(plan, {}), toolbox=toolbox)

    assert found.steps[1].approval == asked
    foreign = [ForeignContent(tool="mail.read", step_id="look")]
    known = simulated(at(plan, {}, foreign=foreign), toolbox=toolbox)
    assert known.steps[1].approval == "yes"
