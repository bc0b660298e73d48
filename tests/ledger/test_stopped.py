"""G4: unwinding a run that was stopped from outside leaves nothing behind it."""

from __future__ import annotations

import pytest

from activities.ledger import runs, stopped
from activities.ledger.entries import Barred
from activities.ledger.tables import approvals
from activities.ledger.tables import runs as run_rows
from tests.ledger.scene import RUN, Scene
from workflows.contracts import CloseRun, RunState


async def unwinding(scene: Scene) -> list[str]:
    """Begin to unwind, as `begin_unwind` does, and return the keys of what is to be undone."""
    async with scene.tx() as tx:
        await stopped.bar(tx, RUN)
        await stopped.close(tx, RUN)
    return await scene.standing()


async def ended(scene: Scene, state: RunState) -> None:
    async with scene.tx() as tx:
        await runs.close_run(tx, CloseRun(tenant=scene.tenant, run_id=RUN, state=state))


async def test_an_attempt_that_outlives_its_run_claims_nothing_once_it_is_unwound(
    scene: Scene,
) -> None:
    assert await unwinding(scene) == []

    # Of no step, also where the plan lists none: an item of a list, a step made by code.
    for step_id in ("refund", "refund[7]", "code-3"):
        late = scene.call(step_id=step_id, key=step_id)
        assert isinstance(await scene.claim(late), Barred)


async def test_a_claim_that_came_first_is_undone(scene: Scene) -> None:
    await scene.claimed(scene.call())

    assert await unwinding(scene) == ["refund:order-1001"]


@pytest.mark.parametrize("state", [RunState.COMPLETED, RunState.CANCELLED, RunState.FAILED])
async def test_a_run_that_has_ended_by_itself_is_not_unwound(scene: Scene, state: RunState) -> None:
    await scene.committed(scene.call())
    await ended(scene, state)

    with pytest.raises(stopped.EndedByItself, match=state):
        await unwinding(scene)

    assert await scene.events(type_="run.barred") == []


async def test_what_the_sweep_has_closed_is_unwound_as_often_as_it_is_asked_for(
    scene: Scene,
) -> None:
    await scene.committed(scene.call())
    async with scene.tx() as tx:
        assert await stopped.close(tx, RUN)

    assert await unwinding(scene) == ["refund:order-1001"]
    assert await unwinding(scene) == ["refund:order-1001"]
    assert (await scene.row(run_rows))["state"] == "failed"


async def test_no_approval_of_a_stopped_run_can_be_used_and_the_events_say_so(
    scene: Scene,
) -> None:
    await scene.ask_approval(scene.call())
    await scene.approved(scene.call(step_id="mail", key="mail"))

    await unwinding(scene)

    assert {row["state"] for row in await scene.rows(approvals)} == {"void"}
    voided = await scene.events(type_="approval.void")
    assert [event["body"]["approval_id"] for event in voided] == ["run-1/mail/1", "run-1/refund/1"]
