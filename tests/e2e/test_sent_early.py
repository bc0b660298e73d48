"""What is sent before any worker has taken a run up counts like everything else."""

from __future__ import annotations

from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from surehand.workflows.contracts.states import RunState
from surehand.workflows.contracts.steering import PauseRun, ResumeRun, Verb
from tests.e2e.messages import event, told
from tests.e2e.plans import plan, refund_step
from tests.e2e.runs import step, until
from tests.e2e.stage import Stage


async def test_what_steers_a_run_before_a_worker_has_it_counts_in_its_order(
    stage: Stage, order_id: str
) -> None:
    wait = {"id": "back", "wait": {"event": "returned", "about": "order-7"}, "after": []}
    run = await stage.start(plan(refund_step(order_id, after=[]), wait))
    await run.handle.signal(Verb.EVENT, event("e1", {"at": 1}))
    await run.handle.signal(Verb.RESUME, ResumeRun(actor="uma"))
    await run.handle.signal(Verb.PAUSE, PauseRun(actor="uma"))
    await run.handle.signal(Verb.CANCEL, {"actor": 7})
    await run.handle.signal(Verb.CANCEL)
    await run.handle.signal(Verb.CANCEL, RawValue(Payload(data=b"{}")))
    await run.handle.signal("stop_it", "now")
    async with stage.worker_here():
        view = await run.in_state(RunState.PAUSED_USER)
        refused = view.refused_signals
        assert [one.name for one in refused] == ["cancel", "cancel", "cancel", "stop_it"]
        assert ["actor" in one.reason for one in refused] == [True, True, False, False]
        assert stage.shop.counts(order_id)["refunds"] == 0
        # Later, too, it is told what cannot be read at all.
        await run.handle.signal(Verb.CANCEL, RawValue(Payload(data=b"{}")))
        await until(run.view, lambda view: len(view.refused_signals) == len(refused) + 1)
        await told(run, Verb.RESUME, ResumeRun(actor="uma"))
        await run.approve()
        result = await run.result()

    assert result.state is RunState.COMPLETED
    assert step(result, "back").output == {"at": 1}
