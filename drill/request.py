"""What is drilled: a plan, the user's functions about the world outside, and what is done to runs.

``world(context)`` returns what a run's effects have left behind, as JSON. ``fresh(context)`` makes
the outside world ready for one more run and returns the plan's input for it, such as the id of a
new order. Both may be async.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from surehand.activities.worker.crash_points import READ_POINTS, CrashPoint
from surehand.client.plan_file import load_plan
from surehand.drill.report import POINTS, DrillTarget, ForcedWait, Operation, Point
from surehand.process.exits import WrongUse
from surehand.process.settings import load_named
from surehand.workflows.contracts.steering import InterruptKind
from surehand.workflows.contracts.tools import MODEL, Effect, Recovery
from surehand.workflows.plan.plan import ITERATION, Ask, Durability, Plan, Step
from surehand.workflows.plan.policy import ApprovalPolicy


@dataclass(frozen=True)
class Context:
    """What the user's functions are given: the run that is about to start, or has ended.

    Example:
        >>> def world(context: Context) -> dict[str, object]:
        ...     refunds = {"order-7": ["re-1"]}
        ...     found = refunds.get(str(context.input["order_id"]), [])
        ...     return {"effects": {"refunds": len(found)}, "refunds": found}
        >>> world(Context("drill-1", {"order_id": "order-7"}, "sqlite:///ledger.sqlite"))["effects"]
        {'refunds': 1}
    """

    run_id: str
    input: Mapping[str, Any]
    """The plan's input; for ``world`` with what ``fresh`` returned."""
    database_url: str
    """The case's ledger, where ``transactional`` tools leave their effects, too."""


#: A function, or ``module:function``.
GivenFunction = str | Callable[[Context], Any] | None


@dataclass(frozen=True)
class Function:
    """A function of the user's, and the name it goes by in reports and errors."""

    name: str
    body: Callable[[Context], Any]

    @classmethod
    def load(cls, option: str, given: GivenFunction) -> Function | None:
        """Return a function that is given as such, or as ``module:function``."""
        if not given:
            return None
        if callable(given):
            return cls(f"{given.__module__}:{getattr(given, '__qualname__', given)}", given)
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.insert(0, here)
        body = load_named(given, option)
        if not callable(body):
            raise WrongUse(f"{option} {given}: it is not a function")
        return cls(given, body)

    async def __call__(self, context: Context) -> Any:
        """Return what it returns, as JSON has it."""
        try:
            if inspect.iscoroutinefunction(self.body):
                value = await self.body(context)
            else:
                value = await asyncio.to_thread(self.body, context)
                value = await value if inspect.isawaitable(value) else value
            return json.loads(json.dumps(value))
        except Exception as error:
            raise WrongUse(
                f"{self.name} failed for run {context.run_id}: {type(error).__name__}: {error}"
            ) from error


#: Durability modes, of which the first is drilled where none is named.
MODES: Final = tuple(mode.value for mode in Durability)
#: How long one case may take, if nothing else is said: recoveries take seconds.
CASE_LIMIT: Final = timedelta(minutes=2)


#: What only the owner of a ledger may do or take back.
_IN_OWN_LEDGER: Final = (ForcedWait.PERMISSION_LOSS, ForcedWait.HALT)


