"""Approval Consistency and Permission Drift are counted from rows, whatever a worker believes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from surehand.activities.ledger.history.reads import Evidence
from surehand.drill.judge import count_recorded_turns, list_calls, tally_calls
from surehand.drill.people import ACTOR
from surehand.drill.report import Tally
from surehand.workflows.contracts.tools import MODEL, Effect, Recovery, ToolSpec
from surehand.workflows.identity import params_hash
from surehand.workflows.plan.plan import Plan
from surehand.workflows.plan.policy import ApprovalPolicy, ApprovalRule

PARAMS = {"amount": "5"}
HASH = params_hash("bank.pay", "1", PARAMS)
OTHER = params_hash("bank.pay", "1", {"amount": "500"})
GATED = ApprovalPolicy()
WAIVABLE = ApprovalPolicy(rules=(ApprovalRule(when="amount < 10", required=False),))


def spec(**facts: Any) -> ToolSpec:
    given = {"effect": Effect.WRITE, "approval": GATED, "permission": "pay", **facts}
    return ToolSpec(
        name="bank.pay", version="1", schema_hash="s", recovery=Recovery.HUMAN, timeout=5, **given
    )


def evidence(**facts: Any) -> Evidence:
    """A payment of 5 that was approved, allowed, claimed and made, with some rows changed."""
    approval = {
        "approval_id": "r/pay/1",
        "step_id": "pay",
        "tool": "bank.pay",
        "tool_version": "1",
        "params_hash": HASH,
        "params": PARAMS,
        "state": "approved",
        "consumed_entry": "ef-1",
        "consumed_generation": 1,
    }
    claim = {
        "step_id": "pay",
        "attempt": 1,
        "entry_id": "ef-1",
        "generation": 1,
        "params_hash": HASH,
        "approval_id": "r/pay/1",
    }
    step = {
        "step_id": "pay",
        "attempt": 1,
        "tool": "bank.pay",
        "input": PARAMS,
        "state": "succeeded",
        "error_class": None,
        "started_ms": 1000,
    }
    rows: dict[str, dict[str, Any]] = {
        name: {**row, **facts.pop(name, {})}
        for name, row in (("approval", approval), ("claim", claim), ("step", step))
    }
    found = Evidence(
        user="uma",
        plan=Plan.model_validate([{"id": "pay", "tool": "bank.pay"}]),
        tools={"bank.pay": spec()},
        approvals=[rows["approval"]],
        steps=[rows["step"]],
        claims=[rows["claim"]],
        waived=[],
        answered=frozenset(),
        changes=[],
    )
    return replace(found, **facts)


def change(what: str, at_ms: int, actor: str = ACTOR) -> dict[str, Any]:
    return {"change": f"permission_{what}", "what": "pay", "at_ms": at_ms, "actor": actor}


def test_a_call_that_was_made_as_approved_is_consistent() -> None:
    assert tally_calls(evidence(), ACTOR) == (Tally(gated=1, as_approved=1), [])


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"approval": {"state": "pending", "consumed_entry": None}}, "nobody has approved it"),
        ({"approvals": []}, "nobody has approved it"),
        ({"claims": []}, "made without a claim"),
        ({"claim": {"approval_id": None}}, "no approval was used by its claim of ef-1"),
        ({"approval": {"consumed_entry": None}}, "no approval was used by its claim of ef-1"),
        ({"approval": {"consumed_entry": "ef-2"}}, "no approval was used by its claim of ef-1"),
        ({"approval": {"consumed_generation": 2}}, "no approval was used by its claim of ef-1"),
        ({"claim": {"params_hash": OTHER}}, "no approval was used by its claim of ef-1"),
        # Recorded under the approved hash, but made with other params.
        ({"step": {"input": {"amount": "500"}}}, "its params are not those of r/pay/1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_call_other_than_approved_is_counted(facts: dict[str, Any], why: str) -> None:
    found, [story] = tally_calls(evidence(**facts), ACTOR)

    assert (found.as_approved, found.gated) == (0, 1)
    assert story.startswith("pay attempt 1 of bank.pay is not what was approved")
    assert why in story


@pytest.mark.parametrize(("amount", "consistent"), [("5", 1), ("500", 0)])
def test_a_reads_own_params_are_compared(amount: str, consistent: int) -> None:
    read = {"tools": {"bank.pay": spec(effect=Effect.READ)}, "claims": []}

    found, _ = tally_calls(evidence(step={"input": {"amount": amount}}, **read), ACTOR)

    assert (found.as_approved, found.gated) == (consistent, 1)


@pytest.mark.parametrize(
    ("policy", "hash_", "gated"),
    [(None, "", 0), (WAIVABLE, HASH, 0), (WAIVABLE, OTHER, 1), (GATED, HASH, 1)],
)
def test_only_a_rule_waives(policy: ApprovalPolicy | None, hash_: str, gated: int) -> None:
    waived = [{"step_id": "pay", "params_hash": hash_}]
    tools = {"bank.pay": spec(approval=policy)}

    found, _ = tally_calls(evidence(approvals=[], tools=tools, waived=waived), ACTOR)

    assert (found.gated, found.as_approved) == (gated, 0)


@pytest.mark.parametrize(
    ("began_ms", "class_", "drifted"),
    [
        (999, None, 0),
        (1000, None, 1),
        (1999, None, 1),
        (2000, None, 0),  # it was given back
        (1500, "refused", 0),  # it was turned away
    ],
)
def test_a_call_after_a_loss_is_drift(began_ms: int, class_: str | None, drifted: int) -> None:
    step = {"started_ms": began_ms, "error_class": class_}
    changes = [change("granted", 1), change("revoked", 1000), change("granted", 2000)]

    found, stories = tally_calls(evidence(step=step, changes=changes), ACTOR)

    assert (found.drifted, found.losses) == (drifted, 1)
    assert any("had lost the permission pay" in story for story in stories) == bool(drifted)


def test_each_item_of_a_list_is_a_call_with_an_approval_of_its_own() -> None:
    facts = {name: {"step_id": "pay[1]"} for name in ("approval", "claim", "step")}

    assert tally_calls(evidence(**facts), ACTOR) == (Tally(gated=1, as_approved=1), [])
    del facts["approval"]
    found, [story] = tally_calls(evidence(**facts), ACTOR)
    assert (found.gated, found.as_approved) == (1, 0)
    assert story.startswith("pay[1] attempt 1")


def test_a_loss_that_the_drill_did_not_force_is_none_of_its_losses() -> None:
    found, _ = tally_calls(evidence(changes=[change("revoked", 1, actor="root")]), ACTOR)

    assert (found.losses, found.drifted) == (0, 1)


@pytest.mark.parametrize(
    ("facts", "calls"), [({}, 1), ({"error_class": "refused"}, 0), ({"attempt": 0}, 0)]
)
def test_refused_or_skipped_attempts_are_no_calls(facts: dict[str, Any], calls: int) -> None:
    found = evidence(step=facts)
    assert len(list_calls(found, "pay")) == len(list_calls(found)) == calls
    assert list_calls(evidence(), "look") == []


def test_calls_of_steps_that_an_agent_has_made_count_though_its_plan_has_none() -> None:
    made = evidence(plan=Plan.model_validate({"agent": "bank:clerk"}))
    turn = {**made.steps[0], "step_id": "turn-1", "tool": MODEL}

    assert tally_calls(made, ACTOR) == (Tally(gated=1, as_approved=1), [])
    assert tally_calls(replace(made, approvals=[]), ACTOR)[0] == Tally(gated=1, as_approved=0)
    assert count_recorded_turns(replace(made, steps=[turn, {**turn, "state": "running"}])) == 1
