"""``AgentRun``: one durable execution of a plan."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from workflows import names
    from workflows.contracts import (
        RunResult,
        StartRun,
        StepState,
    )
    from workflows.ends import StepFailed
    from workflows.plan import Goto, Step
    from workflows.run import Run, ended


@workflow.defn(name=names.WORKFLOW)
class AgentRun(Run):
    """One durable execution of a plan."""

    @workflow.run
    async def run(self, request: StartRun) -> RunResult:
        """Run the plan.

        Raises:
            ApplicationError: ``PlanInvalid``, ``RunIdTaken``, or ``RunFailed`` with the result in
                its details.
        """
        return await self.drive(self._forward)

    async def _forward(self) -> str | None:
        """Run the plan's steps; returns why it cannot finish, or ``None``."""
        book, running = self._book, dict[str, asyncio.Task[Goto | None]]()
        if not book.lives:
            self._settled |= self._taken_over(self._stepper.facts)
        settled, facts, failure = self._settled, self._stepper.facts, None
        dropped = False
        try:
            while self._book.cancel is None:
                if self._may_amend(running):
                    await self._undisturbed(self._amending.apply(running, settled, facts))
                self._freshness.begin(settled)
                knows = self._stepper.calling.knows
                ready = self._ready(running)
                if (running or ready) and self._continuing.possible():
                    self._continuing.go(settled, facts)
                held = self._continuing.due()
                for step in ready:
                    # What was under way in the execution before goes on, whatever is held back.
                    under_way = step.id in book.progress or step.id in book.stale
                    if not held or under_way or knows(step.id):
                        running[step.id] = asyncio.create_task(self._steps.run(step))
                if not running and not ready:
                    if book.amending:
                        await workflow.wait_condition(partial(self._amended, running))
                    elif await self._all_stands() and not book.amending:
                        return None
                    continue
                await workflow.wait_condition(partial(self._moves, running, held))
                for step_id in [s for s, task in running.items() if task.done()]:
                    step = book.request.plan.step(step_id)
                    task = running.pop(step_id)
                    await self._undisturbed(self._freshness.ended(step, running, settled))
                    failure = failure or self._settle(step, task, settled)
                if failure is not None:
                    break
        except StepFailed as lost:
            failure = lost.reason
        except asyncio.CancelledError:
            self._note_cancellation()
        except GeneratorExit:
            dropped = True  # Nobody has this run any more: there is nothing to wait in.
            raise
        finally:
            if not dropped:
                # A call under way ends and is recorded; a wait for a human ends at once.
                book.stopping = True
                for task in running.values():
                    task.cancel()
                await self._undisturbed(ended(list(running.values())))
        return failure

    def _taken_over(self, facts: dict[str, Any]) -> set[str]:
        """Take the facts of the run that this one begins from; returns the steps that are done."""
        book, linked = self._book, self._book.request.linked
        if linked is None:
            return set()
        taken = {k: v for k, v in linked.outputs.items() if k in book.steps}
        for step_id, output in taken.items():
            facts[step_id] = output
            book.set_step(
                step_id, StepState.SUCCEEDED, output=output, made_by=linked.run_id, replayed=True
            )
        book.say(workflow.now(), f"begins from run {linked.run_id}")
        return set(taken)

    def _ready(self, running: dict[str, asyncio.Task[Goto | None]]) -> list[Step]:
        """Return the steps that can begin; held for another plan, those that have been called."""
        book, knows = self._book, self._stepper.calling.knows
        ready = book.request.plan.ready(frozenset(self._settled), frozenset(running))
        if not book.amending:
            return ready
        return [step for step in ready if knows(step.id) or step.id in book.unheard]

    def _may_amend(self, running: dict[str, asyncio.Task[Goto | None]]) -> bool:
        """Return whether all that was done under the plan so far has had its turn."""
        return self._amending.due(running) and not self._ready(running)

    def _amended(self, running: dict[str, asyncio.Task[Goto | None]]) -> bool:
        """Return whether the run is not held for another plan, or need not be any more."""
        book = self._book
        return not book.amending or book.cancel is not None or self._may_amend(running)

    def _moves(self, running: dict[str, asyncio.Task[Goto | None]], held: bool) -> bool:
        """Return whether there is something to do beside the steps that are under way."""
        return (
            any(task.done() for task in running.values())
            or self._book.cancel is not None
            or self._may_amend(running)
            or self._freshness.due(self._settled)
            or self._continuing.possible()
            or self._continuing.due() is not held
        )

    def _settle(self, step: Step, task: asyncio.Task[Goto | None], settled: set[str]) -> str | None:
        """Take note of a finished step; returns why the run cannot go on, or ``None``."""
        plan = self._book.request.plan
        settled.add(step.id)
        try:
            follows = task.result()
        except StepFailed as failed:
            after = plan.on_reject(step) if failed.rejected else plan.on_failure(step)
            if failed.unsettled or failed.given_up or after in ("compensate", "pause", "replan"):
                return f"step {step.id}: {failed.reason}"
            follows = after if isinstance(after, Goto) else None
        if follows is not None:
            for skipped in plan.skipped_by_goto(step.id, follows.goto) - settled:
                if self._book.steps[skipped].state is StepState.PENDING:
                    self._book.set_step(skipped, StepState.SKIPPED)
                    settled.add(skipped)
            self._book.say(workflow.now(), f"going on at {follows.goto}", step.id)
        return None
