"""One request as the ledger alone tells it to whoever decides."""

from __future__ import annotations

from datetime import timedelta

from surehand.activities.ledger.approvals.decisions import Edited
from surehand.activities.ledger.history.one_approval import one_approval, place_of
from surehand.workflows.plan.policy import Requirement
from tests.ledger.scene import RUN, STEP, Scene

TWO = Requirement(quorum=2, four_eyes=True)


def test_it_tells_the_call_who_has_said_yes_and_who_is_left_out(scene: Scene) -> None:
    gated = scene.ask_approval(scene.call(), requirement=TWO, answers=["sent twice"])
    scene.decide(gated)

    with scene.tx() as tx:
        one = one_approval(tx, f"{RUN}/{STEP}/1")
    assert one is not None
    assert (one.row["params"], one.row["answers"]) == (gated.params, ["sent twice"])
    assert [(said["approver"], said["verdict"]) for said in one.decisions] == [
        ("alice", "accepted")
    ]
    assert one.excluded == ("ada",)
    assert one.run_open
    assert (one.entries, one.replaces) == ([], None)


def test_it_tells_what_was_edited_and_what_the_same_key_has_done_before(scene: Scene) -> None:
    first = scene.ask_approval(scene.call(params={"order": "1001", "amount": "120.00"}))
    edit = {"order": "1001", "amount": "50.00"}
    call = scene.call(params=edit)
    edited = Edited(edit, call.params_hash, call.key)
    assert scene.decide(first, "edit", edited=edited, params=edit).code == "accepted"
    again = scene.ask_approval(call, number=2, editors=("alice",))
    scene.committed(scene.call(step_id="other"))

    with scene.tx() as tx:
        one = one_approval(tx, again.approval_id or "")
    assert one is not None and one.replaces is not None
    assert one.replaces["params"] == first.params
    assert [(entry["step_id"], entry["state"]) for entry in one.entries] == [("other", "committed")]


def test_another_tenant_s_request_is_none(scene: Scene, other: Scene) -> None:
    other.ask_approval(other.call())

    with scene.tx() as tx:
        assert one_approval(tx, f"{RUN}/{STEP}/1") is None


def test_how_far_a_run_has_come_grows_with_each_event(scene: Scene) -> None:
    with scene.tx() as tx:
        before, _ = place_of(tx, RUN)
    scene.ask_approval(scene.call(), expires_in=timedelta(hours=1))
    with scene.tx() as tx:
        assert place_of(tx, RUN)[0] == before + 1
