"""The steps of a plan: under their conditions, for each item, and again after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from temporalio import workflow

from workflows import ports
from workflows.book import OPEN, Book
from workflows.calls import Calls
from workflows.contracts import (
    Evaluate,
    Failure,
    InterruptKind,
    Progress,
    ResumeRun,
    StepState,
    StepView,
    Way,
)
from workflows.ends import StepFailed
from workflows.interrupts import Interrupts
from workflows.plan import Goto, Step, names_in
from workflows.references import INPUT, ReferenceUnresolved, resolve
from workflows.stepper import Stepper
from workflows.tree import too_many_items

#: Items of one list: each is a call, and a run's history has an end.
MOST_ITEMS: Final = 1000
#: Items in these states have not ended.
_TO_DO: Final = frozenset({StepState.PENDING, *OPEN})


class Steps:
    """Runs the steps of one run; several may be under way at once."""

    def __init__(
        self,
        book: Book,
        call: Calls,
        stepper: Stepper,
        changed: Callable[[], None],
        undo: Callable[[str], Awaitable[None]],
        interrupts: Interrupts,
        holding: Callable[[], bool],
    ) -> None:
        self._interrupts = interrupts
        self._holding = holding
        self._book = book
        self._call = call
        self._stepper = stepper
        self._changed = changed
        self._undo = undo

    async def run(self, step: Step) -> Goto | None:
        """Run a step to its end: for each item of its list, where it has one.

        Returns:
            Where to go on, if the step's answer says so.

        Raises:
            StepFailed: It failed for good.
        """
        goes_on = step.id in self._book.progress
        if step.when is not None and not goes_on and not await self._holds(step, step.when):
            self._stepper.facts[step.id] = {"skipped": {"reason": f"when: {step.when}"}}
            self._set(step, StepState.SKIPPED)
            self._book.say(workflow.now(), f"skipped: not {step.when}", step.id)
            return None
        if step.for_each is not None:
            return await self._each(step, step.for_each)
        return await self.one(step, self._stepper.facts)

    async def one(self, step: Step, facts: dict[str, Any]) -> Goto | None:
        """Run a step once, and again where somebody who sees its failure says so."""
        with self._under_way(step):
            return await self._to_its_end(self._book.at(step.id).step or step, facts)

    async def _to_its_end(self, step: Step, facts: dict[str, Any]) -> Goto | None:
        while True:
            try:
                seen = self._book.at(step.id).failed
                if seen is not None:  # by the execution before, which waits for a way out
                    raise StepFailed(**seen.model_dump())
                return await self._stepper.run(step, facts)
            except StepFailed as failed:
                if step.fallback is not None and not failed.rejected and not self._book.stopping:
                    text = f"asking {step.fallback.tool} instead: {failed.reason}"
                    self._book.say(workflow.now(), text, step.id)
                    changes = {"tool": step.fallback.tool, "params": step.fallback.params}
                    step = step.model_copy(update={**changes, "fallback": None})
                    self._begin_anew(step)
                    continue
                way = await self._way_out(step, failed)
                if way is None:
                    raise
                if way.way is Way.SKIP:
                    if step.id in self._book.saga.steps():
                        await self._undo(step.id)
                    self._stepper.facts[step.id] = {"skipped": {"reason": failed.reason}}
                    self._set(step, StepState.SKIPPED, error=failed.reason)
                    return None
                if way.way is Way.COMPENSATE:
                    raise StepFailed(failed.reason, called=failed.called, given_up=True) from failed
                if way.params is not None and failed.unsettled:
                    # With other params the first call would never be settled.
                    text = "its first call may have happened: tried again with the same params"
                    self._book.say(workflow.now(), text, step.id)
                elif way.params is not None:
                    step = step.model_copy(update={"params": way.params})
                self._begin_anew(step)

    @contextmanager
    def _under_way(self, step: Step) -> Iterator[None]:
        """Keep how far a step has come, for as long as it is under way."""
        self._book.note(step.id)
        try:
            yield
        finally:
            self._book.progress.pop(step.id, None)

    def _begin_anew(self, step: Step) -> None:
        self._book.progress[step.id] = Progress(step=step)

    async def _way_out(self, step: Step, failed: StepFailed) -> ResumeRun | None:
        """Where the plan says so, show a failure and wait until somebody says how to go on."""
        book, plan = self._book, self._book.request.plan
        # A rejection with `replan` waits for another plan, or for somebody who gives the step up.
        rejected = failed.rejected and plan.on_reject(step) == "replan"
        pauses = not failed.rejected and plan.on_failure(step) == "pause"
        if not (rejected or pauses) or self._book.stopping:
            return None
        if book.at(step.id).failed is None:
            book.note(step.id, step=step, failed=Failure(**vars(failed)))
            self._set(step, StepState.PAUSED_FAILURE, error=failed.reason)
            book.say(workflow.now(), f"paused after a failure: {failed.reason}", step.id)
            book.ways.pop(step.id, None)
        async with self._interrupts.paused(step.id, InterruptKind.FAILURE, failed.reason):
            await workflow.wait_condition(lambda: step.id in book.ways)
        return book.ways.pop(step.id)

    async def _holds(self, step: Step, expression: str) -> bool:
        """Have a step's condition evaluated; the answer is in the run's history."""
        request = self._book.request
        asked = Evaluate(
            tenant=request.tenant,
            run_id=request.run_id,
            step_id=step.id,
            expression=expression,
            values={
                name: self._stepper.facts[name]
                for name in names_in(expression) & set(self._stepper.facts)
            },
        )
        found = await self._call(ports.EVALUATE, asked, f"{step.id}: when {expression}")
        if found.problem is not None:
            raise await self._refused(step, found.problem)
        return found.holds

    async def _each(self, step: Step, reference: str) -> Goto | None:
        """Run a step for each item of a list; its output is the list of their outputs."""
        with self._under_way(step):
            return await self._all_items(step, reference)

    async def _all_items(self, step: Step, reference: str) -> Goto | None:
        book = self._book
        self._set(step, StepState.RUNNING)
        try:
            items = book.at(step.id).items
            if items is None:
                items = resolve(reference, self._stepper.facts)
            if not isinstance(items, list) or len(items) > MOST_ITEMS:
                raise StepFailed(f"{reference} is no list of at most {MOST_ITEMS} items")
            request = book.request
            much = too_many_items(request.plan, request.room, step, len(items))
            if much is not None:
                raise StepFailed(much)
        except (ReferenceUnresolved, StepFailed) as error:
            raise await self._refused(step, str(error)) from error
        if not reference.startswith(f"${{{INPUT}."):  # what a run was given stays as it is
            book.note(step.id, items=items)
        each = [step.of_item(number) for number in range(len(items))]
        for one in each:
            pending = StepView(id=one.id, tool=one.does, state=StepState.PENDING)
            book.steps.setdefault(one.id, pending)
        places = asyncio.Semaphore(step.parallel)
        seen = book.at(step.id).failed
        failed = [] if seen is None else [StepFailed(**seen.model_dump())]

        async def run(one: Step, item: Any) -> None:
            async with places:
                called = one.id in book.progress or self._stepper.calling.knows(one.id)
                if not called and self._holding():
                    await workflow.wait_condition(lambda: not self._holding())
                if failed and one.id not in book.progress:
                    self._set(one, StepState.SKIPPED)
                    return
                try:
                    await self.one(one, {**self._stepper.facts, step.item: item})
                except StepFailed as error:
                    failed.append(error)
                    book.note(step.id, failed=Failure(**vars(failed[0])))

        # What is under way comes first: it had its place in the execution before.
        open_ = [b for b in zip(each, items, strict=True) if book.steps[b[0].id].state in _TO_DO]
        open_.sort(key=lambda both: both[0].id not in book.progress)
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
            self._set(step, StepState.FAILED, error=failed[0].reason)
            raise failed[0]
        outputs = [self._stepper.facts.get(one.id) for one in each]
        self._stepper.facts[step.id] = outputs
        self._set(step, StepState.SUCCEEDED, output=outputs)
        return None

    async def _refused(self, step: Step, problem: str) -> StepFailed:
        return await self._stepper.refused(step.id, step.does, problem)

    def _set(self, step: Step, state: StepState, **changes: Any) -> None:
        self._book.set_step(step.id, state, **changes)
        self._changed()
