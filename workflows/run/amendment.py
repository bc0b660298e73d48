"""Amending a run: another plan, at a consistent point, with what is done as facts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from temporalio import workflow

from surehand.workflows import ports
from surehand.workflows.activity_client import ActivityClient
from surehand.workflows.compensation import Compensation
from surehand.workflows.contracts.runs import Amend, AmendRun, StepView
from surehand.workflows.contracts.states import StepState
from surehand.workflows.contracts.steering import Verb
from surehand.workflows.contracts.tools import in_words
from surehand.workflows.control.child_runs import Children
from surehand.workflows.control.inbox import Control
from surehand.workflows.control.interrupts import Decisions
from surehand.workflows.deliveries import Answer, Delivery
from surehand.workflows.plan.plan import ITERATION, Plan
from surehand.workflows.plan.references import INPUT
from surehand.workflows.state.records import NO_MORE
from surehand.workflows.state.run_state import WAITING, RunData, StepViews

#: What stays as it is.
_FACTS: Final = frozenset({StepState.SUCCEEDED, StepState.FAILED})


class Amendment:
    """Gives one run another plan."""

    def __init__(
        self,
        data: RunData,
        call: ActivityClient,
        control: Control,
        decisions: Decisions,
        compensation: Compensation,
        children: Children,
        heard: Callable[[], bool],
    ) -> None:
        self._data = data
        self._call = call
        self._decisions = decisions
        self._compensation = compensation
        self._children = children
        self._heard = heard
        """Whether the run has heard of every call that has been begun, or knows that it has not."""
        control.take_steering(Verb.AMEND, self._asked)

    async def _asked(self, asked: Amend, delivery: Delivery) -> Answer:
        data = self._data
        if data.ending:
            return Answer(accepted=False, message="the run is ending")
        if data.request.plan.code is not None or asked.plan.code is not None:
            return Answer(
                accepted=False, message="where code makes the steps there is no plan to amend"
            )
        if data.next_plan is not None:
            return Answer(
                accepted=False, message=f"{data.next_plan.actor} is amending the plan already"
            )
        if asked.based_on != data.plan_version:
            reason = f"the plan is at version {data.plan_version}, not {asked.based_on}"
            return Answer(accepted=False, message=f"{reason}: look at it again")
        # Held from here on: what the new plan would lose sight of does not grow meanwhile.
        data.amending = True
        try:
            refused = await self._refused(asked, delivery)
            if refused is None:
                data.next_plan = asked
        finally:
            data.amending = data.next_plan is not None
        if refused is not None:
            return Answer(accepted=False, message=refused)
        return Answer(accepted=True, message=f"going on with plan version {data.plan_version + 1}")

    async def _refused(self, asked: Amend, delivery: Delivery) -> str | None:
        """Record the new plan; returns why it is not, or ``None``."""
        data, request = self._data, self._data.request
        # Unless somebody else waits to be heard: what begins after that is undone, if dropped.
        await workflow.wait_condition(
            lambda: self._heard() or data.stopping or bool(data.inbox.queue)
        )
        data.unacknowledged.update(await self._compensation.recall())
        if data.ending:
            return "the run is ending"
        refused = self._loses(asked) or self._repeats(asked)
        if refused is not None:
            return refused
        amended = await self._call(
            ports.AMEND_RUN,
            AmendRun(
                tenant=request.tenant,
                run_id=request.run_id,
                plan=asked.plan,
                plan_version=data.plan_version + 1,
                steering_id=delivery.id,
            ),
            "validate and record the new plan",
        )
        if amended.problems:
            return in_words(amended.problems)
        data.keep_head(amended.head)
        data.tools.update(amended.tools)
        return None

    def _loses(self, asked: Amend) -> str | None:
        """Return which effects the new plan would lose sight of, as one clause."""
        new = {step.id: step for step in asked.plan.steps}
        for started in self._data.saga.steps():
            step_id = ITERATION.sub("", started)
            if step_id not in new:
                if step_id not in asked.drops:
                    how = f"say so (`--drop {step_id}`)"
                    return f"the plan drops step {step_id}, whose effect may stand: {how}"
            elif started in self._data.steps and (
                new[step_id].does != self._data.steps[started].tool
            ):
                return f"step {step_id} has been started: it cannot become {new[step_id].does}"
        return None

    def _repeats(self, asked: Amend) -> str | None:
        """Return which step the new plan would do again that is undone, as one clause."""
        data, new = self._data, {step.id for step in asked.plan.steps}
        for undone in sorted(data.saga.barred):
            step_id = ITERATION.sub("", undone)
            ended = step_id in data.settled and data.steps[step_id].state in _FACTS
            # A list that has begun ends before the new plan, whatever that says of it.
            ends = step_id in data.progress and step_id in data.request.plan.lists
            if step_id in new and not (ended or ends):
                return f"step {undone} {NO_MORE}"
        return None

    def due(self, running: Mapping[str, asyncio.Task[Any]]) -> bool:
        """Return whether there is a new plan, and no call under way or made that is to be heard."""
        data = self._data
        return (
            data.next_plan is not None
            and data.unacknowledged.isdisjoint(running)
            and all(
                data.steps[step_id].state in WAITING and not self._children.under_way(step_id)
                for step_id in running
            )
        )

    async def apply(self, running: dict[str, asyncio.Task[Any]]) -> None:
        """Give up what waits, and take the new plan over.

        Args:
            running: The steps under way; empty afterwards.
        """
        data = self._data
        asked = data.next_plan
        assert asked is not None
        given_up = set(running)
        for task in running.values():
            task.cancel()
        await workflow.wait_condition(lambda: all(task.done() for task in running.values()))
        for approval_id in list(data.gate.pending):
            await self._decisions.close(approval_id, expired=False)
        new = {step.id for step in asked.plan.steps}
        for step_id in data.saga.steps():
            # Begun since the plan was amended, or not: what goes on at its step is given up.
            dropped = step_id in asked.drops and step_id not in running
            if dropped:
                data.saga.accept(step_id)
            elif ITERATION.sub("", step_id) not in new:
                await self._compensation.undo(step_id)
        running.clear()
        # Of steps, too, that the execution before had under way.
        data.progress.clear()
        data.interrupts.clear()
        data.stale.clear()
        data.held.clear()
        self._show(asked.plan, given_up)
        # Those that were skipped may be ready again; one that was given up may have ended before.
        done = {v.id for v in data.steps.values() if v.state in _FACTS}
        data.settled = (data.settled | given_up) & done
        data.facts[INPUT] = asked.plan.input
        data.plan_version += 1
        data.add_line(workflow.now(), f"plan version {data.plan_version} by {asked.actor}")
        data.next_plan, data.amending = None, False

    def _show(self, plan: Plan, given_up: set[str]) -> None:
        data, kept = self._data, set(self._data.saga.steps())
        done = {
            view.id: view
            for view in data.steps.values()
            if view.state is StepState.SUCCEEDED
            # What was cut off has not failed.
            or (view.state is StepState.FAILED and view.id not in given_up)
        }
        data.request = data.request.model_copy(update={"plan": plan})
        ahead = {
            step.id: StepView(id=step.id, tool=step.does, state=StepState.PENDING)
            for step in plan.steps
        }
        # The end of the run looks at each write that was begun, also at those of the old plan; the
        # oldest items of long lists are not shown any more once the run has continued as new.
        begun = {
            id_: data.steps[id_].model_copy(update={"state": StepState.SKIPPED})
            for id_ in sorted((kept & data.steps.keys()) - ahead.keys())
        }
        data.steps = StepViews({**ahead, **begun, **done})
