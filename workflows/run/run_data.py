"""What a run knows of itself: its steps, effects, questions, inbox and story, in one document.

Pure state without decisions: the parts of a run write it, and ``run_views.py`` shows it.
"""

from __future__ import annotations

from collections import UserDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import count
from typing import Annotated, Any, Final, Self, TypedDict

from pydantic import Field, JsonValue, PlainSerializer, PlainValidator, model_validator

from surehand.workflows.canonical_json import digest
from surehand.workflows.contracts import runs
from surehand.workflows.contracts.approvals import HeldApproval
from surehand.workflows.contracts.base import (
    ENDED_STEPS,
    ChainHead,
    ForeignContent,
    Json,
    NameSet,
    QuotaWait,
    Record,
    RunState,
    StepState,
    TimelineLine,
    Waiting,
    WaitKind,
)
from surehand.workflows.contracts.effects import EffectView, OpenIntervention
from surehand.workflows.contracts.steering import CancelRun, Interrupt, IssuedToken, PauseRun
from surehand.workflows.contracts.tools import FailedStep, Succeeded, ToolReport, ToolSpec
from surehand.workflows.plan.plan import Step
from surehand.workflows.plan.references import INPUT, literal
from surehand.workflows.run import run_records
from surehand.workflows.run.deliveries import Inbox


class StepViews(UserDict[str, runs.StepView]):
    """Views of steps by id.

    A run of thousands of steps shows where it stands at each of them: what that takes must not grow
    with the steps that are done.
    """

    def __init__(self, views: Mapping[str, runs.StepView] | None = None) -> None:
        self._in: defaultdict[StepState, set[str]] = defaultdict(set)
        self._places: dict[str, int] = {}
        self._count = count()
        super().__init__(views)

    def __setitem__(self, step_id: str, view: runs.StepView) -> None:
        before = self.data.get(step_id)
        if before is None:
            self._places[step_id] = next(self._count)
        else:
            self._in[before.state].discard(step_id)
        self._in[view.state].add(step_id)
        self.data[step_id] = view

    def __delitem__(self, step_id: str) -> None:
        self._in[self.data.pop(step_id).state].discard(step_id)

    @property
    def states(self) -> set[StepState]:
        return {state for state, ids in self._in.items() if ids}

    def in_state(self, states: Iterable[StepState]) -> list[runs.StepView]:
        found = [step_id for state in states for step_id in self._in[state]]
        return [self.data[step_id] for step_id in sorted(found, key=self._places.__getitem__)]


#: Lines of a run's story that its view shows; the ledger's events are complete.
LONGEST_TIMELINE: Final = 300

#: Refused signals that a run remembers, and characters of their names: anybody can send any.
MOST_REFUSED_SIGNALS: Final = 20
LONGEST_SIGNAL_NAME: Final = 100

#: Executions before this one whose signatures are remembered; a signature lasts ten minutes.
MOST_LIVES: Final = 100

#: Steps in these states are under way.
OPEN: Final = frozenset(StepState) - ENDED_STEPS - {StepState.PENDING}
#: Of these, those in which no call is under way or in doubt: what waits there can be given up.
WAITING: Final = OPEN - {StepState.RUNNING, StepState.NEEDS_INTERVENTION}

_BEGINNING: Final = run_records.StepProgress()
#: What a run shows whose steps wait: the first of these that one of them waits for.
_SHOWN_FIRST: Final = (
    WaitKind.FAILURE,
    WaitKind.QUESTION,
    WaitKind.PERMISSION,
    WaitKind.BUDGET,
    WaitKind.EVENT,
    WaitKind.RATE_LIMIT,
    WaitKind.QUOTA,
    WaitKind.HALT,
)
#: What a step waits for that nothing but its state tells of, in the order in which it is shown.
_TOLD_BY_STEP: Final = (
    WaitKind.PERMISSION,
    WaitKind.BUDGET,
    WaitKind.FAILURE,
    WaitKind.EVENT,
    WaitKind.QUOTA,
    WaitKind.HALT,
)


def _step_views(found: Any) -> StepViews:
    if isinstance(found, StepViews):
        return found
    views = (runs.StepView.model_validate(one) for one in found)
    return StepViews({view.id: view for view in views})


class RunIds(TypedDict):
    """What a message about one run begins with."""

    tenant: str
    run_id: str


