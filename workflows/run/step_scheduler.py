"""The steps of a plan: under their conditions, for each item, and again after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from temporalio import workflow

from surehand.workflows import ports
from surehand.workflows.contracts.base import StepState
from surehand.workflows.contracts.runs import Evaluate, StepView
from surehand.workflows.contracts.steering import InterruptKind, ResumeRun, Way
from surehand.workflows.plan.plan import Goto, Step
from surehand.workflows.plan.references import INPUT, literal
from surehand.workflows.run import step_rules
from surehand.workflows.run.compensation import Compensation
from surehand.workflows.run.questions import Questions
from surehand.workflows.run.run_core import Continuing, RunPart
from surehand.workflows.run.run_data import OPEN
from surehand.workflows.run.run_records import StepFailed, StepProgress
from surehand.workflows.run.step_runner import StepRunner

#: Items in these states have not ended.
_TO_DO: Final = frozenset({StepState.PENDING, *OPEN})


@dataclass(eq=False)
class Scheduler(RunPart):
    """Runs the steps of one run: under their conditions, for each item, again after a failure."""

    _runner: StepRunner
    _compensation: Compensation
    _questions: Questions
    _continuing: Continuing

    async def run_planned(self, step: Step) -> Goto | None:
        """Run a step, for each item of its list; returns where to go on, if it says so."""
        goes_on = step.id in self._data.progress
        if (
            step.when is not None
            and not goes_on
            and not await self._condition_holds(step, step.when)
        ):
            self._data.facts[step.id] = step_rules.skipped(f"when: {step.when}")
            self._core.set_step(step.id, StepState.SKIPPED)
            self._core.add_line(f"skipped: not {step.when}", step.id)
            return None
        if step.for_each is not None:
            with self._under_way(step):
                return await self._run_items(step, step.for_each)
        return await self.run_one(step, self._data.facts)

    async def run_one(self, step: Step, facts: dict[str, Any]) -> Goto | None:
        """Run a step once, and again where somebody who sees its failure says so."""
        with self._under_way(step):
            return await self._run_to_its_end(self._data.progress_of(step.id).step or step, facts)

    async def _run_to_its_end(self, step: Step, facts: dict[str, Any]) -> Goto | None:
        while True:
            try:
                seen = self._data.progress_of(step.id).failed
                if seen is not None:  # by the execution before, which waits for a way out
                    raise StepFailed(**seen)
                return await self._runner.run_step(step, facts)
            except StepFailed as failed:
                instead = step_rules.fallback_of(step)
                if instead is not None and not failed.rejected and not self._data.stopping:
                    text = f"asking {instead.tool} instead: {failed.reason}"
                    self._core.add_line(text, step.id)
                    step = instead
                    self._data.of_step(step.id).edited = None
                    self._begin_again(step)
                    continue
                way = await self._wait_for_a_way_out(step, failed)
                if way is None:
                    raise
                if way.way is Way.SKIP:
                    if step.id in self._data.saga.steps():
                        await self._compensation.undo_step(step.id)
                    self._data.facts[step.id] = step_rules.skipped(
                        # Whoever has changed the tool has written into the reason.
                        "its tool is not as it was reviewed" if failed.unreviewed else failed.reason
                    )
                    self._core.set_step(step.id, StepState.SKIPPED, error=failed.reason)
                    return None
                if way.way is Way.COMPENSATE:
                    raise StepFailed(failed.reason, called=failed.called, given_up=True) from failed
                step = self._step_to_retry(step, way, failed)
                self._begin_again(step)
                if failed.unreviewed:
                    await self._runner.renew_tool(step)

    def _step_to_retry(self, step: Step, way: ResumeRun, failed: StepFailed) -> Step:
        """Return a step as it is tried again: with the params that a human has given it last."""
        known = self._data.of_step(step.id)
        # With other params than its first call has had, that would never be settled.
        first_again = failed.unsettled and known.settles
        known.settles = failed.unsettled
        params = way.params
        if params is not None and failed.unsettled:
            text = "its first call may have happened: tried again with the same params"
            self._core.add_line(text, step.id)
            params = None
        if params is not None or first_again:
            known.edited = None
        elif known.edited is not None:
            params = literal(known.edited)
        return step if params is None else step.model_copy(update={"params": params})

    @contextmanager
    def _under_way(self, step: Step) -> Iterator[None]:
        """Keep how far a step has come, for as long as it is under way."""
        if step.id not in self._data.progress:  # what is known may be of another plan's call
            known = self._data.of_step(step.id)
            known.edited, known.settles = None, False
        self._data.set_progress(step.id)
        try:
            yield
        finally:
            self._data.progress.pop(step.id, None)

    def _begin_again(self, step: Step) -> None:
        self._data.progress[step.id] = StepProgress(step=step)

    async def _wait_for_a_way_out(self, step: Step, failed: StepFailed) -> ResumeRun | None:
        """Where the plan says so, show a failure and wait until somebody says how to go on."""
        data, plan = self._data, self._data.request.plan
        if not step_rules.waits_for_a_way_out(plan, step, failed) or data.stopping:
            return None
        if data.progress_of(step.id).failed is None:
            data.set_progress(step.id, step=step, failed=asdict(failed))
            self._core.set_step(step.id, StepState.PAUSED_FAILURE, error=failed.reason)
            self._core.add_line("paused after this failure", step.id)
            data.of_step(step.id).way = None
        async with self._questions.tell_people(step.id, InterruptKind.FAILURE, failed.reason):
            known = data.of_step(step.id)
            await workflow.wait_condition(lambda: known.way is not None)
        way, known.way = known.way, None
        return way

    async def _condition_holds(self, step: Step, expression: str) -> bool:
        asked = Evaluate(
            **self._data.ids,
            step_id=step.id,
            expression=expression,
            values=step_rules.condition_values(expression, self._data.facts),
        )
        found = await self._core.call(ports.EVALUATE, asked, f"{step.id}: when {expression}")
        if found.problem is not None:
            raise await self._runner.refuse_step(step.id, step.does, found.problem)
        return found.holds

    async def _run_items(self, step: Step, reference: str) -> Goto | None:
        data = self._data
        self._core.set_step(step.id, StepState.RUNNING)
        try:
            known, request = data.progress_of(step.id).items, data.request
            items = step_rules.items_of(request.plan, step, data.facts, known, request.room)
        except StepFailed as error:
            raise await self._runner.refuse_step(step.id, step.does, str(error)) from error
        if not reference.startswith(f"${{{INPUT}."):  # what a run was given stays as it is
            data.set_progress(step.id, items=items)
        each = [step.of_item(number) for number in range(len(items))]
        for one in each:
            pending = StepView(id=one.id, tool=one.does, state=StepState.PENDING)
            data.steps.setdefault(one.id, pending)
        places = asyncio.Semaphore(step.parallel)
        seen = data.progress_of(step.id).failed
        failed = [] if seen is None else [StepFailed(**seen)]

        async def run(one: Step, item: Any) -> None:
            async with places:
                called = one.id in data.progress or self._runner.tool_calls.has_report(one.id)
                if not called and self._continuing.is_due():
                    await workflow.wait_condition(lambda: not self._continuing.is_due())
                if failed and one.id not in data.progress:
                    self._core.set_step(one.id, StepState.SKIPPED)
                    return
                try:
                    await self.run_one(one, {**data.facts, step.item: item})
                except StepFailed as error:
                    failed.append(error)
                    # The first says why, and all of them whether people wanted it so.
                    wanted = failed[0].declined and error.declined
                    failed[0] = replace(failed[0], declined=wanted)
                    data.set_progress(step.id, failed=asdict(failed[0]))

        # What is under way comes first: it had its place in the execution before.
        open_ = [b for b in zip(each, items, strict=True) if data.steps[b[0].id].state in _TO_DO]
        open_.sort(key=lambda both: both[0].id not in data.progress)
        tasks = [asyncio.create_task(run(*both)) for both in open_]
        # Asked whenever anything happens: not by a look at each of thousands.
        unfinished = set(tasks)
        for task in tasks:
            task.add_done_callback(unfinished.discard)
        try:
            await workflow.wait_condition(lambda: not unfinished)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await workflow.wait_condition(lambda: not unfinished)
            raise
        for task in tasks:
            task.result()
        if failed:
            self._core.set_step(step.id, StepState.FAILED, error=failed[0].reason)
            raise failed[0]
        outputs = [data.facts.get(one.id) for one in each]
        self._data.facts[step.id] = outputs
        self._core.set_step(step.id, StepState.SUCCEEDED, output=outputs)
        return None
