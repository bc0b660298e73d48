"""G3: whoever starts a run in another's name gains nothing by it, and unsigned starts nothing."""

from __future__ import annotations

import time
from typing import Any

import pytest
from sqlalchemy import insert, update

from activities.ledger import principals
from activities.ledger.signed_rows import first_unproven
from activities.ledger.tables import approvals, decisions
from cli.signing import signed_start
from tests.e2e.runs import decision_on, step
from tests.e2e.stage import Stage
from tests.e2e.test_children import child, inside
from tests.e2e.test_interrupts import plan, refund_step
from tests.e2e.test_opening import refusal
from tests.e2e.test_policies import refund, signed
from tests.ledger.people import granted, key_of, person
from workflows.contracts import Parent, ResumeRun, RunState, StartRun

STRICT = "tests.variants.refund_strict"


async def started(stage: Stage, order_id: str, **changes: Any) -> StartRun:
    """The start of a refund for uma, as anybody can send it."""
    values = {"run_id": f"foreign-{order_id}", "tenant": "default", "user": "uma"}
    return StartRun(**{**values, "plan": refund(order_id), **changes})


async def test_whoever_has_started_a_run_in_anothers_name_does_not_approve_it(
    stage: Stage, order_id: str
) -> None:
    mallorys = await key_of(stage, await person(stage, "mallory"))
    anns = await key_of(stage, await person(stage, "ann"))
    async with stage.worker_here(decisions="signed"):
        run = await stage.start(
            refund(order_id, four_eyes=True), started_by="mallory", key=mallorys
        )
        request = await run.asks()
        assert request.askers == "uma, started by mallory"

        own = signed(decision_on(request, approver="mallory"), run, mallorys)
        assert (await run.decide(own)).code == "four_eyes"
        assert stage.shop.counts(order_id)["refunds"] == 0

        verdict = await run.decide(signed(decision_on(request, approver="ann"), run, anns))
        assert verdict.state == "approved"
        assert (await run.result()).state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["refunds"] == 1
    [row] = await stage.run_rows(run)
    assert (row["user_id"], row["started_by"]) == ("uma", "mallory")


async def test_a_run_pauses_where_whoever_has_started_it_lacks_the_permission(
    stage: Stage, order_id: str
) -> None:
    await person(stage, "uma", permissions=("refunds",))
    mallorys = await key_of(stage, await person(stage, "mallory"))
    anns = await key_of(stage, await person(stage, "ann"))
    async with stage.worker_here(tool_modules=STRICT, decisions="signed"):
        run = await stage.start(refund(order_id), started_by="mallory", key=mallorys)
        request = await run.asks()
        await run.decide(signed(decision_on(request, approver="ann"), run, anns))
        view = await run.in_state(RunState.PAUSED_PERMISSION)
        [waiting] = view.result.waiting_for
        assert "mallory has no permission refunds" in waiting.question
        assert stage.shop.counts(order_id)["refunds"] == 0
    async with stage.worker_here(tool_modules=STRICT):
        await granted(stage, "mallory", "refunds")
        await run.handle.execute_update("resume", ResumeRun(actor="uma"))
        assert (await run.result()).state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["refunds"] == 1


async def test_a_start_that_nothing_proves_is_refused_before_anything_is_called(
    stage: Stage, order_id: str
) -> None:
    anns = await key_of(stage, await person(stage, "ann"))
    start = await started(stage, order_id)
    as_ann = signed_start(start.model_copy(update={"started_by": "ann"}), anns, int(time.time()))
    async with stage.worker_here(decisions="signed"):
        # One after another under one id: what was refused has left nothing there.
        for forged, why in (
            (start, "only signed starts count"),
            (as_ann.model_copy(update={"started_by": None}), "uma has no key"),
            (as_ann.model_copy(update={"user": "bob"}), "another user"),
            (as_ann.model_copy(update={"plan": refund("order-of-mine")}), "another plan"),
        ):
            cause = await refusal(stage, start.run_id, forged)
            assert (cause.type, why in cause.message) == ("StartRefused", True), cause
        other = as_ann.model_copy(update={"run_id": f"{start.run_id}-2"})
        cause = await refusal(stage, other.run_id, other)
        assert (cause.type, "another run" in cause.message) == ("StartRefused", True)
    assert set(stage.shop.counts(order_id).values()) == {0}


