"""Interventions of one run: what only a human can settle is asked, and waited for."""

from __future__ import annotations

from collections.abc import Callable

from temporalio import workflow

from surehand.workflows import ports
from surehand.workflows.activity_client import ActivityClient
from surehand.workflows.contracts.effects import (
    OpenIntervention,
    Resolution,
    ResolutionOutcome,
    SettleIntervention,
)
from surehand.workflows.contracts.steering import Verb
from surehand.workflows.control.inbox import Control
from surehand.workflows.deliveries import Answer, Delivery
from surehand.workflows.state.run_state import RunData


class Interventions:
    """The interventions of one run."""

    def __init__(
        self, data: RunData, call: ActivityClient, control: Control, changed: Callable[[], None]
    ) -> None:
        self._data = data
        self._call = call
        self._changed = changed
        control.take_steering(Verb.RESOLVE, self._settle)

    def show(self, question: OpenIntervention) -> None:
        """Show an intervention to whoever looks at the run, unless it is settled meanwhile."""
        id_ = question.intervention_id
        if id_ in self._data.settled_interventions or id_ in self._data.interventions:
            return
        self._data.interventions[id_] = question
        self._data.add_line(workflow.now(), question.question, question.step_id)
        self._changed()

    async def settled(self, question: OpenIntervention) -> None:
        """Wait until a human has settled an intervention, holding no process."""
        await workflow.wait_condition(
            lambda: question.intervention_id not in self._data.interventions
        )

    async def _settle(self, resolution: Resolution, delivery: Delivery) -> Answer:
        data, id_ = self._data, resolution.intervention_id
        asked = SettleIntervention(
            tenant=data.request.tenant,
            run_id=data.request.run_id,
            resolution_id=delivery.id,
            resolution=resolution,
        )
        settled = await self._call(ports.SETTLE_INTERVENTION, asked, "settle an intervention")
        data.keep_head(settled.head)
        if settled.accepted or settled.settled:
            # Refused because it is settled already (a reset run asks anew): the row decides.
            data.settled_interventions.add(id_)
            data.interventions.pop(id_, None)
        if settled.accepted and resolution.outcome is ResolutionOutcome.UNDO:
            data.to_undo[id_] = resolution.actor
        return Answer(accepted=settled.accepted, message=settled.message)
