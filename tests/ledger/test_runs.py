"""Run rows: opened once, never reused, closed once, told as the ledger has them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from surehand.activities.ledger.core.store import RunNotFound
from surehand.activities.ledger.core.tables import plans
from surehand.activities.ledger.core.tables import runs as run_table
from surehand.activities.ledger.core.tables import steps as step_table
from surehand.activities.ledger.effects import run_tree
from surehand.activities.ledger.history import reads
from surehand.activities.ledger.runs import lifecycle
from surehand.activities.ledger.steps import attempts
from surehand.workflows.contracts.runs import CloseRun
from surehand.workflows.contracts.states import RunState
from tests.ledger.scene import OTHER_RUN, RUN, STEP, Scene


def _close(scene: Scene, state: RunState = RunState.FAILED, run_id: str = RUN) -> CloseRun:
    return CloseRun(
        tenant=scene.tenant,
        run_id=run_id,
        state=state,
        error="step refund: no",
        skipped={"mail": "mail.send"},
    )


def test_a_run_and_its_plan_are_stored_before_step_one(scene: Scene) -> None:
    run = scene.row(run_table)
    assert (run["state"], run["user_id"], run["closed_ms"]) == ("running", "ada", None)
    plan = scene.row(plans)
    assert plan["plan_version"] == 1
    assert [step["id"] for step in plan["plan"]["steps"]] == [STEP]
    assert list(plan["tools"]) == ["payments.refund"]
    (opened,) = scene.events()
    assert opened["type"] == "run.opened"


def test_opening_again_by_the_same_temporal_run_changes_nothing(scene: Scene) -> None:
    before = [scene.rows(run_table), scene.rows(plans), scene.events()]

    scene.open_run(RUN, "first")

    assert [scene.rows(run_table), scene.rows(plans), scene.events()] == before


@pytest.mark.parametrize("closed", [False, True])
def test_a_run_id_is_never_used_again(scene: Scene, closed: bool) -> None:
    if closed:
        with scene.tx() as tx:
            lifecycle.close_run(tx, _close(scene))

    with pytest.raises(lifecycle.RunIdTaken, match=RUN):
        scene.open_run(RUN, "another workflow run")


def test_a_run_is_closed_once_with_its_skipped_steps(scene: Scene) -> None:
    with scene.tx() as tx:
        lifecycle.close_run(tx, _close(scene))
    before = [scene.rows(run_table), scene.rows(step_table), scene.events()]

    with scene.tx() as tx:
        lifecycle.close_run(tx, _close(scene, RunState.COMPLETED))

    run = scene.row(run_table)
    assert (run["state"], run["error"]) == ("failed", "step refund: no")
    assert run["closed_ms"] is not None
    skipped = scene.row(step_table)
    assert (skipped["step_id"], skipped["state"], skipped["attempt"]) == ("mail", "skipped", 0)
    after = [scene.rows(run_table), scene.rows(step_table), scene.events()]
    assert after == before


def test_an_attempt_recorded_twice_is_one_row(scene: Scene) -> None:
    attempt = scene.call().step_attempt
    for _ in range(2):
        with scene.tx() as tx:
            attempts.start(tx, attempt)
    with scene.tx() as tx:
        attempts.finish(tx, attempt, "failed", error="no", error_class="transient")
        second = replace(attempt, attempt=2)
        assert attempts.failures(tx, second, "transient") == 1
        assert attempts.failures(tx, second, "permanent") == 0
        # It is not held against itself.
        assert attempts.failures(tx, attempt, "transient") == 0

    row = scene.row(step_table)
    assert (row["state"], row["error"], row["error_class"]) == ("failed", "no", "transient")


def test_what_stands_uncompensated_is_listed_with_its_reason(scene: Scene) -> None:
    scene.compensated(scene.call(step_id="undone", key="undone"))
    stands = scene.committed(scene.call(step_id="stands", key="stands"))
    doubted = scene.in_doubt(scene.call(step_id="doubted", key="doubted"))
    scene.failed(scene.call(step_id="failed", key="failed"))

    with scene.tx() as tx:
        run_tree.leave(tx, RUN, [stands.entry_id], "irreversible")
    with scene.tx() as tx:
        told = run_tree.effects_of_tree(tx, RUN, 10)
    views = [one.view() for one in told.made]

    assert {view.step_id: view.state for view in views if view.undoes is None} == {
        "undone": "compensated",
        "stands": "committed",
        "doubted": "in_doubt",
        "failed": "failed",
    }
    assert {one.entry.entry_id: one.view().reason for one in told.remaining} == {
        stands.entry_id: "irreversible",
        doubted.entry_id: None,
    }
    assert (told.more, told.more_remaining) == (0, 0)


async def test_another_runs_effect_is_in_its_own_list_only(scene: Scene) -> None:
    scene.open_run(OTHER_RUN)
    committed = scene.committed(scene.call())
    scene.claim(scene.call(run_id=OTHER_RUN))

    ours = await scene.ledger.transact(scene.tenant, reads.effects_of, RUN)
    assert [(row["entry_id"], row["state"]) for row in ours] == [(committed.entry_id, "committed")]
    assert await scene.ledger.transact(scene.tenant, reads.effects_of, OTHER_RUN) == []


async def test_people_read_times_and_no_tenant(scene: Scene) -> None:
    scene.asked(scene.call())

    (effect,) = await scene.ledger.transact(scene.tenant, reads.effects_of, RUN)
    (question,) = await scene.ledger.transact(
        scene.tenant, reads.interventions_of, RUN, only_open=True
    )
    first, *_ = await scene.ledger.transact(scene.tenant, reads.events_of, RUN)

    assert effect["claimed_at"].endswith("+00:00")
    assert question["question"] == "Did it?"
    assert (first["seq"], first["type"]) == (1, "run.opened")
    for row in (effect, question, first):
        assert "tenant_id" not in row


async def test_a_run_that_does_not_exist_is_not_found(scene: Scene) -> None:
    with pytest.raises(RunNotFound, match="nobody"):
        await scene.ledger.transact(scene.tenant, reads.events_of, "nobody's")
