"""Unwinding a run: what it has committed is undone, last first, or put in front of a human (G4)."""

from __future__ import annotations

from collections.abc import Callable

from temporalio import workflow

from workflows import ports
from workflows.book import Book, Question
from workflows.calls import Calls
from workflows.children import Children
from workflows.contracts import Compensate, CompensationOutcome, RecallEffects, StepState, StepView
from workflows.desk import Desk
from workflows.durability import Durability
from workflows.options import compensation_call


class Unwinding:
    """Undoes the writes of one run."""

    def __init__(
        self,
        book: Book,
        desk: Desk,
        call: Calls,
        children: Children,
        changed: Callable[[], None],
    ) -> None:
        self._children = children
        self._book = book
        self._desk = desk
        self._call = call
        self._changed = changed
        self.reasons: dict[str, str] = {}
        """Why a step's effect was left as it is, by step id."""

    async def keep(self) -> None:
        """Leave everything as it is."""
        await self.recall()
        self.reasons = dict.fromkeys(self._book.saga.order(), "kept on cancel")
        self._children.keep()

    async def undo_strays(self) -> None:
        """Undo what the ledger has of this run and the run does not know of.

        Where outcomes are not in history at once, a crash has the run decide anew, with what has
        been sent to it meanwhile: a step that was called the first time may not come the second.
        """
        # Those that were found before, and that the run has not come to since, too.
        for step_id in [*await self.recall(), *sorted(self._book.unheard)]:
            self._book.say(workflow.now(), "made before a crash, and not wanted since", step_id)
            await self.undo(step_id)
            self._book.unheard.discard(step_id)

    async def recall(self) -> list[str]:
        """Take effects of this run that it does not know of from the ledger; returns their steps.

        Last commit first.
        """
        book = self._book
        if book.request.mode is Durability.SYNC:
            return []
        known = set(book.saga.order())
        if book.stopping:  # what those have come to that nobody has heard of
            known -= set(book.saga.unsettled())
        recalled = await self._call(
            ports.RECALL_EFFECTS,
            RecallEffects(
                tenant=book.request.tenant,
                run_id=book.request.run_id,
                known=sorted(known),
                given_up=book.given_up,
            ),
            "look for effects that history does not have",
        )
        strays = [one for one in recalled.effects if one.effect.step_id not in known]
        for one in strays:
            step_id = one.effect.step_id
            book.saga.register(step_id)
            book.effects[step_id] = one.effect
            if step_id not in book.steps:
                tool, state = one.effect.tool, StepState.SKIPPED
                book.steps[step_id] = StepView(id=step_id, tool=tool, state=state)
            if one.commit_seq is not None:
                book.saga.committed(step_id, one.commit_seq)
            if book.stopping:
                done = one.effect.state == "committed"
                book.set_step(step_id, StepState.SUCCEEDED if done else StepState.FAILED)
        return [one.effect.step_id for one in strays]

    async def run(self, *, cleanup: bool) -> None:
        """Undo the run's writes, last first; what needs a human is asked while the rest goes on.

        Args:
            cleanup: Only undo what tools declare as temporary.
        """
        self._book.compensating = True
        self._changed()
        await self.recall()
        asked: list[Question] = []
        for step_id in self._book.saga.order():
            question = await self._undo(step_id, cleanup=cleanup)
            if question is not None:
                self._desk.ask(question)
                asked.append(question)
            self._changed()
        for question in asked:
            await self._desk.settled(question)
            await self.undo(question.step_id, cleanup=cleanup)
        self._book.compensating = False

    async def undo(self, step_id: str, *, cleanup: bool = False) -> None:
        """Undo one step to the end; what needs a human is asked, and waited for."""
        while (question := await self._undo(step_id, cleanup=cleanup)) is not None:
            self._desk.ask(question)
            await self._desk.settled(question)

    async def _undo(self, step_id: str, *, cleanup: bool) -> Question | None:
        request = self._book.request
        # Not of the plan: an amended one may have left the step out on purpose.
        view = self._book.steps.get(step_id)
        if view is not None and view.child is not None:
            return await self._undo_child(step_id, cleanup=cleanup)
        report = await self._call(
            ports.COMPENSATE,
            Compensate(
                tenant=request.tenant,
                run_id=request.run_id,
                step_id=step_id,
                user=request.user,
                cleanup=cleanup,
            ),
            step_id,
            options=compensation_call(f"{step_id}: undo {view.tool if view else 'its effect'}"),
        )
        self._book.saw(report.head)
        if report.outcome is CompensationOutcome.HUMAN_NEEDED:
            assert report.intervention_id is not None
            return Question(report.intervention_id, step_id, report.reason)
        if report.outcome is CompensationOutcome.UNCOMPENSATED:
            self.reasons[step_id] = report.reason
        elif report.outcome is CompensationOutcome.COMPENSATED and step_id in self._book.effects:
            effect = self._book.effects[step_id]
            self._book.effects[step_id] = effect.model_copy(update={"state": "compensated"})
        self._book.say(workflow.now(), f"{report.outcome}: {report.reason}", step_id)
        return None

    async def _undo_child(self, step_id: str, *, cleanup: bool) -> Question | None:
        report = await self._children.undo(step_id, cleanup=cleanup)
        if report is not None and report.intervention_id is not None:
            return Question(report.intervention_id, step_id, report.reason)
        self._book.say(workflow.now(), "what its child run has done is undone", step_id)
        return None
