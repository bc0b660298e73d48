"""``AgentRun``: one durable execution of a plan."""

from __future__ import annotations

import asyncio
from functools import partial

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from surehand.workflows import names
    from surehand.workflows.contracts.runs import RunResult, StartRun
    from surehand.workflows.contracts.states import StepState
    from surehand.workflows.plan.plan import Goto, Step
    from surehand.workflows.run.run import Run, ended
    from surehand.workflows.state.records import StepFailed
    from surehand.workflows.steps import rules


@workflow.defn(name=names.WORKFLOW, sandboxed=False)
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
        data, running = self._data, dict[str, asyncio.Task[Goto | None]]()
        if not data.lives:
            data.settled |= self._taken_over()
        failure, dropped = None, False
        try:
            while self._data.cancel is None:
                if self._may_amend(running):
                    await self._undisturbed(self._amendment.apply(running))
                self._freshness.begin()
                knows = self._runner.tool_calls.knows
                ready = self._ready(running)
                if (running or ready) and self._continuing.possible():
                    # Whoever has woken up with it goes first: else a wait that is over, such as an
                    # approval's, is over in each execution, and none of them gets to it.
                    await asyncio.sleep(0)
                    # The end of a step is known here only, until it is settled.
                    if not any(task.done() for task in running.values()):
                        if self._continuing.possible():
                            self._continuing.go()
                        continue
                held = self._continuing.due()
                for step in ready:
                    # What was under way in the execution before goes on, whatever is held back.
                    under_way = step.id in data.progress or step.id in data.stale
                    if not held or under_way or knows(step.id):
                        running[step.id] = asyncio.create_task(self._scheduler.run(step))
                if not running and not ready:
                    if data.amending:
                        await workflow.wait_condition(partial(self._amended, running))
                    elif await self._complete() and not data.amending:
                        return None
                    continue
                await workflow.wait_condition(partial(self._moves, running, held))
                for step_id in [s for s, task in running.items() if task.done()]:
                    step = data.request.plan.step(step_id)
                    task = running.pop(step_id)
                    await self._undisturbed(self._freshness.ended(step, running))
                    failure = failure or self._settle(step, task)
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
                data.stopping = True
                for task in running.values():
                    task.cancel()
                await self._undisturbed(ended(list(running.values())))
        return failure

    def _taken_over(self) -> set[str]:
        """Take the facts of the run that this one begins from; returns the steps that are done."""
        data, linked = self._data, self._data.request.linked
        if linked is None:
            return set()
        taken = {k: v for k, v in linked.outputs.items() if k in data.steps}
        for step_id, output in taken.items():
            data.facts[step_id] = output
            data.set_step(
                step_id, StepState.SUCCEEDED, output=output, made_by=linked.run_id, replayed=True
            )
        data.add_line(workflow.now(), f"begins from run {linked.run_id}")
        return set(taken)

    def _ready(self, running: dict[str, asyncio.Task[Goto | None]]) -> list[Step]:
        """Return the steps that can begin; held for another plan, those that have been called."""
        data, knows = self._data, self._runner.tool_calls.knows
        ready = data.request.plan.ready(frozenset(data.settled), frozenset(running))
        if not data.amending:
            return ready
        # What had begun in the execution before is under way: the plan waits for it.
        begun = data.unacknowledged | data.progress.keys()
        return [step for step in ready if knows(step.id) or step.id in begun]

    def _may_amend(self, running: dict[str, asyncio.Task[Goto | None]]) -> bool:
        """Return whether all that was done under the plan so far has had its turn."""
        return self._amendment.due(running) and not self._ready(running)

    def _amended(self, running: dict[str, asyncio.Task[Goto | None]]) -> bool:
        """Return whether the run is not held for another plan, or need not be any more."""
        data = self._data
        return not data.amending or data.cancel is not None or self._may_amend(running)

    def _moves(self, running: dict[str, asyncio.Task[Goto | None]], held: bool) -> bool:
        """Return whether there is something to do beside the steps that are under way."""
        return (
            any(task.done() for task in running.values())
            or self._data.cancel is not None
            or self._may_amend(running)
            or self._freshness.due()
            or self._continuing.possible()
            or self._continuing.due() is not held
        )

    def _settle(self, step: Step, task: asyncio.Task[Goto | None]) -> str | None:
        """Take note of a finished step; returns why the run cannot go on, or ``None``."""
        plan, settled = self._data.request.plan, self._data.settled
        settled.add(step.id)
        try:
            follows = task.result()
        except StepFailed as failed:
            goes_on = rules.after_failure(plan, step, failed)
            if goes_on is None:
                return f"step {step.id}: {failed.reason}"
            follows = goes_on.at
        if follows is not None:
            for skipped in rules.left_out(plan, step, follows, settled):
                if self._data.steps[skipped].state is StepState.PENDING:
                    self._data.set_step(skipped, StepState.SKIPPED)
                    settled.add(skipped)
            self._data.add_line(workflow.now(), f"going on at {follows.goto}", step.id)
        return None