class RunData(Record):
    """All that a run knows of itself: what people see of it, and what it needs to go on.

    Continue-as-new carries it as a whole (``run_views.py`` says what is cut short). What is not
    in it belongs to one execution only: tasks, and counts of its history.
    """

    request: runs.StartRun = Field(exclude=True)
    """It travels beside the state: each execution is started with it."""
    execution: str
    started_at: datetime
    lives: tuple[str, ...] = ()
    """Temporal's ids of the executions that this one continues, newest first."""

    # The plan, and how far it has come.
    plan_version: int = 1
    next_plan: runs.Amend | None = None
    """What is taken over as soon as no call is under way."""
    amending: bool = False
    """Whether another plan is taken over, or looked at: the old one starts nothing more."""
    tools: dict[str, ToolSpec] = {}
    steps: Annotated[
        StepViews,
        PlainValidator(_step_views),
        PlainSerializer(lambda views: list(views.values()), return_type=list[runs.StepView]),
    ] = Field(default_factory=StepViews)
    records: dict[str, run_records.StepRecord] = {}
    more_steps: int = 0
    replays: bool = False
    """Whether one of those has used what another run had made."""
    settled: NameSet = set()
    facts: dict[str, Any] = {}
    """The input, and what finished steps have returned."""
    progress: dict[str, run_records.StepProgress] = {}
    code: run_records.CodeState = run_records.CodeState()

    # Reads that are made again.
    stale: dict[str, Any] = {}
    """Outputs of the reads that are made again, as they were, by step id."""
    held: NameSet = set()
    """Steps that rest on those: they go no further meanwhile."""

    # Calls, and what they have made.
    calls: dict[str, str] = {}
    """Params hashes of the calls that have been asked about and have not begun, by step id."""
    reported: dict[str, ToolReport | FailedStep] = {}
    """What a batch has reported of steps that have not come to their call yet."""
    batches: int = 0
    """The number of the newest one."""
    revoked_batches: list[str] = []
    """Names of those that were stopped and not heard of: what they had begun is not all known."""
    unacknowledged: NameSet = set()
    """Steps whose writes the ledger has, and this run has yet to hear of: nothing holds them."""
    foreign: tuple[ForeignContent, ...] = ()
    """What has brought the run content from outside, as far as it has heard; the ledger judges."""
    saga: run_records.Saga = run_records.Saga()
    effects: dict[str, EffectView] = {}
    """Effects by entry while the run lasts; at its end the ledger's own list replaces them."""
    spent: run_records.Spent = run_records.Spent()
    more_budget: runs.TopUp = runs.TopUp(actor="plan")
    children: run_records.ChildRuns = run_records.ChildRuns()

    # What people send, and what they are asked.
    inbox: Inbox
    gate: run_records.Gate
    interventions: dict[str, OpenIntervention] = {}
    settled_interventions: NameSet = set()
    """One can be settled before its report arrives here: it must not be waited for."""
    to_undo: dict[str, str] = {}
    """Who wants what an intervention is about to be undone, by its id."""
    interrupts: dict[str, Interrupt] = {}
    opening: NameSet = set()
    """Questions that people may know of before this run knows that they do."""
    answers: dict[str, JsonValue] = {}
    """Answers that their steps have not taken yet, by interrupt id."""
    events: run_records.KeptEvents = run_records.KeptEvents()

    # Pauses, and the end.
    queued: QuotaWait | None = None
    """What keeps the run from its first step: its tenant's quota of open runs."""
    queue_looks: int = 0
    """How often it has asked whether it has its place."""
    weight: float = 1.0
    paused: PauseRun | None = None
    token: IssuedToken | None = None
    """The resume token that is out."""
    resumed: int = 0
    """How often somebody has had the run go on after a pause."""
    cancel: CancelRun | None = None
    stopping: bool = False
    """Whether no step begins a call any more."""
    closing: bool = False
    compensating: bool = False
    error: str | None = None
    lost: str | None = None
    """Set while the ledger does not know this run; nothing goes on then."""
    ended: RunState | None = None
    output: JsonValue = None
    final_effects: list[EffectView] | None = None
    more_effects: int = 0
    uncompensated: list[EffectView] = []
    more_uncompensated: int = 0

    # For those who look at it.
    timeline: list[TimelineLine] = []
    refused_signals: list[runs.RefusedSignal] = []
    head: ChainHead | None = None

    @classmethod
    def new(cls, request: runs.StartRun, execution: str, now: datetime) -> Self:
        """Return the state of a run that begins in this execution, or goes on in it."""
        inbox = {"prefix": f"{request.run_id}#{execution}."}
        fields: dict[str, Any] = {"started_at": now, "gate": {"run_id": request.run_id}}
        if request.carried is not None:
            fields |= request.carried
            inbox = {**fields["inbox"], **inbox}
            fields["lives"] = (fields["execution"], *fields["lives"])[:MOST_LIVES]
        own = request.model_copy(update={"carried": None})
        return cls(**{**fields, "request": own, "execution": execution, "inbox": inbox})

    @model_validator(mode="after")
    def _knows_its_plan(self) -> Self:
        """List the plan's steps, and take what those have returned that are done for facts."""
        for step in self.request.plan.steps:
            pending = runs.StepView(id=step.id, tool=step.does, state=StepState.PENDING)
            self.steps.setdefault(step.id, pending)
        done = self.steps.in_state({StepState.SUCCEEDED})
        told = {view.id: view.output for view in done if not runs.is_cut(view.output)}
        self.facts = {**told, **self.facts, INPUT: self.request.plan.input}
        return self

    @property
    def ids(self) -> RunIds:
        return {"tenant": self.request.tenant, "run_id": self.request.run_id}

    def set_step(self, step_id: str, state: StepState, **changes: Any) -> None:
        view = self.steps[step_id]
        self.steps[step_id] = view.model_copy(update={"state": state, **changes})

    def of_step(self, step_id: str) -> run_records.StepRecord:
        """Return what is known of a step; what is changed in it stays."""
        return self.records.setdefault(step_id, run_records.StepRecord())

    def note_success(self, step_id: str, outcome: Succeeded) -> None:
        """Note what a step has made, or rests on; the same twice is once."""
        if outcome.effect is not None:
            self.saga.note_commit(step_id, outcome.effect.entry_id)
            self.effects[outcome.effect.entry_id] = outcome.effect
        else:
            # A read, or an effect that another step owns: only its owner undoes it.
            self.saga.note_reliance(step_id, outcome.entry_id, own=outcome.made_by is None)

    def spec_of(self, step: Step) -> ToolSpec:
        return self.of_step(step.id).spec or self.tools[step.tool]

    def progress_of(self, step_id: str) -> run_records.StepProgress:
        return self.progress.get(step_id, _BEGINNING)

    def set_progress(self, step_id: str, **changes: Any) -> None:
        """Keep how far a step has come, *before* it waits there."""
        self.progress[step_id] = self.progress_of(step_id).model_copy(update=changes)

    def mark_undone(self, effects: list[EffectView]) -> None:
        """Say of each step whose effect is compensated in the ledger what has undone it."""
        by = {
            view.undoes: view.tool for view in effects if view.undoes and view.state == "committed"
        }
        for view in effects:
            step = self.steps.get(view.inside or view.step_id)
            if view.state == "compensated" and step is not None:
                undone = f"by {by[view.entry_id]}" if view.entry_id in by else "as a human says"
                self.steps[step.id] = step.model_copy(update={"undone": undone})

    def add_line(self, at: datetime, text: str, step_id: str | None = None) -> None:
        self.timeline.append(TimelineLine(at=at, step_id=step_id, text=text))
        del self.timeline[:-LONGEST_TIMELINE]

    def add_story(self, story: Iterable[TimelineLine]) -> None:
        """Add lines that the ledger tells; it tells them again with each report of their step."""
        self.timeline += [line for line in story if line not in self.timeline]
        del self.timeline[:-LONGEST_TIMELINE]

    def refuse_signal(self, at: datetime, name: str, reason: str) -> None:
        """Keep a signal that changed nothing, for its sender to find."""
        shown = name[:LONGEST_SIGNAL_NAME]
        self.refused_signals.append(runs.RefusedSignal(at=at, name=shown, reason=reason))
        del self.refused_signals[:-MOST_REFUSED_SIGNALS]

    def keep_head(self, head: ChainHead | None) -> None:
        """Keep the newest head of the event chain that an activity has reported."""
        if head is not None and (self.head is None or head.seq > self.head.seq):
            self.head = head

    def note_foreign(self, found: Iterable[ForeignContent]) -> None:
        """Take note of what has brought the run content from outside; of one tool, once."""
        for content in found:
            if all(known.tool != content.tool for known in self.foreign):
                self.foreign = (*self.foreign, content)

    def calls_digest(self) -> str:
        """Return the digest of the calls that wait: a resume token is for these."""
        return digest(self.calls)

    def in_state(self, *states: StepState) -> list[runs.StepView]:
        return self.steps.in_state(states)

    def running(self) -> list[str]:
        """Return the steps that are under way; of a list its items are, or nothing."""
        plan = self.request.plan
        running = [view.id for view in self.in_state(StepState.RUNNING)]
        return [id_ for id_ in running if id_ not in plan.lists]

    @property
    def state(self) -> RunState:
        if self.ended is not None:
            return self.ended
        if self.lost is not None:
            return RunState.NEEDS_INTERVENTION
        steps = self.steps.states
        waits = not self.running()
        if self.interventions and waits:
            return RunState.NEEDS_INTERVENTION
        if self.compensating:
            return RunState.COMPENSATING
        return self._state_while_waiting(steps) if waits else RunState.RUNNING

    def _state_while_waiting(self, steps: set[StepState]) -> RunState:
        """Return what a run shows none of whose steps is running."""
        if self.paused is not None:
            return RunState.PAUSED_USER
        inside = {view.state for view in self.steps.values() if view.child is not None}
        if StepState.NEEDS_INTERVENTION in inside:
            return RunState.NEEDS_INTERVENTION
        if self.gate.pending or StepState.WAITING_APPROVAL in inside:
            return RunState.WAITING_APPROVAL
        if self.queued is not None and not self.ending:
            return RunState.WAITING_QUOTA
        shown = (kind.step_state for kind in _SHOWN_FIRST if kind.step_state in steps)
        return RunState(next(shown, StepState.RUNNING))

    @property
    def ending(self) -> bool:
        """Whether the run goes on to its end only: nothing else is begun."""
        return self.closing or self.stopping or self.cancel is not None

    @property
    def last_error(self) -> str | None:
        """What keeps the run from going on, or why it has not."""
        return self.lost or self.error

    def waiting(self) -> list[Waiting]:
        return [
            *(
                Waiting(
                    kind=WaitKind.APPROVAL,
                    id=request.approval_id,
                    step_id=request.step_id,
                    params_hash=request.params_hash,
                    question=request.description,
                )
                for request in self.gate.pending.values()
            ),
            *(
                Waiting(
                    kind=WaitKind.QUESTION,
                    id=asked.interrupt_id,
                    step_id=asked.step_id,
                    question=asked.question,
                    value=asked.value,
                )
                for asked in self.interrupts.values()
            ),
            *(
                Waiting(
                    kind=WaitKind.INTERVENTION,
                    id=doubt.intervention_id,
                    step_id=doubt.step_id,
                    question=doubt.question,
                    answers=doubt.answers,
                )
                for doubt in self.interventions.values()
            ),
            *(
                Waiting(
                    kind=kind,
                    id=view.id,
                    step_id=view.id,
                    question=view.error or "",
                    value=self._tried_with(view.id) if kind is WaitKind.FAILURE else None,
                )
                for kind, view in self._paused_steps()
            ),
            *self._run_waits(),
            *self._children_wait(),
        ]

    @property
    def open_items(self) -> int:
        """How much of the run itself waits for a human; what was decided early does so, too."""
        asked = len(self.gate.pending) + len(self.gate.held) + len(self.interrupts)
        paused = sum(kind.needs_human for kind, _ in self._paused_steps())
        return asked + len(self.interventions) + paused

    def _paused_steps(self) -> Iterator[tuple[WaitKind, runs.StepView]]:
        """Yield the steps that wait by themselves; of a child run its own report tells."""
        for kind in _TOLD_BY_STEP:
            for view in self.in_state(kind.step_state):
                if view.id not in self.children.reports:
                    yield kind, view

    def _run_waits(self) -> Iterator[Waiting]:
        run_id = self.request.run_id
        if self.paused is not None:
            reason = f": {self.paused.reason}" if self.paused.reason else ""
            text = f"paused by {self.paused.actor}{reason}"
            yield Waiting(kind=WaitKind.PAUSE, id=run_id, step_id="", question=text)
        if self.queued is not None:
            text = self.queued.text
            yield Waiting(kind=WaitKind.QUOTA, id=run_id, step_id="", question=text)

    def _tried_with(self, step_id: str) -> Json:
        """Return the params with which a step that has failed would be tried again."""
        known, at = self.records.get(step_id), self.progress_of(step_id)
        if known is not None and known.edited is not None:
            params: Json = literal(known.edited)
            return params
        return None if at.step is None else at.step.params

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
        open_ = [
            one for one in first if one in self.steps and self.steps[one].state not in ENDED_STEPS
        ]
        after = f", after {', '.join(sorted(open_))}" if open_ else ""
        return f"step {step_id} to ask, which is {state}{after}"

    def _children_wait(self) -> Iterator[Waiting]:
        """Yield what child runs wait for, with the ids by which it is answered here."""
        for step_id, report in self.children.reports.items():
            for item in report.waiting:
                if item.kind is WaitKind.PAUSE:
                    continue
                own: dict[str, str | None] = {"step_id": f"{step_id}/{item.step_id}"}
                if item.kind is WaitKind.QUESTION:  # it is answered here, the others there
                    own["id"] = f"{step_id}/{item.id}"
                elif item.run_id is None:
                    own["run_id"] = self.children.running.get(step_id)
                yield item.model_copy(update=own)