async def test_nobody_but_a_run_itself_starts_its_child_runs(stage: Stage, order_id: str) -> None:
    umas = await key_of(stage, await person(stage, "uma"))
    async with stage.worker_here(decisions="signed"):
        run = await stage.start(plan({"id": "go", "ask": "Go on?"}), key=umas)
        await run.in_state(RunState.WAITING_INPUT)
        parent = Parent(run_id=run.run_id, step_id="go")
        start = await started(stage, order_id, run_id=f"{run.run_id}~go", parent=parent)

        cause = await refusal(stage, start.run_id, start)

        assert (cause.type, "has not started run" in cause.message) == ("StartRefused", True)
        await run.handle.terminate("done with")
    assert set(stage.shop.counts(order_id).values()) == {0}


async def test_a_child_run_goes_by_who_has_started_its_parent(stage: Stage, order_id: str) -> None:
    mallorys = await key_of(stage, await person(stage, "mallory"))
    anns = await key_of(stage, await person(stage, "ann"))
    pay = refund_step(order_id, approval={"four_eyes": True})
    async with stage.worker_here(decisions="signed"):
        run = await stage.start(plan(child(pay)), started_by="mallory", key=mallorys)
        inner = inside(stage, run)
        request = await inner.asks()
        own = signed(decision_on(request, approver="mallory"), inner, mallorys)
        assert (await inner.decide(own)).code == "four_eyes"
        await inner.decide(signed(decision_on(request, approver="ann"), inner, anns))
        assert (await run.result()).state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["refunds"] == 1


async def test_a_start_is_judged_by_when_the_server_took_it(stage: Stage, order_id: str) -> None:
    umas = await key_of(stage, await person(stage, "uma"))
    run = await stage.start(refund(order_id), key=umas)
    taken = (await run.handle.describe()).start_time
    async with stage.worker_here(decisions="signed"):
        await run.asks()
        [row] = await stage.run_rows(run)
        assert row["start_ms"] == int(taken.timestamp() * 1000)
        await run.handle.terminate("done with")


@pytest.mark.parametrize("kid", ["hers", None])
async def test_a_vote_that_somebody_writes_into_the_database_calls_nothing(
    stage: Stage, order_id: str, kid: str | None
) -> None:
    umas = await key_of(stage, await person(stage, "uma"))
    anns = await key_of(stage, await person(stage, "ann"))
    async with stage.worker_here(decisions="signed"):
        run = await stage.start(refund(order_id), key=umas)
        request = await run.asks()
        # All that the workers' role may write: the vote, the approval, the step's way on.
        async with stage.ledger.transaction(stage.tenant) as tx:
            [hers] = (await principals.find(tx, ["ann"]))["ann"].keys
            vote = {
                "tenant_id": tx.tenant, "decision_id": f"{run.run_id}#forged",
                "run_id": run.run_id, "approval_id": request.approval_id, "approver": "ann",
                "outcome": "approve", "params_hash": request.params_hash, "reason": "",
                "verdict": "accepted", "message": "", "at_ms": tx.now_ms, "signature": None,
                "verified": kid is not None, "kid": hers if kid else None,
                "nonce": "a-nonce-of-the-forger" if kid else None,
            }  # fmt: skip
            await tx.execute(insert(decisions).values(vote))
            await tx.execute(
                update(approvals)
                .where(approvals.c.approval_id == request.approval_id)
                .values(state="approved", decided_by="ann", verified=kid is not None)
            )
        # The run follows the row as soon as anything is sent.
        await run.decide(decision_on(request, approver="eve"))
        second = await run.until(
            lambda view: (
                [one for one in view.pending if one.approval_id != request.approval_id] != []
            )
        )
        [again] = [one for one in second.pending if one.approval_id != request.approval_id]
        assert stage.shop.counts(order_id)["refunds"] == 0

        await run.decide(signed(decision_on(again, approver="ann"), run, anns))
        assert step(await run.result(), "refund").state == "succeeded"
    assert stage.shop.counts(order_id)["refunds"] == 1
    broken = await first_unproven(stage.ledger, stage.tenant, run.run_id, await stage.events(run))
    assert "forged" in str(broken)
    stage.started.clear()
