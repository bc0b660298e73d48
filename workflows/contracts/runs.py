"""Runs: starting, ending, and looking at them."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable
from datetime import datetime

from pydantic import JsonValue

from surehand.workflows.contracts.approvals import (
    ApprovalRequest,
    HeldApproval,
    SettledApproval,
    Verdict,
)
from surehand.workflows.contracts.base import ChainHead, Message, TimelineLine
from surehand.workflows.contracts.effects import EffectView
from surehand.workflows.contracts.foreign import ForeignContent
from surehand.workflows.contracts.interrupts import Interrupt
from surehand.workflows.contracts.states import RunState, StepState, Waiting
from surehand.workflows.plan.durability import Durability
from surehand.workflows.plan.plan import Plan


class CloseRun(Message):
    """Records the end of a run."""

    tenant: str
    run_id: str
    state: RunState
    error: str | None = None
    skipped: dict[str, str] = {}
    """Steps that never started, with their tools."""
    standing: str | None = None
    """Digest of what this life of the run takes for all that stands: it is closed only if it is."""


class RunClosed(Message):
    """The run's effects as the ledger has them."""

    closed: bool = True
    """``False``: nothing was recorded, because something else stands than the run knows of."""
    effects: list[EffectView] = []
    uncompensated: list[EffectView] = []
    more_effects: int = 0
    """Effects that are not listed: a message of more than 2 MiB could not be told."""
    more_uncompensated: int = 0
    """Of what stands uncompensated, how much is not listed."""
    head: ChainHead


class StepView(Message):
    """A step as people see it."""

    id: str
    tool: str
    state: StepState
    output: JsonValue = None
    attempts: int = 0
    replayed: bool = False
    made_by: str | None = None
    error: str | None = None
    original: JsonValue = None
    """What it returned, where a human has put something else in its place."""
    child: str | None = None
    """The run that does it, of a step that is a plan."""
    undone: str | None = None
    """How its effect was undone afterwards, where it was; its state stays what it was."""


def cut_to_fit(
    views: Iterable[StepView], most: int, *, whole: Container[str] = ()
) -> list[StepView]:
    """Return views of steps, each with its output's size in its place where there is no room.

    Args:
        views: In the order in which they are given room.
        most: Characters of JSON that all outputs together may have.
        whole: Steps whose outputs stay and take no room.
    """
    cut, left = list[StepView](), most
    for view in views:
        if view.id not in whole:
            size = 0 if view.output is None else len(json.dumps(view.output))
            if size > left:
                view = view.model_copy(update={"output": {"too_large": {"bytes": size}}})
            else:
                left -= size
        cut.append(view)
    return cut


def is_cut(output: JsonValue) -> bool:
    """Return whether an output is not there, but its size."""
    return isinstance(output, dict) and set(output) == {"too_large"}


class RunResult(Message):
    """How a run ended, or stands.

    Example:
        >>> result = await run.wait(or_human=True)
        >>> result.state, [step.id for step in result.steps][:2]
        (<RunState.WAITING_APPROVAL: 'waiting_approval'>, ['order', 'amount'])
    """

    run_id: str
    state: RunState
    steps: list[StepView]
    more_steps: int = 0
    """Steps that are done and not listed any more; the ledger has them."""
    effects: list[EffectView] = []
    uncompensated: list[EffectView] = []
    more_effects: int = 0
    """Effects that are not listed; the ledger has them."""
    more_uncompensated: int = 0
    """Of what stands uncompensated, how much is not listed."""
    waiting_for: list[Waiting] = []
    foreign: tuple[ForeignContent, ...] = ()
    """What has brought it content from outside, which strangers may have written."""
    error: str | None = None
    output: JsonValue = None
    """What the code has returned that has made the steps."""


class RefusedSignal(Message):
    """What was sent and changed nothing: of an unknown name, malformed, or refused."""

    at: datetime
    name: str
    reason: str


class RunView(Message):
    """Answer of the query ``view``.

    Example:
        >>> view = await run.view()
        >>> view.user, view.plan.name, view.plan_version
        ('uma', 'refund', 1)
    """

    result: RunResult
    tenant: str
    user: str
    started_by: str = ""
    """Who has started it, as far as it was said; the ledger knows whether that is proven."""
    plan: Plan
    plan_version: int
    durability: Durability = Durability.SYNC
    started_at: datetime
    pending: list[ApprovalRequest] = []
    held: list[HeldApproval] = []
    """Decided before they were asked for: pending until their steps ask."""
    interrupts: list[Interrupt] = []
    """Questions that wait for an answer."""
    settled: list[SettledApproval] = []
    """The newest requests that wait no more."""
    verdicts: list[Verdict] = []
    timeline: list[TimelineLine] = []
    refused_signals: list[RefusedSignal] = []
    """The newest ones; whoever sends a signal gets no answer but this."""
