"""The activity that runs a stretch: steps one after another, the ledger being their checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import structlog
from structlog.contextvars import bound_contextvars
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.ahead import Ahead, Begun
from activities.attempt import Attempt, Resources
from activities.endings import again, stop
from activities.ledger import steps as step_rows
from activities.ledger import stretches
from activities.ledger.stretches import GivenUp, Holding, Overtaken
from activities.ledger.takes import OVERTAKEN_PAUSE
from activities.telemetry import tell_failure
from activities.tools import ToolActivities
from workflows.contracts import (
    AttemptsUsed,
    FailedStep,
    StepReport,
    Stretch,
    StretchReport,
    Succeeded,
    ToolCall,
    stretch_name,
)
from workflows.errors import ErrorType
from workflows.late import resolve_inline
from workflows.references import ReferenceUnresolved

log = structlog.get_logger()


class StretchActivities:
    """``run_stretch``."""

    def __init__(self, resources: Resources, tools: ToolActivities) -> None:
        self._resources = resources
        self._tools = tools

    @activity.defn(name="run_stretch")
    async def run_stretch(self, stretch: Stretch) -> StretchReport:
        """Run steps until one does not simply succeed, or the run wants to look in between.

        A failure that is tried again is raised: the next attempt finds what is done in the ledger.
        """
        attempt = await self._begin(stretch, Attempt.current())
        done: list[StepReport] = []
        facts = dict(stretch.facts)
        call: ToolCall | None = stretch.first
        own, begun = attempt.of_next_step(unheard=stretch.again), None
        # Between an outcome and the next claim, and nowhere else.
        while call is not None and (_is_claimed(begun) or await self._may_begin(stretch, call)):
            ahead = self._ahead(stretch, attempt, call.step_id, facts, len(done))
            attempt.doing.text = call.step_id
            with bound_contextvars(step_id=call.step_id):
                try:
                    report = await self._tools.make(call, own, ahead, begun)
                except ApplicationError as error:
                    if not error.non_retryable or not done:
                        raise
                    tell_failure(log, error)
                    return StretchReport(steps=done, failed=_failed(call, error))
            done.append(StepReport(step_id=call.step_id, report=report))
            if not isinstance(report.outcome, Succeeded):
                break
            facts[call.step_id] = report.outcome.output
            own, begun = ahead.attempt, ahead.begun
            call = begun.next.call if begun else _call(stretch, len(done) - 1, facts)
        return StretchReport(steps=done)

    async def _may_begin(self, stretch: Stretch, call: ToolCall) -> bool:
        if activity.is_cancelled():
            return False
        first = call.step_id == stretch.first.step_id
        if first or stretch.follows is None:
            return True
        async with self._resources.ledger.transaction(call.tenant) as tx:
            return await step_rows.has_begun(tx, call.run_id, call.step_id)

    async def _begin(self, stretch: Stretch, attempt: Attempt) -> Attempt:
        """Make a stretch this attempt's own, so that no other goes on with it.

        Raises:
            ApplicationError: ``StepBarred``: it was given up. ``LeaseHeld``: a later attempt has
                begun.
        """
        info, call = activity.info(), stretch.first
        execution = info.workflow_run_id or ""
        scheduled_ms = int(info.current_attempt_scheduled_time.timestamp() * 1000)
        mine = Holding(scheduled_ms, execution, stretch.number, attempt.holder)
        try:
            async with self._resources.ledger.transaction(call.tenant) as tx:
                if stretch.follows is not None:
                    followed = stretch_name(execution, stretch.follows)
                    await stretches.give_up(tx, call.run_id, [followed])
                others = await stretches.begin(tx, call.run_id, mine)
        except GivenUp as error:
            raise stop(ErrorType.STEP_BARRED, str(error)) from error
        except Overtaken as error:
            raise again(ErrorType.LEASE_HELD, str(error), OVERTAKEN_PAUSE) from error
        return replace(attempt, stretch=mine.token, unheard=attempt.unheard or others)

    def _ahead(
        self, stretch: Stretch, attempt: Attempt, step_id: str, facts: dict[str, Any], number: int
    ) -> Ahead:
        def call_after(output: Any) -> ToolCall | None:
            if activity.is_cancelled() or stretch.follows is not None:
                return None
            return _call(stretch, number, {**facts, step_id: output})

        next_attempt = attempt.of_next_step(unheard=stretch.again)
        return Ahead(self._resources, next_attempt, call_after)


def _call(stretch: Stretch, number: int, facts: dict[str, Any]) -> ToolCall | None:
    """Return the call of one of the following steps, made of what the ones before have returned.

    ``None`` where there is none, or it refers to what is not there: the run says so itself.
    """
    if number >= len(stretch.following):
        return None
    step, first = stretch.following[number], stretch.first
    try:
        params, late = resolve_inline(step.params, {**facts, **step.own})
    except ReferenceUnresolved:
        return None
    return ToolCall(
        tenant=first.tenant,
        run_id=first.run_id,
        step_id=step.id,
        plan_version=first.plan_version,
        user=first.user,
        tool=stretch.tools[step.tool],
        params=params,
        late=late,
        attempts_before=step.attempts_before,
    )


def _is_claimed(begun: Begun | None) -> bool:
    return begun is not None and begun.claimed is not None


def _failed(call: ToolCall, error: ApplicationError) -> FailedStep:
    used = error.details[0] if error.details else None
    attempts = used.attempts if isinstance(used, AttemptsUsed) else 0
    return FailedStep(
        step_id=call.step_id, type=error.type, message=error.message, attempts=attempts
    )
