"""What is to be drilled, checked before anything is started."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from surehand.activities.worker.crash_points import READ_POINTS
from surehand.drill.points import (
    POINTS,
    Beforehand,
    ForcedWait,
    Operation,
    Point,
)
from surehand.drill.report import Target
from surehand.drill.world import Function
from surehand.process.exits import WrongUse
from surehand.workflows.contracts.model_turns import MODEL
from surehand.workflows.contracts.tools import Effect, Recovery
from surehand.workflows.plan.durability import Durability
from surehand.workflows.plan.plan import ITERATION, Plan

#: Durability modes, of which the first is drilled where none is named.
MODES: Final = tuple(mode.value for mode in Durability)
#: Of what a drill keeps of its cells: one of another format is not gone on with.
_FORMAT: Final = 5


@dataclass(frozen=True)
class DrillRequest:
    """A plan, what of it is drilled, and the user's functions."""

    plan: Plan
    plan_name: str
    """How the user calls it: its file."""
    points: tuple[Point, ...]
    modes: tuple[str, ...]
    steps: tuple[str, ...]
    world: Function | None
    fresh: Function | None
    parallel: int
    limit: timedelta
    """How long one case may take."""
    already: Function | None = None

    @classmethod
    def checked(
        cls,
        plan: Plan,
        plan_name: str,
        *,
        points: Sequence[str],
        modes: Sequence[str],
        steps: Sequence[str],
        world: Function | None,
        fresh: Function | None,
        parallel: int | None,
        limit: timedelta,
        own_ledger: bool = True,
        already: Function | None = None,
    ) -> DrillRequest:
        """Return the request; nothing named means all there is.

        Args:
            plan: What is drilled.
            plan_name: Its file.
            points: Crash points, forced waits, and what operators do.
            modes: Durability modes.
            steps: Steps of the plan.
            world: Looks at the world.
            fresh: Makes the world ready for one more run.
            parallel: Cases at a time.
            limit: How long one may take.
            already: Leaves the world as a step's call would.
            own_ledger: Whether each case has a ledger of its own, whose principals are its own.

        Raises:
            WrongUse: A point, mode or step is not there, or the cases would disturb one another.
        """
        _known("--points", points, POINTS)
        if ForcedWait.PERMISSION_LOSS in points and not own_ledger:
            raise WrongUse(
                "--points permission_loss: with --database the permissions are not the drill's to"
                " take away: leave one of the two out"
            )
        if Beforehand.ALREADY_TRUE in points and already is None:
            raise WrongUse(
                "--points already_true: name --already, which leaves the world as the step's call"
                " would"
            )
        there = [p for p in POINTS if own_ledger or p is not ForcedWait.PERMISSION_LOSS]
        there = [p for p in there if already or p is not Beforehand.ALREADY_TRUE]
        _known("--modes", modes, MODES)
        ids = [step.id for step in plan.steps]
        if plan.code is None:
            _known("--steps", steps, ids)
        if fresh is None and (parallel or 1) > 1:
            raise WrongUse(
                "--parallel: runs side by side need worlds of their own: name --fresh, or leave"
                " --parallel out"
            )
        return cls(
            plan=plan,
            plan_name=plan_name,
            points=tuple(point for point in there if not points or point in points),
            modes=tuple(modes) or MODES[:1],
            steps=tuple(steps or ids),
            world=world,
            fresh=fresh,
            parallel=parallel or (1 if fresh is None else 2),
            limit=limit,
            already=already,
        )

    def chosen(self, targets: Sequence[Target]) -> list[Target]:
        """Return the calls of the chosen steps.

        Raises:
            WrongUse: The code or agent that makes the steps has made no such step.
        """
        if self.plan.code is not None:
            made = list(dict.fromkeys(target.step for target in targets))
            _known("--steps", self.steps, made)
            return [target for target in targets if target.step in (self.steps or made)]
        return [target for target in targets if ITERATION.sub("", target.step) in self.steps]

    def points_of(self, target: Target) -> list[Point]:
        """Return the chosen points that a call has."""
        return [point for point in self.points if _has(target, point)]

    def refuse_nothing(self, targets: Sequence[Target]) -> None:
        """Refuse a choice of steps and points in which there is nothing to drill.

        Raises:
            WrongUse: None of the calls has one of the points.
        """
        if not any(self.points_of(target) for target in targets):
            raise WrongUse(
                "--steps, --points: none of these calls has one of these points (of the crash"
                f" points a read has {', '.join(READ_POINTS)}; permission_loss is there where a"
                " tool has a permission), so nothing would be proven"
            )

    def fingerprint(self, tool_modules: str) -> str:
        """Return what two drills have in common when the one may go on with the other's cases."""
        facts = {
            "plan": self.plan.model_dump(mode="json"),
            "tools": tool_modules,
            "world": self.world.name if self.world else "",
            "fresh": self.fresh.name if self.fresh else "",
            "already": self.already.name if self.already else "",
            "format": _FORMAT,
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _has(target: Target, point: Point) -> bool:
    match point:
        case Operation():
            return _may_operate(target, point)
        case _ if target.child:
            return False  # Its own steps have them, in a drill of that plan.
        case ForcedWait():
            return _may_wait(target, point)
        case _ if target.asks:
            return False
        case Beforehand():
            return target.effect is not Effect.READ and not target.undo
        case _:
            return target.effect is not Effect.READ or point in READ_POINTS


def _may_operate(target: Target, what: Operation) -> bool:
    if target.undo or target.asks:
        return False
    if what is Operation.FREEZE and target.recovery is Recovery.TRANSACTIONAL:
        return False  # Its transaction holds the lock on an SQLite ledger until it goes on.
    if what.crash_point is not None:
        return target.effect is Effect.WRITE  # A child run's workers die in its own steps' calls.
    if target.effect is Effect.READ and what is not Operation.RESET_STEP:
        return False  # Behind it nothing has changed.
    return target.succeeded


def _may_wait(target: Target, how: ForcedWait) -> bool:
    if target.undo:
        # It was shown and approved with the step that it undoes, and waits for nobody.
        return False
    if target.asks:
        return how is ForcedWait.ASK
    if target.tool == MODEL:
        return how in (ForcedWait.PAUSE, ForcedWait.ASK)  # A turn needs nobody's approval.
    if how is ForcedWait.PERMISSION_LOSS:
        return target.permission is not None
    return how is not ForcedWait.EXPIRY or target.may_ask_again


def _known(option: str, given: Sequence[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise WrongUse(f"{option} {name!r}: there are {', '.join(known)}")
