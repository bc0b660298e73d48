"""Reads whose output stays fresh for a while: made again when a run is resumed later than that.

Whoever pauses a run may resume it days later. What a call rests on may have changed by then, and
with it what its approver has seen: such approvals are void, and asked for again. What has begun
stays as it is: calls, also those whose outcome is unknown, lists and child runs under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Set
from typing import Any

from temporalio import workflow

from surehand.workflows.contracts.states import StepState
from surehand.workflows.contracts.tools import Effect
from surehand.workflows.control.decisions import Decisions
from surehand.workflows.plan.plan import Step
from surehand.workflows.plan.validation import ancestors, descendants
from surehand.workflows.state.run_state import WAITING, RunData


class Freshness:
    """Has one run look again at what it has read."""

    def __init__(self, data: RunData, decisions: Decisions) -> None:
        self._data = data
        self._decisions = decisions

    def look(self) -> list[str]:
        """Hold back what rests on stale outputs; returns the reads that are to be made again."""
        data, plan = self._data, self._data.request.plan
        ahead = {step.id for step in plan.steps if self._is_ahead(step)}
        stale = [one for one in ancestors(plan.uses, *ahead) if self._is_stale(one)]
        for step_id in stale:
            data.stale[step_id] = self._data.facts.get(step_id)
        self._hold(ahead)
        return sorted(stale)

    def due(self) -> bool:
        """Return whether reads wait to be made again."""
        return not self._data.settled.isdisjoint(self._data.stale)

    def begin(self) -> None:
        """Have the stale reads made again, as steps that are not done."""
        for step_id in sorted(self._data.settled & self._data.stale.keys()):
            self._read_again(step_id)

    async def ended(self, step: Step, running: dict[str, asyncio.Task[Any]]) -> None:
        """Take note of the end of a step: if it was read again, of what follows from it.

        Args:
            step: The step.
            running: The steps under way; those that are given up are taken out.
        """
        data = self._data
        if step.id not in data.stale:
            return
        before = data.stale.pop(step.id)
        if self._data.facts.get(step.id) == before:
            data.add_line(workflow.now(), "read again: as before", step.id)
        else:
            data.add_line(
                workflow.now(), "read again: changed; what rests on it begins anew", step.id
            )
            await self._begin_anew(step.id, running)
        self._hold(data.held)

    async def _begin_anew(self, changed: str, running: dict[str, asyncio.Task[Any]]) -> None:
        data, plan = self._data, self._data.request.plan
        to_follow, seen = [changed], {changed}
        while to_follow:
            one = to_follow.pop()
            for step in plan.steps:
                if one not in plan.uses[step.id] or step.id in seen | data.stale.keys():
                    continue
                seen.add(step.id)
                if step.id in data.settled and self._is_read(step):
                    data.stale[step.id] = self._data.facts.get(step.id)
                    self._read_again(step.id)
                elif step.id in data.settled:
                    # Nothing makes it again; who approves what rests on it is to know all the same.
                    to_follow.append(step.id)
                elif step.id in running and self._is_ahead(step) and not self._goes_on(step.id):
                    await self._give_up(step.id, running.pop(step.id))

    async def _give_up(self, step_id: str, task: asyncio.Task[Any]) -> None:
        task.cancel()
        await workflow.wait_condition(task.done)
        for approval_id in self._data.gate.standing_of(step_id):
            await self._decisions.close(approval_id, expired=False)
        self._data.set_step(step_id, StepState.PENDING)

    def _hold(self, steps: Set[str]) -> None:
        """Hold back those of these steps that rest on what is still to be read again."""
        data = self._data
        data.held = set(steps & descendants(data.request.plan.uses, *data.stale))

    def _read_again(self, step_id: str) -> None:
        self._data.settled.discard(step_id)
        self._data.facts.pop(step_id, None)
        self._data.set_step(step_id, StepState.PENDING)

    def _is_ahead(self, step: Step) -> bool:
        """Return whether a step can be held back: nothing of it may have happened yet."""
        state = self._data.steps[step.id].state
        if step.id in self._data.unacknowledged:
            return False
        if state is StepState.PENDING:
            return True
        if state not in WAITING or step.for_each is not None or step.plan is not None:
            return False
        if self._data.progress_of(step.id).outcome is not None:
            return False  # It has been called, and waits for what follows from it.
        return step.id not in self._data.saga.unsettled()

    def _goes_on(self, step_id: str) -> bool:
        """Return whether somebody has said how a step goes on: its params are resolved then."""
        at = self._data.progress_of(step_id)
        return at.step is not None and at.call is None

    def _is_read(self, step: Step) -> bool:
        spec = self._data.tools.get(step.tool)
        done = self._data.steps[step.id].state is StepState.SUCCEEDED
        return done and step.for_each is None and spec is not None and spec.effect is Effect.READ

    def _is_stale(self, step_id: str) -> bool:
        data = self._data
        step, read_at = data.request.plan.step(step_id), data.of_step(step_id).read_at
        if read_at is None or not self._is_read(step) or step_id in data.stale:
            return False
        fresh_for = self._data.tools[step.tool].fresh_for
        return fresh_for is not None and workflow.now() - read_at >= fresh_for
