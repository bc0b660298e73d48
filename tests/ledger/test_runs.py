"""Run rows: opened once, never reused, closed once, told as the ledger has them."""

from __future__ import annotations

import pytest

from activities.ledger import reads, run_tree, runs, steps
from activities.ledger.store import RunNotFound
from activities.ledger.tables import plans
from activities.ledger.tables import runs as run_table
from activities.ledger.tables import steps as step_table
from tests.ledger.scene import OTHER_RUN, RUN, STEP, Scene
from workflows.contracts import CloseRun, RunState


def _close(scene: Scene, state: RunState = RunState.FAILED, run_id: str = RUN) -> CloseRun:
    return CloseRun(
        tenant=scene.tenant,
        run_id=run_id,
        state=state,
        error="step refund: no",
        skipped={"mail": "mail.send"},
    )


async def test_a_run_and_its_plan_are_stored_before_step_one(scene: Scene) -> None:
    run = await scene.row(run_table)
    assert (run["state"], run["user_id"], run["closed_ms"]) == ("running", "ada", None)
    plan = await scene.row(plans)
    assert plan["plan_version"] == 1
    assert [step["id"] for step in plan["plan"]["steps"]] == [STEP]
    assert list(plan["tools"]) == ["payments.refund"]
    (opened,) = await scene.events()
    assert opened["type"] == "run.opened"


async def test_opening_again_by_the_same_temporal_run_changes_nothing(scene: Scene) -> None:
    before = [await scene.rows(run_table), await scene.rows(plans), await scene.events()]

    await scene.open_run(RUN, "first")

    assert [await scene.rows(run_table), await scene.rows(plans), await scene.events()] == before


@pytest.mark.parametrize("closed", [False, True])
async def test_a_run_id_is_never_used_again(scene: Scene, closed: bool) -> None:
    if closed:
        async with scene.tx() as tx:
            await runs.close_run(tx, _close(scene))

    with pytest.raises(runs.RunIdTaken, match=RUN):
        await scene.open_run(RUN, "another workflow run")


async def test_a_run_is_closed_once_with_its_skipped_steps(scene: Scene) -> None:
    async with scene.tx() as tx:
        await runs.close_run(tx, _close(scene))
    before = [await scene.rows(run_table), await scene.rows(step_table), await scene.events()]

    async with scene.tx() as tx:
        await runs.close_run(tx, _close(scene, RunState.COMPLETED))
        await runs.set_state(tx, RUN, "running")

    run = await scene.row(run_table)
    assert (run["state"], run["error"]) == ("failed", "step refund: no")
    assert run["closed_ms"] is not None
    skipped = await scene.row(step_table)
    assert (skipped["step_id"], skipped["state"], skipped["attempt"]) == ("mail", "skipped", 0)
    after = [await scene.rows(run_table), await scene.rows(step_table), await scene.events()]
    assert after == before


async def test_an_attempt_recorded_twice_is_one_row(scene: Scene) -> None:
    attempt = scene.call().step_attempt
    for _ in range(2):
        async with scene.tx() as tx:
            await steps.start(tx, attempt)
    async with scene.tx() as tx:
        await steps.finish(tx, attempt, "failed", error="no", error_class="transient")
        assert await steps.failures(tx, RUN, STEP, "transient") == 1
        assert await steps.failures(tx, RUN, STEP, "permanent") == 0

    row = await scene.row(step_table)
    assert (row["state"], row["error"], row["error_class"]) == ("failed", "no", "transient")


async def test_what_stands_uncompensated_is_listed_with_its_reason(scene: Scene) -> None:
    await scene.compensated(scene.call(step_id="undone", key="undone"))
    stands = await scene.committed(scene.call(step_id="stands", key="stands"))
    doubted = await scene.in_doubt(scene.call(step_id="doubted", key="doubted"))
    await scene.failed(scene.call(step_id="failed", key="failed"))

    async with scene.tx() as tx:
        await run_tree.leave(tx, [stands.entry_id], "irreversible")
    async with scene.tx() as tx:
        views, uncompensated, more = await runs.effect_views(tx, RUN, 10)

    assert {view.step_id: view.state for view in views if view.undoes is None} == {
        "undone": "compensated",
        "stands": "committed",
        "doubted": "in_doubt",
        "failed": "failed",
    }
    assert {view.entry_id: view.reason for view in uncompensated} == {
        stands.entry_id: "irreversible",
        doubted.entry_id: None,
    }
    assert more == 0


async def test_another_runs_effect_is_in_its_own_list_only(scene: Scene) -> None:
    await scene.open_run(OTHER_RUN)
    committed = await scene.committed(scene.call())
    await scene.claim(scene.call(run_id=OTHER_RUN))

    ours = await reads.effects_of(scene.ledger, scene.tenant, RUN)
    assert [(row["entry_id"], row["state"]) for row in ours] == [(committed.entry_id, "committed")]
    assert await reads.effects_of(scene.ledger, scene.tenant, OTHER_RUN) == []


async def test_people_read_times_and_no_tenant(scene: Scene) -> None:
    await scene.asked(scene.call())

    (effect,) = await reads.effects_of(scene.ledger, scene.tenant, RUN)
    (question,) = await reads.interventions_of(scene.ledger, scene.tenant, RUN, only_open=True)
    first, *_ = await reads.events_of(scene.ledger, scene.tenant, RUN)

    assert effect["claimed_at"].endswith("+00:00")
    assert question["question"] == "Did it?"
    assert (first["seq"], first["type"]) == (1, "run.opened")
    for row in (effect, question, first):
        assert "tenant_id" not in row


async def test_a_run_that_does_not_exist_is_not_found(scene: Scene) -> None:
    with pytest.raises(RunNotFound, match="nobody"):
        await reads.events_of(scene.ledger, scene.tenant, "nobody's")
