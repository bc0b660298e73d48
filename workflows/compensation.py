"""Undoing what a run has done, last commit first, or putting it in front of a human (G4).

What there is to undo the ledger says, in pages, in every mode and for every way a run can end: what
histories and messages tell may be of another life of the run, or not all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from temporalio import workflow

from surehand.workflows import ports
from surehand.workflows.activity_client import ActivityClient
from surehand.workflows.contracts.effects import (
    Compensate,
    CompensationOutcome,
    CompensationReport,
    FindRemaining,
    OpenIntervention,
    RemainingEffect,
    RemainingFound,
)
from surehand.workflows.contracts.runs import StepView
from surehand.workflows.contracts.states import StepState
from surehand.workflows.control.interrupts import Interventions
from surehand.workflows.options import compensation_call
from surehand.workflows.state.run_state import RunData

_KEPT = "kept on cancel"


async def each_remaining(
    find: Callable[[FindRemaining], Awaitable[RemainingFound]],
    asked: FindRemaining,
    work: Callable[[RemainingEffect], Awaitable[None]],
) -> None:
    """Do something with each effect that remains, page by page."""
    while True:
        page = await find(asked)
        for remaining in page.effects:
            await work(remaining)
        if page.after is None:
            return
        asked = asked.model_copy(update={"after": page.after, "bar": False, "revoked_batches": []})


def to_compensate(tenant: str, run_id: str, user: str, remaining: RemainingEffect) -> Compensate:
    """Return what undoes one effect of a run, or of its child runs."""
    effect = remaining.effect
    return Compensate(
        tenant=tenant,
        run_id=effect.run_id or run_id,
        step_id=effect.step_id,
        entry_id=effect.entry_id,
        user=user,
        within=None if effect.run_id is None else run_id,
    )


class Compensation:
    """Undoes the effects of one run, and of its child runs."""

    def __init__(
        self,
        data: RunData,
        interventions: Interventions,
        call: ActivityClient,
        changed: Callable[[], None],
    ) -> None:
        self._data = data
        self._interventions = interventions
        self._call = call
        self._changed = changed

    async def keep(self) -> None:
        """Leave everything as it is, and begin nothing more."""
        await self._each(self._asked(bar=True, leave=_KEPT), self._show)

    async def run(self, *, cleanup: bool) -> None:
        """Undo all, last first; what needs a human is asked while the rest goes on.

        Args:
            cleanup: Only undo what tools declare as temporary.
        """
        self._data.compensating = True
        self._changed()
        await self._undo(self._asked(bar=True), cleanup=cleanup, spares=_KEPT)
        self._data.compensating = False

    async def undo(self, step_id: str) -> None:
        """Undo one step to the end; what needs a human is asked, and waited for."""
        saga = self._data.saga
        saga.barred.add(step_id)
        saga.undoing.add(step_id)
        try:
            await self._undo(self._asked(step_id=step_id, bar=True))
        finally:
            saga.undoing.discard(step_id)
        saga.withdraw(step_id)

    async def undo_child(self, step_id: str, run_id: str) -> None:
        """Undo a step's child run to the end: it has ended without having done so."""
        own = {"run_id": run_id, "within": self._data.request.run_id, "revoked_batches": []}
        await self._undo(self._asked(bar=True).model_copy(update=own), child_of=step_id)

    async def undo_orphaned(self) -> list[str]:
        """Undo what the ledger has of this run and its child runs, and this life does not know of.

        A run that was reset, or that decides anew after a crash, may take another way: what it did
        on the first one nobody wants any more.

        Returns:
            Steps that this life takes for done, and of which an earlier one has undone something.
        """
        saga, remains, unwound = self._data.saga, set[str](), set[str]()

        def orphaned(remaining: RemainingEffect) -> bool:
            effect, known = remaining.effect, saga.knows(remaining)
            if not known or effect.state != "compensating" or effect.reason is not None:
                remains.add(effect.entry_id)
            elif remaining.child is not None:
                unwound.add(remaining.child)
            return not known

        asked = self._asked().model_copy(update={"completing": True})
        unwound.update(await self._undo(asked, only=orphaned))
        return saga.lost(remains, unwound)

    async def recall(self) -> list[str]:
        """Return the steps of this run that have made what this life has yet to hear of."""
        found = list[str]()

        async def look(remaining: RemainingEffect) -> None:
            effect, saga = remaining.effect, self._data.saga
            begun = effect.step_id in saga.unsettled() and not self._data.stopping
            if remaining.child is None and not begun and not saga.knows(remaining):
                await self._show(remaining)
                saga.add_found(effect.step_id, effect.entry_id)
                found.append(effect.step_id)

        await self._each(self._asked(), look)
        return found

    def _asked(
        self, *, step_id: str | None = None, bar: bool = False, leave: str | None = None
    ) -> FindRemaining:
        request = self._data.request
        return FindRemaining(
            tenant=request.tenant,
            run_id=request.run_id,
            step_id=step_id,
            bar=bar,
            leave=leave,
            revoked_batches=self._data.revoked_batches,
        )

    async def _each(
        self,
        asked: FindRemaining,
        work: Callable[[RemainingEffect], Awaitable[None]],
        child_of: str | None = None,
    ) -> set[str]:
        unwound = set[str]()

        async def find(asked: FindRemaining) -> RemainingFound:
            page = await self._call(ports.FIND_REMAINING, asked, "look for what stands")
            self._data.keep_head(page.head)
            unwound.update(page.unwound)
            if child_of is None:
                return page
            seen = [_from_above(one, asked.run_id, child_of) for one in page.effects]
            return page.model_copy(update={"effects": seen})

        await each_remaining(find, asked, work)
        return unwound

    async def _undo(
        self,
        asked: FindRemaining,
        *,
        cleanup: bool = False,
        only: Callable[[RemainingEffect], bool] | None = None,
        spares: str | None = None,
        child_of: str | None = None,
    ) -> set[str]:
        """Undo what remains until nothing does but what has its reason to.

        Args:
            asked: What is to be undone.
            cleanup: Only what tools declare as temporary.
            only: Which of it: what this life of the run does not know of.
            spares: What was left for this reason stays: another life was told to keep it.
            child_of: The step whose child run is asked about.

        Returns:
            The child runs of which something was undone after their end, if that is asked.
        """
        data, seen = self._data, set[str]()
        questions = list[tuple[RemainingEffect, OpenIntervention]]()

        async def work(remaining: RemainingEffect) -> None:
            if remaining.effect.entry_id in seen or (only is not None and not only(remaining)):
                return
            if spares is not None and remaining.effect.reason == spares:
                return
            seen.add(remaining.effect.entry_id)
            await self._show(remaining)
            if only is not None:
                text = f"{_name(remaining)} was made before a reset or a crash, and is not wanted"
                data.add_line(workflow.now(), f"orphaned: {text} since", _step_of(remaining))
            question = await self._compensate(remaining, cleanup=cleanup)
            if question is not None:
                self._interventions.show(question)
                questions.append((remaining, question))
            self._changed()

        while True:
            before = len(seen)
            unwound = await self._each(asked, work, child_of)
            while questions:
                remaining, question = questions.pop(0)
                await self._to_the_end(remaining, question, cleanup=cleanup)
            if len(seen) == before:
                return unwound

    async def _to_the_end(
        self, remaining: RemainingEffect, question: OpenIntervention | None, *, cleanup: bool
    ) -> None:
        while question is not None:
            self._interventions.show(question)
            await self._interventions.settled(question)
            question = await self._compensate(remaining, cleanup=cleanup)

    async def _compensate(
        self, remaining: RemainingEffect, *, cleanup: bool = False
    ) -> OpenIntervention | None:
        """Undo one effect; returns what only a human can settle."""
        request, effect, step_id = self._data.request, remaining.effect, _step_of(remaining)
        asked = to_compensate(request.tenant, request.run_id, request.user, remaining)
        report: CompensationReport = await self._call(
            ports.COMPENSATE,
            asked.model_copy(update={"cleanup": cleanup}),
            step_id,
            options=compensation_call(f"{step_id}: undo {_name(remaining)}"),
        )
        self._data.keep_head(report.head)
        self._data.add_story(report.story)
        if report.outcome is CompensationOutcome.HUMAN_NEEDED:
            assert report.intervention_id is not None
            return OpenIntervention(
                intervention_id=report.intervention_id, step_id=step_id, question=report.reason
            )
        known = self._data.effects.get(effect.entry_id)
        if report.outcome is CompensationOutcome.UNCOMPENSATED:
            self._data.saga.committed(effect.step_id, effect.entry_id)
        else:
            self._data.saga.undone(effect.entry_id)
        if report.outcome is CompensationOutcome.COMPENSATED and known is not None:
            changed = known.model_copy(update={"state": "compensated"})
            self._data.effects[effect.entry_id] = changed
        self._data.add_line(workflow.now(), f"{report.outcome}: {report.reason}", step_id)
        return None

    async def _show(self, remaining: RemainingEffect) -> None:
        """Show an effect that the ledger has, and its step as what it has come to."""
        data, effect = self._data, remaining.effect
        data.effects[effect.entry_id] = effect
        if remaining.child is not None:
            return
        if effect.step_id not in data.steps:
            view = StepView(id=effect.step_id, tool=effect.tool, state=StepState.SKIPPED)
            data.steps[effect.step_id] = view
        if data.stopping and not data.saga.knows(remaining):
            done = effect.state == "committed"
            data.set_step(effect.step_id, StepState.SUCCEEDED if done else StepState.FAILED)


def _step_of(remaining: RemainingEffect) -> str:
    """Return the run's own step that an effect belongs to."""
    return remaining.effect.inside or remaining.effect.step_id


def _from_above(remaining: RemainingEffect, child: str, step_id: str) -> RemainingEffect:
    """Return what remains of a child run as its parent sees it, of whose steps it is one."""
    effect = remaining.effect
    seen = {"run_id": effect.run_id or child, "inside": step_id}
    return RemainingEffect(effect=effect.model_copy(update=seen), child=child)


def _name(remaining: RemainingEffect) -> str:
    effect = remaining.effect
    return effect.tool if effect.run_id is None else f"{effect.tool} of {effect.run_id}"
