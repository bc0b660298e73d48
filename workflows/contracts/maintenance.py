"""Maintenance: reconciling, and undoing what a run that was stopped from outside has left."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from pydantic import Field

from surehand.workflows.contracts.base import Actor, Message
from surehand.workflows.contracts.effects import EffectView

#: Stopped runs that a round names; the ledger and its notifications name all of them.
MOST_NAMED: Final = 100
#: Effects that the answer to an unwinding lists, each undone and left; the ledger has them all.
MOST_LISTED: Final = 1000


class ReconcileLedger(Message):
    """Asks for one round of ``reconcile`` over a tenant's ledger."""

    tenant: str
    quiet: timedelta | None = None
    """How long an entry is left to its own run first; none: as the worker's settings say."""
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
        """Return it with one more effect that was undone."""
        if len(self.undone) < MOST_LISTED:
            return self.model_copy(update={"undone": [*self.undone, step]})
        return self.model_copy(update={"more_undone": self.more_undone + 1})

    def with_left(self, left: NotUndone) -> Unwound:
        """Return it with one more effect that was not."""
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


class UnwindRun(Message):
    """Asks to undo what a stopped run has left."""

    tenant: str
    run_id: str
    actor: Actor
    continue_after: int | None = Field(default=None, ge=1)
    """Events of history after which it continues as new; ``None``: as many as the server has."""
    carried: CarriedUnwinding | None = None
    """What the execution before has left; only Temporal itself continues an unwinding."""
