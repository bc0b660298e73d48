"""G1, G2, G5: a worker with a memory limit that a tool meets in the middle of its call.

Who kills a process for its memory does so with SIGKILL, as the crash matrix does. Here the process
lives, and the tool gets Python's ``MemoryError``.
"""

from __future__ import annotations

import resource

from surehand.workflows.contracts.states import RunState
from tests.e2e.kinds import one_of_each
from tests.e2e.runs import example_plan, step
from tests.e2e.stage import Stage

#: What the worker may take beyond what it has when it is ready.
MORE = 2 * 1024**3  # bytes


async def test_memory_that_runs_out_repeats_a_read_and_never_a_refund_that_was_paid(
    stage: Stage, order_id: str
) -> None:
    stage.shop.fault("refunds", ignore_keys=True)
    before = stage.shop.requests("refunds")["received"]
    with stage.worker(tool_modules="tests.variants.hungry") as worker:
        worker.wait_ready()
        worker.limit(resource.RLIMIT_AS, worker.memory() + MORE)
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await run.approve()
        result = await run.result()
        assert worker.stop() == 0  # nobody but the tools has suffered

    assert result.state is RunState.COMPLETED
    assert stage.shop.requests("refunds")["received"] == before + 1
    await one_of_each(stage, run, order_id)
    assert step(result, "order").attempts == step(result, "refund").attempts == 2
    short = [row for row in stage.step_rows(run) if row["error"] is not None]
    assert {row["step_id"]: (row["attempt"], row["error"].split()[0]) for row in short} == {
        "order": (1, "MemoryError"),
        "refund": (1, "MemoryError"),
    }
    [found] = await stage.events(run, "recovery.verified")
    assert found["step_id"] == "refund"
