"""The activity that runs a stretch: steps one after another, the ledger being their checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from structlog.contextvars import bound_contextvars
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.attempt import Attempt, to_the_end
from activities.tools import ToolActivities
from workflows.contracts import (
    AttemptsUsed,
    FailedStep,
    NextStep,
    StepReport,
    Stretch,
    StretchReport,
    Succeeded,
    ToolCall,
)
from workflows.late import resolve_inline
from workflows.references import ReferenceUnresolved


class StretchActivities:
    """``run_stretch``."""

    def __init__(self, tools: ToolActivities) -> None:
        self._tools = tools

    @activity.defn(name="run_stretch")
    async def run_stretch(self, stretch: Stretch) -> StretchReport:
        """Run steps until one does not simply succeed, or the run wants to look in between.

        A failure that is tried again is raised: the next attempt finds what is done in the ledger.
        """
        attempt = Attempt.current()
        return await to_the_end(self._run(stretch, attempt), attempt.doing)

    async def _run(self, stretch: Stretch, attempt: Attempt) -> StretchReport:
        done: list[StepReport] = []
        facts = dict(stretch.facts)
        calls = _calls(stretch, facts)
        for call in calls:
            # Between an outcome and the next claim, and nowhere else.
            if activity.is_cancelled():
                break
            attempt.doing.text = call.step_id
            try:
                with bound_contextvars(step_id=call.step_id):
                    report = await self._tools.make(call, attempt.of_next_step())
            except ApplicationError as error:
                if not error.non_retryable or not done:
                    raise
                return StretchReport(steps=done, failed=_failed(call, error))
            done.append(StepReport(step_id=call.step_id, report=report))
            if not isinstance(report.outcome, Succeeded):
                break
            facts[call.step_id] = report.outcome.output
        return StretchReport(steps=done)


def _calls(stretch: Stretch, facts: dict[str, Any]) -> Iterator[ToolCall]:
    """Yield the calls of a stretch, each made of what the ones before it have returned.

    Ends where a step refers to what is not there: the run says so itself.
    """
    yield stretch.first
    for step in stretch.following:
        try:
            params, late = resolve_inline(step.params, facts)
        except ReferenceUnresolved:
            return
        yield _call(stretch, step, params, late)


def _call(stretch: Stretch, step: NextStep, params: Any, late: Any) -> ToolCall:
    first = stretch.first
    return ToolCall(
        tenant=first.tenant,
        run_id=first.run_id,
        step_id=step.id,
        plan_version=first.plan_version,
        user=first.user,
        tool=stretch.tools[step.tool],
        params=params,
        late=late,
    )


def _failed(call: ToolCall, error: ApplicationError) -> FailedStep:
    used = error.details[0] if error.details else None
    attempts = used.attempts if isinstance(used, AttemptsUsed) else 0
    return FailedStep(
        step_id=call.step_id, type=error.type, message=error.message, attempts=attempts
    )
