"""What the ledger tells afterwards of a run: its recoveries, calls, states and checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, get_args

import httpx
import pytest

from surehand.activities.effects.recorder import Done
from surehand.activities.ledger.core.store import RunNotFound
from surehand.activities.ledger.core.tables import effects
from surehand.activities.ledger.effects import reconcile
from surehand.activities.ledger.history.recordings import (
    PastOutput,
    RunAt,
    find_key_entry,
    read_run_at,
)
from surehand.activities.ledger.history.run_display import _RECOVERY, read_recovery, read_run_view
from surehand.activities.ledger.runs import checkpoints, lifecycle
from surehand.activities.ledger.runs.checkpoints import CheckpointError
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.entries import Asked, Claimed, Committed, Doubtful, Entry
from surehand.activities.tools.tool import Dedupes, Found, Tool
from surehand.workflows.contracts.base import RunState, StepState
from surehand.workflows.contracts.runs import OpenRun, Parent, StartRun
from surehand.workflows.contracts.tools import Recovery
from surehand.workflows.identity import child_run_id
from surehand.workflows.plan.plan import Plan
from tests.ledger.attempts import Provider, effect_call, last_of, looked_up, request_for
from tests.ledger.rows import change
from tests.ledger.scene import (
    LEASE_OVER,
    NOW,
    OTHER_RUN,
    RUN,
    SETTLE,
    SETTLED,
    STEP,
    WINDOW,
    Scene,
    said,
)

LOST = httpx.ReadTimeout("the answer was lost")
RECEIPT = {"id": "r-1"}


def dedupes() -> Tool:
    return Provider([RECEIPT]).tool(dedupes=Dedupes(window=WINDOW))


def lookup() -> Tool:
    return Provider([LOST]).tool(lookup=looked_up(Found(RECEIPT)), settle=SETTLE)


def verified(scene: Scene) -> dict[str, Any]:
    [event] = scene.events(type_="recovery.verified")
    body: dict[str, Any] = event["body"]
    return body


def left_by_a_dead_attempt(scene: Scene, loaded: Tool) -> None:
    scene.claimed(request_for(scene, loaded, holder="dead"))
    change(scene, effects, lease_until_ms=1)


@pytest.mark.parametrize("make", [dedupes, lookup])
async def test_a_recoverys_end_is_recorded(scene: Scene, make: Callable[[], Tool]) -> None:
    loaded = make()
    left_by_a_dead_attempt(scene, loaded)

    result = await last_of(scene, loaded)

    assert isinstance(result, Done)
    body = verified(scene)
    assert (body["outcome"], body["action"]) == ("committed", "resume")
    assert body["took_ms"] >= 0
    assert body["calls"] == scene.row(effects)["calls"]
    assert "broken" not in body
    assert (scene.row(effects))["recovering_ms"] is None
    for branch in scene.events(type_="effect.reconciled"):
        told = {name: branch["body"][name] for name in ("rule", "evidence", "action")}
        why = "no outcome was recorded under fencing token 1"
        assert told == {"rule": "dedupes", "evidence": why, "action": "call_again"}


async def test_a_call_that_nothing_disturbed_recovers_from_nothing(scene: Scene) -> None:
    await last_of(scene, dedupes())

    assert scene.events(type_="recovery.verified") == []


@pytest.mark.parametrize("make", [dedupes, lookup])
async def test_a_long_recovery_needs_a_human(scene: Scene, make: Callable[[], Tool]) -> None:
    loaded = make()
    left_by_a_dead_attempt(scene, loaded)
    change(scene, effects, recovering_ms=1)

    result = await last_of(scene, loaded)

    assert isinstance(result, Asked)
    assert "its recovery has taken longer than 300 s" in result.question
    assert scene.settle(said(result.intervention_id, "not_happened"))[0]
    assert (verified(scene))["action"] == "human"


async def test_what_does_not_hold_any_more_is_named(scene: Scene) -> None:
    loaded = dedupes()
    approved = scene.approved(request_for(scene, loaded, holder="dead"))
    scene.claimed(approved)
    change(scene, effects, lease_until_ms=1)
    again = request_for(scene, loaded, attempt=2, gated=True, approval_id=approved.approval_id)
    call = effect_call(scene, loaded, again)
    claimed = await call._claim()
    change(scene, effects, params_hash="sha256:another")

    assert isinstance(await call.act_on(claimed), Done)

    assert (verified(scene))["broken"] == ["runs_what_was_approved"]


KEY = ("payments.refund", "refund:order-1001")


def run_at(scene: Scene, run_id: str, seq: int | None = None) -> RunAt:
    with scene.tx() as tx:
        return read_run_at(tx, run_id, seq)


def test_what_a_replayed_effect_has_given_is_known_of_the_run_that_has_replayed_it(
    scene: Scene,
) -> None:
    scene.open_run(OTHER_RUN)
    scene.committed(scene.call(), receipt={"id": "r-1"})
    assert isinstance(scene.claim(scene.call(run_id=OTHER_RUN)), Committed)

    owner, replayer = run_at(scene, RUN), run_at(scene, OTHER_RUN)

    assert owner.done == replayer.done == {STEP}
    assert owner.given[STEP] == replayer.given[STEP] == PastOutput({"id": "r-1"})
    assert run_at(scene, OTHER_RUN, 1).done == frozenset()


async def test_a_key_is_held_by_its_newest_entry_until_its_effect_is_undone(scene: Scene) -> None:
    async def find(tool: str, key: str) -> Entry | None:
        return await scene.ledger.transact(scene.tenant, find_key_entry, tool, key)

    before = await find(*KEY)
    request = scene.call()
    scene.committed(request)
    held, other = await find(*KEY), await find("payments.refund", "other")
    scene.undone(scene.begin_undo().entry)  # type: ignore[union-attr]

    assert (before, other, await find(*KEY)) == (None, None, None)
    assert held is not None
    assert (held.state, held.identity_hash) == ("committed", request.identity_hash)
    assert run_at(scene, RUN).past.undone == {STEP}


def test_a_step_that_is_a_plan_is_done_once_its_own_child_has_completed(scene: Scene) -> None:
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
        scene.end(run_id)

    scene.committed(scene.call())  # an event of the parent, after that

    assert run_at(scene, RUN).done == {"pay_1", STEP}
    assert run_at(scene, RUN, 1).done == frozenset()


def test_the_view_has_steps_effects_approvals_doubts_and_the_story(scene: Scene) -> None:
    scene.committed(scene.call(step_id="paid", key="one"), receipt={"refund_id": "r-1"})
    _, intervention = scene.asked(scene.call(step_id="lost", key="two"))
    gated = scene.ask_approval(scene.call(step_id="asks", key="three"), description="Refund 5 EUR")

    with scene.tx() as tx:
        view = read_run_view(tx, RUN)

    result = view.result
    assert (result.run_id, result.state, view.tenant) == (RUN, RunState.RUNNING, scene.tenant)
    states = {step.id: (step.state, step.output) for step in result.steps}
    assert states["paid"] == (StepState.SUCCEEDED, {"refund_id": "r-1"})
    assert states["lost"][0] is StepState.NEEDS_INTERVENTION
    assert [(one.step_id, one.state) for one in result.effects] == [
        ("paid", "committed"),
        ("lost", "in_doubt"),
    ]
    assert [(one.kind, one.id) for one in result.waiting_for] == [
        ("approval", gated.approval_id),
        ("intervention", intervention),
    ]
    [request] = view.pending
    assert (request.approval_id, request.params_hash) == (gated.approval_id, gated.params_hash)
    assert (request.description, request.params) == ("Refund 5 EUR", gated.params)
    told = [line.text for line in view.timeline]
    assert told[0].startswith("run opened") and "effect committed: payments.refund" in told
    assert len(told) == len(scene.events())


def test_an_ended_run_waits_for_nothing_and_another_tenant_s_is_not_found(scene: Scene) -> None:
    scene.ask_approval(scene.call(step_id="asks", key="three"))
    scene.end(state=RunState.FAILED)

    with scene.tx() as tx:
        view = read_run_view(tx, RUN)
        with pytest.raises(RunNotFound):
            read_run_view(tx, OTHER_RUN)

    assert (view.result.state, view.result.waiting_for, view.pending) == ("failed", [], [])


def test_how_an_outcome_was_found_out_is_told_of_its_own_step_alone(scene: Scene) -> None:
    first, again = (
        scene.call(recovery=Recovery.LOOKUP, step_id="refund", key="one", attempt=number)
        for number in (1, 2)
    )
    scene.claimed(first)
    later = scene.claim(again, LEASE_OVER)
    assert isinstance(later, Doubtful)
    scene.committed(scene.call(step_id="other", key="two"))
    with scene.tx(SETTLED) as tx:
        assert isinstance(reconcile.after_not_found(tx, again, later.entry, forward=True), Claimed)

    with scene.tx() as tx:
        told = read_recovery(tx, RUN, "refund")
        assert read_recovery(tx, RUN, "other") == ()

    assert [line.text for line in told] == [
        "payments.refund was interrupted: nobody knew whether it had happened",
        "the outside system was asked: payments.refund had not happened; it was called again",
    ]
    assert told[0].at <= told[1].at and told[0].step_id == "refund"


def test_each_proof_on_which_a_call_is_made_again_is_told() -> None:
    repeated = {*get_args(reconcile.Proof), Recovery.DEDUPES.value, Recovery.TRANSACTIONAL.value}

    assert repeated == set(_RECOVERY["effect.reconciled"])


def save(scene: Scene, name: str, document: Any = None, *, after: timedelta = NOW) -> None:
    with scene.tx(after) as tx:
        kept = Kept(document or {"run_id": RUN})
        checkpoints.save_checkpoint(tx, RUN, name, kept, seq=3, size=10, saved_by="ann")


def test_what_was_saved_is_found_by_its_name(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    save(scene, "before", {"plan_version": 1})
    save(scene, "after", {"plan_version": 2}, after=timedelta(seconds=1))

    with scene.tx() as tx:
        found = checkpoints.find_checkpoint(tx, RUN, "before")
        assert [one.name for one in checkpoints.list_checkpoints(tx, RUN)] == ["after", "before"]
        with pytest.raises(CheckpointError, match="no checkpoint x; it has: after, before"):
            checkpoints.find_checkpoint(tx, RUN, "x")
    assert (found.document, found.seq, found.saved_by) == ({"plan_version": 1}, 3, "ann")
    monkeypatch.setattr(checkpoints, "MOST", 2)
    with pytest.raises(CheckpointError, match="has 2 checkpoints, and can have no more"):
        save(scene, "third")