class DrillRequest:
    """A plan, what of it is drilled, and the user's functions."""

    def __init__(
        self,
        plan_name: str,
        *,
        changes: Sequence[str] = (),
        points: Sequence[str] = (),
        modes: Sequence[str] = (),
        steps: Sequence[str] = (),
        world: GivenFunction = None,
        fresh: GivenFunction = None,
        limit: timedelta = CASE_LIMIT,
        own_ledger: bool = True,
    ) -> None:
        """Make a request; nothing named means all there is."""
        self.plan_name = plan_name
        self.plan = load_plan(plan_name, changes)
        self.limit = limit
        require_known("--points", points, POINTS)
        for point in () if own_ledger else _IN_OWN_LEDGER:
            if point in points:
                raise WrongUse(
                    f"--points {point}: with --database permissions and halts are not the drill's"
                    " to change: leave one of the two out"
                )
        there = [p for p in POINTS if own_ledger or p not in _IN_OWN_LEDGER]
        self.points = [point for point in there if not points or point in points]
        require_known("--modes", modes, MODES)
        self.modes = list(modes or MODES[:1])
        ids = [step.id for step in self.plan.steps]
        if self.plan.code is None:
            require_known("--steps", steps, ids)
        self.steps = steps or ids
        self.world = Function.load("--world", world)
        self.fresh = Function.load("--fresh", fresh)
        # Side by side, cases need worlds of their own.
        self.parallel = 1 if fresh is None else 2

    def choose_targets(self, targets: Sequence[DrillTarget]) -> list[DrillTarget]:
        """Return the calls to drill, of those that the fault-free run has shown."""
        steps = self.steps
        if self.plan.code is not None:
            made = list(dict.fromkeys(target.step for target in targets))
            require_known("--steps", steps, made)
            chosen = [target for target in targets if not steps or target.step in steps]
        else:
            chosen = [target for target in targets if ITERATION.sub("", target.step) in steps]
        if not any(self.points_of(target) for target in chosen):
            raise WrongUse(
                "--steps, --points: none of these calls has one of these points (of the crash"
                f" points a read has {', '.join(READ_POINTS)}; permission_loss is there where a"
                " tool has a permission), so nothing would be proven"
            )
        return chosen

    def points_of(self, target: DrillTarget) -> list[Point]:
        return [point for point in self.points if _has_point(target, point)]


def _has_point(target: DrillTarget, point: Point) -> bool:
    reads, permission = target.effect is Effect.READ, target.permission
    match point:
        case Operation() if target.undo or target.asks:
            return False
        case Operation.FREEZE if target.recovery is Recovery.TRANSACTIONAL:
            return False  # Its transaction holds the lock on an SQLite ledger until it goes on.
        case Operation() if point.crash_point:
            return target.effect is Effect.WRITE  # A child run's workers die in its own steps.
        case Operation():  # Behind a read nothing has changed.
            return target.succeeded and (not reads or point is Operation.RESET_STEP)
        case _ if target.child:
            return False  # Its own steps have them, in a drill of that plan.
        case ForcedWait() if target.undo:
            return False  # It was approved with the step that it undoes, and waits for nobody.
        case ForcedWait() if target.asks:
            return point is ForcedWait.ASK
        case ForcedWait() if target.tool == MODEL:  # A turn needs nobody's approval.
            return point in (ForcedWait.PAUSE, ForcedWait.ASK, ForcedWait.HALT)
        case ForcedWait():
            there = point is not ForcedWait.PERMISSION_LOSS or permission is not None
            return there and (point is not ForcedWait.EXPIRY or target.may_ask_again)
        case _ if target.asks:
            return False
    return not reads or point in READ_POINTS


