"""What people see of a run: its result, and the answers of the queries."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

from workflows.book import OPEN, Book
from workflows.contracts import (
    ENDED,
    Checkpoint,
    CurrentStep,
    PendingCall,
    ResumePolicy,
    RunResult,
    RunState,
    RunView,
    SideEffect,
    StepState,
    StepView,
    as_artifact,
)

#: Characters of all outputs together that a view shows: a starter without the workers' artifact
#: store can read it all the same. The result of a run that has ended has all of them.
MOST_SHOWN: Final = 512 * 1024
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


def result_of(book: Book) -> RunResult:
    """Return how the run ended, or stands."""
    own = list(book.effects.values()) if book.final_effects is None else book.final_effects
    return RunResult(
        run_id=book.request.run_id,
        state=book.state,
        steps=list(book.steps.values()),
        more_steps=book.more_steps,
        more_effects=book.more_effects,
        more_uncompensated=book.more_uncompensated,
        effects=own,
        uncompensated=book.uncompensated,
        waiting_for=[] if book.ended else book.waiting(),
        error=book.last_error,
        output=book.output,
    )


def _shown(steps: list[StepView]) -> list[StepView]:
    """Return steps with as much of their outputs as people look at."""
    shown, left = [], MOST_SHOWN
    for view in steps:
        size = len(json.dumps(view.output)) if view.output is not None else 0
        if size > left:
            view = view.model_copy(update={"output": {"too_large": {"bytes": size}}})
        else:
            left -= size
        shown.append(view)
    return shown


def view_of(book: Book) -> RunView:
    """Return the answer of the query ``view``."""
    result = result_of(book)
    return RunView(
        result=result.model_copy(update={"steps": _shown(result.steps)}),
        tenant=book.request.tenant,
        user=book.request.user,
        started_by=book.request.started_by or book.request.user,
        plan=book.request.plan,
        plan_version=book.plan_version,
        durability=book.request.mode,
        started_at=book.started_at,
        pending=list(book.gate.pending.values()),
        held=book.held_approvals(),
        interrupts=list(book.interrupts.values()),
        settled=book.gate.settled_views(),
        verdicts=list(book.gate.verdicts.values()),
        timeline=list(book.timeline),
        refused_signals=list(book.refused_signals),
    )


def checkpoint_of(book: Book, now: datetime, budget: dict[str, Any] | None = None) -> Checkpoint:
    """Return the answer of the query ``checkpoint``."""
    done = [view.id for view in book.in_state(StepState.SUCCEEDED)]
    effects = book.effects.values() if book.final_effects is None else book.final_effects
    first = next(iter(book.gate.pending.values()), None)
    return Checkpoint(
        checkpoint_id=f"{book.request.run_id}@{book.head.seq if book.head else 0}",
        run_id=book.request.run_id,
        created_at=now,
        created_by=book.request.user,
        ttl=None,
        plan_version=book.plan_version,
        current_steps=[
            CurrentStep(
                step_id=view.id,
                tool=view.tool,
                state=view.state,
                attempt=view.attempts + 1,
                started_at=book.begun.get(view.id),
            )
            for view in book.in_state(*OPEN)
        ],
        completed_steps=done,
        recovery_point=done[-1] if done else "start",
        pending_call=PendingCall(
            tool=first.tool, params_hash=first.params_hash, approval_id=first.approval_id
        )
        if first
        else None,
        pending_side_effects=[] if book.ended else book.saga.unsettled(),
        side_effects=[
            SideEffect(tool=view.tool, idempotency_key=view.key, state=view.state)
            for view in effects
        ],
        pending_interrupts=[waiting.id for waiting in result_of(book).waiting_for],
        artifact_refs=_artifact_refs(book),
        permissions_snapshot={"user": book.request.user, "tenant": book.request.tenant},
        budget=budget or {},
        last_error=book.last_error,
        resume_policy=_resume_policy(book),
    )


def _artifact_refs(book: Book) -> list[str]:
    found = [as_artifact(view.output) for view in book.steps.values()]
    return [artifact.uri for artifact in found if artifact is not None]


def _resume_policy(book: Book) -> ResumePolicy:
    state = book.state
    if state in ENDED:
        return ResumePolicy.MANUAL
    if state in _POLICIES:
        return _POLICIES[state]
    unsettled = book.saga.unsettled()
    return ResumePolicy.RECONCILE_FIRST if unsettled else ResumePolicy.RETRY_CURRENT_STEP
