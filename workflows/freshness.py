"""Reads whose output stays fresh for a while: made again when a run is resumed later than that.

Whoever pauses a run may resume it days later. What a call rests on may have changed by then, and
with it what its approver has seen: such approvals are void, and asked for again. What has begun
stays as it is: calls, also those whose outcome is unknown, lists and child runs under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Set
from typing import Any

from temporalio import workflow

from workflows.book import WAITING, Book
from workflows.coherence import ancestors, descendants
from workflows.contracts import Effect, StepState, ToolSpec
from workflows.desk import Desk
from workflows.plan import Step


class Freshness:
    """Has one run look again at what it has read."""

    def __init__(
        self, book: Book, facts: dict[str, Any], tools: Mapping[str, ToolSpec], desk: Desk
    ) -> None:
        self._book = book
        self._facts = facts
        self._tools = tools
        self._desk = desk

    def look(self) -> list[str]:
        """Hold back what rests on stale outputs; returns the reads that are to be made again."""
        book, plan = self._book, self._book.request.plan
        ahead = {step.id for step in plan.steps if self._is_ahead(step)}
        stale = [one for one in ancestors(plan.uses, *ahead) if self._is_stale(one)]
        for step_id in stale:
            book.stale[step_id] = self._facts.get(step_id)
        self._hold(ahead)
        return sorted(stale)

    def due(self, settled: set[str]) -> bool:
        """Return whether reads wait to be made again."""
        return not settled.isdisjoint(self._book.stale)

    def begin(self, settled: set[str]) -> None:
        """Have the stale reads made again, as steps that are not done."""
        for step_id in sorted(settled & self._book.stale.keys()):
            self._again(step_id, settled)

    async def ended(
        self, step: Step, running: dict[str, asyncio.Task[Any]], settled: set[str]
    ) -> None:
        """Take note of the end of a step: if it was read again, of what follows from it.

        Args:
            step: The step.
            running: The steps under way; those that are given up are taken out.
            settled: The steps that are done; those that are made again are taken out.
        """
        book = self._book
        if step.id not in book.stale:
            return
        before = book.stale.pop(step.id)
        if self._facts.get(step.id) == before:
            book.say(workflow.now(), "read again: as before", step.id)
        else:
            book.say(workflow.now(), "read again: changed; what rests on it begins anew", step.id)
            await self._begin_anew(step.id, running, settled)
        self._hold(book.held)

    async def _begin_anew(
        self, changed: str, running: dict[str, asyncio.Task[Any]], settled: set[str]
    ) -> None:
        book, plan = self._book, self._book.request.plan
        to_follow, seen = [changed], {changed}
        while to_follow:
            one = to_follow.pop()
            for step in plan.steps:
                if one not in plan.uses[step.id] or step.id in seen | book.stale.keys():
                    continue
                seen.add(step.id)
                if step.id in settled and self._is_read(step):
                    book.stale[step.id] = self._facts.get(step.id)
                    self._again(step.id, settled)
                elif step.id in settled:
                    # Nothing makes it again; who approves what rests on it is to know all the same.
                    to_follow.append(step.id)
                elif step.id in running and self._is_ahead(step) and not self._goes_on(step.id):
                    await self._give_up(step.id, running.pop(step.id))

    async def _give_up(self, step_id: str, task: asyncio.Task[Any]) -> None:
        task.cancel()
        await workflow.wait_condition(task.done)
        for approval_id in self._book.gate.standing_of(step_id):
            await self._desk.close_approval(approval_id, expired=False)
        self._book.set_step(step_id, StepState.PENDING)

    def _hold(self, steps: Set[str]) -> None:
        """Hold back those of these steps that rest on what is still to be read again."""
        book = self._book
        book.held = set(steps & descendants(book.request.plan.uses, *book.stale))

    def _again(self, step_id: str, settled: set[str]) -> None:
        settled.discard(step_id)
        self._facts.pop(step_id, None)
        self._book.set_step(step_id, StepState.PENDING)

    def _is_ahead(self, step: Step) -> bool:
        """Return whether a step can be held back: nothing of it may have happened yet."""
        state = self._book.steps[step.id].state
        if step.id in self._book.unheard:
            return False
        if state is StepState.PENDING:
            return True
        if state not in WAITING or step.for_each is not None or step.plan is not None:
            return False
        return step.id not in self._book.saga.unsettled()

    def _goes_on(self, step_id: str) -> bool:
        """Return whether somebody has said how a step goes on: its params are resolved then."""
        at = self._book.at(step_id)
        return at.step is not None and at.call is None

    def _is_read(self, step: Step) -> bool:
        spec = self._tools.get(step.tool)
        done = self._book.steps[step.id].state is StepState.SUCCEEDED
        return done and step.for_each is None and spec is not None and spec.effect is Effect.READ

    def _is_stale(self, step_id: str) -> bool:
        book = self._book
        step, read_at = book.request.plan.step(step_id), book.read_at.get(step_id)
        if read_at is None or not self._is_read(step) or step_id in book.stale:
            return False
        fresh_for = self._tools[step.tool].fresh_for
        return fresh_for is not None and workflow.now() - read_at >= fresh_for
