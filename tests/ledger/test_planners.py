"""Four eyes: whoever has given a value that a run's calls may rest on approves none of them (G3).

``GIVES`` lists every way in which a person's words reach a call. Each of them has bob say something
to a run. A verb, a kind of interrupt or an outcome that is in no list fails a test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from sqlalchemy.exc import DBAPIError

from surehand.activities.ledger.approvals.decisions import Edited
from surehand.activities.ledger.core.tables import runs
from surehand.activities.ledger.runs import lifecycle
from surehand.activities.ledger.steps.entries import ApprovalRefused, Claimed, Committed
from surehand.workflows.contracts.approvals import DecisionOutcome
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.effects import ResolutionOutcome
from surehand.workflows.contracts.runs import (
    Amend,
    AmendRun,
    Linked,
    OutsideEvent,
    Parent,
    TopUp,
)
from surehand.workflows.contracts.steering import (
    AnswerInterrupts,
    CancelRun,
    GivenAnswer,
    Interrupt,
    InterruptKind,
    PauseRun,
    ResumeRun,
    Steering,
    Verb,
)
from surehand.workflows.plan.plan import Plan
from surehand.workflows.plan.policy import Requirement
from tests.ledger.rows import change
from tests.ledger.scene import OTHER_RUN, RUN, SPEC, Scene, said
from tests.ledger.test_steering import judge, sent

pytestmark = pytest.mark.guarantee("G3")

FOUR_EYES: Final = Requirement(four_eyes=True)
#: Has bob say something to a run.
Way = Callable[[Scene, str], None]
WORDS: Final = "pay account 7"
CHILD, BESIDE, FORK, LATER = f"{RUN}~pay", f"{RUN}~look", "run-9", "run-10"


def send(
    verb: Verb, message: Steering, answers: tuple[GivenAnswer, ...] = (), name: str = ""
) -> Way:
    def say(scene: Scene, run_id: str) -> None:
        id_ = name or f"{run_id}#first.{verb}"
        asked = sent(scene, message, verb, run_id=run_id, steering_id=id_, answers=answers)
        assert judge(scene, asked).code == "accepted"

    return say


def answer(kind: InterruptKind, value: Any = WORDS) -> Way:
    interrupt = Interrupt(interrupt_id="ask.1", step_id="ask", kind=kind, question="How much?")
    said = AnswerInterrupts(actor="bob", answers={"ask.1": value})
    return send(Verb.ANSWER, said, (GivenAnswer(interrupt=interrupt, value=value),))


def decide(outcome: DecisionOutcome, reason: str = "") -> Way:
    def say(scene: Scene, run_id: str) -> None:
        call = scene.call(run_id=run_id, step_id="earlier", key=f"earlier:{run_id}")
        gated = scene.ask_approval(call)
        other = Edited({"amount": "1"}, "sha256:less", gated.key)
        edit = {"params": other.params, "edited": other}
        more = edit if outcome is DecisionOutcome.EDIT else {}
        assert scene.decide(gated, outcome, approver="bob", reason=reason, **more).code == (
            "accepted"
        )

    return say


def resolve(outcome: ResolutionOutcome, through: str | None = None) -> Way:
    def say(scene: Scene, run_id: str) -> None:
        _, question = scene.asked(scene.call(run_id=run_id, step_id="doubt", key="doubt"))
        if through is not None:
            scene.end(run_id, state=RunState.FAILED)
            scene.open_run(through)
        answer_ = said(question, outcome, "bob", receipt={"r": 7})
        assert scene.settle(answer_, through or run_id, can_undo=True)[0]

    return say


def amend(scene: Scene, run_id: str, actor: str = "bob", *, taken: bool = True) -> None:
    plan = Plan.model_validate([{"id": "more", "tool": SPEC.name}])
    name = f"{run_id}#first.{actor}"
    send(Verb.AMEND, Amend(actor=actor, plan=plan, based_on=1), name=name)(scene, run_id)
    if taken:
        recorded = AmendRun(
            tenant=scene.tenant, run_id=run_id, plan=plan, plan_version=2, steering_id=name
        )
        with scene.tx() as tx:
            lifecycle.amend_run(tx, recorded, {SPEC.name: SPEC})


EVENT = OutsideEvent(actor="bob", name="order", event_id="e-1", payload={"amount": 7})
GIVES: Final[dict[str, Way]] = {
    "answer to a step": answer(InterruptKind.ASK),
    "answer that reads like a yes": answer(InterruptKind.ASK, "accept"),
    "answer to a tool": answer(InterruptKind.TOOL),
    "reason to stop before a step": answer(InterruptKind.BEFORE, {"reject": WORDS}),
    "reason to stop after a step": answer(InterruptKind.AFTER, {"reject": WORDS}),
    "another output": answer(InterruptKind.AFTER, {"replace": 7}),
    "event": send(Verb.EVENT, EVENT),
    "params of a retry": send(Verb.RESUME, ResumeRun(actor="bob", params={"amount": "7"})),
    "reason of a cancellation": send(Verb.CANCEL, CancelRun(actor="bob", reason=WORDS)),
    "another plan": amend,
    "receipt": resolve(ResolutionOutcome.HAPPENED),
    "receipt of what is to be undone": resolve(ResolutionOutcome.UNDO),
    "receipt, sent to an unrelated run": resolve(ResolutionOutcome.HAPPENED, "run-8"),
    "edit": decide(DecisionOutcome.EDIT),
    "reason of a rejection": decide(DecisionOutcome.REJECT, WORDS),
}
GIVES_NONE: Final[dict[str, Way]] = {
    "look before a step": answer(InterruptKind.BEFORE, "accept"),
    "look after a step": answer(InterruptKind.AFTER, "accept"),
    "stop before a step": answer(InterruptKind.BEFORE, "reject"),
    "stop after a step": answer(InterruptKind.AFTER, "reject"),
    "pause": send(Verb.PAUSE, PauseRun(actor="bob", reason=WORDS)),
    "going on": send(Verb.RESUME, ResumeRun(actor="bob", reason=WORDS)),
    "cancellation": send(Verb.CANCEL, CancelRun(actor="bob")),
    "more budget": send(Verb.TOP_UP, TopUp(actor="bob", steps=7, reason=WORDS)),
    "another plan that is not taken": lambda scene, id_: amend(scene, id_, taken=False),
    "approval": decide(DecisionOutcome.APPROVE, WORDS),
    "rejection": decide(DecisionOutcome.REJECT),
    **{
        str(outcome): resolve(outcome)
        for outcome in (
            *(ResolutionOutcome.NOT_HAPPENED, ResolutionOutcome.CALL_OFF),
            *(ResolutionOutcome.COMPENSATED, ResolutionOutcome.GIVE_UP),
        )
    },
}


def test_every_kind_of_message_is_known_to_give_a_value_or_none() -> None:
    """Whoever adds a kind says which: here, and in a list above."""
    assert {one.value for one in Verb} == {
        *("answer", "event", "resume", "cancel", "amend", "resolve"),  # may give one
        *("pause", "top_up"),  # give none
        "decide",  # by its outcome
    }
    assert {one.value for one in DecisionOutcome} == {"approve", "reject", "edit"}
    assert {one.value for one in ResolutionOutcome} == {
        *("happened", "undo"),  # may give a receipt
        *("not_happened", "call_off", "compensated", "give_up"),
    }
    assert {one.value for one in InterruptKind} == {
        *("ask", "tool", "before", "after"),  # may give one
        *("event", "failure", "budget"),  # nobody answers them
    }


@pytest.mark.in_turns
@pytest.mark.parametrize("way", GIVES)
def test_whoever_gives_the_run_a_value_is_no_second_eye(scene: Scene, way: str) -> None:
    GIVES[way](scene, RUN)
    gated = scene.ask_approval(scene.call(), requirement=FOUR_EYES)
    freely = scene.ask_approval(scene.call(step_id="other", key="other"))

    refused = scene.decide(gated, approver="Bob")
    assert (refused.code, refused.state) == ("four_eyes", "pending")
    assert isinstance(scene.claim(gated), ApprovalRefused)
    assert scene.decide(freely, approver="bob").state == "approved"
    assert scene.decide(gated, approver="carl").state == "approved"


@pytest.mark.in_turns
@pytest.mark.parametrize("way", GIVES)
def test_nor_is_whoever_gave_one_to_a_replayed_run(scene: Scene, way: str) -> None:
    scene.open_run(OTHER_RUN)
    scene.committed(scene.call(run_id=OTHER_RUN, key="theirs"))
    GIVES[way](scene, OTHER_RUN)
    gated = scene.ask_approval(scene.call(), requirement=FOUR_EYES)
    assert scene.decide(gated, approver="bob").state == "approved"

    assert isinstance(scene.claim(scene.call(key="theirs", step_id="replays")), Committed)

    refused = scene.claim(gated)
    assert isinstance(refused, ApprovalRefused) and "0 of 1" in refused.reason


@pytest.mark.in_turns
@pytest.mark.parametrize("way", GIVES_NONE)
def test_whoever_has_given_a_run_no_value_is_a_second_pair_of_eyes(scene: Scene, way: str) -> None:
    GIVES_NONE[way](scene, RUN)
    gated = scene.ask_approval(scene.call(), requirement=FOUR_EYES)

    assert scene.decide(gated, approver="bob").state == "approved"
    assert isinstance(scene.claim(gated), Claimed)


@pytest.mark.parametrize("name", ["started_by", "user"])
def test_a_starter_is_no_second_eye_wherever_values_go(scene: Scene, name: str) -> None:
    """So is whom it acts for: a service has started it with what they have said."""
    scene.open_run(OTHER_RUN, **{"started_by": "service", name: "bob"})
    scene.committed(scene.call(run_id=OTHER_RUN, key="theirs"))
    scene.open_run(FORK, linked=Linked(run_id=OTHER_RUN))
    scene.claim(scene.call(key="theirs", step_id="replays"))

    for run_id in (OTHER_RUN, FORK, RUN):
        call = scene.call(run_id=run_id, key=run_id)
        gated = scene.ask_approval(call, requirement=FOUR_EYES)
        assert scene.decide(gated, approver="bob").code == "four_eyes"


def test_an_answer_that_was_refused_is_no_value(scene: Scene) -> None:
    strict = Interrupt(
        interrupt_id="ask.1",
        step_id="ask",
        kind=InterruptKind.ASK,
        question="How much?",
        answer_schema={"type": "string"},
    )
    message = AnswerInterrupts(actor="bob", answers={"ask.1": 7})
    asked = sent(scene, message, Verb.ANSWER, answers=[GivenAnswer(interrupt=strict, value=7)])
    assert judge(scene, asked).code == "bad_answer"
    gated = scene.ask_approval(scene.call(), requirement=FOUR_EYES)

    assert scene.decide(gated, approver="bob").state == "approved"


@pytest.mark.parametrize("way", ["answer to a step", "another plan", "edit"])
def test_who_gives_a_value_after_the_vote_takes_it_away(scene: Scene, way: str) -> None:
    gated = scene.ask_approval(scene.call(), requirement=FOUR_EYES)
    assert scene.decide(gated, approver="bob").state == "approved"
    GIVES[way](scene, RUN)

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
        pytest.param(RUN, LATER, "four_eyes", id="forked from what it replays of"),
        pytest.param(CHILD, LATER, "four_eyes", id="below that"),
    ],
)
def test_a_value_counts_in_each_of_its_runs(scene: Scene, told: str, calls: str, code: str) -> None:
    for run_id in (OTHER_RUN, LATER):
        scene.open_run(run_id)
    scene.open_run(BESIDE, parent=Parent(run_id=RUN, step_id="look"))
    if told == BESIDE:
        scene.end(BESIDE)
    scene.open_run(CHILD, parent=Parent(run_id=RUN, step_id="pay"))
    scene.open_run(FORK, linked=Linked(run_id=RUN))
    scene.committed(scene.call(run_id=FORK, key="theirs"))
    scene.open_run(f"{LATER}~in", parent=Parent(run_id=LATER, step_id="in"))
    scene.claim(scene.call(run_id=f"{LATER}~in", key="theirs", step_id="replays"))
    GIVES["answer to a step"](scene, told)
    gated = scene.ask_approval(scene.call(run_id=calls), requirement=FOUR_EYES)

    assert scene.decide(gated, approver="bob").code == code


def test_a_run_stays_in_the_one_that_has_started_it(scene: Scene) -> None:
    scene.open_run(CHILD, parent=Parent(run_id=RUN, step_id="pay"))

    with pytest.raises(DBAPIError, match=r"append-only|not changed"):
        change(scene, runs, {"run_id": CHILD}, parent_run_id=None, parent_step_id=None)


def test_a_run_that_is_said_to_be_forked_from_none_is_decided_about(scene: Scene) -> None:
    scene.open_run(FORK, linked=Linked(run_id="run-of-nobody"))
    gated = scene.ask_approval(scene.call(run_id=FORK), requirement=FOUR_EYES)

    assert scene.decide(gated, approver="bob").state == "approved"
