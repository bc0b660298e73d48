"""Ledger entries as people see them, interventions, compensation, and maintenance."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from pydantic import Field

from surehand.workflows.contracts.base import (
    Actor,
    ChainHead,
    Json,
    Message,
    OfRun,
    Text,
    TimelineLine,
)
from surehand.workflows.contracts.steering import Steering

#: What people are told of a call that nothing undoes.
CANNOT_BE_UNDONE: Final = "cannot be undone"


class UndoTool(Message):
    """A tool that undoes another one's effect, as a worker has it loaded."""

    name: str
    version: str
    schema_hash: str
    params_version: str = ""
    """What tells how its params are made, beside the version of the tool whose effect it undoes."""
    only_if: bool = False
    """Whether the world is looked at right before it is called, and it may be refused then."""

    def as_text(self) -> str:
        condition = ", if the world allows it" if self.only_if else ""
        return f"{self.name} (version {self.version}{condition})"


class UndoSpec(Message):
    """How an effect is undone, as a worker has it loaded: people see it, and its entry keeps it."""

    version: str
    """Of the tool that makes the effect: its code makes the params of the undo."""
    compensate: UndoTool | None = None
    cleanup: UndoTool | None = None
    approved: bool = False
    """Whether people were shown it, and have approved it."""
    irreversible: bool = False
    """Whether the tool says that nothing undoes its effect."""

    def loses_condition(self, loaded: UndoSpec, *, cleanup: bool) -> bool:
        """Return whether this undo may be refused, and the one that is loaded may not."""
        was, is_ = (one.cleanup if cleanup else one.compensate for one in (self, loaded))
        return was is not None and was.only_if and is_ is not None and not is_.only_if

    def changed_to(self, loaded: UndoSpec, *, cleanup: bool) -> str | None:
        """Return how an undo differs from this one, in words; ``None``: it does not."""
        was, is_ = (one.cleanup if cleanup else one.compensate for one in (self, loaded))
        if was == is_ and (was is None or self.version == loaded.version):
            return None
        before, now = (one.as_text() if one else "nothing" for one in (was, is_))
        if (self.version, before) == (loaded.version, now):
            now += " with other params"
        return (
            f"version {self.version} was undone by {before},"
            f" version {loaded.version} is undone by {now}"
        )


def undo_text(undo: UndoSpec | None) -> str:
    """Return the line that people see before they approve a call; ``None``: it has no effect."""
    if undo is None:
        return "changes nothing"
    text = f"undone by {undo.compensate.as_text()}" if undo.compensate else CANNOT_BE_UNDONE
    if undo.cleanup is None:
        return text
    return f"{text}; a cancel with cleanup runs {undo.cleanup.as_text()}"


class ResolutionOutcome(StrEnum):
    """What a human says happened.

    Example:
        >>> [doubt] = (await run.view()).result.waiting_for
        >>> said = await run.resolve(doubt.id, ResolutionOutcome.CALL_OFF)
        >>> (await run.wait()).state
        <RunState.FAILED: 'failed'>
    """

    HAPPENED = "happened"
    NOT_HAPPENED = "not_happened"
    CALL_OFF = "call_off"
    """It did not, and is not to be tried again: the step has failed then."""
    COMPENSATED = "compensated"
    UNDO = "undo"
    """It happened, at least in part: run the tool's compensation; the step has failed then. Of an
    undo that has changed since its approval: run it as it is now. Of one that was refused: try it
    again."""
    GIVE_UP = "give_up"


class Resolution(Steering):
    """Settles an intervention."""

    intervention_id: Text
    outcome: ResolutionOutcome
    evidence: Text = ""
    receipt: Json = None
    """``happened``: what the call would have returned; later steps and the undo may need it."""


class SettleIntervention(OfRun):
    """Asks the ledger to apply a resolution; idempotent by ``resolution_id``."""

    resolution_id: str
    resolution: Resolution


class InterventionSettled(Message):
    """Whether the resolution counted, and why not."""

    accepted: bool
    message: str
    settled: bool = False
    """The intervention is settled now, by this resolution or by an earlier one: the run goes on."""
    head: ChainHead


class OpenIntervention(Message):
    """An open intervention."""

    intervention_id: str
    step_id: str
    question: str
    answers: tuple[str, ...] = ()
    """The outcomes as which it can be settled."""


class InterventionsFound(Message):
    """The open interventions about effects that were undone under the run."""

    interventions: list[OpenIntervention]


class Compensate(Message):
    """Undoes an effect, if it remains."""

    tenant: str
    run_id: str
    """Whose effect it is."""
    step_id: str
    entry_id: str
    user: str
    cleanup: bool = False
    """Run the tool's ``cleanup`` instead of its ``compensate``."""
    within: str | None = None
    """The run that undoes it, where it is a child run's."""


class CompensationOutcome(StrEnum):
    """How undoing one step ended."""

    COMPENSATED = "compensated"
    NOTHING_TO_UNDO = "nothing_to_undo"
    """It does not remain; a late attempt is barred."""
    UNCOMPENSATED = "uncompensated"
    """Committed and stays: the tool has no way back."""
    HUMAN_NEEDED = "human_needed"


class CompensationReport(Message):
    """How undoing one step ended."""

    outcome: CompensationOutcome
    reason: str = ""
    intervention_id: str | None = None
    answers: tuple[str, ...] = ()
    """The outcomes as which the intervention can be settled."""
    story: tuple[TimelineLine, ...] = ()
    """How its outcome was found out, where an attempt has died or ended without one."""
    head: ChainHead | None = None


