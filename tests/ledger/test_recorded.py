"""What ``simulate`` reads of a run: ends of calls as seen from an event, and keys as they stand."""

from __future__ import annotations

from typing import Any

from surehand.activities.ledger.history.recorded import (
    Recording,
    key_entries,
    recording_of,
)
from surehand.activities.ledger.runs import lifecycle
from surehand.activities.ledger.steps.entries import Committed
from surehand.workflows.contracts.runs import CloseRun, OpenRun, Parent, StartRun
from surehand.workflows.contracts.states import RunState
from surehand.workflows.identity import child_run_id
from surehand.workflows.plan.plan import Plan
from tests.ledger.scene import OTHER_RUN, RUN, STEP, Scene

KEY = ("payments.refund", "refund:order-1001")


def recording(scene: Scene, run_id: str, seq: int | None = None) -> Recording:
    with scene.tx() as tx:
        return recording_of(tx, run_id, seq)


def told(found: Recording) -> list[tuple[str, Any, bool]]:
    return [(one.end, one.params, one.before) for one in found.calls]


def test_a_replayed_effect_is_a_recorded_call_of_the_run_that_has_replayed_it(
    scene: Scene,
) -> None:
    scene.open_run(OTHER_RUN)
    request = scene.call()
    scene.committed(request)
    assert isinstance(scene.claim(scene.call(run_id=OTHER_RUN)), Committed)

    owner, replayer = recording(scene, RUN), recording(scene, OTHER_RUN)

    assert owner.done == replayer.done == {STEP}
    assert ("succeeded", request.params, True) in told(owner)
    assert told(replayer) == [("succeeded", request.params, True)]
    assert (recording(scene, OTHER_RUN, 1)).done == frozenset()


async def test_a_key_is_held_by_its_newest_entry_until_its_effect_is_undone(scene: Scene) -> None:
    before = await scene.ledger.transact(scene.tenant, key_entries, [KEY])
    request = scene.call()
    scene.committed(request)
    held = await scene.ledger.transact(
        scene.tenant, key_entries, [KEY, ("payments.refund", "other")]
    )
    begun = scene.begin_undo()
    undo = scene.undo(begun.entry)  # type: ignore[union-attr]
    scene.commit(undo, scene.claimed(undo))

    assert before == {}
    assert (held.keys(), held[KEY].state) == ({KEY}, "committed")
    assert held[KEY].identity_hash == request.identity_hash
    assert await scene.ledger.transact(scene.tenant, key_entries, [KEY]) == {}
    assert (recording(scene, RUN)).undone == {STEP}


def test_a_child_is_recorded_once_it_has_completed_and_under_its_own_step(
    scene: Scene,
) -> None:
    child = child_run_id(RUN, "pay_1", 2)
    parents = {
        child: Parent(run_id=RUN, step_id="pay_1"),
        child_run_id(child, "inner"): Parent(run_id=child, step_id="inner"),
        "run_1~pay_1": None,  # named like one, and none
        "run-1~open": Parent(run_id=RUN, step_id="open"),
    }
    for run_id, parent in parents.items():
        plan = Plan.model_validate({"steps": [{"id": "one", "ask": "?"}], "input": {"n": 1}})
        names = {"run_id": run_id, "tenant": scene.tenant, "user": "ada"}
        start = StartRun(**names, plan=plan, parent=parent)
        with scene.tx() as tx:
            lifecycle.open_run(tx, OpenRun(request=start, execution="first"), {})
        if run_id == "run-1~open":
            continue
        with scene.tx() as tx:
            end = CloseRun(tenant=scene.tenant, run_id=run_id, state=RunState.COMPLETED)
            lifecycle.close_run(tx, end)

    found = recording(scene, RUN)

    assert {step: one.run_id for step, one in found.children.items()} == {"pay_1": child}
    assert found.children["pay_1"].plan.input == {"n": 1}
