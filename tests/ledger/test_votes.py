"""Who may decide, how many have to, and that it still holds right before the call (G3)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.exc import DBAPIError

from surehand.activities.ledger.approvals.decisions import Edited
from surehand.activities.ledger.core.tables import approvals, decisions, runs
from surehand.activities.ledger.people import principals
from surehand.activities.ledger.runs import lifecycle, steering
from surehand.activities.ledger.steps.entries import (
    ApprovalRefused,
    Claimed,
    Forbidden,
)
from surehand.workflows.contracts.approvals import Assurance
from surehand.workflows.contracts.controls import Amend, AmendRun, OutsideEvent
from surehand.workflows.contracts.effects import Resolution, ResolutionOutcome
from surehand.workflows.contracts.interrupts import (
    AnswerInterrupts,
    GivenAnswer,
    Interrupt,
    InterruptKind,
)
from surehand.workflows.contracts.judging import Steer
from surehand.workflows.contracts.runs import CloseRun
from surehand.workflows.contracts.starting import Linked, Parent
from surehand.workflows.contracts.states import RunState
from surehand.workflows.contracts.steering import ResumeRun, Steering, Verb
from surehand.workflows.plan.plan import Plan
from surehand.workflows.plan.policy import Requirement
from tests.ledger.people import administration, person, revoked
from tests.ledger.scene import APPROVER, OTHER_RUN, RUN, SPEC, Scene
from tests.ledger.test_steering import judge, sent

pytestmark = pytest.mark.guarantee("G3")

MANAGER = Requirement(roles=("manager",))
TWO = Requirement(quorum=2, roles=("manager", "auditor"))
FOUR_EYES = Requirement(four_eyes=True)
#: The scene's acting user.
REQUESTER = "ada"


def test_an_approver_without_the_role_is_refused_and_nothing_changes(scene: Scene) -> None:
    person(scene, "ann", "clerk")
    gated = scene.ask_approval(scene.call(), requirement=MANAGER)

    for approver in ("ann", "nobody"):
        for outcome in ("approve", "reject"):
            verdict = scene.decide(gated, outcome, approver=approver)
            assert (verdict.code, verdict.state) == ("not_permitted", "pending")
    assert isinstance(scene.claim(gated), ApprovalRefused)


def test_the_quorum_counts_different_people_and_the_last_one_approves(scene: Scene) -> None:
    person(scene, "ann", "manager")
    person(scene, "bob", "auditor")
    gated = scene.ask_approval(scene.call(), requirement=TWO)

    first = scene.decide(gated, approver="ann")
    assert (first.code, first.state) == ("accepted", "pending")
    assert "1 of 2" in first.message
    assert isinstance(scene.claim(gated), ApprovalRefused)
    again = scene.decide(gated, approver="ann", reason="once more")
    assert (again.code, again.state) == ("already_voted", "pending")

    second = scene.decide(gated, approver="bob")
    assert (second.code, second.state) == ("accepted", "approved")
    assert isinstance(scene.claim(gated), Claimed)


def test_one_who_may_decide_can_reject_what_others_have_approved(scene: Scene) -> None:
    person(scene, "ann", "manager")
    person(scene, "bob", "manager")
    gated = scene.ask_approval(scene.call(), requirement=TWO)
    scene.decide(gated, approver="ann")

    verdict = scene.decide(gated, "reject", approver="bob")

    assert (verdict.code, verdict.state) == ("accepted", "rejected")
    assert isinstance(scene.claim(gated), ApprovalRefused)


def test_whoever_has_voted_may_think_again_and_reject(scene: Scene) -> None:
    person(scene, "ann", "manager")
    gated = scene.ask_approval(scene.call(), requirement=TWO)
    scene.decide(gated, approver="ann")

    verdict = scene.decide(gated, "reject", approver="ann")

    assert (verdict.code, verdict.state) == ("accepted", "rejected")


def test_four_eyes_keep_the_requester_and_the_editors_from_deciding(scene: Scene) -> None:
    gated = scene.ask_approval(scene.call(), requirement=FOUR_EYES, editors=["bob"])

    for approver in (REQUESTER, "bob"):
        verdict = scene.decide(gated, approver=approver)
        assert (verdict.code, verdict.state) == ("four_eyes", "pending")

    assert (scene.decide(gated, approver="carl")).state == "approved"


def amended(scene: Scene, actor: str, *, taken: bool) -> None:
    """Send a run another plan, which it takes or does not."""
    plan = Plan.model_validate([{"id": "more", "tool": SPEC.name}])
    amend = Amend(actor=actor, plan=plan, based_on=1)
    name = f"{RUN}#first.{actor}"
    steer = Steer(
        tenant=scene.tenant,
        run_id=RUN,
        steering_id=name,
        workflow_run_id="first",
        verb=Verb.AMEND,
        actor=actor,
        content=amend.content(),
    )
    with scene.tx() as tx:
        assert (steering.judge(tx, steer, Assurance.OPEN)).code == "accepted"
        if taken:
            recorded = AmendRun(
                tenant=scene.tenant, run_id=RUN, plan=plan, plan_version=2, steering_id=name
            )
            lifecycle.amend(tx, recorded, {SPEC.name: SPEC})


@pytest.mark.parametrize("run_id", [RUN, f"{RUN}~pay"])
def test_four_eyes_keep_whoever_has_amended_the_plan_from_deciding(
    scene: Scene, run_id: str
) -> None:
    if run_id != RUN:
        scene.open_run(run_id, parent=Parent(run_id=RUN, step_id="pay"))
    gated = scene.ask_approval(scene.call(run_id=run_id), requirement=FOUR_EYES)
    amended(scene, "bob", taken=True)
    amended(scene, "carl", taken=False)

    assert (scene.decide(gated, approver="Bob")).code == "four_eyes"
    assert (scene.decide(gated, approver="carl")).state == "approved"


def test_who_amends_the_plan_after_a_vote_takes_it_away(scene: Scene) -> None:
    gated = scene.approved(scene.call(), requirement=FOUR_EYES)
    amended(scene, APPROVER, taken=True)

    found = scene.claim(gated)

    assert isinstance(found, ApprovalRefused) and "0 of 1" in found.reason


def answer(kind: InterruptKind, value: Any = 7) -> tuple[Verb, Steering, list[GivenAnswer]]:
    """An answer to a question of a kind."""
    interrupt = Interrupt(interrupt_id="ask.1", step_id="ask", kind=kind, question="How much?")
    given = [GivenAnswer(interrupt=interrupt, value=value)]
    return Verb.ANSWER, AnswerInterrupts(actor="bob", answers={"ask.1": value}), given


def settled(outcome: ResolutionOutcome) -> tuple[Verb, Steering, list[GivenAnswer]]:
    """What somebody says that has happened."""
    said = Resolution(actor="bob", intervention_id="iv-1", outcome=outcome, receipt={"r": 1})
    return Verb.RESOLVE, said, []


EVENT = OutsideEvent(actor="bob", name="order", event_id="e-1", payload={"amount": 7})
VALUES: dict[str, tuple[Verb, Steering, list[GivenAnswer]]] = {
    "an answer": answer(InterruptKind.ASK),
    "an answer that reads like a yes": answer(InterruptKind.ASK, "accept"),
    "an answer to a tool": answer(InterruptKind.TOOL),
    "another output": answer(InterruptKind.AFTER, {"replace": 7}),
    "an event": (Verb.EVENT, EVENT, []),
    "params": (Verb.RESUME, ResumeRun(actor="bob", params={"amount": "7"}), []),
    "a receipt": settled(ResolutionOutcome.HAPPENED),
}
NO_VALUES: dict[str, tuple[Verb, Steering, list[GivenAnswer]]] = {
    "a look before": answer(InterruptKind.BEFORE, "accept"),
    "a look after": answer(InterruptKind.AFTER, "accept"),
    "going on": (Verb.RESUME, ResumeRun(actor="bob"), []),
    "nothing happened": settled(ResolutionOutcome.NOT_HAPPENED),
}
CHILD, BESIDE, FORK = f"{RUN}~pay", f"{RUN}~look", "run-9"


def send(scene: Scene, what: tuple[Verb, Steering, list[GivenAnswer]], run_id: str = RUN) -> None:
    """Have bob send something to a run, which takes it."""
    verb, message, answers = what
    name = f"{run_id}#first.{verb}"
    asked = sent(scene, message, verb, run_id=run_id, steering_id=name, answers=answers)
    assert (judge(scene, asked)).code == "accepted"


@pytest.mark.parametrize("what", VALUES)
def test_four_eyes_keep_whoever_has_given_the_run_a_value_from_deciding(
    scene: Scene, what: str
) -> None:
    send(scene, VALUES[what])
    gated = scene.ask_approval(scene.call(), requirement=FOUR_EYES)
    freely = scene.ask_approval(scene.call(step_id="other", key="other"))

    refused = scene.decide(gated, approver="Bob")
    assert (refused.code, refused.state) == ("four_eyes", "pending")
    assert isinstance(scene.claim(gated), ApprovalRefused)
    assert (scene.decide(freely, approver="bob")).state == "approved"
    assert isinstance(scene.claim(freely), Claimed)
    assert (scene.decide(gated, approver="carl")).state == "approved"
    assert isinstance(scene.claim(gated), Claimed)


@pytest.mark.parametrize("what", NO_VALUES)
def test_who_has_given_a_run_no_value_is_a_second_pair_of_eyes(scene: Scene, what: str) -> None:
    send(scene, NO_VALUES[what])
    gated = scene.ask_approval(scene.call(), requirement=FOUR_EYES)

    assert (scene.decide(gated, approver="bob")).state == "approved"
    assert isinstance(scene.claim(gated), Claimed)


def test_an_answer_that_was_refused_is_no_value(scene: Scene) -> None:
    verb, message, [given] = answer(InterruptKind.ASK)
    strict = given.interrupt.model_copy(update={"answer_schema": {"type": "string"}})
    answers = [given.model_copy(update={"interrupt": strict})]
    assert (judge(scene, sent(scene, message, verb, answers=answers))).code == "bad_answer"
    gated = scene.ask_approval(scene.call(), requirement=FOUR_EYES)

    assert (scene.decide(gated, approver="bob")).state == "approved"


def test_who_gives_a_value_after_the_vote_takes_it_away(scene: Scene) -> None:
    gated = scene.ask_approval(scene.call(), requirement=FOUR_EYES)
    assert (scene.decide(gated, approver="bob")).state == "approved"
    send(scene, VALUES["an answer"])

    found = scene.claim(gated)

    assert isinstance(found, ApprovalRefused) and "0 of 1" in found.reason


@pytest.mark.parametrize(
    ("told", "calls", "code"),
    [
        pytest.param(RUN, CHILD, "four_eyes", id="above"),
        pytest.param(CHILD, RUN, "four_eyes", id="below"),
        pytest.param(BESIDE, CHILD, "four_eyes", id="beside, ended before"),
        pytest.param(CHILD, BESIDE, "accepted", id="beside, at the same time"),
        pytest.param(OTHER_RUN, RUN, "accepted", id="another run"),
        pytest.param(RUN, FORK, "four_eyes", id="forked from"),
        pytest.param(CHILD, FORK, "four_eyes", id="below what it is forked from"),
    ],
)
def test_a_value_counts_in_each_run_that_may_have_it(
    scene: Scene, told: str, calls: str, code: str
) -> None:
    scene.open_run(OTHER_RUN)
    scene.open_run(BESIDE, parent=Parent(run_id=RUN, step_id="look"))
    if told == BESIDE:
        closing = CloseRun(tenant=scene.tenant, run_id=BESIDE, state=RunState.COMPLETED)
        with scene.tx() as tx:
            lifecycle.close_run(tx, closing)
    scene.open_run(CHILD, parent=Parent(run_id=RUN, step_id="pay"))
    scene.open_run(FORK, linked=Linked(run_id=RUN))
    send(scene, VALUES["an answer"], told)
    gated = scene.ask_approval(scene.call(run_id=calls), requirement=FOUR_EYES)

    assert (scene.decide(gated, approver="bob")).code == code


def test_a_run_stays_in_the_one_that_has_started_it(scene: Scene) -> None:
    scene.open_run(CHILD, parent=Parent(run_id=RUN, step_id="pay"))

    mine = (runs.c.tenant_id == scene.tenant) & (runs.c.run_id == CHILD)
    with pytest.raises(DBAPIError, match=r"append-only|not changed"), scene.tx() as tx:
        tx.execute(update(runs).where(mine).values(parent_run_id=None, parent_step_id=None))


def test_a_run_that_is_said_to_be_forked_from_none_is_decided_about(scene: Scene) -> None:
    scene.open_run(FORK, linked=Linked(run_id="run-of-nobody"))
    gated = scene.ask_approval(scene.call(run_id=FORK), requirement=FOUR_EYES)

    assert (scene.decide(gated, approver="bob")).state == "approved"


def test_an_editor_whose_name_was_struck_from_the_request_is_still_one(scene: Scene) -> None:
    first = scene.ask_approval(scene.call(), requirement=FOUR_EYES)
    less = Edited({"amount": "1"}, "sha256:less", first.key)
    edit = scene.decide(first, "edit", approver="bob", params=less.params, edited=less)
    assert edit.state == "superseded"
    second = replace(scene.call(), params_hash="sha256:less")

    gated = scene.ask_approval(second, number=2, requirement=FOUR_EYES, editors=())

    assert (scene.decide(gated, approver="bob")).code == "four_eyes"


def test_every_policy_has_to_be_satisfied_by_itself(scene: Scene) -> None:
    person(scene, "ann", "manager")
    person(scene, "bob", "auditor")
    gated = scene.ask_approval(scene.call(), requirement=MANAGER)
    scene.decide(gated, approver="ann")
    stricter = replace(gated, requirements=(Requirement(roles=("auditor",)),))

    refused = scene.claim(stricter)

    assert isinstance(refused, ApprovalRefused)
    assert "0 of 1 approvals of auditor" in refused.reason
    assert isinstance(scene.claim(gated), Claimed)


def test_a_role_taken_away_before_the_call_takes_the_vote_away(scene: Scene) -> None:
    person(scene, "ann", "manager")
    gated = scene.ask_approval(scene.call(), requirement=MANAGER)
    assert (scene.decide(gated, approver="ann")).state == "approved"

    revoked(scene, "ann", "role", "manager")

    assert isinstance(scene.claim(gated), ApprovalRefused)


def test_a_role_taken_away_between_two_calls_stops_the_second(scene: Scene) -> None:
    person(scene, "ann", "manager")
    gated = scene.ask_approval(scene.call(), requirement=MANAGER)
    scene.decide(gated, approver="ann")
    scene.failed(gated)

    revoked(scene, "ann", "role", "manager")

    assert isinstance(scene.claim(replace(gated, holder="again", attempt=2)), ApprovalRefused)


@pytest.mark.parametrize("stricter", ["the row", "the worker"])
def test_where_signatures_are_asked_for_an_unsigned_decision_counts_for_nothing(
    scene: Scene, stricter: str
) -> None:
    row = Assurance.SIGNED if stricter == "the row" else Assurance.OPEN
    worker = Assurance.SIGNED if stricter == "the worker" else Assurance.OPEN
    gated = scene.ask_approval(scene.call(), assurance=row)

    verdict = scene.decide(gated, assurance=worker)

    assert (verdict.code, verdict.state) == ("unsigned", "pending")


def test_a_lax_workers_approval_does_not_pass_a_strict_workers_claim(scene: Scene) -> None:
    gated = scene.approved(scene.call())

    refused = scene.claim(replace(gated, assurance=Assurance.SIGNED))

    assert isinstance(refused, ApprovalRefused)
    assert (scene.row(approvals))["consumed_entry"] is None


def test_an_edit_voids_the_request_and_the_votes_it_had(scene: Scene) -> None:
    gated = scene.ask_approval(scene.call(), requirement=Requirement(quorum=2))
    scene.decide(gated, approver="ann")
    less = Edited({"order": "1001", "amount": "50.00"}, "sha256:less", "refund:order-1001")

    edit = scene.decide(gated, "edit", approver="bob", params=less.params, edited=less)

    assert (edit.code, edit.state) == ("accepted", "superseded")
    late = scene.decide(gated, approver="carl")
    assert (late.code, late.state) == ("not_waiting", "superseded")
    assert isinstance(scene.claim(gated), ApprovalRefused)
    [kept] = scene.rows(decisions, outcome="edit")
    assert (kept["edited"], kept["verdict"]) == (less.params, "accepted")
    assert (scene.row(approvals))["params"] == {"order": "1001", "amount": "120.00"}


def test_only_who_may_edit_can_and_only_to_what_the_tool_takes(scene: Scene) -> None:
    person(scene, "ann", "manager")
    person(scene, "eve", "editor", "manager")
    requirement = Requirement(roles=("manager",), may_edit=("editor",))
    gated = scene.ask_approval(scene.call(), requirement=requirement)
    less = Edited({"amount": "50.00"}, "sha256:less", "refund:order-1001")

    for approver, edited, code in [
        ("ann", less, "not_permitted"),
        ("eve", "amount: must be a number", "not_editable"),
        ("eve", Edited({}, gated.params_hash, gated.key), "not_editable"),
    ]:
        verdict = scene.decide(gated, "edit", approver=approver, params={}, edited=edited)
        assert (verdict.code, verdict.state) == (code, "pending")


@pytest.mark.parametrize("to", ["the key it had", "the key of another call"])
def test_a_call_whose_key_has_a_live_entry_is_not_edited(scene: Scene, to: str) -> None:
    mine, other = scene.call(), scene.call(key="refund:order-7", params={"order": "7"})
    taken = mine if to == "the key it had" else other
    scene.claimed(replace(taken, step_id="another", holder="another"))
    gated = scene.ask_approval(mine)
    edited = Edited({"order": "7"}, "sha256:other", other.key)

    verdict = scene.decide(gated, "edit", params=edited.params, edited=edited)

    assert (verdict.code, verdict.state) == ("not_editable", "pending")


def test_a_user_without_the_permission_calls_nothing_and_may_when_it_is_back(
    scene: Scene,
) -> None:
    call = replace(scene.approved(scene.call()), permissions=frozenset({"refunds"}))
    assert isinstance(scene.claim(call), Forbidden)

    person(scene, REQUESTER, permissions=("refunds",))

    entry = (scene.claimed(call)).entry_id
    revoked(scene, REQUESTER, "permission", "refunds")
    after_crash = replace(call, holder="again", attempt=2, activity_key="another")
    late = timedelta(minutes=1)
    assert not isinstance(scene.claim(after_crash, late), Claimed)
    assert (scene.entry(entry)).fencing_token >= 1


def test_another_tenants_roles_count_for_nothing(scene: Scene) -> None:
    person(Scene(scene.ledger, "elsewhere"), "ann", "manager")
    gated = scene.ask_approval(scene.call(), requirement=MANAGER)

    assert (scene.decide(gated, approver="ann")).code == "not_permitted"


def test_revoking_twice_changes_nothing_and_history_says_who_did(scene: Scene) -> None:
    person(scene, "ann", "manager")
    with administration(scene) as tx:
        assert principals.revoke(tx, "ann", "role", "manager", "root")
        assert not principals.revoke(tx, "ann", "role", "manager", "root")
        assert principals.grant(tx, "ann", "role", "manager", "root")

    gated = scene.ask_approval(scene.call(), requirement=MANAGER)
    assert (scene.decide(gated, approver="ann")).state == "approved"
