"""What one case does to its run, where, and the plan that the run waits there by."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from surehand.activities.worker.crash_points import CrashPoint
from surehand.drill.points import Beforehand, Interruption, Operation, Point
from surehand.drill.report import Target
from surehand.workflows.plan.durability import Durability
from surehand.workflows.plan.plan import ITERATION, Ask, Plan, Step
from surehand.workflows.plan.policy import ApprovalPolicy

#: Time limit of an approval that is to expire: long enough to be used at once on a busy machine.
#: One that comes too late is asked for again.
EXPIRES_IN: Final = timedelta(seconds=2)

#: The step in which a run waits, behind the one that has had its effect.
HELD: Final = "drill-held"


@dataclass(frozen=True)
class Disturbance:
    """What a case does to its run, and where."""

    target: Target
    point: Point
    mode: Durability = Durability.SYNC
    """How durable its run is."""
    behind: tuple[str, ...] = ()
    """Steps behind which the run waits for an operator; none: behind the target."""

    @property
    def interruption(self) -> Interruption | None:
        """Return how the run is made to wait, if that is what is done to it."""
        return self.point if isinstance(self.point, Interruption) else None

    @property
    def operation(self) -> Operation | None:
        """Return what an operator does, if that is what is done to it."""
        return self.point if isinstance(self.point, Operation) else None

    @property
    def crash_at(self) -> str:
        """Return the crash point as the setting ``SUREHAND_CRASH_AT``; empty: no worker dies."""
        point = self.operation.crash_point if self.operation else self.point
        if isinstance(point, Beforehand):
            point = CrashPoint.AFTER_CLAIM
        if not isinstance(point, CrashPoint):
            return ""
        return f"{self.target.tool}:{point}@{self.target.step}"


def changed(plan: Plan, disturbance: Disturbance | None) -> Plan:
    """Return the plan that a case plays.

    Args:
        plan: The user's.
        disturbance: What is done to the run; a kill changes nothing of the plan.
    """
    if disturbance is None or disturbance.crash_at or disturbance.target.asks:
        return plan
    how = disturbance.point
    step_id = ITERATION.sub("", disturbance.target.step)
    if isinstance(how, Operation):
        behind = disturbance.behind or (step_id,)
        place = max(number for number, step in enumerate(plan.steps, 1) if step.id in behind)
        held = Step(id=HELD, ask=Ask(question="Go on?"), after=behind)
        longer = (*plan.steps[:place], held, *plan.steps[place:])
        return plan.model_copy(update={"steps": longer})
    steps = [_interrupted(plan, s, how) if s.id == step_id else s for s in plan.steps]
    changes: dict[str, Any] = {"steps": tuple(steps)}
    if how is Interruption.EXPIRY and plan.defaults.approval is not None:
        policy = plan.defaults.approval.model_copy(update={"on_expiry": "ask_again"})
        changes["defaults"] = plan.defaults.model_copy(update={"approval": policy})
    return plan.model_copy(update=changes)


def _interrupted(plan: Plan, step: Step, how: Point) -> Step:
    match how:
        case Interruption.PAUSE | Interruption.ASK:
            own = plan.defaults.interrupt if step.interrupt is None else step.interrupt
            return step.model_copy(update={"interrupt": tuple(dict.fromkeys((*own, "before")))})
        case Interruption.EXPIRY:
            return _gated(step, expires_in=EXPIRES_IN, on_expiry="ask_again")
        case _:
            return _gated(step)


def _gated(step: Step, **changes: Any) -> Step:
    """Return a step whose call is asked about by people, whatever its rules say."""
    policy = step.approval or ApprovalPolicy()
    rules = tuple(rule.model_copy(update={"required": True}) for rule in policy.rules)
    forced = policy.model_copy(update={"rules": rules, "standing": False, **changes})
    return step.model_copy(update={"approval": forced})
