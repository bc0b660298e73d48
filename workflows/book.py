"""What a run knows of itself: its steps, effects, questions and story; rendered for people.

Pure state without decisions: ``AgentRun`` writes it, the queries and the Web UI show it.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from pydantic import JsonValue

from workflows.approvals import Gate
from workflows.contracts import (
    ENDED,
    CancelRun,
    ChainHead,
    Checkpoint,
    ChildReport,
    CurrentStep,
    EffectView,
    Interrupt,
    IssuedToken,
    PauseRun,
    PendingCall,
    Progress,
    RefusedSignal,
    ResumePolicy,
    ResumeRun,
    RunResult,
    RunState,
    RunView,
    SideEffect,
    StartRun,
    StepState,
    StepView,
    TimelineLine,
    Waiting,
    as_artifact,
)
from workflows.identity import digest
from workflows.saga import Saga
from workflows.step_views import StepViews

#: Lines of a run's story that its view shows; the ledger's events are complete.
LONGEST_TIMELINE: Final = 300

#: Refused signals that a run remembers, and characters of their names: anybody can send any.
MOST_REFUSED_SIGNALS: Final = 20
LONGEST_SIGNAL_NAME: Final = 100

#: Characters of all outputs together that a result or a view carries: a message over 4 MiB is
#: refused by the server, and a run that cannot report its result cannot end.
MOST_OUTPUT: Final = 1024 * 1024

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
#: How a run in these states is gone on with; in the others that depends on its effects.
_POLICIES: Final = {
    RunState.NEEDS_INTERVENTION: ResumePolicy.MANUAL,
    RunState.PAUSED_BUDGET: ResumePolicy.MANUAL,
    RunState.PAUSED_FAILURE: ResumePolicy.MANUAL,
    RunState.WAITING_EVENT: ResumePolicy.AFTER_EVENT,
    RunState.PAUSED_USER: ResumePolicy.RECHECK_PERMISSIONS_THEN_CONTINUE,
    RunState.PAUSED_PERMISSION: ResumePolicy.RECHECK_PERMISSIONS_THEN_CONTINUE,
    RunState.WAITING_APPROVAL: ResumePolicy.AFTER_HUMAN_APPROVAL,
    RunState.WAITING_INPUT: ResumePolicy.AFTER_HUMAN_APPROVAL,
}
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
    """Effects by step id while the run lasts; at its end the ledger's own list replaces them."""
    final_effects: list[EffectView] | None = None
    more_effects: int = 0
    """Effects that are not among the final ones."""
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
    child_results: dict[str, RunResult] = field(default_factory=dict)
    """How child runs have ended; the effects are those that stand."""
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
            step = self.steps.get(view.step_id)
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

    def result(self) -> RunResult:
        """Return how the run ended, or stands."""
        own = list(self.effects.values()) if self.final_effects is None else self.final_effects
        return RunResult(
            run_id=self.request.run_id,
            state=self.state,
            steps=self._shown_steps(),
            more_steps=self.more_steps,
            more_effects=self.more_effects,
            effects=own + self._of_children(lambda result: result.effects),
            uncompensated=self.uncompensated
            + self._of_children(lambda result: result.uncompensated),
            waiting_for=[] if self.ended else self.waiting(),
            error=self.last_error,
            output=self.output,
        )

    def _of_children(self, part: Callable[[RunResult], list[EffectView]]) -> list[EffectView]:
        return [
            effect.model_copy(update={"run_id": effect.run_id or result.run_id})
            for result in self.child_results.values()
            for effect in part(result)
        ]

    def _shown_steps(self) -> list[StepView]:
        """Return the steps with as much of their outputs as one message can carry."""
        shown, left = [], MOST_OUTPUT
        for view in self.steps.values():
            size = len(json.dumps(view.output)) if view.output is not None else 0
            if size > left:
                view = view.model_copy(update={"output": {"too_large": {"bytes": size}}})
            else:
                left -= size
            shown.append(view)
        return shown

    def view(self) -> RunView:
        """Return the answer of the query ``view``."""
        return RunView(
            result=self.result(),
            tenant=self.request.tenant,
            user=self.request.user,
            plan=self.request.plan,
            plan_version=self.plan_version,
            durability=self.request.mode,
            started_at=self.started_at,
            pending=list(self.gate.pending.values()),
            interrupts=list(self.interrupts.values()),
            settled=self.gate.settled_views(),
            verdicts=list(self.gate.verdicts.values()),
            timeline=list(self.timeline),
            refused_signals=list(self.refused_signals),
        )

    def checkpoint(self, now: datetime, budget: dict[str, Any] | None = None) -> Checkpoint:
        """Return the answer of the query ``checkpoint``."""
        done = [view.id for view in self.in_state(StepState.SUCCEEDED)]
        effects = self.effects.values() if self.final_effects is None else self.final_effects
        first = next(iter(self.gate.pending.values()), None)
        return Checkpoint(
            checkpoint_id=f"{self.request.run_id}@{self.head.seq if self.head else 0}",
            run_id=self.request.run_id,
            created_at=now,
            created_by=self.request.user,
            ttl=None,
            plan_version=self.plan_version,
            current_steps=[
                CurrentStep(
                    step_id=view.id,
                    tool=view.tool,
                    state=view.state,
                    attempt=view.attempts + 1,
                    started_at=self.begun.get(view.id),
                )
                for view in self.in_state(*OPEN)
            ],
            completed_steps=done,
            recovery_point=done[-1] if done else "start",
            pending_call=PendingCall(
                tool=first.tool, params_hash=first.params_hash, approval_id=first.approval_id
            )
            if first
            else None,
            pending_side_effects=[] if self.ended else self.saga.unsettled(),
            side_effects=[
                SideEffect(tool=view.tool, idempotency_key=view.key, state=view.state)
                for view in effects
            ],
            pending_interrupts=[waiting.id for waiting in self.result().waiting_for],
            artifact_refs=self._artifact_refs(),
            permissions_snapshot={"user": self.request.user, "tenant": self.request.tenant},
            budget=budget or {},
            last_error=self.last_error,
            resume_policy=self._resume_policy(),
        )

    def _artifact_refs(self) -> list[str]:
        found = [as_artifact(view.output) for view in self.steps.values()]
        return [artifact.uri for artifact in found if artifact is not None]

    def _resume_policy(self) -> ResumePolicy:
        state = self.state
        if state in ENDED:
            return ResumePolicy.MANUAL
        if state in _POLICIES:
            return _POLICIES[state]
        unsettled = self.saga.unsettled()
        return ResumePolicy.RECONCILE_FIRST if unsettled else ResumePolicy.RETRY_CURRENT_STEP
