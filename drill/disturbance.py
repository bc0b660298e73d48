"""What one case does to its run, where, and the plan that the run waits there by."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from surehand.activities.worker.crash_points import CrashPoint
from surehand.drill.points import Beforehand, ForcedWait, Halt, Operation, Point
from surehand.drill.report import Target
from surehand.workflows.contracts.interrupts import InterruptKind
from surehand.workflows.contracts.tools import Recovery
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
    by_code: bool = False
    """Whether code or an agent makes the steps: no step can be added to them."""
    following: Target | None = None
    """The call after the target's, if there is one."""

    @property
    def forced_wait(self) -> ForcedWait | None:
        """Return how the run is made to wait, if that is what is done to it."""
        return self.point if isinstance(self.point, ForcedWait) else None

    @property
    def operation(self) -> Operation | None:
        """Return what an operator does, if that is what is done to it."""
        return self.point if isinstance(self.point, Operation) else None

    @property
    def held(self) -> str:
        """Return the step in which the run waits for an operator."""
        return (self.behind or (self.target.step,))[-1] if self.by_code else HELD

    @property
    def crash_at(self) -> str:
        """Return the crash point as the setting ``SUREHAND_CRASH_AT``; empty: no worker dies."""
        point = self.operation.crash_point if self.operation else self.point
        if isinstance(point, Beforehand):
            point = CrashPoint.AFTER_CLAIM
        if not isinstance(point, CrashPoint):
            return ""
        return f"{self.target.tool}:{point}@{self.target.step}"

    @property
    def already_true(self) -> bool:
        """Say whether the world is made as the call would leave it, before the run."""
        return isinstance(self.point, Beforehand) or self.point is Halt.BEFORE_ALREADY_TRUE

    @property
    def in_doubt(self) -> Disturbance:
        """Return what is done to the call that may be in doubt then, the target's or the next.

        In ``exit`` a write's outcome may be recorded with the claim of the write after it, which
        the worker then dies with.
        """
        point = self.operation.crash_point if self.operation else self.point
        recorded = point in (CrashPoint.AFTER_OUTCOME, CrashPoint.BEFORE_REPORT)
        following = self.following if self.mode.in_batches else None
        if recorded and following is not None and following.absence_provable:
            return Disturbance(following, CrashPoint.AFTER_CLAIM, self.mode)
        return self

    @property
    def doubt(self) -> tuple[Halt, ...]:
        """Return which halted runs one that needs a human may look like.

        None, where the tool says that it settles the outcome itself: nobody is to be asked then.
        """
        # A repeat that is refused for good does not say what the first call has done.
        refused = self.target.recovery is Recovery.DEDUPES and not self.target.succeeded
        human = self.target.recovery is Recovery.HUMAN or refused
        unproven = human or not self.target.absence_provable
        # A call that does not succeed leaves nothing.
        behind = (Halt.AFTER if self.target.succeeded else Halt.BEFORE,) if human else ()
        match self.operation.crash_point if self.operation else self.point:
            case Beforehand():
                return (Halt.BEFORE_ALREADY_TRUE,)
            case CrashPoint.AFTER_CLAIM if unproven:
                return (Halt.BEFORE,)
            case CrashPoint.DURING_CALL if unproven:
                return (Halt.BEFORE, *behind)
            case CrashPoint.AFTER_CALL:
                return behind
        return ()


def changed(plan: Plan, disturbance: Disturbance | None) -> Plan:
    """Return the plan that a case plays.

    Args:
        plan: The user's.
        disturbance: What is done to the run; a kill changes nothing of the plan.
    """
    if disturbance is None or disturbance.crash_at or disturbance.target.asks:
        return plan
    if plan.code is not None:
        return _changed_code(plan, disturbance)
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
    if how is ForcedWait.EXPIRY and plan.defaults.approval is not None:
        policy = plan.defaults.approval.model_copy(update={"on_expiry": "ask_again"})
        changes["defaults"] = plan.defaults.model_copy(update={"approval": policy})
    return plan.model_copy(update=changes)


def _changed_code(plan: Plan, disturbance: Disturbance) -> Plan:
    """Return the plan of a run whose steps code or an agent makes.

    Only what holds for all of them can be changed: where one call is to be approved, each is.
    """
    how, step_id = disturbance.point, disturbance.target.step
    if how in (ForcedWait.APPROVAL, ForcedWait.PERMISSION_LOSS, ForcedWait.EXPIRY):
        given = {"expires_in": EXPIRES_IN, "on_expiry": "ask_again"}
        changes = given if how is ForcedWait.EXPIRY else {}
        policy = _forced(plan.defaults.approval, **changes)
        defaults = plan.defaults.model_copy(update={"approval": policy})
        return plan.model_copy(update={"defaults": defaults})
    if isinstance(how, Operation):
        held = {"after": (*plan.interrupts.after, disturbance.held)}
    elif how is Halt.AFTER:
        held = {"after": (*plan.interrupts.after, step_id)}
    else:
        held = {"before": (*plan.interrupts.before, step_id)}
    return plan.model_copy(update={"interrupts": plan.interrupts.model_copy(update=held)})


def _interrupted(plan: Plan, step: Step, how: Point) -> Step:
    match how:
        case ForcedWait.PAUSE | ForcedWait.ASK | Halt():
            where = InterruptKind.AFTER if how is Halt.AFTER else InterruptKind.BEFORE
            own = plan.defaults.interrupt if step.interrupt is None else step.interrupt
            return step.model_copy(update={"interrupt": tuple(dict.fromkeys((*own, where.value)))})
        case ForcedWait.EXPIRY:
            return _gated(step, expires_in=EXPIRES_IN, on_expiry="ask_again")
        case _:
            return _gated(step)


def _gated(step: Step, **changes: Any) -> Step:
    """Return a step whose call is asked about by people, whatever its rules say."""
    return step.model_copy(update={"approval": _forced(step.approval, **changes)})


def _forced(own: ApprovalPolicy | None, **changes: Any) -> ApprovalPolicy:
    """Return a policy that nothing waives, with those changes."""
    policy = own or ApprovalPolicy()
    rules = tuple(rule.model_copy(update={"required": True}) for rule in policy.rules)
    return policy.model_copy(update={"rules": rules, "standing": False, **changes})
