"""Random plans, with what happens to their calls and what people do meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal

from hypothesis import strategies as st

from surehand.workflows.contracts.steering import CancelMode
from surehand.workflows.plan.plan import Plan

#: What becomes of successive attempts at a forward call; afterwards it is done.
TRIES: Final = (
    "transient",
    "done, report lost",
    "slow",
    "no",
    "permanent",
    "mismatch",
    "in doubt: happened",
    "in doubt: did not happen",
    "approval refused",
)
#: What becomes of successive attempts to undo it; afterwards it is undone.
UNDO_TRIES: Final = ("transient", "done, report lost", "fails for good")
#: What people do about an approval request.
APPROVERS: Final = (
    "look, then approve",
    "approve at once",
    "have approved before it was asked",
    "approve twice",
    "approve other params first",
    "send nonsense first",
    "approve, then reject",
    "reject",
    "let it expire",
)
#: What people do about an intervention.
HUMANS: Final = (
    "look, then tell",
    "tell before it is reported",
    "tell twice",
    # As in a run that was reset: the ledger has its answer from before.
    "tell what is settled already",
    "give up",
    "undo",
)
IDS: Final = ("a", "b", "c", "d")
Follows = Literal["stop", "continue", "goto the last"]


@dataclass(frozen=True)
class PlannedStep:
    """One step and its fate."""

    id: str
    key: str
    """Its business key; the same key is the same effect."""
    after: tuple[str, ...] | None = None
    write: bool = True
    gated: bool = False
    irreversible: bool = False
    tries: tuple[str, ...] = ()
    undo_tries: tuple[str, ...] = ()
    approver: str = "look, then approve"
    human: str = "look, then tell"
    on_no: Follows = "stop"
    on_failure: Follows = "stop"

    def __repr__(self) -> str:
        """Say what is out of the ordinary: failing examples are read by people."""
        shown = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)
            if getattr(self, field.name) != field.default
        ]
        return f"PlannedStep({', '.join(shown)})"

    @property
    def tool(self) -> str:
        """Return the tool's name, which says what it can do."""
        if not self.write:
            return "model.read"
        return "model.final" if self.irreversible else "model.write"


@dataclass(frozen=True)
class Cancellation:
    """Somebody cancels the run while its ``at``-th call of a port is under way."""

    at: int
    how: Literal["compensate", "keep", "cleanup", "temporal"]


@dataclass(frozen=True)
class Reset:
    """Somebody resets the run while its ``at``-th call of a port is under way."""

    at: int
    to: Literal["its first task", "halfway"]


@dataclass(frozen=True)
class Scenario:
    """A plan, and all that happens while it runs."""

    steps: tuple[PlannedStep, ...]
    cancellation: Cancellation | None = None
    reset: Reset | None = None

    def step(self, step_id: str) -> PlannedStep:
        return next(step for step in self.steps if step.id == step_id)

    def plan(self) -> Plan:
        return Plan.model_validate([self._written(step) for step in self.steps])

    def _written(self, step: PlannedStep) -> dict[str, Any]:
        written: dict[str, Any] = {"id": step.id, "tool": step.tool, "params": {"key": step.key}}
        if step.after is not None:
            written["after"] = list(step.after)
        if step.gated:
            # An approval that nobody gives has to end while the test waits.
            waits = "300ms" if step.approver == "let it expire" else "1h"
            written["approval"] = {"expires_in": waits}
        written["on_no"] = self._follows(step, step.on_no, "fail")
        written["on_failure"] = self._follows(step, step.on_failure, "compensate")
        return written

    def _follows(self, step: PlannedStep, follows: Follows, stop: str) -> Any:
        if follows == "stop":
            return stop
        last = self.steps[-1].id
        if follows == "goto the last" and last in self.descendants(step.id):
            return {"goto": last}
        return "continue"

    def descendants(self, step_id: str) -> set[str]:
        """Return the steps that come after one, directly or not."""
        found: set[str] = set()
        previous: tuple[str, ...] = ()
        for step in self.steps:
            after = previous if step.after is None else step.after
            if step_id in after or found & set(after):
                found.add(step.id)
            previous = (step.id,)
        return found


def _few(values: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(values), max_size=2).map(tuple)


@st.composite
def _steps(draw: st.DrawFn) -> tuple[PlannedStep, ...]:
    steps: list[PlannedStep] = []
    follows = st.sampled_from(["stop", "stop", "continue", "goto the last"])
    for step_id in IDS[: draw(st.integers(1, len(IDS)))]:
        earlier = [step.id for step in steps]
        after = (
            draw(st.none() | st.lists(st.sampled_from(earlier), unique=True).map(tuple))
            if earlier
            else None
        )
        write = draw(st.sampled_from([True, True, True, False]))
        gated = draw(st.booleans())
        steps.append(
            PlannedStep(
                id=step_id,
                # Now and then an effect that another step wants, too.
                key=draw(st.sampled_from([step_id, step_id, step_id, *earlier])),
                after=after,
                write=write,
                gated=gated and write,
                irreversible=draw(st.sampled_from([False, False, True])),
                tries=draw(_few(TRIES)),
                undo_tries=draw(_few(UNDO_TRIES)),
                approver=draw(st.sampled_from(APPROVERS)),
                human=draw(st.sampled_from(HUMANS)),
                on_no=draw(follows),
                on_failure=draw(follows),
            )
        )
    return tuple(steps)


_MODES = ["temporal", *(mode.value for mode in CancelMode)]
_CANCELLATIONS = st.builds(Cancellation, at=st.integers(1, 12), how=st.sampled_from(_MODES))
_RESETS = st.builds(Reset, at=st.integers(2, 12), to=st.sampled_from(["its first task", "halfway"]))
#: Nobody interferes, or somebody cancels or resets the run at some moment.
UNDISTURBED: Final = st.builds(Scenario, steps=_steps())
CANCELLED: Final = st.builds(Scenario, steps=_steps(), cancellation=_CANCELLATIONS)
#: One step after the other: what happens depends on nothing but the scenario.
IN_LINE: Final = st.builds(
    Scenario, steps=_steps().map(lambda steps: tuple(replace(one, after=None) for one in steps))
)
RESET: Final = st.builds(Scenario, steps=_steps(), reset=_RESETS)
