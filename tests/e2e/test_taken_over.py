"""G4: what has been undone is no fact that another run can begin from."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from surehand.cli.runs import outputs_before
from surehand.process.exits import WrongUse
from surehand.workflows.contracts.runs import Linked
from surehand.workflows.contracts.states import RunState
from surehand.workflows.errors import ErrorType
from tests.e2e.executions import inside
from tests.e2e.papers import FAILS, TOOLS, files, paper, told
from tests.e2e.plans import child, plan
from tests.e2e.stage import Stage

LAST: dict[str, Any] = {**FAILS, "id": "last"}


def steps(stage: Stage, kind: str) -> list[dict[str, Any]]:
    """Return steps of which the first has an effect, itself or through a child run."""
    write = files(stage, "a")
    return [child(write) if kind == "child run" else write, LAST]


@pytest.mark.parametrize("kind", ["step", "child run"])
async def test_a_run_does_not_begin_from_a_step_whose_effect_has_been_undone(
    stage: Stage, kind: str
) -> None:
    taken = "pay" if kind == "child run" else "file-a"
    async with stage.worker_here(**TOOLS):
        run = await stage.start(plan(*steps(stage, kind)))
        result = await run.result()
        view = await run.view()
        # What the command line refuses, a client of one's own may still ask for.
        linked = Linked(run_id=run.run_id, outputs={taken: {"filed": paper(stage, "a")}})
        fork = await stage.start(plan(*steps(stage, kind)), linked=linked)
        with pytest.raises(WorkflowFailureError) as refused:
            await fork.handle.result()
        if kind == "child run":
            await inside(stage, run).result()

    assert (result.state, told(stage, "take out")) == (RunState.FAILED, ["a"])
    with pytest.raises(WrongUse, match=f"what {taken} did has been undone.*--from {taken}"):
        outputs_before(view, "last")
    assert outputs_before(view, taken) == {}
    cause = refused.value.cause
    assert isinstance(cause, ApplicationError) and cause.type == ErrorType.PLAN_INVALID
    assert (
        f"what step {taken} of run {run.run_id} has done or taken over has been undone"
        in cause.message
    )
    assert stage.run_rows(fork) == []


async def test_nor_does_a_fork_of_a_fork(stage: Stage) -> None:
    async with stage.worker_here(**TOOLS):
        first = await stage.start(plan(files(stage, "a"), {"id": "go", "ask": "?"}))
        await first.in_state(RunState.WAITING_INPUT)
        outputs: dict[str, Any] = {"file-a": {"filed": paper(stage, "a")}}
        linked = Linked(run_id=first.run_id, outputs=outputs)
        second = await stage.start(plan(*steps(stage, "step")), linked=linked)
        await second.result()
        await first.cancel()
        await first.result()
        linked = Linked(run_id=second.run_id, outputs=outputs)
        third = await stage.start(plan(*steps(stage, "step")), linked=linked)
        with pytest.raises(WorkflowFailureError) as refused:
            await third.handle.result()

    assert told(stage, "take out") == ["a"]
    assert f"of run {second.run_id}" in str(refused.value.cause)
