"""Guarantee G3 for whole runs: policies, and that what runs is what was approved."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from temporalio.worker import ExecuteActivityInput

from surehand.activities.ledger.core.statements import insert_row
from surehand.activities.ledger.core.tables import approvals
from surehand.activities.tools.toolbox import load_toolbox
from surehand.activities.worker.crash_points import CrashPoint
from surehand.client.messages import claims_for, sign
from surehand.workflows.canonical_json import digest
from surehand.workflows.contracts.approvals import ApprovalRequest, Decision
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.runs import RunView
from surehand.workflows.contracts.steering import PauseRun, ResumeRun
from surehand.workflows.contracts.tools import Batch, ToolCall
from surehand.workflows.identity import DEFAULT_TENANT, params_hash
from surehand.workflows.plan.plan import Plan
from tests.e2e.interceptors import Between, Execute, Pause
from tests.e2e.plans import FULL, LESS, mail_step, plan, refund_step
from tests.e2e.runs import Run, decision_on, refund_plan, states, step, timeline
from tests.e2e.stage import SHOP_TOOLS, Stage
from tests.ledger.people import granted, person, revoked
from tests.pairwise import pairwise

STRICT = "tests.variants.refund_strict"


def refund(order_id: str, **approval: Any) -> Plan:
    return plan(refund_step(order_id, **({"approval": approval} if approval else {})))


def edited(request: ApprovalRequest, approver: str, **changes: str) -> Decision:
    return decision_on(
        request, outcome="edit", approver=approver, params={**request.params, **changes}
    )


def signed(decision: Decision, run: Run, key: Ed25519PrivateKey) -> Decision:
    edit = None if decision.params is None else digest(decision.params)
    claims = claims_for(decision, DEFAULT_TENANT, run.run_id, int(time.time()), edited=edit)
    return decision.model_copy(update={"signature": sign(key, claims)})


async def test_a_large_refund_needs_two_managers_and_a_small_one_nobody(stage: Stage) -> None:
    person(stage, "ann", "manager")
    person(stage, "bob", "manager")
    rules = [
        {"when": "amount > 100", "quorum": 2},
        {"when": "amount <= 20 and currency in ('EUR', 'USD')", "required": False},
    ]
    policy = {"roles": ["manager"], "rules": rules}
    async with stage.worker_here(tool_modules="tests.variants.refund_ungated"):
        large = await stage.start(refund(order := stage.shop.new_order(), **policy))
        request = await large.asks()
        assert (await large.decide(decision_on(request, approver="eve"))).code == "not_permitted"
        assert (await large.decide(decision_on(request, approver="ann"))).state == "pending"
        assert stage.shop.counts(order)["refunds"] == 0
        assert (await large.decide(decision_on(request, approver="bob"))).state == "approved"
        await large.completed()
        assert stage.shop.counts(order)["refunds"] == 1

        plan = refund(order := stage.shop.new_order(), **policy).model_dump(mode="json")
        plan["steps"][0]["params"]["amount"] = LESS
        small = await stage.start(Plan.model_validate(plan))
        await small.completed()
        assert stage.shop.counts(order)["refunds"] == 1
        assert stage.approval_rows(small) == []


async def test_an_edit_is_asked_about_again_and_then_run(stage: Stage, order_id: str) -> None:
    async with stage.worker_here():
        run = await stage.start(refund(order_id, four_eyes=True))
        first = await run.asks()
        assert (await run.decide(edited(first, "bob", amount="a lot"))).code == "not_editable"
        assert (await run.decide(edited(first, "bob", amount=LESS))).state == "superseded"
        second = await run.asks()
        assert (second.params["amount"], second.editors) == (LESS, ("bob",))
        assert second.params_hash != first.params_hash

        assert (await run.decide(decision_on(first))).code == "not_waiting"
        assert (await run.decide(decision_on(second, approver="bob"))).code == "four_eyes"
        assert stage.shop.counts(order_id)["refunds"] == 0
        assert (await run.decide(decision_on(second, approver="carl"))).state == "approved"

        await run.completed()
        [paid] = await stage.effects(run)
        assert paid["receipt"]["amount"] == LESS
        assert "bob (unverified) has edited" in timeline(await run.view(), "refund")
        assert [row["params"]["amount"] for row in stage.approval_rows(run)] == [FULL, LESS]


async def test_an_edit_outlives_its_expired_request(stage: Stage, order_id: str) -> None:
    hearing = Pause("verify_decision", done=True)
    async with stage.worker_here(client=hearing.client(stage.client)):
        run = await stage.start(refund(order_id, expires_in="10s"))
        first = await run.asks()
        await run.send(edited(first, "ann", amount=LESS))
        await hearing.reached()
        # Its time is over by the run's clock; the row says what has become of it.
        await run.until(lambda view: not view.pending)
        hearing.go_on()
        second = await run.asks()
        assert second.params["amount"] == LESS
        await run.decide(decision_on(second))
        await run.completed()

    assert stage.shop.counts(order_id)["refunds"] == 1
    assert [one["amount"] for one in stage.shop.world(order_id)["refunds"]] == [LESS]


async def test_a_revoked_permission_pauses_until_it_is_back(stage: Stage, order_id: str) -> None:
    person(stage, "uma", permissions=("refunds",))
    async with stage.worker_here(tool_modules=STRICT):
        run = await stage.start(refund(order_id))
        request = await run.asks()
        revoked(stage, "uma", "permission", "refunds")
        await run.decide(decision_on(request))
        view = await run.in_state(RunState.PAUSED_PERMISSION)
        assert [one.kind for one in view.result.waiting_for] == ["permission"]
        assert stage.shop.counts(order_id)["refunds"] == 0

        await run.handle.execute_update("resume", ResumeRun(actor="oscar"))
        await run.until(lambda view: paused_attempts(view) == 2)
        granted(stage, "uma", "refunds")
        await run.handle.execute_update("resume", ResumeRun(actor="oscar"))

        await run.completed()
        assert stage.shop.counts(order_id)["refunds"] == 1
        assert len(stage.approval_rows(run)) == 1


def paused_attempts(view: RunView) -> int:
    return sum(one.attempts for one in view.result.steps if one.state == "paused_permission")


async def test_a_changed_tool_is_asked_about_again(stage: Stage, order_id: str) -> None:
    async with stage.worker_here():
        run = await stage.start(refund_plan(order_id))
        old = await run.asks()
    async with stage.worker_here(tool_modules="tests.variants.refund_newer"):
        await run.send(decision_on(old))
        again = await run.asks(but=old)
        assert (old.version, again.version) == ("1", "2")
        assert stage.shop.counts(order_id)["refunds"] == 0
        await run.send(decision_on(again))

        await run.completed()
        assert stage.shop.counts(order_id)["refunds"] == 1


async def test_a_changed_order_is_asked_about_again(stage: Stage, order_id: str) -> None:
    async with stage.worker_here(tool_modules="tests.variants.refund_checked"):
        run = await stage.start(refund(order_id))
        first = await run.asks()
        stage.shop.edit_order(order_id, status="shipped")
        await run.decide(decision_on(first))
        second = await run.asks(but=first)
        assert stage.shop.counts(order_id)["refunds"] == 0
        assert "has changed since" in timeline(await run.view(), "refund")
        stage.shop.edit_order(order_id, status="paid")
        await run.decide(decision_on(second))
        third = await run.asks(but=second)
        await run.decide(decision_on(third))

        await run.completed()
        assert stage.shop.counts(order_id)["refunds"] == 1
        used = [row for row in stage.approval_rows(run) if row["consumed_entry"]]
        assert [row["approval_id"] for row in used] == [third.approval_id]


@pytest.mark.parametrize(
    ("on_expiry", "refused", "accepted"),
    [("ask_again", "bea", "ann"), ({"escalate": "boss"}, "ann", "bea")],
)
async def test_a_request_that_nobody_answers_is_asked_again_or_of_somebody_else(
    stage: Stage, order_id: str, on_expiry: Any, refused: str, accepted: str
) -> None:
    person(stage, "bea", "boss")
    person(stage, "ann", "manager")
    policy = {"roles": ["manager"], "expires_in": "10s", "on_expiry": on_expiry}
    async with stage.worker_here(tool_modules="tests.variants.refund_ungated"):
        run = await stage.start(refund(order_id, **policy))
        first = await run.asks()
        stage.expire(first)
        second = await run.asks(but=first)
        no = await run.decide(decision_on(second, approver=refused))
        yes = await run.decide(decision_on(second, approver=accepted))

        assert (no.code, yes.code) == ("not_permitted", "accepted")
        await run.completed()
        assert stage.shop.counts(order_id)["refunds"] == 1


async def test_a_precondition_that_says_never_asks_nobody(stage: Stage) -> None:
    order = stage.shop.new_order(currency="USD")
    read = stage.shop.requests("orders")["received"]
    run, result = await stage.play(refund(order), tool_modules="tests.variants.refund_checked")
    assert result.state is RunState.FAILED
    assert f"{order} was paid in USD" in (result.error or "")
    assert stage.approval_rows(run) == []
    assert stage.shop.requests("orders")["received"] == read + 1


# G3 for reads: what is read is what was approved, by who may, while the approval was valid.
TOOLS = "tests.variants.prices_gated"
OLGA = "olga"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """What the read returns; a file beside it counts how often it was made."""
    found = tmp_path / "price.txt"
    found.write_text("12.00")
    return found


def reading(file: Path, **approval: object) -> Plan:
    step = {"id": "look", "tool": "prices.secret", "params": {"file": str(file)}}
    return plan(step | ({"approval": approval} if approval else {}))


def calls(file: Path) -> int:
    counted = file.with_suffix(".secret")
    return len(counted.read_text()) if counted.exists() else 0


async def approved_and_paused(run: Run, approver: str = "ann") -> ApprovalRequest:
    """Have the read approved while the run is paused, so that it is not made yet."""
    request = await run.asks()
    await run.handle.execute_update("pause", PauseRun(actor=OLGA))
    assert (await run.decide(decision_on(request, approver=approver))).state == "approved"
    return request


async def ends(stage: Stage, run: Run, request: ApprovalRequest, file: Path) -> None:
    """Nothing was read so far; once it is approved, it is read."""
    assert calls(file) == 0
    [refused] = await stage.events(run, "effect.refused")
    assert refused["body"]["rule"] == "ApprovalRefused"
    await run.decide(decision_on(request, approver="bob"))
    await run.completed()
    assert calls(file) == 1
    assert await stage.events(run, "approval.consumed") == []


async def test_a_role_revoked_before_the_read_takes_the_vote(stage: Stage, file: Path) -> None:
    person(stage, "uma", permissions=("prices",))
    person(stage, "ann", "manager")
    person(stage, "bob", "manager")
    async with stage.worker_here(tool_modules=TOOLS):
        run = await stage.start(reading(file, roles=["manager"]))
        first = await approved_and_paused(run)
        revoked(stage, "ann", "role", "manager")

        await run.handle.execute_update("resume", ResumeRun(actor=OLGA))
        await ends(stage, run, await run.asks(but=first), file)


async def test_a_cancel_skips_a_read_that_is_not_allowed(stage: Stage, file: Path) -> None:
    async with stage.worker_here(tool_modules=TOOLS):
        run = await stage.start(reading(file))
        await run.decide(decision_on(await run.asks()))
        await run.in_state(RunState.PAUSED_PERMISSION)
        await run.cancel()
        result = await run.result()

    assert [view.state for view in result.steps] == ["skipped"]
    assert calls(file) == 0


Change = Callable[[ToolCall], dict[str, Any]]
KEYLESS = "tests.variants.keyless_notes"


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
    run, result = await stage.play(
        refund_plan(order_id),
        durability=mode,
        approve=True,
        client=Tamper(CHANGES[change]).client(stage.client),
    )

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
        run = await stage.start(refund_plan(order_id))
        first = await run.approve()
        again = await run.asks(but=first)
        assert again.approval_id == f"{run.run_id}/refund/2"
        await run.decide(decision_on(again, outcome="reject"))
        result = await run.result()
    assert result.state is RunState.FAILED
    assert stage.shop.counts(order_id)["refunds"] == 0
    assert await stage.effects(run) == []


@pytest.mark.guarantee("G3")
async def test_a_run_asks_past_a_forged_row(stage: Stage, order_id: str) -> None:
    asking = Pause("request_approval")
    async with stage.worker_here(client=asking.client(stage.client)):
        run = await stage.start(refund_plan(order_id))
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
        await run.completed()
    assert stage.shop.counts(order_id)["refunds"] == 1


@pytest.mark.fast
@pytest.mark.crash
@pytest.mark.guarantee("G3")
async def test_a_revoked_role_stops_the_call_after_a_kill(stage: Stage, order_id: str) -> None:
    person(stage, "ann", "manager")
    person(stage, "bob", "manager")
    plan = refund_plan(order_id).model_dump(mode="json")
    plan["steps"][2]["approval"] = {"roles": ["manager"]}
    with stage.ready_worker(crash_at=f"payments.refund:{CrashPoint.BEFORE_CLAIM}") as doomed:
        run = await stage.start(Plan.model_validate(plan))
        first = await run.approve()
        doomed.wait_killed()
    revoked(stage, "ann", "role", "manager")
    async with stage.worker_here():
        again = await run.asks(but=first)
        assert stage.shop.counts(order_id)["refunds"] == 0
        assert await stage.effects(run) == []
        await run.decide(decision_on(again, approver="bob"))
        await run.completed()
    assert stage.shop.counts(order_id)["refunds"] == 1


def two_notes(order_id: str) -> Plan:
    """Return a plan that sends the same mail twice, each time with an approval."""
    note = {"tool": "notes.send", "approval": True}
    return plan(*(mail_step(order_id, "note", **note, id=name) for name in ("one", "two")))


async def test_one_approval_is_good_for_one_step(stage: Stage, order_id: str) -> None:
    def of_step_one(call: ToolCall) -> dict[str, Any]:
        return {"approval_id": f"{call.run_id}/one/1"}

    client = Tamper(of_step_one).client(stage.client)
    async with stage.worker_here(client=client, tool_modules=KEYLESS):
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
    async with stage.worker_here(tool_modules=KEYLESS):
        run = await stage.start(two_notes(order_id))
        await run.approve()
        await run.decide(decision_on(await run.asks("two")))
        await run.completed()
    assert stage.shop.counts(order_id)["mails"] == 2
