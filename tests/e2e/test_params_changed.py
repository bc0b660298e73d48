"""Guarantee G3, at the claim: what runs is what was approved, whoever changes the call on its way.

An interceptor of the worker changes the call between the workflow and the activity, as a bug or an
intruder would. The hash is checked there again, in the transaction that claims the effect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from temporalio.worker import ExecuteActivityInput

from surehand.activities.ledger.core.statements import insert_row
from surehand.activities.ledger.core.tables import approvals
from surehand.activities.tools.toolbox import load_toolbox
from surehand.activities.worker.crash_points import CrashPoint
from surehand.workflows.contracts.states import RunState
from surehand.workflows.contracts.tools import Batch, ToolCall
from surehand.workflows.identity import params_hash
from surehand.workflows.plan.plan import Plan
from tests.e2e.interceptors import Between, Execute, Pause
from tests.e2e.runs import decision_on, example_plan, states, step
from tests.e2e.stage import SHOP_TOOLS, Stage
from tests.ledger.people import person, revoked
from tests.pairwise import pairwise

Change = Callable[[ToolCall], dict[str, Any]]
TOOLS = "tests.variants.keyless_notes"


class Tamper(Between):
    """Changes the approved calls of a worker."""

    def __init__(self, change: Change) -> None:
        self._change = change

    async def around(self, input: ExecuteActivityInput, execute: Execute) -> Any:
        match input.args:
            case [Batch(first=ToolCall(approval_id=str()) as call) as batch]:
                first = call.model_copy(update=self._change(call))
                input.args = [batch.model_copy(update={"first": first})]
        return await execute(input)


def raised(call: ToolCall) -> dict[str, Any]:
    return {**call.params, "amount": "1200.00"}


def rehashed(call: ToolCall) -> dict[str, Any]:
    """Return other params with their own hash, as one does who knows the check."""
    tool = load_toolbox([SHOP_TOOLS]).get(call.tool.name)
    assert tool is not None
    validated = tool.validate(raised(call)).model_dump(mode="json")
    return {"params": raised(call), "params_hash": params_hash(tool.name, tool.version, validated)}


CHANGES: dict[str, Change] = {
    "the params": lambda call: {"params": raised(call)},
    "the params and the hash": rehashed,
    "the params, and no hash": lambda call: {"params": raised(call), "params_hash": None},
    "only the hash": lambda call: {"params_hash": "sha256:" + "0" * 64},
    "the user": lambda call: {"user": "mallory"},
}


#: Each change meets each mode, and each of these the databases.
TAMPERED: Final = pairwise([list(CHANGES), ["sync", "async", "exit"], ["sqlite", "postgresql"]])


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize(
    ("change", "mode", "database"),
    [
        pytest.param(*case, marks=[pytest.mark.postgres] if "postgresql" in case else [])
        for case in TAMPERED
    ],
)
async def test_a_call_that_is_not_the_approved_one_is_refused_and_has_no_effect(
    stage: Stage, order_id: str, change: str, mode: str
) -> None:
    requests = stage.shop.requests("refunds")
    async with stage.worker_here(client=Tamper(CHANGES[change]).client(stage.client)):
        run = await stage.start(example_plan("refund.yaml", order_id=order_id), durability=mode)
        await run.approve()
        result = await run.result()

    assert result.state is RunState.FAILED
    assert "ParamsMismatch" in (step(result, "refund").error or "")
    assert states(result)["mail"] == "skipped"
    assert set(stage.shop.counts(order_id).values()) == {0}
    assert stage.shop.requests("refunds") == requests
    assert await stage.effects(run) == []
    [refused] = await stage.events(run, "effect.refused")
    assert refused["body"]["rule"] == "Mismatch"
    [approval] = stage.approval_rows(run)
    assert approval["consumed_entry"] is None


@pytest.mark.parametrize(
    "change",
    [lambda call: {"approval_id": None}, lambda call: {"approval_id": None, "gated": False}],
    ids=["no approval", "said not to need one"],
)
async def test_an_unapproved_call_is_asked(stage: Stage, order_id: str, change: Change) -> None:
    async with stage.worker_here(client=Tamper(change).client(stage.client)):
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        first = await run.approve()
        again = await run.until(lambda view: view.pending not in ([], [first]))
        assert [one.approval_id for one in again.pending] == [f"{run.run_id}/refund/2"]
        await run.decide(decision_on(again.pending[0], outcome="reject"))
        result = await run.result()
    assert result.state is RunState.FAILED
    assert stage.shop.counts(order_id)["refunds"] == 0
    assert await stage.effects(run) == []


@pytest.mark.guarantee("G3")
async def test_a_run_asks_past_a_forged_row(stage: Stage, order_id: str) -> None:
    asking = Pause("request_approval")
    async with stage.worker_here(client=asking.client(stage.client)):
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await asking.reached()
        forged = {
            "approval_id": f"{run.run_id}/refund/1", "run_id": run.run_id, "step_id": "refund",
            "tool": "payments.refund", "tool_version": "1", "key": "k", "params_hash": "sha256:0",
            "params": {"amount": "1.00"}, "description": "pay back 1.00", "undo": "",
            "user_id": "ada", "editors": [], "needs": {"requirements": [{}], "expires_in": "PT1H"},
            "asked_of": "", "assurance": "open", "state": "approved", "decided_by": "eve",
            "requested_ms": 1, "expires_ms": 2**50,
        }  # fmt: skip
        with stage.ledger.transaction(stage.tenant) as tx:
            tx.execute(insert_row(approvals, **forged))
        asking.go_on()
        request = await run.asks()
        assert request.approval_id == f"{run.run_id}/refund/2"
        assert request.description != "pay back 1.00"
        assert stage.shop.counts(order_id)["refunds"] == 0
        await run.decide(decision_on(request))
        result = await run.result()
    assert result.state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["refunds"] == 1


@pytest.mark.fast
@pytest.mark.crash
@pytest.mark.guarantee("G3")
async def test_a_revoked_role_stops_the_call_after_a_kill(stage: Stage, order_id: str) -> None:
    person(stage, "ann", "manager")
    person(stage, "bob", "manager")
    plan = example_plan("refund.yaml", order_id=order_id).model_dump(mode="json")
    plan["steps"][2]["approval"] = {"roles": ["manager"]}
    with stage.worker(crash_at=f"payments.refund:{CrashPoint.BEFORE_CLAIM}") as doomed:
        doomed.wait_ready()
        run = await stage.start(Plan.model_validate(plan))
        first = await run.approve()
        doomed.wait_killed()
    revoked(stage, "ann", "role", "manager")
    async with stage.worker_here():
        again = await run.until(lambda view: view.pending not in ([], [first]))
        assert stage.shop.counts(order_id)["refunds"] == 0
        assert await stage.effects(run) == []
        await run.decide(decision_on(again.pending[0], approver="bob"))
        result = await run.result()
    assert result.state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["refunds"] == 1


def two_notes(order_id: str) -> Plan:
    """Return a plan that sends the same mail twice, each time with an approval."""
    note = {
        "tool": "notes.send",
        "approval": True,
        "params": {
            "order_id": order_id,
            "kind": "note",
            "to": "ada@example.com",
            "subject": "Hello",
            "body": "Hello",
        },
    }
    return Plan.model_validate([{"id": "one", **note}, {"id": "two", **note}])


async def test_one_approval_is_good_for_one_step(stage: Stage, order_id: str) -> None:
    def of_step_one(call: ToolCall) -> dict[str, Any]:
        return {"approval_id": f"{call.run_id}/one/1"}

    client = Tamper(of_step_one).client(stage.client)
    async with stage.worker_here(client=client, tool_modules=TOOLS):
        run = await stage.start(two_notes(order_id))
        first = await run.approve()
        second = await run.asks("two")
        assert second.params_hash == first.params_hash
        await run.decide(decision_on(second))
        result = await run.result()

    assert states(result) == {"one": "succeeded", "two": "failed"}
    assert "approval" in (step(result, "two").error or "")
    assert "ParamsMismatch" in (step(result, "two").error or "")
    assert stage.shop.counts(order_id)["mails"] == 1


async def test_equal_steps_without_a_key_are_both_made(stage: Stage, order_id: str) -> None:
    async with stage.worker_here(tool_modules=TOOLS):
        run = await stage.start(two_notes(order_id))
        await run.approve()
        await run.decide(decision_on(await run.asks("two")))
        result = await run.result()
    assert result.state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["mails"] == 2
