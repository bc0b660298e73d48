"""A played plan waits where its run is interrupted, and nowhere else in another way."""

from __future__ import annotations

from typing import Any

import pytest

from surehand.activities.worker.crash_points import CrashPoint
from surehand.drill.disturbance import EXPIRES_IN, HELD, Disturbance, changed
from surehand.drill.people import answer_to
from surehand.drill.points import Interruption, Operation, Point
from surehand.drill.report import Target
from surehand.process.exits import SurehandError
from surehand.workflows.contracts.interrupts import Interrupt, InterruptKind
from surehand.workflows.contracts.tools import Effect
from surehand.workflows.plan.plan import Plan
from surehand.workflows.plan.policy import combine

PAY = Target(step="pay", tool="bank.pay", effect=Effect.WRITE)
WAIVED = {"roles": ["finance"], "rules": [{"when": "amount < 5", "required": False}]}


def plan(**of_step: Any) -> Plan:
    steps = [{"id": "look", "tool": "bank.look"}, {"id": "pay", "tool": "bank.pay", **of_step}]
    return Plan.model_validate({"defaults": {"interrupt": "after"}, "steps": steps})


def played(point: Point, **of_step: Any) -> Plan:
    given = plan(**of_step)
    found = changed(given, Disturbance(PAY, point))
    assert found.steps[0] == given.steps[0]
    return Plan.model_validate(found.model_dump(mode="json"))


@pytest.mark.parametrize("point", CrashPoint)
def test_a_kill_changes_nothing(point: CrashPoint) -> None:
    assert changed(plan(), Disturbance(PAY, point)) == plan() == changed(plan(), None)


@pytest.mark.parametrize("point", [Interruption.PAUSE, Interruption.ASK])
def test_a_human_looks_before_the_step_and_where_they_looked_anyway(point: Interruption) -> None:
    found = played(point)

    assert found.interrupted(found.step("pay"), "before")
    assert found.interrupted(found.step("pay"), "after")


@pytest.mark.parametrize("behind", [(), ("look",), ("look", "pay")])
def test_a_run_waits_behind_what_an_operator_waits_for(behind: tuple[str, ...]) -> None:
    found = changed(plan(), Disturbance(PAY, Operation.TERMINATE, behind=behind))

    last = (behind or ("pay",))[-1]
    ids = [step.id for step in found.steps]
    assert ids.index(HELD) == ids.index(last) + 1
    assert Plan.model_validate(found.model_dump()).dependencies[HELD] >= {last}
    assert tuple(step for step in found.steps if step.id != HELD) == plan().steps


@pytest.mark.parametrize("point", [one for one in Operation if one.crash_point is not None])
def test_a_worker_that_dies_under_an_operator_is_killed_in_the_users_own_plan(
    point: Operation,
) -> None:
    disturbance = Disturbance(PAY, point)

    assert changed(plan(), disturbance) == plan()
    assert disturbance.crash_at == f"bank.pay:{point.crash_point}@pay"


@pytest.mark.parametrize("point", ["approval", "permission_loss", "expiry"])
@pytest.mark.parametrize("approval", [None, True, WAIVED])
def test_a_call_is_asked_about_whatever_its_rules_say_and_never_by_fewer(
    point: str, approval: Any
) -> None:
    found = played(Interruption(point), approval=approval)

    needs = combine(found.approvals(found.step("pay")), lambda expression: True)
    assert needs is not None
    assert not needs.standing
    assert needs.requirements[0].roles == (("finance",) if approval is WAIVED else ())
    if point == "expiry":
        assert (needs.on_expiry, needs.expires_in) == ("ask_again", EXPIRES_IN)


@pytest.mark.parametrize(
    ("kind", "schema", "answer"),
    [
        (InterruptKind.BEFORE, {"anyOf": [{"enum": ["accept", "reject"]}]}, "accept"),
        (InterruptKind.ASK, {}, "drill"),
        (InterruptKind.ASK, {"enum": ["A", "B"]}, "A"),
        (InterruptKind.TOOL, {"type": "string", "default": "sent twice"}, "sent twice"),
        (InterruptKind.TOOL, {"type": "integer"}, 1),
    ],
)
def test_what_the_users_plan_asks_is_answered_by_its_schema(
    kind: InterruptKind, schema: dict[str, Any], answer: Any
) -> None:
    assert answer_to(asked(kind, schema)) == answer


def test_a_question_whose_schema_leaves_open_what_fits_wants_a_default() -> None:
    with pytest.raises(SurehandError, match=r"pay\.1 asks 'Which\?'.*`default`"):
        answer_to(asked(InterruptKind.ASK, {"type": "string", "pattern": "^DE[0-9]{20}$"}))


def asked(kind: InterruptKind, schema: dict[str, Any]) -> Interrupt:
    return Interrupt(
        interrupt_id="pay.1", step_id="pay", kind=kind, question="Which?", answer_schema=schema
    )
