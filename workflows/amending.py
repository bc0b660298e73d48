"""Amending a run: another plan, at a consistent point, with what is done as facts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from temporalio import workflow

from workflows import ports
from workflows.book import WAITING, Book
from workflows.calls import Calls
from workflows.children import Children
from workflows.contracts import (
    Amend,
    AmendRun,
    Carried,
    StepState,
    StepView,
    ToolSpec,
    Verb,
)
from workflows.desk import Desk
from workflows.helm import Answer, Delivery, Helm
from workflows.plan import ITERATION, Plan
from workflows.references import INPUT
from workflows.step_views import StepViews
from workflows.unwinding import Unwinding

#: What stays as it is.
_FACTS: Final = frozenset({StepState.SUCCEEDED, StepState.FAILED})


class Amending:
    """Gives one run another plan."""

    def __init__(
        self,
        book: Book,
        call: Calls,
        helm: Helm,
        desk: Desk,
        unwinding: Unwinding,
        children: Children,
        tools: dict[str, ToolSpec],
        heard: Callable[[], bool],
    ) -> None:
        self._book = book
        self._call = call
        self._desk = desk
        self._unwinding = unwinding
        self._children = children
        self._tools = tools
        self._heard = heard
        """Whether the run has heard of every call that has been begun, or knows that it has not."""
        self._next: Amend | None = None
        helm.take(Verb.AMEND, Amend, self._asked)

    async def _asked(self, asked: Amend, delivery: Delivery) -> Answer:
        book = self._book
        if book.ending:
            return Answer(False, "the run is ending")
        if book.request.plan.code is not None or asked.plan.code is not None:
            return Answer(False, "where code makes the steps there is no plan to amend")
        if self._next is not None:
            return Answer(False, f"{self._next.actor} is amending the plan already")
        if asked.based_on != book.plan_version:
            reason = f"the plan is at version {book.plan_version}, not {asked.based_on}"
            return Answer(False, f"{reason}: look at it again")
        # Held from here on: what the new plan would lose sight of does not grow meanwhile.
        book.amending = True
        try:
            refused = await self._refused(asked, delivery)
            if refused is None:
                self._next = asked
        finally:
            book.amending = self._next is not None
        if refused is not None:
            return Answer(False, refused)
        return Answer(True, f"going on with plan version {book.plan_version + 1}")

    async def _refused(self, asked: Amend, delivery: Delivery) -> str | None:
        """Record the new plan; returns why it is not, or ``None``."""
        book, request = self._book, self._book.request
        # Unless somebody else waits to be heard: what begins after that is undone, if dropped.
        await workflow.wait_condition(
            lambda: self._heard() or book.stopping or self._desk.others_wait
        )
        book.unheard.update(await self._unwinding.recall())
        if book.ending:
            return "the run is ending"
        refused = self._loses(asked)
        if refused is not None:
            return refused
        amended = await self._call(
            ports.AMEND_RUN,
            AmendRun(
                tenant=request.tenant,
                run_id=request.run_id,
                plan=asked.plan,
                plan_version=book.plan_version + 1,
                steering_id=delivery.steering_id,
            ),
            "validate and record the new plan",
        )
        if amended.problems:
            return "; ".join(f"{p.where}: {p.reason}" for p in amended.problems)
        book.saw(amended.head)
        self._tools.update(amended.tools)
        return None

    def _loses(self, asked: Amend) -> str | None:
        """Return which effects the new plan would lose sight of, as one clause."""
        new = {step.id: step for step in asked.plan.steps}
        for started in self._book.saga.steps():
            step_id = ITERATION.sub("", started)
            if step_id not in new:
                if step_id not in asked.drops:
                    how = f"say so (`--drop {step_id}`)"
                    return f"the plan drops step {step_id}, whose effect may stand: {how}"
            elif started in self._book.steps and (
                new[step_id].does != self._book.steps[started].tool
            ):
                return f"step {step_id} has been started: it cannot become {new[step_id].does}"
        return None

    def carry(self) -> dict[str, Any]:
        """Return what another execution of this run needs, as fields of ``Carried``."""
        return {"next_plan": self._next}

    def restore(self, carried: Carried) -> None:
        """Take over what another execution has carried."""
        self._next = carried.next_plan
        self._book.amending = self._next is not None

    def due(self, running: Mapping[str, asyncio.Task[Any]]) -> bool:
        """Return whether there is a new plan, and no call under way or made that is to be heard."""
        book = self._book
        return (
            self._next is not None
            and book.unheard.isdisjoint(running)
            and all(
                book.steps[step_id].state in WAITING and not self._children.under_way(step_id)
                for step_id in running
            )
        )

    async def apply(
        self,
        running: dict[str, asyncio.Task[Any]],
        settled: set[str],
        facts: dict[str, Any],
    ) -> None:
        """Give up what waits, and take the new plan over.

        Args:
            running: The steps under way; empty afterwards.
            settled: The steps that are done; those that were skipped may be ready again.
            facts: The input, and what finished steps have returned.
        """
        book, asked = self._book, self._next
        assert asked is not None
        given_up = set(running)
        for task in running.values():
            task.cancel()
        await workflow.wait_condition(lambda: all(task.done() for task in running.values()))
        for approval_id in list(book.gate.pending):
            await self._desk.close_approval(approval_id, expired=False)
        new = {step.id for step in asked.plan.steps}
        for step_id in book.saga.steps():
            # Begun since the plan was amended, or not: what goes on at its step is given up.
            dropped = step_id in asked.drops and step_id not in running
            if dropped:
                book.saga.accept(step_id)
            elif ITERATION.sub("", step_id) not in new:
                await self._unwinding.undo(step_id)
        running.clear()
        # Of steps, too, that the execution before had under way.
        book.progress.clear()
        book.interrupts.clear()
        book.stale.clear()
        book.held.clear()
        self._show(asked.plan, given_up)
        settled.intersection_update({v.id for v in book.steps.values() if v.state in _FACTS})
        facts[INPUT] = asked.plan.input
        book.plan_version += 1
        book.say(workflow.now(), f"plan version {book.plan_version} by {asked.actor}")
        self._next, book.amending = None, False

    def _show(self, plan: Plan, given_up: set[str]) -> None:
        book, kept = self._book, set(self._book.saga.steps())
        done = {
            view.id: view
            for view in book.steps.values()
            if view.state is StepState.SUCCEEDED
            # What was cut off has not failed.
            or (view.state is StepState.FAILED and view.id not in given_up)
        }
        book.request = book.request.model_copy(update={"plan": plan})
        ahead = {
            step.id: StepView(id=step.id, tool=step.does, state=StepState.PENDING)
            for step in plan.steps
        }
        # The end of the run looks at each write that was begun, also at those of the old plan.
        begun = {
            id_: book.steps[id_].model_copy(update={"state": StepState.SKIPPED})
            for id_ in sorted(kept - ahead.keys())
        }
        book.steps = StepViews({**ahead, **begun, **done})