class EffectView(Message):
    """A ledger entry as people see it."""

    entry_id: str
    tool: str
    key: str
    generation: int
    state: str
    step_id: str
    undoes: str | None = None
    """The entry this one compensates."""
    run_id: str | None = None
    """Whose it is, where it is a child run's."""
    inside: str | None = None
    """The step of the run that is looked at, where it is of a child run of that step."""
    reason: str | None = None
    """Why it is not compensated, where it is not."""


class FindRemaining(OfRun):
    """Asks what is to be undone: effects of a run and its child runs that remain, last first."""

    step_id: str | None = None
    """Only what this step of the run has made, and its child runs have."""
    after: str | None = None
    """Where the last answer has ended."""
    bar: bool = False
    """Refuse what is claimed there from now on."""
    leave: str | None = None
    """Note of each effect why it stays as it is."""
    revoked_batches: list[str] = []
    """Names of batches in which nothing more is to begin."""
    within: str | None = None
    """The run that asks, where it is another one."""
    completing: bool = False
    """The run would complete: which of its completed child runs have been undone since?"""


class RemainingEffect(Message):
    """An effect that may have happened and is not undone."""

    effect: EffectView
    child: str | None = None
    """The child run of the run that is asked about by which it was made, or under which."""
    used_in: list[str] = []
    """Child runs of that run which go on with it, or under which it is gone on with."""


class RemainingFound(Message):
    """Effects in the order of their undoing."""

    effects: list[RemainingEffect]
    after: str | None = None
    """Where the next answer begins; ``None``: that is all."""
    unwound: list[str] = []
    """Completed child runs of which something was undone after their end, if that is asked."""
    head: ChainHead | None = None


#: Stopped runs that a round names; the ledger and its notifications name all of them.
MOST_NAMED: Final = 100
#: Effects that the answer to an unwinding lists, each undone and left; the ledger has them all.
MOST_LISTED: Final = 1000


class ReconcileLedger(Message):
    """Asks for one round of ``reconcile`` over a tenant's ledger."""

    tenant: str
    after: str | None = None
    """Where the part of the round before this one has ended; none: this is the first one."""


class StoppedRun(Message):
    """A run that was terminated, or timed out: nobody undoes what it has committed."""

    run_id: str
    remaining: list[EffectView]
    """Those that were committed last, its child runs' included."""
    more_remaining: int = 0
    """Effects that remain and are not listed."""


class Reconciled(Message):
    """What one round of ``reconcile`` has done."""

    looked_at: int = 0
    committed: int = 0
    not_applied: int = 0
    asked: int = 0
    waiting: int = 0
    """Not settled yet: the outside system did not answer, or the settle time is not over."""
    freed: int = 0
    """Resources whose lease had run out."""
    stopped: list[StoppedRun] = []
    """Runs found stopped in this round; `unwind` undoes what remains."""
    stopped_unnamed: int = 0
    """How many more were found than `stopped` names."""
    next: str | None = None
    """Where the next part of the round begins; none: it has come to everything."""

    def and_then(self, later: Reconciled) -> Reconciled:
        """Return what this part of a round and the one after it have done."""
        stopped = [*self.stopped, *later.stopped]
        return Reconciled(
            looked_at=self.looked_at + later.looked_at,
            committed=self.committed + later.committed,
            not_applied=self.not_applied + later.not_applied,
            asked=self.asked + later.asked,
            waiting=self.waiting + later.waiting,
            freed=self.freed + later.freed,
            stopped=stopped[:MOST_NAMED],
            stopped_unnamed=self.stopped_unnamed
            + later.stopped_unnamed
            + len(stopped[MOST_NAMED:]),
            next=later.next,
        )


class NotUndone(Message):
    """A step whose effect was not undone, and why."""

    step_id: str
    """Of a child run, with the run's id before it."""
    reason: str
    intervention_id: str | None = None


class Unwound(Message):
    """What became of a stopped run's effects."""

    run_id: str
    undone: list[str]
    """Steps, in the order in which their effects were undone; of child runs as in ``left``."""
    left: list[NotUndone]
    more_undone: int = 0
    """Effects that were undone and are not listed."""
    more_left: int = 0
    """Effects that remain and are not listed; the ledger has them."""

    def with_undone(self, step: str) -> Unwound:
        if len(self.undone) < MOST_LISTED:
            return self.model_copy(update={"undone": [*self.undone, step]})
        return self.model_copy(update={"more_undone": self.more_undone + 1})

    def with_left(self, left: NotUndone) -> Unwound:
        if len(self.left) < MOST_LISTED:
            return self.model_copy(update={"left": [*self.left, left]})
        return self.model_copy(update={"more_left": self.more_left + 1})


class CarriedUnwinding(Message):
    """What one execution of an unwinding hands on to the next one."""

    after: str | None
    """Where the page begins that it has come to."""
    tried: list[str]
    """Entries that it has come to, and that may still remain."""
    done: Unwound


class UnwindRun(OfRun):
    """Asks to undo what a stopped run has left."""

    actor: Actor
    dry_run: bool = False
    """Only say what would be undone."""
    check: bool = False
    """Of a dry run: ask the world, too, as it would be asked right before each undo."""
    continue_after: int | None = Field(default=None, ge=1)
    """Events of history after which it continues as new; ``None``: as many as the server has."""
    carried: CarriedUnwinding | None = None
    """What the execution before has left; only Temporal itself continues an unwinding."""
