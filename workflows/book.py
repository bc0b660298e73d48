"""What a run knows of itself: its steps, effects, questions and story.

Pure state without decisions: ``AgentRun`` writes it; ``views.py`` and ``details.py`` show it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from pydantic import JsonValue

from workflows.approvals import Gate
from workflows.contracts import (
    CancelRun,
    ChainHead,
    ChildReport,
    EffectView,
    HeldApproval,
    Interrupt,
    IssuedToken,
    PauseRun,
    Progress,
    RefusedSignal,
    ResumeRun,
    RunState,
    StartRun,
    StepState,
    StepView,
    TimelineLine,
    Waiting,
)
from workflows.identity import digest
from workflows.saga import Saga
from workflows.step_views import StepViews

#: Lines of a run's story that its view shows; the ledger's events are complete.
LONGEST_TIMELINE: Final = 300

#: Refused signals that a run remembers, and characters of their names: anybody can send any.
MOST_REFUSED_SIGNALS: Final = 20
LONGEST_SIGNAL_NAME: Final = 100

#: Steps in these states are under way.
OPEN: Final = frozenset(
    {
        StepState.RUNNING,
        StepState.WAITING_APPROVAL,
        StepState.WAITING_INPUT,
        StepState.WAITING_RATE_LIMIT,
        StepState.PAUSED_USER,
        StepState.PAUSED_PERMISSION,
        StepState.PAUSED_BUDGET,
        StepState.PAUSED_FAILURE,
        StepState.WAITING_EVENT,
        StepState.NEEDS_INTERVENTION,
    }
)


#: Of these, those in which no call is under way or in doubt: what waits there can be given up.
WAITING: Final = OPEN - {StepState.RUNNING, StepState.NEEDS_INTERVENTION}

_DONE: Final = frozenset({StepState.SUCCEEDED, StepState.SKIPPED, StepState.FAILED})
_BEGINNING: Final = Progress()
#: What a run shows whose steps wait, by what the first of these is that one of them waits for.
_WAITS: Final = (
    (StepState.PAUSED_FAILURE, RunState.PAUSED_FAILURE),
    (StepState.WAITING_INPUT, RunState.WAITING_INPUT),
    (StepState.PAUSED_PERMISSION, RunState.PAUSED_PERMISSION),
    (StepState.PAUSED_BUDGET, RunState.PAUSED_BUDGET),
    (StepState.WAITING_EVENT, RunState.WAITING_EVENT),
    (StepState.WAITING_RATE_LIMIT, RunState.WAITING_RATE_LIMIT),
)
#: What people are told that a step waits for, by its state.
_TOLD: Final[dict[StepState, Literal["permission", "budget", "failure", "event"]]] = {
    StepState.PAUSED_PERMISSION: "permission",
    StepState.PAUSED_BUDGET: "budget",
    StepState.PAUSED_FAILURE: "failure",
    StepState.WAITING_EVENT: "event",
}


@dataclass(frozen=True)
class Question:
    """An open intervention of the run."""

    intervention_id: str
    step_id: str
    text: str


@dataclass
class Book:
    """The state of one run, as far as people see it."""

    request: StartRun
    started_at: datetime
    gate: Gate
    saga: Saga
    steps: StepViews = field(default_factory=StepViews)
    begun: dict[str, datetime] = field(default_factory=dict)
    effects: dict[str, EffectView] = field(default_factory=dict)
    """Effects by entry while the run lasts; at its end the ledger's own list replaces them."""
    final_effects: list[EffectView] | None = None
    more_effects: int = 0
    """Effects that are not among the final ones."""
    more_uncompensated: int = 0
    uncompensated: list[EffectView] = field(default_factory=list)
    questions: dict[str, Question] = field(default_factory=dict)
    timeline: deque[TimelineLine] = field(default_factory=lambda: deque(maxlen=LONGEST_TIMELINE))
    refused_signals: deque[RefusedSignal] = field(
        default_factory=lambda: deque(maxlen=MOST_REFUSED_SIGNALS)
    )
    head: ChainHead | None = None
    plan_version: int = 1
    ended: RunState | None = None
    output: JsonValue = None
    """What the code has returned that has made the steps."""
    compensating: bool = False
    error: str | None = None
    resumed: int = 0
    """How often somebody has had the run go on after a pause."""
    ways: dict[str, ResumeRun] = field(default_factory=dict)
    """How steps that have failed are to go on, by step id, until they do."""
    paused: PauseRun | None = None
    """Who has paused the run."""
    cancel: CancelRun | None = None
    """Who has cancelled the run."""
    stopping: bool = False
    """Whether no step begins a call any more."""
    closing: bool = False
    """Whether all steps have ended, and the run is being brought to its end."""
    given_up: list[str] = field(default_factory=list)
    """Names of stretches that were stopped unheard: what they had begun is not all known."""
    unheard: set[str] = field(default_factory=set)
    """Steps whose writes the ledger has, and this run has yet to hear of: nothing holds them."""
    amending: bool = False
    """Whether another plan is taken over as soon as no call is under way: the old one starts
    nothing more."""
    token: IssuedToken | None = None
    """The resume token that is out."""
    read_at: dict[str, datetime] = field(default_factory=dict)
    """When reads that stay fresh for a while have returned, by step id."""
    stale: dict[str, Any] = field(default_factory=dict)
    """Outputs of the reads that are made again, as they were, by step id."""
    held: set[str] = field(default_factory=set)
    """Steps that rest on those: they go no further meanwhile."""
    interrupts: dict[str, Interrupt] = field(default_factory=dict)
    """Questions that wait for an answer, in the order in which they were asked."""
    reports: dict[str, ChildReport] = field(default_factory=dict)
    """Where child runs under way stand, by step id."""
    sending: set[asyncio.Task[None]] = field(default_factory=set)
    """Signals to other runs that are on their way."""
    calls: dict[str, str] = field(default_factory=dict)
    """Params hashes of the calls that have been asked about and not ended, by step id."""
    edited: dict[str, dict[str, JsonValue]] = field(default_factory=dict)
    """Params that humans have put in the place of others, by step id."""
    progress: dict[str, Progress] = field(default_factory=dict)
    """How far the steps under way have come, by step id."""
    lives: tuple[str, ...] = ()
    """Temporal's ids of the executions that this one continues, newest first."""
    more_steps: int = 0
    """Steps that are done and not listed any more."""
    replays: bool = False
    """Whether one of those has used what another run had made."""
    lost: str | None = None
    """Set while the ledger does not know this run; nothing goes on then."""

    def __post_init__(self) -> None:
        """List the plan's steps as pending."""
        for step in self.request.plan.steps:
            self.steps[step.id] = StepView(id=step.id, tool=step.does, state=StepState.PENDING)

    def set_step(self, step_id: str, state: StepState, **changes: Any) -> None:
        """Change what is known of a step."""
        view = self.steps[step_id]
        self.steps[step_id] = view.model_copy(update={"state": state, **changes})

    def at(self, step_id: str) -> Progress:
        """Return how far a step under way has come."""
        return self.progress.get(step_id, _BEGINNING)

    def note(self, step_id: str, **changes: Any) -> None:
        """Note how far a step has come, *before* it waits there."""
        self.progress[step_id] = self.at(step_id).model_copy(update=changes)

    def note_undone(self, effects: list[EffectView]) -> None:
        """Say of each step whose effect is compensated in the ledger what has undone it."""
        by = {
            view.undoes: view.tool for view in effects if view.undoes and view.state == "committed"
        }
        for view in effects:
            step = self.steps.get(view.inside or view.step_id)
            if view.state == "compensated" and step is not None:
                undone = f"by {by[view.entry_id]}" if view.entry_id in by else "as a human says"
                self.steps[step.id] = step.model_copy(update={"undone": undone})

    def say(self, at: datetime, text: str, step_id: str | None = None) -> None:
        """Add a line to the run's story."""
        self.timeline.append(TimelineLine(at=at, step_id=step_id, text=text))

    def refuse(self, at: datetime, name: str, reason: str) -> None:
        """Keep a signal that changed nothing, for its sender to find."""
        shown = name[:LONGEST_SIGNAL_NAME]
        self.refused_signals.append(RefusedSignal(at=at, name=shown, reason=reason))

    def saw(self, head: ChainHead | None) -> None:
        """Keep the newest head of the event chain that an activity has reported."""
        if head is not None and (self.head is None or head.seq > self.head.seq):
            self.head = head

    def calls_digest(self) -> str:
        """Return the digest of the calls that wait: a resume token is for these."""
        return digest(self.calls)

    def in_state(self, *states: StepState) -> list[StepView]:
        """Return the steps in one of these states."""
        return self.steps.in_state(states)

    def running(self) -> list[str]:
        """Return the steps that are under way; of a list its items are, or nothing."""
        plan = self.request.plan
        running = [view.id for view in self.in_state(StepState.RUNNING)]
        return [id_ for id_ in running if id_ not in plan.lists]

    @property
    def state(self) -> RunState:
        """Where the run stands."""
        if self.ended is not None:
            return self.ended
        if self.lost is not None:
            return RunState.NEEDS_INTERVENTION
        steps = self.steps.states
        waits = not self.running()
        if self.questions and waits:
            return RunState.NEEDS_INTERVENTION
        if self.compensating:
            return RunState.COMPENSATING
        return self._waits(steps) if waits else RunState.RUNNING

    def _waits(self, steps: set[StepState]) -> RunState:
        """Return what a run shows none of whose steps is running."""
        if self.paused is not None:
            return RunState.PAUSED_USER
        inside = {view.state for view in self.steps.values() if view.child is not None}
        if StepState.NEEDS_INTERVENTION in inside:
            return RunState.NEEDS_INTERVENTION
        if self.gate.pending or StepState.WAITING_APPROVAL in inside:
            return RunState.WAITING_APPROVAL
        for step_state, run_state in _WAITS:
            if step_state in steps:
                return run_state
        return RunState.RUNNING

    @property
    def ending(self) -> bool:
        """Whether the run goes on to its end only: nothing else is begun."""
        return self.closing or self.stopping or self.cancel is not None

    @property
    def last_error(self) -> str | None:
        """What keeps the run from going on, or why it has not."""
        return self.lost or self.error

    def waiting(self) -> list[Waiting]:
        """Return what the run waits for a human for."""
        approvals = [
            Waiting(
                kind="approval",
                id=request.approval_id,
                step_id=request.step_id,
                params_hash=request.params_hash,
                question=request.description,
            )
            for request in self.gate.pending.values()
        ]
        questions = [
            Waiting(kind="intervention", id=q.intervention_id, step_id=q.step_id, question=q.text)
            for q in self.questions.values()
        ]
        paused = [
            Waiting(kind=kind, id=view.id, step_id=view.id, question=view.error or "")
            for state, kind in _TOLD.items()
            for view in self.in_state(state)
        ]
        asked = [
            Waiting(kind="question", id=i.interrupt_id, step_id=i.step_id, question=i.question)
            for i in self.interrupts.values()
        ]
        own = approvals + asked + questions + paused + self._pause()
        return own + list(self._children_wait())

    def held_approvals(self) -> list[HeldApproval]:
        """Return the decisions that have come before their requests, and what each waits for."""
        return [
            HeldApproval(
                approval_id=decision.approval_id,
                step_id=step_id,
                outcome=decision.outcome,
                approver=decision.approver,
                waits_for=self._before_it_asks(step_id),
            )
            for decision, step_id in self.gate.held_decisions()
        ]

    def _before_it_asks(self, step_id: str) -> str:
        view = self.steps.get(step_id)
        state = StepState.PENDING if view is None else view.state
        first = self.request.plan.dependencies.get(step_id, ())
        open_ = [one for one in first if one in self.steps and self.steps[one].state not in _DONE]
        after = f", after {', '.join(sorted(open_))}" if open_ else ""
        return f"step {step_id} to ask, which is {state}{after}"

    def _children_wait(self) -> Iterator[Waiting]:
        """Yield what child runs wait for, with the ids by which it is answered here."""
        for step_id, report in self.reports.items():
            for item in report.waiting:
                if item.kind == "pause":
                    continue
                id_ = f"{step_id}/{item.id}" if item.kind == "question" else item.id
                inside = f"{step_id}/{item.step_id}"
                yield item.model_copy(update={"id": id_, "step_id": inside})

    def _pause(self) -> list[Waiting]:
        if self.paused is None:
            return []
        reason = f": {self.paused.reason}" if self.paused.reason else ""
        text = f"paused by {self.paused.actor}{reason}"
        return [Waiting(kind="pause", id=self.request.run_id, step_id="", question=text)]
