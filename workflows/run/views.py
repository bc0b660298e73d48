"""What people see of a run: its result, and the answers of the queries."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from surehand.workflows.contracts.artifacts import as_artifact
from surehand.workflows.contracts.checkpoint import (
    Checkpoint,
    CurrentStep,
    PendingCall,
    ResumePolicy,
    SideEffect,
)
from surehand.workflows.contracts.runs import RunResult, RunView, cut_to_fit
from surehand.workflows.contracts.states import ENDED, RunState, StepState
from surehand.workflows.state.records import StepRecord
from surehand.workflows.state.run_state import OPEN, RunData

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


def result_of(data: RunData) -> RunResult:
    """Return how the run ended, or stands."""
    own = list(data.effects.values()) if data.final_effects is None else data.final_effects
    return RunResult(
        run_id=data.request.run_id,
        state=data.state,
        steps=list(data.steps.values()),
        more_steps=data.more_steps,
        more_effects=data.more_effects,
        more_uncompensated=data.more_uncompensated,
        effects=own,
        uncompensated=data.uncompensated,
        waiting_for=[] if data.ended else data.waiting(),
        foreign=data.foreign,
        error=data.last_error,
        output=data.output,
    )


def view_of(data: RunData) -> RunView:
    """Return the answer of the query ``view``."""
    result = result_of(data)
    return RunView(
        result=result.model_copy(update={"steps": cut_to_fit(result.steps, MOST_SHOWN)}),
        tenant=data.request.tenant,
        user=data.request.user,
        started_by=data.request.started_by or data.request.user,
        plan=data.request.plan,
        plan_version=data.plan_version,
        durability=data.request.mode,
        started_at=data.started_at,
        # What was read since the request counts, too.
        pending=[
            request.model_copy(update={"foreign": data.foreign})
            for request in data.gate.pending.values()
        ],
        held=data.held_approvals(),
        interrupts=list(data.interrupts.values()),
        settled=data.gate.settled_views(),
        verdicts=list(data.inbox.verdicts.values()),
        timeline=list(data.timeline),
        refused_signals=list(data.refused_signals),
    )


def checkpoint_of(data: RunData, now: datetime, budget: dict[str, Any] | None = None) -> Checkpoint:
    """Return the answer of the query ``checkpoint``."""
    done = [view.id for view in data.in_state(StepState.SUCCEEDED)]
    effects = data.effects.values() if data.final_effects is None else data.final_effects
    first = next(iter(data.gate.pending.values()), None)
    return Checkpoint(
        checkpoint_id=f"{data.request.run_id}@{data.head.seq if data.head else 0}",
        run_id=data.request.run_id,
        created_at=now,
        created_by=data.request.user,
        ttl=None,
        plan_version=data.plan_version,
        current_steps=[
            CurrentStep(
                step_id=view.id,
                tool=view.tool,
                state=view.state,
                attempt=view.attempts + 1,
                started_at=data.records.get(view.id, StepRecord()).begun,
            )
            for view in data.in_state(*OPEN)
        ],
        completed_steps=done,
        recovery_point=done[-1] if done else "start",
        pending_call=PendingCall(
            tool=first.tool, params_hash=first.params_hash, approval_id=first.approval_id
        )
        if first
        else None,
        pending_side_effects=[] if data.ended else data.saga.unsettled(),
        side_effects=[
            SideEffect(tool=view.tool, idempotency_key=view.key, state=view.state)
            for view in effects
        ],
        pending_interrupts=[waiting.id for waiting in result_of(data).waiting_for],
        artifact_refs=_artifact_refs(data),
        foreign=data.foreign,
        permissions_snapshot={"user": data.request.user, "tenant": data.request.tenant},
        budget=budget or {},
        last_error=data.last_error,
        resume_policy=_resume_policy(data),
    )


def _artifact_refs(data: RunData) -> list[str]:
    found = [as_artifact(view.output) for view in data.steps.values()]
    return [artifact.uri for artifact in found if artifact is not None]


def _resume_policy(data: RunData) -> ResumePolicy:
    state = data.state
    if state in ENDED:
        return ResumePolicy.MANUAL
    if state in _POLICIES:
        return _POLICIES[state]
    unsettled = data.saga.unsettled()
    return ResumePolicy.RECONCILE_FIRST if unsettled else ResumePolicy.RETRY_CURRENT_STEP
