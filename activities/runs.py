"""The activities that open and close a run, and settle its interventions."""

from __future__ import annotations

from typing import Final

import structlog
from temporalio import activity

from activities.attempt import Resources
from activities.endings import stop
from activities.ledger import interventions as intervention_rows
from activities.ledger import run_tree
from activities.ledger import runs as run_rows
from activities.ledger.facts import TakesOverUndone
from activities.ledger.starts import StartRefused
from activities.ledger.undone import undone_under
from workflows.contracts import (
    CloseRun,
    FindQuestions,
    InterventionSettled,
    OpenQuestion,
    OpenRun,
    QuestionsFound,
    Recorded,
    RunClosed,
    RunState,
    SettleIntervention,
)
from workflows.errors import ErrorType

log = structlog.get_logger()

#: Effects that the end of a run is told of, the newest: the server takes 2 MiB in one message, and
#: a run whose end cannot be told has failed for nothing.
MOST_EFFECTS: Final = 1000


class RunActivities:
    """What opens and closes a run, settles its interventions, and tells it what it has left."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources

    @activity.defn(name="open_run")
    async def open_run(self, asked: OpenRun) -> Recorded:
        """Record a run and its plan before step one."""
        request = asked.request
        try:
            async with self._resources.ledger.transaction(request.tenant) as tx:
                tx.watch(request.run_id)
                await run_rows.open_run(tx, asked, self._resources.assurance)
        except run_rows.RunIdTaken as error:
            raise stop(ErrorType.RUN_ID_TAKEN, str(error)) from error
        except TakesOverUndone as error:
            raise stop(ErrorType.PLAN_INVALID, str(error)) from error
        except StartRefused as error:
            log.warning("run.refused", user=request.user, reason=str(error))
            message = f"run {request.run_id} is not started: {error}"
            raise stop(ErrorType.START_REFUSED, message) from error
        return Recorded(head=tx.heads[request.run_id])

    @activity.defn(name="close_run")
    async def close_run(self, asked: CloseRun) -> RunClosed:
        """Record the end of a run and return its effects as the ledger has them."""
        async with self._resources.ledger.transaction(asked.tenant) as tx:
            tx.watch(asked.run_id)
            await run_rows.close_run(tx, asked)
            views, standing, more = await run_rows.effect_views(tx, asked.run_id, MOST_EFFECTS)
            stand = await run_tree.how_many_stand(tx, asked.run_id)
        completed = asked.state is RunState.COMPLETED
        # What a child run has left that has failed is told, too, by a run that goes on without it.
        left = [view for view in standing if view.run_id is not None and view.reason is not None]
        return RunClosed(
            effects=views,
            uncompensated=left if completed else standing,
            more_effects=more,
            more_uncompensated=0 if completed else stand - len(standing),
            head=tx.heads[asked.run_id],
        )

    @activity.defn(name="find_questions")
    async def find_questions(self, asked: FindQuestions) -> QuestionsFound:
        """Return what was undone under a run that is about to complete."""
        async with self._resources.ledger.transaction(asked.tenant) as tx:
            rows = await undone_under(tx, asked.run_id)
        return QuestionsFound(
            questions=[
                OpenQuestion(
                    intervention_id=row["intervention_id"],
                    step_id=row["step_id"],
                    question=row["question"],
                )
                for row in rows
            ]
        )

    def _can_undo(self, name: str) -> bool:
        tool = self._resources.toolbox.get(name)
        return tool is not None and tool.compensate is not None

    @activity.defn(name="settle_intervention")
    async def settle_intervention(self, asked: SettleIntervention) -> InterventionSettled:
        """Apply a human's answer to an intervention, once."""
        async with self._resources.ledger.transaction(asked.tenant) as tx:
            tx.watch(asked.run_id)
            accepted, message = await intervention_rows.settle(
                tx, asked.run_id, asked.resolution_id, asked.resolution, self._can_undo
            )
            settled = await intervention_rows.is_settled(tx, asked.resolution.intervention_id)
        return InterventionSettled(
            accepted=accepted, message=message, settled=settled, head=tx.heads[asked.run_id]
        )
