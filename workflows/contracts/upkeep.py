"""Upkeep: the sweep, and undoing what a run that was stopped from outside has left."""

from __future__ import annotations

from datetime import timedelta

from workflows.contracts.base import Actor, Message
from workflows.contracts.effects import EffectView


class Sweep(Message):
    """Asks for one round of the sweep over a tenant's ledger."""

    tenant: str
    quiet: timedelta | None = None
    """How long an entry is left to its own run first; none: as the worker's settings say."""


class StoppedRun(Message):
    """A run that was terminated, or timed out: nobody undoes what it has committed."""

    run_id: str
    standing: list[EffectView]
    """Those that were committed last, its child runs' included."""
    more_standing: int = 0
    """Effects that stand and are not listed."""


class Swept(Message):
    """What one round of the sweep has done."""

    looked_at: int = 0
    committed: int = 0
    not_applied: int = 0
    asked: int = 0
    waiting: int = 0
    """Not settled yet: the outside system did not answer, or the settle time is not over."""
    freed: int = 0
    """Resources whose lease had run out."""
    stopped: list[StoppedRun] = []
    """Runs found stopped in this round; `unwind` undoes what stands."""


class UnwindRun(Message):
    """Asks to undo what a stopped run has left."""

    tenant: str
    run_id: str
    actor: Actor


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
    """Effects that stand and are not listed; the ledger has them."""
