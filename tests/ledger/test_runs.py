"""Runs: opened once, closed once, and of their executions the newest acts."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from surehand.activities.effects.compensation import CompensationActivities, UndoAttempt
from surehand.activities.ledger.core.store import RunNotFound
from surehand.activities.ledger.core.tables import (
    approvals,
    bars,
    effects,
    interventions,
    notifications,
    plans,
    runs,
    steps,
)
from surehand.activities.ledger.effects import claims, outcomes, reconcile, run_tree
from surehand.activities.ledger.history import reads
from surehand.activities.ledger.runs import lifecycle
from surehand.activities.ledger.runs.lifecycle import (
    EndedByItself,
    bar_terminated,
    close_terminated,
    not_closed,
)
from surehand.activities.ledger.steps import acting, attempts
from surehand.activities.ledger.steps.acting import ActsElsewhere
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.entries import Barred, Committed, Doubtful
from surehand.activities.maintenance import _close
from surehand.verify import find_open_items
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.effects import Compensate, CompensationReport
from surehand.workflows.contracts.runs import CloseRun, OpenRun
from tests.ledger.attempts import worker_of
from tests.ledger.scene import LEASE_OVER, OTHER_RUN, RUN, SETTLED, STEP, Scene


def closing(scene: Scene, state: RunState = RunState.FAILED, run_id: str = RUN) -> CloseRun:
    return CloseRun(
        tenant=scene.tenant,
        run_id=run_id,
        state=state,
        error="step refund: no",
        skipped={"mail": "mail.send"},
    )


def test_a_run_and_its_plan_are_stored_before_step_one(scene: Scene) -> None:
    run = scene.row(runs)
    assert (run["state"], run["user_id"], run["closed_ms"]) == ("running", "ada", None)
    plan = scene.row(plans)
    assert plan["plan_version"] == 1
    assert [step["id"] for step in plan["plan"]["steps"]] == [STEP]
    assert list(plan["tools"]) == ["payments.refund"]
    (opened,) = scene.events()
    assert opened["type"] == "run.opened"


def test_opening_again_by_the_same_temporal_run_changes_nothing(scene: Scene) -> None:
    before = [scene.rows(runs), scene.rows(plans), scene.events()]

    scene.open_run(RUN, "first")

    assert [scene.rows(runs), scene.rows(plans), scene.events()] == before


@pytest.mark.parametrize("closed", [False, True])
def test_a_run_id_is_never_used_again(scene: Scene, closed: bool) -> None:
    if closed:
        with scene.tx() as tx:
            lifecycle.close_run(tx, closing(scene))

    with pytest.raises(lifecycle.RunIdTaken, match=RUN):
        scene.open_run(RUN, "another workflow run")


def test_a_run_is_closed_once_with_its_skipped_steps(scene: Scene) -> None:
    with scene.tx() as tx:
        lifecycle.close_run(tx, closing(scene))
    before = [scene.rows(runs), scene.rows(steps), scene.events()]

    with scene.tx() as tx:
        lifecycle.close_run(tx, closing(scene, RunState.COMPLETED))

    run = scene.row(runs)
    assert (run["state"], run["error"]) == ("failed", "step refund: no")
    assert run["closed_ms"] is not None
    skipped = scene.row(steps)
    assert (skipped["step_id"], skipped["state"], skipped["attempt"]) == ("mail", "skipped", 0)
    after = [scene.rows(runs), scene.rows(steps), scene.events()]
    assert after == before


def test_an_attempt_recorded_twice_is_one_row(scene: Scene) -> None:
    attempt = scene.call().step_attempt
    for _ in range(2):
        with scene.tx() as tx:
            attempts.start_attempt(tx, attempt)
    with scene.tx() as tx:
        attempts.finish_attempt(tx, attempt, "failed", error="no", error_class="transient")
        second = replace(attempt, attempt=2)
        assert attempts.count_failures(tx, second, "transient") == 1
        assert attempts.count_failures(tx, second, "permanent") == 0
        # It is not held against itself.
        assert attempts.count_failures(tx, attempt, "transient") == 0

    row = scene.row(steps)
    assert (row["state"], row["error"], row["error_class"]) == ("failed", "no", "transient")


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


def unwinding(scene: Scene) -> list[str]:
    """Begin to unwind, as `begin_unwind` does, and return the keys of what is to be undone."""
    with scene.tx() as tx:
        lifecycle.bar_terminated(tx, RUN)
        lifecycle.close_terminated(tx, RUN)
    return scene.remaining()


def test_an_attempt_that_outlives_its_run_claims_nothing_once_it_is_unwound(scene: Scene) -> None:
    assert unwinding(scene) == []

    # Of no step, also where the plan lists none: an item of a list, a step made by code.
    for step_id in ("refund", "refund[7]", "code-3"):
        late = scene.call(step_id=step_id, key=step_id)
        assert isinstance(scene.claim(late), Barred)


def test_a_claim_that_came_first_is_undone(scene: Scene) -> None:
    scene.claimed(scene.call())

    assert unwinding(scene) == ["refund:order-1001"]


@pytest.mark.parametrize("state", [RunState.COMPLETED, RunState.CANCELLED, RunState.FAILED])
def test_a_run_that_has_ended_by_itself_is_not_unwound(scene: Scene, state: RunState) -> None:
    scene.committed(scene.call())
    scene.end(state=state)

    with pytest.raises(lifecycle.EndedByItself, match=state):
        unwinding(scene)

    assert scene.events(type_="run.barred") == []


def test_what_the_reaper_has_closed_is_unwound_as_often_as_it_is_asked_for(scene: Scene) -> None:
    scene.committed(scene.call())
    with scene.tx() as tx:
        assert lifecycle.close_terminated(tx, RUN)

    assert unwinding(scene) == ["refund:order-1001"]
    assert unwinding(scene) == ["refund:order-1001"]
    assert (scene.row(runs))["state"] == "failed"


def test_no_approval_of_a_stopped_run_can_be_used_and_the_events_say_so(scene: Scene) -> None:
    scene.ask_approval(scene.call())
    scene.approved(scene.call(step_id="mail", key="mail"))

    unwinding(scene)

    assert {row["state"] for row in scene.rows(approvals)} == {"void"}
    voided = scene.events(type_="approval.void")
    assert [event["body"]["approval_id"] for event in voided] == ["run-1/mail/1", "run-1/refund/1"]


async def test_people_are_told_each_time_that_a_run_is_stopped(scene: Scene) -> None:
    assert await _close(scene.ledger, scene.tenant, RUN) is not None
    assert await _close(scene.ledger, scene.tenant, RUN) is None
    with scene.tx() as tx:
        acting.take_over_run(tx, ActsElsewhere(scene.tenant, RUN, "second", "first"))
    scene.committed(scene.call(execution="second"))

    stopped = await _close(scene.ledger, scene.tenant, RUN)

    assert stopped is not None and len(stopped.remaining) == 1
    told = scene.rows(notifications, kind="run.stopped")
    assert sorted(row["facts"]["what"] for row in told) == [
        f"{RUN}: 0 of its effects may stand",
        f"{RUN}: 1 of its effects may stand",
    ]


FIRST, SECOND, THIRD = "first", "second", "third"


def refused(scene: Scene, execution: str, **changes: Any) -> ActsElsewhere:
    """Have an execution claim, and return how it is refused."""
    with pytest.raises(ActsElsewhere) as found:
        scene.claim(scene.call(execution=execution, **changes))
    return found.value


def goes_on(scene: Scene, execution: str = SECOND) -> ActsElsewhere:
    """Let another execution act for the run, which Temporal has called the newest."""
    found = refused(scene, execution)
    with scene.tx() as tx:
        acting.take_over_run(tx, found)
    return found


def goes_on_elsewhere(scene: Scene) -> None:
    """Let another execution act that has not come to this step yet."""
    with scene.tx() as tx:
        acting.take_over_run(tx, ActsElsewhere(scene.tenant, RUN, SECOND, FIRST))


def ends(
    scene: Scene, state: RunState = RunState.COMPLETED, execution: str = FIRST, **more: Any
) -> None:
    with scene.tx() as tx:
        if state is not RunState.COMPLETED:
            run_tree.bar_tree(tx, RUN)
        asked = CloseRun(tenant=scene.tenant, run_id=RUN, state=state, **more)
        lifecycle.close_run(tx, asked, execution)


def test_an_attempt_of_an_earlier_execution_claims_nothing(scene: Scene) -> None:
    goes_on(scene)

    assert (refused(scene, FIRST)).acting == SECOND
    assert scene.remaining() == []
    scene.committed(scene.call(execution=SECOND))


def test_a_late_attempt_claims_nothing_in_a_completed_later_life(scene: Scene) -> None:
    ends(scene)
    goes_on(scene)
    ends(scene, execution=SECOND)

    refused(scene, FIRST, step_id="late", key="late")
    assert scene.remaining() == []


def test_an_attempt_that_is_in_its_lookup_when_it_is_overtaken_claims_nothing(scene: Scene) -> None:
    scene.in_doubt(scene.call(execution=FIRST))
    late = scene.call(execution=FIRST, attempt=2)
    doubted = scene.claim(late, LEASE_OVER)
    assert isinstance(doubted, Doubtful)
    goes_on_elsewhere(scene)

    with pytest.raises(ActsElsewhere), scene.tx(SETTLED) as tx:
        reconcile.after_not_found(tx, late, doubted.entry, forward=True)

    assert scene.entry(doubted.entry.entry_id) == doubted.entry


def test_what_an_overtaken_attempt_has_not_found_is_recorded_all_the_same(scene: Scene) -> None:
    scene.in_doubt(scene.call(execution=FIRST))
    late = scene.call(execution=FIRST, attempt=2)
    doubted = scene.claim(late, LEASE_OVER)
    assert isinstance(doubted, Doubtful)
    goes_on_elsewhere(scene)

    with scene.tx(SETTLED) as tx:
        found = reconcile.after_not_found(tx, late, doubted.entry, forward=False)

    assert isinstance(found, Barred)
    assert scene.entry(doubted.entry.entry_id).state == "failed"


def test_an_earlier_execution_claims_no_next_write(scene: Scene) -> None:
    first = scene.call(execution=FIRST)
    entry = scene.claimed(first)
    goes_on(scene)
    with scene.tx() as tx:
        assert outcomes.commit_effect(tx, first, entry, Kept("r-1")) is not None
        following = scene.call(execution=FIRST, step_id="next", key="next")
        assert claims.claim_at_once(tx, following) is None

    assert scene.remaining() == [first.key]


def test_what_is_done_for_a_run_from_outside_is_no_execution_of_it(scene: Scene) -> None:
    goes_on(scene)

    scene.committed(scene.call(execution=None))


async def undoes_late(scene: Scene, entry_id: str, run_id: str, **more: Any) -> None:
    """Have the first execution of ``RUN`` undo an effect, as an activity that thaws."""
    context = worker_of(scene)
    its = {"tenant": scene.tenant, "run_id": run_id, "step_id": STEP, "user": "ada"}
    asked = Compensate.model_validate({**its, "entry_id": entry_id, **more})
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, workflow_id=RUN, workflow_run_id=FIRST)
    # Whether it is the newest again only Temporal could say, which is not there.
    with pytest.raises(RuntimeError, match="client"):
        await environment.run(CompensationActivities(context).compensate, asked)


async def test_an_attempt_of_an_earlier_execution_undoes_nothing(scene: Scene) -> None:
    made = scene.committed(scene.call(execution=FIRST))
    goes_on(scene)
    assert isinstance(scene.claim(scene.call(execution=SECOND)), Committed)
    ends(scene, execution=SECOND)

    await undoes_late(scene, made.entry_id, RUN)

    assert scene.rows(bars) == []
    assert scene.entry(made.entry_id).state == "committed"


async def test_a_frozen_attempt_asks_nothing_of_a_later_life(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, ask = scene.committed(scene.call(execution=FIRST)), UndoAttempt._ask_human

    async def ask_late(*asked: Any, **how: Any) -> CompensationReport:
        """Ask about the tool that is not there, long after that was found out."""
        goes_on_elsewhere(scene)
        ends(scene, execution=SECOND)
        return await ask(*asked, **how)

    monkeypatch.setattr(UndoAttempt, "_ask_human", ask_late)
    await undoes_late(scene, made.entry_id, RUN)

    assert scene.rows(interventions) == []
    assert scene.entry(made.entry_id).state == "committed"


async def test_an_earlier_execution_undoes_no_child_run(scene: Scene) -> None:
    scene.open_run(OTHER_RUN)
    made = scene.committed(scene.call(run_id=OTHER_RUN))
    goes_on(scene)

    await undoes_late(scene, made.entry_id, OTHER_RUN, within=RUN)

    assert scene.rows(bars) == []
    assert scene.entry(made.entry_id).state == "committed"


@pytest.mark.parametrize("within", [None, RUN])
def test_an_earlier_executions_undo_is_not_claimed(scene: Scene, within: str | None) -> None:
    run_id = RUN if within is None else OTHER_RUN
    if within is not None:
        scene.open_run(OTHER_RUN)
    made = scene.committed(scene.call(run_id=run_id))
    goes_on(scene)

    with pytest.raises(ActsElsewhere) as found:
        scene.claim(scene.undo(made, execution=FIRST, within=within))

    assert found.value.run_id == RUN
    assert [row["entry_id"] for row in scene.rows(effects)] == [made.entry_id]
    scene.claimed(scene.undo(made, execution=SECOND, within=within))


def test_a_former_newest_execution_does_not_act(scene: Scene) -> None:
    late = refused(scene, SECOND)
    goes_on(scene, THIRD)
    with scene.tx() as tx:
        acting.take_over_run(tx, late)

    assert (scene.row(runs))["execution"] == THIRD


def test_an_earlier_execution_neither_opens_the_run_nor_ends_it(scene: Scene) -> None:
    goes_on(scene)
    opening = OpenRun(request=scene.start(RUN), execution=FIRST)
    with pytest.raises(ActsElsewhere), scene.tx() as tx:
        lifecycle.open_run(tx, opening, {}, execution=FIRST)
    with pytest.raises(ActsElsewhere):
        ends(scene)

    assert (scene.row(runs))["closed_ms"] is None


def test_a_completed_run_that_is_reset_is_open_again(scene: Scene) -> None:
    scene.committed(scene.call())
    ends(scene)
    goes_on(scene)

    assert (scene.row(runs))["state"] == "running"
    [reopened] = scene.events(type_="run.reopened")
    assert reopened["body"] == {"was": "completed", "rule": "reset"}
    with scene.tx() as tx:
        assert not_closed(tx, [RUN]) == [RUN]
        bar_terminated(tx, RUN)
        assert close_terminated(tx, RUN)


def test_a_second_life_that_fails_is_on_record_as_failed(scene: Scene) -> None:
    scene.committed(scene.call())
    ends(scene)
    goes_on(scene)
    assert find_open_items(scene.events()).uncompensated == []
    ends(scene, RunState.FAILED, SECOND)

    assert (scene.row(runs))["state"] == "failed"
    assert len(find_open_items(scene.events()).uncompensated) == 1


def test_what_a_life_has_skipped_the_next_one_may_skip_as_well(scene: Scene) -> None:
    ends(scene, skipped={"mail": "mail.send"})
    goes_on(scene)
    ends(scene, execution=SECOND, skipped={"mail": "mail.send", "refund": "payments.refund"})

    assert [one["step_id"] for one in scene.rows(steps)] == ["mail", "refund"]


@pytest.mark.parametrize("state", [RunState.FAILED, RunState.CANCELLED])
def test_refused_late_attempts_leave_a_run_as_it_ended(scene: Scene, state: RunState) -> None:
    ends(scene, state)
    goes_on(scene)

    assert (scene.row(runs))["state"] == state
    assert scene.events(type_="run.reopened") == []
    with pytest.raises(EndedByItself), scene.tx() as tx:
        bar_terminated(tx, RUN)