def require_known(option: str, given: Sequence[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise WrongUse(f"{option} {name!r}: there are {', '.join(known)}")


#: Time limit of an approval that is to expire: long enough to be used at once on a busy machine.
#: One that comes too late is asked for again.
EXPIRES_IN: Final = timedelta(seconds=2)

#: The step in which a run waits, behind the one that has had its effect.
HELD: Final = "drill-held"


@dataclass(frozen=True)
class Disturbance:
    """What a case does to its run, and where."""

    target: DrillTarget
    point: Point
    mode: Durability = Durability.SYNC
    """How durable its run is."""
    behind: tuple[str, ...] = ()
    """Steps behind which the run waits for an operator; none: behind the target."""
    by_code: bool = False
    """Whether code or an agent makes the steps: no step can be added to them."""
    following: DrillTarget | None = None
    """The call after the target's, if there is one."""

    @property
    def operation(self) -> Operation | None:
        return self.point if isinstance(self.point, Operation) else None

    @property
    def held(self) -> str:
        """Return the step in which the run waits for an operator."""
        return (self.behind or (self.target.step,))[-1] if self.by_code else HELD

    @property
    def killed_at(self) -> CrashPoint | None:
        """Return where a worker is killed or frozen; ``None``: nowhere."""
        match self.point:
            case CrashPoint():
                return self.point
            case Operation():
                return self.point.crash_point
        return None

    @property
    def crash_at(self) -> str:
        """Return the same as the setting ``SUREHAND_CRASH_AT``."""
        at = self.killed_at
        return f"{self.target.tool}:{at}@{self.target.step}" if at else ""

    @property
    def in_doubt(self) -> Disturbance:
        """Return what is done to the call that may be in doubt then, the target's or the next.

        In ``exit`` a write's outcome may be recorded with the claim of the write after it, which
        the worker then dies with.
        """
        recorded = self.killed_at in (CrashPoint.AFTER_OUTCOME, CrashPoint.BEFORE_REPORT)
        following = self.following if self.mode.in_batches else None
        if recorded and following is not None and following.absence_provable:
            return Disturbance(following, CrashPoint.AFTER_CLAIM, self.mode)
        return self

    @property
    def may_need_human(self) -> bool:
        """Say whether a human may be asked what the call has done.

        Nobody is to be asked if the tool says that it settles the outcome itself.
        """
        # A repeat that is refused for good does not say what the first call has done.
        refused = self.target.recovery is Recovery.DEDUPES and not self.target.succeeded
        human = self.target.recovery is Recovery.HUMAN or refused
        match self.killed_at:
            case CrashPoint.AFTER_CLAIM | CrashPoint.DURING_CALL:
                return human or not self.target.absence_provable
            case CrashPoint.AFTER_CALL:
                return human
        return False


#: A human has to approve the call there.
_GATES: Final = (ForcedWait.APPROVAL, ForcedWait.PERMISSION_LOSS, ForcedWait.EXPIRY)


def change_plan(plan: Plan, disturbance: Disturbance | None) -> Plan:
    """Return the plan with the place in which the run is to wait; it needs none for a kill."""
    if disturbance is None or disturbance.killed_at or disturbance.target.asks:
        return plan
    how, step_id = disturbance.point, ITERATION.sub("", disturbance.target.step)
    defaults, steps, interrupts = plan.defaults, plan.steps, plan.interrupts
    if plan.code is not None:
        # Only what holds for all calls can be changed: where one is to be approved, each is.
        if how in _GATES:
            policy = _force_policy(defaults.approval, how)
            defaults = defaults.model_copy(update={"approval": policy})
        elif isinstance(how, Operation):
            after = (*interrupts.after, disturbance.held)
            interrupts = interrupts.model_copy(update={"after": after})
        else:
            before = (*interrupts.before, disturbance.target.step)
            interrupts = interrupts.model_copy(update={"before": before})
    elif isinstance(how, Operation):
        behind = disturbance.behind or (step_id,)
        place = max(number for number, step in enumerate(steps, 1) if step.id in behind)
        held = Step(id=HELD, ask=Ask(question="Go on?"), after=behind)
        steps = (*steps[:place], held, *steps[place:])
    else:
        steps = tuple(_interrupt_step(plan, s, how) if s.id == step_id else s for s in steps)
        if how is ForcedWait.EXPIRY and defaults.approval is not None:
            asked_again = defaults.approval.model_copy(update={"on_expiry": "ask_again"})
            defaults = defaults.model_copy(update={"approval": asked_again})
    changes = {"defaults": defaults, "steps": steps, "interrupts": interrupts}
    return plan.model_copy(update=changes)


def _interrupt_step(plan: Plan, step: Step, how: Point) -> Step:
    if how in _GATES:
        return step.model_copy(update={"approval": _force_policy(step.approval, how)})
    own = plan.defaults.interrupt if step.interrupt is None else step.interrupt
    before = tuple(dict.fromkeys((*own, InterruptKind.BEFORE.value)))
    return step.model_copy(update={"interrupt": before})


def _force_policy(own: ApprovalPolicy | None, how: Point) -> ApprovalPolicy:
    """Return a policy that nothing waives."""
    policy = own or ApprovalPolicy()
    rules = tuple(rule.model_copy(update={"required": True}) for rule in policy.rules)
    changes: dict[str, Any] = {"rules": rules, "standing": False}
    if how is ForcedWait.EXPIRY:
        changes |= {"expires_in": EXPIRES_IN, "on_expiry": "ask_again"}
    return policy.model_copy(update=changes)
