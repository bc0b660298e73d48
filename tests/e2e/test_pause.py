"""Pausing and resuming whole runs: at consistent points, by whoever may."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError

from surehand.client.messages import new_token, read_token
from surehand.workflows.contracts.states import RunState
from surehand.workflows.contracts.steering import PauseRun, ReissueToken, ResumeRun, Verb
from surehand.workflows.identity import DEFAULT_TENANT
from tests.e2e.interceptors import Pause
from tests.e2e.plans import plan, refund_step
from tests.e2e.runs import Run, decision_on, example_plan
from tests.e2e.stage import Stage
from tests.e2e.test_policies import STRICT, refund
from tests.ledger.people import person, revoked


async def told(run: Run, verb: Verb, message: Any) -> str:
    answer = await run.handle.execute_update(verb, message)
    return str(answer["message"])


async def refusal(run: Run, verb: Verb, message: Any) -> str:
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await run.handle.execute_update(verb, message)
    return str(refused.value.cause)


async def test_a_paused_run_calls_nothing_though_its_call_is_approved(
    stage: Stage, order_id: str
) -> None:
    async with stage.worker_here():
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        request = await run.asks()
        assert await told(run, Verb.PAUSE, PauseRun(actor="olga", reason="legal")) == "paused"
        assert (await run.decide(decision_on(request))).state == "approved"
        view = await run.in_state(RunState.PAUSED_USER)
        assert "paused by olga: legal" in [one.question for one in view.result.waiting_for]
        assert stage.shop.counts(order_id)["refunds"] == 0

        assert "going on" in await told(run, Verb.RESUME, ResumeRun(actor="olga"))

        assert (await run.result()).state is RunState.COMPLETED
        assert stage.shop.counts(order_id)["refunds"] == 1


async def test_a_pause_outlives_its_worker_and_a_cancel_ends_it_without_a_call(
    stage: Stage, order_id: str
) -> None:
    async with stage.worker_here():
        run = await stage.start(refund(order_id))
        await run.asks()
        await told(run, Verb.PAUSE, PauseRun(actor="olga"))
    async with stage.worker_here():
        await run.in_state(RunState.PAUSED_USER)
        await run.cancel()
        result = await run.result()

    assert result.state is RunState.CANCELLED
    assert [one.state for one in result.steps] == ["skipped"]
    assert stage.shop.counts(order_id)["refunds"] == 0


async def test_what_a_resume_token_resumes_looks_at_the_permission_again(
    stage: Stage, order_id: str
) -> None:
    person(stage, "uma", permissions=("refunds",))
    async with stage.worker_here(tool_modules=STRICT):
        run = await stage.start(refund(order_id))
        request = await run.asks()
        text, key = new_token(DEFAULT_TENANT, run.run_id, "uma", timedelta(hours=1))
        await told(run, Verb.PAUSE, PauseRun(actor="uma", resume_key=key))
        await run.decide(decision_on(request))
        revoked(stage, "uma", "permission", "refunds")
        token = read_token(text, DEFAULT_TENANT, run.run_id)
        await told(run, Verb.RESUME, token.proof_of(ResumeRun(actor="uma")))

        await run.in_state(RunState.PAUSED_PERMISSION)

        assert stage.shop.counts(order_id)["refunds"] == 0
        again = await refusal(run, Verb.RESUME, token.proof_of(ResumeRun(actor="uma")))
        assert "no resume token out" in again
        await run.cancel()
        await run.result()


async def test_a_stale_a_void_and_a_foreign_resume_token_are_refused(
    stage: Stage, order_id: str
) -> None:
    async with stage.worker_here():
        run = await stage.start(refund(order_id))
        request = await run.asks()
        made = [new_token(DEFAULT_TENANT, run.run_id, "olga", timedelta(hours=1)) for _ in "123"]
        tokens = [read_token(text, DEFAULT_TENANT, run.run_id) for text, _ in made]
        await told(run, Verb.PAUSE, PauseRun(actor="olga", resume_key=made[0][1]))
        await told(run, Verb.TOKEN, ReissueToken(actor="olga", resume_key=made[1][1]))

        void = tokens[0].proof_of(ResumeRun(actor="olga"))
        foreign = tokens[1].proof_of(ResumeRun(actor="eve"))
        assert "void" in await refusal(run, Verb.RESUME, void)
        assert "is olga's" in await refusal(run, Verb.RESUME, foreign)
        edit = {**request.params, "amount": "15.00"}
        await run.decide(decision_on(request, outcome="edit", params=edit))
        await run.until(lambda view: [one.params for one in view.pending] == [edit])
        stale = tokens[1].proof_of(ResumeRun(actor="olga"))
        assert "other calls are waiting" in await refusal(run, Verb.RESUME, stale)

        await told(run, Verb.TOKEN, ReissueToken(actor="olga", resume_key=made[2][1]))
        fresh = tokens[2].proof_of(ResumeRun(actor="olga"))
        assert "going on" in await told(run, Verb.RESUME, fresh)
        await run.cancel()
        await run.result()
    assert len(await stage.events(run, "steering.refused")) == 3
    assert stage.shop.counts(order_id)["refunds"] == 0


async def test_a_resume_token_holds_though_a_call_that_was_under_way_has_ended(
    stage: Stage, order_id: str
) -> None:
    calling = Pause("execute_tools")
    look = {"id": "look", "tool": "orders.read", "params": {"order_id": order_id}}
    async with stage.worker_here(client=calling.client(stage.client)):
        run = await stage.start(plan(refund_step(order_id), look))
        await run.decide(decision_on(await run.asks()))
        await calling.reached()
        text, key = new_token(DEFAULT_TENANT, run.run_id, "uma", timedelta(hours=1))
        await told(run, Verb.PAUSE, PauseRun(actor="uma", resume_key=key))
        calling.go_on()
        await run.in_state(RunState.PAUSED_USER)
        token = read_token(text, DEFAULT_TENANT, run.run_id)
        await told(run, Verb.RESUME, token.proof_of(ResumeRun(actor="uma")))
        result = await run.result()

    assert result.state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["refunds"] == 1
