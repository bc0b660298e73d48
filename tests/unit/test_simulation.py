"""What a plan would do from a moment of a run: only what is recorded is taken for known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import pytest

from surehand.activities.ledger.history.recordings import (
    KeyEntry,
    RecordedCall,
    RecordedChild,
    Recording,
)
from surehand.activities.tools.toolbox import Toolbox, load_toolbox
from surehand.cli.simulate import (
    CheckedCall,
    PlanWalk,
    Records,
    Simulated,
    WorkerChecks,
    plan_to_simulate,
)
from surehand.process.exits import WrongUse
from surehand.workflows.contracts.base import Artifact
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


def call(step_id: str, tool: str, params: Any, output: Any, **more: Any) -> RecordedCall:
    said = {"end": "succeeded", **more}
    return RecordedCall(step_id, tool, params, output=output, **said)


READ: Final = call("order", "shop.read", {"id": "o-1"}, ORDER, before=True)
PAID: Final = call("pay", "shop.pay", {"amount": 10}, {"receipt": "r-1"})
MAILED: Final = call("mail", "shop.mail", {"text": "r-1"}, {"sent": True})


def no(step_id: str, tool: str, params: Any, **more: Any) -> RecordedCall:
    said = {"no": {"reason": "not today", "code": "late"}}
    return call(step_id, tool, params, said, end="no", **more)


def recorded(plan: Plan, *calls: RecordedCall, **more: Any) -> Recording:
    done = frozenset(one.step_id for one in calls if one.before)
    return Recording("r", 5, 1, plan, {}, **{"done": done, "calls": calls, **more})


@dataclass(frozen=True)
class Known:
    """Records of a ledger and a store that are not there."""

    keys: Mapping[tuple[str, str], KeyEntry] = field(default_factory=dict)
    contents: Mapping[str, Any] = field(default_factory=dict)

    async def check(self, call: Callable[[], CheckedCall]) -> CheckedCall:
        return call()

    async def find_key(self, tool: str, key: str) -> KeyEntry | None:
        return self.keys.get((tool, key))

    async def read(self, artifact: Artifact) -> Any:
        return self.contents[artifact.sha256]


def simulated(
    recording: Recording,
    plan: Any = None,
    known: Known | None = None,
    toolbox: Toolbox | None = None,
) -> Simulated:
    changed = recording.plan if plan is None else Plan.model_validate(plan)
    checks, records = WorkerChecks("r", {}, toolbox, None), cast(Records, known or Known())
    return asyncio.run(PlanWalk(recording, changed, checks, records).run())


def told(found: Simulated) -> dict[str, str]:
    return {row.id: row.outcome for row in found.steps}


def planned(*steps: dict[str, Any], **more: Any) -> Plan:
    first = {"id": "order", "tool": "shop.read", "params": {"id": "o-1"}}
    return Plan.model_validate({"steps": [first, *steps], **more})


def test_the_same_calls_give_what_they_gave_in_the_run() -> None:
    found = simulated(recorded(Plan.model_validate(PAY), READ, PAID, MAILED))

    assert told(found) == {"order": "done", "pay": "as recorded", "mail": "as recorded"}
    assert found.facts["mail"] == {"sent": True}
    assert found.ends is None


def test_a_call_with_another_input_is_made_and_what_hangs_on_it_is_unknown() -> None:
    recording = recorded(Plan.model_validate(PAY), READ, PAID, MAILED)
    pay = {**PAY["steps"][1], "params": {"amount": 9}}
    found = simulated(recording, {**PAY, "steps": [PAY["steps"][0], pay, PAY["steps"][2]]})

    assert told(found) == {"order": "done", "pay": "would call", "mail": "would call"}
    _, paid, mailed = found.steps
    assert (paid.params, paid.why) == ({"amount": 9}, "the run has called it with another amount")
    assert (mailed.params, mailed.depends_on) == (None, ["pay"])
    assert found.facts.keys() == {"input", "order"}


def test_what_was_done_stays_a_fact_whatever_input_it_would_have_now() -> None:
    recording = recorded(Plan.model_validate(PAY), READ, PAID, MAILED)

    found = simulated(recording, {**PAY, "input": {"order": "o-2"}})

    assert told(found) == {"order": "done", "pay": "as recorded", "mail": "as recorded"}


@pytest.mark.parametrize(("paid", "outcome"), [(True, "as recorded"), (False, "would skip")])
def test_a_branch_is_taken_as_its_condition_is_with_the_facts(paid: bool, outcome: str) -> None:
    step = {"id": "pay", "tool": "shop.pay", "when": "order.paid", "params": {"amount": 10}}
    then = {"id": "end", "tool": "shop.log", "when": "input.loud", "params": {}}
    order = call("order", "shop.read", {"id": "o-1"}, {**ORDER, "paid": paid}, before=True)

    found = simulated(recorded(planned(step, then, input={"loud": False}), order, PAID))

    assert told(found) == {"order": "done", "pay": outcome, "end": "would skip"}


def test_a_condition_on_what_is_unknown_is_neither_taken_nor_left() -> None:
    step = {"id": "pay", "tool": "shop.pay", "params": {"amount": 10}}
    then = {"id": "end", "tool": "shop.log", "when": "pay.late", "params": {}}

    found = simulated(recorded(planned(step, then), READ))

    assert told(found) == {"order": "done", "pay": "would call", "end": "unknown"}
    assert found.steps[2].depends_on == ["pay"]


def test_a_condition_that_cannot_be_evaluated_ends_the_run_as_its_plan_says() -> None:
    step = {"id": "pay", "tool": "shop.pay", "when": "order.gone > 1", "params": {"amount": 10}}
    then = {"id": "end", "tool": "shop.log", "params": {}}

    ends = simulated(recorded(planned(step, then), READ))
    goes_on = simulated(recorded(planned({**step, "on_failure": "continue"}, then), READ))

    assert told(ends) == {"order": "done", "pay": "would fail", "end": "not reached"}
    assert ends.ends is not None and "order.gone" in ends.ends
    assert told(goes_on) == {"order": "done", "pay": "would fail", "end": "would call"}
    assert goes_on.ends is None


@pytest.mark.parametrize("before", [True, False])
def test_a_recorded_no_goes_on_where_the_plan_says(before: bool) -> None:
    step = {**{"id": "pay", "tool": "shop.pay", "params": {"amount": 10}}, "on_no": {"goto": "end"}}
    between = {"id": "mail", "tool": "shop.mail", "params": {}}
    end = {"id": "end", "tool": "shop.log", "params": {}}
    said = no("pay", "shop.pay", {"amount": 10}, before=before)

    found = simulated(recorded(planned(step, between, end), READ, said))

    assert told(found) == {
        "order": "done",
        "pay": "done" if before else "as recorded",
        "mail": "would skip",
        "end": "would call",
    }


def test_a_recorded_no_ends_a_run_whose_plan_does_not_go_on() -> None:
    refused = no("pay", "shop.pay", {"amount": 10})
    found = simulated(recorded(Plan.model_validate(PAY), READ, refused))

    assert told(found) == {"order": "done", "pay": "as recorded", "mail": "not reached"}
    assert found.ends == "step pay: shop.pay answered no: not today"


def test_a_failure_is_no_output_and_the_fallback_that_followed_it_is() -> None:
    step = {
        **{"id": "rate", "tool": "rates.one", "params": {}},
        "fallback": {"tool": "rates.two", "params": {}},
    }
    failed = call("rate", "rates.one", {}, None, end="failed", error="is down")
    other = call("rate", "rates.two", {}, 3)

    alone = simulated(recorded(planned({**step, "fallback": None}), READ, failed))
    helped = simulated(recorded(planned(step), READ, failed, other))

    assert (alone.steps[1].outcome, alone.steps[1].why) == (
        "would call",
        "it failed in the run: is down",
    )
    assert (told(helped)["rate"], helped.facts["rate"]) == ("as recorded", 3)


def test_the_items_of_a_list_are_each_as_recorded_or_not() -> None:
    step = {
        **{"id": "ship", "tool": "shop.ship", "for_each": "${order.lines}"},
        "params": {"sku": "${item}"},
    }
    then = {"id": "end", "tool": "shop.log", "params": {"all": "${ship}"}}
    first = call("ship[0]", "shop.ship", {"sku": "a"}, 1)
    second = call("ship[1]", "shop.ship", {"sku": "b"}, 2)
    done = call("end", "shop.log", {"all": [1, 2]}, "ok")

    both = simulated(recorded(planned(step, then), READ, first, second, done))
    half = call("end", "shop.log", {"all": [1, None]}, "ok")
    one = simulated(recorded(planned(step, then), READ, first, half))
    lost = simulated(recorded(planned(step, then)))

    assert told(both)["end"] == "as recorded"
    assert told(one) == {
        **{"order": "done", "ship": "list"},
        **{"ship[0]": "as recorded", "ship[1]": "would call", "end": "would call"},
    }
    assert told(lost) == {"order": "would call", "ship": "unknown", "end": "would call"}


def test_a_question_and_an_event_have_their_recorded_answers_while_they_ask_the_same() -> None:
    steps = (
        {"id": "why", "ask": {"question": "Why ${order.total}?"}},
        {"id": "back", "wait": {"event": "parcel", "about": "${why}"}},
    )
    why = call("why", "ask", {"question": "Why 10?", "answer": {}}, "broken")
    back = call("back", "wait", {"question": "event parcel broken", "answer": {}}, {"ok": True})
    cheaper = call("order", "shop.read", {"id": "o-1"}, {"total": 9}, before=True)

    same = simulated(recorded(planned(*steps), READ, why, back))
    other = simulated(recorded(planned(*steps), cheaper, why, back))

    assert told(same) == {"order": "done", "why": "as recorded", "back": "as recorded"}
    assert told(other) == {"order": "done", "why": "would ask", "back": "would wait"}


def test_an_event_about_a_value_that_is_no_text_is_the_one_that_the_run_has_waited_for() -> None:
    # Given a run that has waited for what its key means as a whole, and not inside of a text
    wait = {"id": "back", "wait": {"event": "returned", "about": "${order.paid}"}}
    came = call("back", "wait", {"question": "event returned True"}, {"ok": 1})

    found = simulated(recorded(planned(wait), READ, came))

    assert told(found) == {"order": "done", "back": "as recorded"}


def test_a_list_that_a_run_has_no_room_for_would_fail() -> None:
    child = {"steps": [{"id": f"s{n}", "tool": "shop.log"} for n in range(200)]}
    each = {"id": "each", "for_each": "${order.lines}", "plan": child, "after": ["order"]}
    order = call("order", "shop.read", {"id": "o-1"}, {"lines": [1] * 900}, before=True)

    found = simulated(recorded(planned(each), order))

    assert told(found) == {"order": "done", "each": "would fail"}
    assert found.ends is not None and "is too much" in found.ends


def test_a_child_plan_is_not_entered_unless_the_run_has_started_the_same() -> None:
    inner = {"name": "inner", "steps": [{"id": "one", "tool": "shop.read", "params": {}}]}
    step = {"id": "sub", "plan": inner, "params": {"n": "${order.total}"}}
    started = Plan.model_validate({**inner, "input": {"n": 10}})
    there = recorded(started, call("one", "shop.read", {}, 7, before=True))
    child = RecordedChild("r~sub", started, there)

    new = simulated(recorded(planned(step), READ))
    same = simulated(recorded(planned(step), READ, children={"sub": child}))

    assert told(new) == {"order": "done", "sub": "would run plan"}
    assert (told(same)["sub"], same.facts["sub"]) == ("as recorded", {"one": 7})


def test_a_child_made_by_code_gives_all_that_its_steps_gave() -> None:
    step = {"id": "sub", "plan": {"code": "MyRun", "steps": []}}
    started = Plan.model_validate(step["plan"])
    there = recorded(started, call("one", "shop.read", {}, 7, before=True))
    child = RecordedChild("r~sub", started, there)

    found = simulated(recorded(planned(step), READ, children={"sub": child}))

    assert (told(found)["sub"], found.facts["sub"]) == ("as recorded", {"one": 7})


def test_an_output_that_a_human_has_replaced_is_unknown() -> None:
    recording = recorded(Plan.model_validate(PAY), READ, PAID, replaced=frozenset({"order"}))

    assert [row.depends_on for row in simulated(recording).steps] == [[], ["order"], ["pay"]]


def test_params_that_reach_into_an_artifact_are_those_that_it_has() -> None:
    artifact = Artifact(sha256="ab" * 32, uri="default/x", bytes=9)
    large = call("order", "shop.read", {"id": "o-1"}, artifact.reference(), before=True)
    recording = recorded(Plan.model_validate(PAY), large, PAID, MAILED)

    found = simulated(recording, known=Known(contents={artifact.sha256: ORDER}))

    assert told(found)["mail"] == "as recorded"


def test_a_step_that_had_failed_and_was_let_go_is_not_done_again() -> None:
    step = {"id": "pay", "tool": "shop.pay", "params": {}, "on_failure": "continue"}
    then = {"id": "end", "tool": "shop.log", "params": {}}
    failed = frozenset({"pay"})

    let_go = simulated(recorded(planned(step, then), READ, failed=failed))
    again = simulated(recorded(planned({**step, "on_failure": "pause"}), READ, failed=failed))

    assert told(let_go) == {"order": "done", "pay": "done", "end": "would call"}
    assert told(again)["pay"] == "would call"


REFUND: Final = {"order_id": "o-1", "amount": "5.00"}
TOOLS: Final = load_toolbox(["surehand.examples.bank_tools"])


def refunding(state: str, params: dict[str, str]) -> tuple[Simulated, Simulated]:
    """What it would do if nothing holds its key, and with an entry that does."""
    step = {"id": "refund", "tool": "bank.refund", "params": REFUND}
    recording = recorded(Plan.model_validate([step]))
    name = ("bank.refund", "refund:o-1")
    same = identity_hash("bank.refund", params)
    entry = KeyEntry(*name, state, "other", "pay", same, {"id": "re-1"}, False)
    first = simulated(recording, toolbox=TOOLS)
    return first, simulated(recording, known=Known({name: entry}), toolbox=TOOLS)


def test_a_key_that_is_committed_with_the_same_params_is_replayed() -> None:
    first, found = refunding("committed", REFUND)

    assert (first.steps[0].outcome, first.steps[0].approval) == ("would call", "yes")
    assert first.steps[0].params_hash is not None
    assert (found.steps[0].outcome, found.facts["refund"]) == ("would replay", {"id": "re-1"})


def test_a_foreign_receipt_that_is_replayed_has_a_policy_ask_behind_it() -> None:
    rules = [{"when": "not run.foreign", "required": False}]
    first = {"id": "refund", "tool": "bank.refund", "params": REFUND}
    then = {"id": "undo", "tool": "bank.cancel", "params": {"refund_id": "re-1"}}
    plan = Plan.model_validate([first, {**then, "approval": {"rules": rules}}])
    name, same = ("bank.refund", "refund:o-1"), identity_hash("bank.refund", REFUND)
    approvals = []
    for foreign in (False, True):
        entry = KeyEntry(*name, "committed", "other", "pay", same, {"id": "re-1"}, foreign)
        found = simulated(recorded(plan), known=Known({name: entry}), toolbox=TOOLS)
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

    found = simulated(recorded(planned(step)), toolbox=toolbox)

    assert found.steps[1].approval == approval


def test_without_its_tool_a_call_whose_defaults_are_not_known_is_not_taken_for_the_same() -> None:
    full = call("pay", "shop.pay", {"amount": 10, "currency": "EUR"}, {"receipt": "r-1"})

    found = simulated(recorded(Plan.model_validate(PAY), READ, full))

    assert (told(found)["pay"], found.steps[1].params_hash) == ("would call", None)
    assert found.steps[1].why.startswith("its tool is not loaded")


def test_params_that_the_tool_does_not_take_would_fail() -> None:
    step = {"id": "undo", "tool": "bank.cancel", "params": {"refund_id": "${order.total}"}}

    found = simulated(recorded(planned(step), READ), toolbox=TOOLS)

    assert told(found)["undo"] == "would fail"
    assert found.ends is not None and "refund_id" in found.ends


def test_a_run_whose_steps_are_made_by_code_is_refused_in_one_line() -> None:
    recording = recorded(Plan.model_validate({"code": "MyRun", "steps": []}))

    with pytest.raises(WrongUse, match=r"^run r is made by code \(MyRun\): [^\n]*$"):
        plan_to_simulate(recording, None, None)


@pytest.mark.parametrize(("reads", "asked"), [("mail.read", "yes"), ("mail.count", "no")])
def test_a_policy_asks_behind_a_foreign_read(reads: str, asked: str) -> None:
    first = {"id": "look", "tool": reads, "params": {"folder": "f"}}
    send = {"id": "send", "tool": "mail.send", "params": {"folder": "f", "text": "hello"}}
    plan = Plan.model_validate({"steps": [first, send]})
    toolbox = load_toolbox(["tests.variants.mailbox"])

    found = simulated(recorded(plan), toolbox=toolbox)

    assert found.steps[1].approval == asked
    known = simulated(recorded(plan, foreign=True), toolbox=toolbox)
    assert known.steps[1].approval == "yes"
