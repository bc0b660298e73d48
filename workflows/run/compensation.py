"""Undoing what a run has done, last commit first, or putting it in front of a human (G4).

What there is to undo the ledger says, in pages, in every mode and for every way a run can end: what
histories and messages tell may be of another life of the run, or not all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from temporalio import workflow

from surehand.workflows import ports
from surehand.workflows.contracts import effects
from surehand.workflows.contracts.base import StepState
from surehand.workflows.contracts.runs import StepView
from surehand.workflows.ports import compensation_call
from surehand.workflows.run.deliveries import Answer, Delivery
from surehand.workflows.run.run_core import RunPart

_KEPT = "kept on cancel"


async def visit_remaining(
    find: Callable[[effects.FindRemaining], Awaitable[effects.RemainingFound]],
    asked: effects.FindRemaining,
    visit: Callable[[effects.RemainingEffect], Awaitable[None]],
) -> None:
    """Do something with each effect that remains, page by page."""
    while True:
        page = await find(asked)
        for remaining in page.effects:
            await visit(remaining)
        if page.after is None:
            return
        asked = asked.model_copy(update={"after": page.after, "bar": False, "revoked_batches": []})


def compensate_message(
    tenant: str, run_id: str, user: str, remaining: effects.RemainingEffect
) -> effects.Compensate:
    effect = remaining.effect
    return effects.Compensate(
        tenant=tenant,
        run_id=effect.run_id or run_id,
        step_id=effect.step_id,
        entry_id=effect.entry_id,
        user=user,
        within=None if effect.run_id is None else run_id,
    )


class Compensation(RunPart):
    """Undoes the effects of one run, and of its child runs; asks humans where it cannot."""

    # Interventions.

    def show_intervention(self, question: effects.OpenIntervention) -> None:
        """Show an intervention to whoever looks at the run, unless it is settled meanwhile."""
        id_ = question.intervention_id
        if id_ in self._data.settled_interventions or id_ in self._data.interventions:
            return
        self._data.interventions[id_] = question
        self._core.add_line(question.question, question.step_id)
        self._core.show_change()

    async def wait_until_settled(self, question: effects.OpenIntervention) -> None:
        """Wait until a human has settled an intervention, holding no process."""
        await workflow.wait_condition(
            lambda: question.intervention_id not in self._data.interventions
        )

    async def settle_intervention(
        self, resolution: effects.Resolution, delivery: Delivery
    ) -> Answer:
        """Follow what a human says of an intervention, as far as the ledger takes it."""
        data, id_ = self._data, resolution.intervention_id
        asked = effects.SettleIntervention(
            **data.ids, resolution_id=delivery.id, resolution=resolution
        )
        settled = await self._core.call(ports.SETTLE_INTERVENTION, asked, "settle an intervention")
        if settled.accepted or settled.settled:
            # Refused because it is settled already (a reset run asks again): the row decides.
            data.settled_interventions.add(id_)
            data.interventions.pop(id_, None)
        if settled.accepted and resolution.outcome is effects.ResolutionOutcome.UNDO:
            data.to_undo[id_] = resolution.actor
        return Answer(accepted=settled.accepted, message=settled.message)

    # Undoing.

    async def keep_effects(self) -> None:
        """Leave everything as it is, and begin nothing more."""
        await self._visit_pages(self._ask_what_remains(bar=True, leave=_KEPT), self._show_effect)

    async def undo_all(self, *, cleanup: bool) -> None:
        """Undo all, last first; what needs a human is asked while the rest goes on.

        With ``cleanup`` it only undoes what tools declare as temporary.
        """
        self._data.compensating = True
        self._core.show_change()
        await self._undo_remaining(self._ask_what_remains(bar=True), cleanup=cleanup, spares=_KEPT)
        self._data.compensating = False

    async def undo_step(self, step_id: str) -> None:
        """Undo one step to the end; what needs a human is asked, and waited for."""
        saga = self._data.saga
        saga.barred.add(step_id)
        saga.undoing.add(step_id)
        try:
            await self._undo_remaining(self._ask_what_remains(step_id=step_id, bar=True))
        finally:
            saga.undoing.discard(step_id)
        saga.withdraw(step_id)

    async def undo_child_run(self, step_id: str, run_id: str) -> None:
        """Undo a step's child run to the end: it has ended without having done so."""
        own = {"run_id": run_id, "within": self._data.request.run_id, "revoked_batches": []}
        asked = self._ask_what_remains(bar=True).model_copy(update=own)
        await self._undo_remaining(asked, child_of=step_id)

    async def undo_orphaned(self) -> list[str]:
        """Undo what the ledger has of this run and its child runs, and this life does not know of.

        A run that was reset, or that decides again after a crash, may take another way: what it did
        on the first one nobody wants any more. Returns the steps that this life takes for done, and
        of which an earlier one has undone something.
        """
        saga, remains, unwound = self._data.saga, set[str](), set[str]()

        def is_orphaned(remaining: effects.RemainingEffect) -> bool:
            effect, known = remaining.effect, saga.knows(remaining)
            if not known or effect.state != "compensating" or effect.reason is not None:
                remains.add(effect.entry_id)
            elif remaining.child is not None:
                unwound.add(remaining.child)
            return not known

        asked = self._ask_what_remains().model_copy(update={"completing": True})
        unwound.update(await self._undo_remaining(asked, only=is_orphaned))
        return saga.lost_steps(remains, unwound)

    async def find_unheard_steps(self) -> list[str]:
        """Return the steps of this run that have made what this life has yet to hear of."""
        found = list[str]()

        async def look(remaining: effects.RemainingEffect) -> None:
            effect, saga = remaining.effect, self._data.saga
            begun = effect.step_id in saga.unsettled() and not self._data.stopping
            if remaining.child is None and not begun and not saga.knows(remaining):
                await self._show_effect(remaining)
                saga.add_found(effect.step_id, effect.entry_id)
                found.append(effect.step_id)

        await self._visit_pages(self._ask_what_remains(), look)
        return found

    def _ask_what_remains(
        self, *, step_id: str | None = None, bar: bool = False, leave: str | None = None
    ) -> effects.FindRemaining:
        return effects.FindRemaining(
            **self._data.ids,
            step_id=step_id,
            bar=bar,
            leave=leave,
            revoked_batches=self._data.revoked_batches,
        )

    async def _visit_pages(
        self,
        asked: effects.FindRemaining,
        visit: Callable[[effects.RemainingEffect], Awaitable[None]],
        child_of: str | None = None,
    ) -> set[str]:
        unwound = set[str]()

        async def find(asked: effects.FindRemaining) -> effects.RemainingFound:
            page = await self._core.call(ports.FIND_REMAINING, asked, "look for what stands")
            unwound.update(page.unwound)
            if child_of is None:
                return page
            seen = []
            for one in page.effects:  # as an effect of the parent's step
                of_child = {"run_id": one.effect.run_id or asked.run_id, "inside": child_of}
                effect = one.effect.model_copy(update=of_child)
                seen.append(effects.RemainingEffect(effect=effect, child=asked.run_id))
            return page.model_copy(update={"effects": seen})

        await visit_remaining(find, asked, visit)
        return unwound

    async def _undo_remaining(
        self,
        asked: effects.FindRemaining,
        *,
        cleanup: bool = False,
        only: Callable[[effects.RemainingEffect], bool] | None = None,
        spares: str | None = None,
        child_of: str | None = None,
    ) -> set[str]:
        """Undo what remains until nothing does but what has its reason to.

        With ``cleanup`` it undoes only what tools declare as temporary, with ``only`` what this
        life of the run does not know of. What was left for the reason ``spares`` stays: another
        life was told to keep it. ``child_of`` is the step whose child run is asked about. Returns
        the child runs of which something was undone after their end, if that is asked.
        """
        seen = set[str]()
        questions = list[tuple[effects.RemainingEffect, effects.OpenIntervention]]()

        async def undo(remaining: effects.RemainingEffect) -> None:
            if remaining.effect.entry_id in seen or (only is not None and not only(remaining)):
                return
            if spares is not None and remaining.effect.reason == spares:
                return
            seen.add(remaining.effect.entry_id)
            await self._show_effect(remaining)
            if only is not None:
                text = (
                    f"{_tool_name(remaining)} was made before a reset or a crash, and is not wanted"
                )
                self._core.add_line(f"orphaned: {text} since", _step_of(remaining))
            question = await self._undo_effect(remaining, cleanup=cleanup)
            if question is not None:
                self.show_intervention(question)
                questions.append((remaining, question))
            self._core.show_change()

        while True:
            before = len(seen)
            unwound = await self._visit_pages(asked, undo, child_of)
            while questions:
                remaining, question = questions.pop(0)
                unsettled: effects.OpenIntervention | None = question
                while unsettled is not None:
                    self.show_intervention(unsettled)
                    await self.wait_until_settled(unsettled)
                    unsettled = await self._undo_effect(remaining, cleanup=cleanup)
            if len(seen) == before:
                return unwound

    async def _undo_effect(
        self, remaining: effects.RemainingEffect, *, cleanup: bool
    ) -> effects.OpenIntervention | None:
        request, effect, step_id = self._data.request, remaining.effect, _step_of(remaining)
        asked = compensate_message(request.tenant, request.run_id, request.user, remaining)
        report = await self._core.call(
            ports.COMPENSATE,
            asked.model_copy(update={"cleanup": cleanup}),
            step_id,
            options=compensation_call(f"{step_id}: undo {_tool_name(remaining)}"),
        )
        self._data.add_story(report.story)
        if report.outcome is effects.CompensationOutcome.HUMAN_NEEDED:
            assert report.intervention_id is not None
            return effects.OpenIntervention(
                intervention_id=report.intervention_id,
                step_id=step_id,
                question=report.reason,
                answers=report.answers,
            )
        known = self._data.effects.get(effect.entry_id)
        if report.outcome is effects.CompensationOutcome.UNCOMPENSATED:
            self._data.saga.note_commit(effect.step_id, effect.entry_id)
        else:
            self._data.saga.forget_undone(effect.entry_id)
        if report.outcome is effects.CompensationOutcome.COMPENSATED and known is not None:
            changed = known.model_copy(update={"state": "compensated"})
            self._data.effects[effect.entry_id] = changed
        self._core.add_line(f"{report.outcome}: {report.reason}", step_id)
        return None

    async def _show_effect(self, remaining: effects.RemainingEffect) -> None:
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


def _step_of(remaining: effects.RemainingEffect) -> str:
    return remaining.effect.inside or remaining.effect.step_id


def _tool_name(remaining: effects.RemainingEffect) -> str:
    effect = remaining.effect
    return effect.tool if effect.run_id is None else f"{effect.tool} of {effect.run_id}"
