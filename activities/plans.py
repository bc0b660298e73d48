"""The activities about plans under way: their conditions, and other plans in their place."""

from __future__ import annotations

from temporalio import activity

from activities.attempt import Attempt, Resources
from activities.describing import describe_plan
from activities.ledger import runs as run_rows
from activities.ledger import steps as step_rows
from activities.rules import RuleBroken, condition_holds
from workflows.contracts import (
    Amended,
    AmendRun,
    Evaluate,
    Evaluated,
    Recorded,
    RecordRefusal,
)


class PlanActivities:
    """``evaluate``, ``amend_run`` and ``record_refusal``."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources

    @activity.defn(name="evaluate")
    async def evaluate(self, asked: Evaluate) -> Evaluated:
        """Say whether a step's condition holds; the answer stays in the run's history."""
        try:
            return Evaluated(holds=condition_holds(asked.expression, asked.values))
        except RuleBroken as error:
            return Evaluated(problem=str(error))

    @activity.defn(name="amend_run")
    async def amend_run(self, asked: AmendRun) -> Amended:
        """Record a new plan version, unless something is wrong with it."""
        described = describe_plan(self._resources.toolbox, asked.plan)
        if described.problems:
            return Amended(problems=described.problems)
        async with self._resources.ledger.transaction(asked.tenant) as tx:
            tx.watch(asked.run_id)
            await run_rows.amend(tx, asked, described.tools)
        return Amended(tools=described.tools, head=tx.heads[asked.run_id])

    @activity.defn(name="record_refusal")
    async def record_refusal(self, asked: RecordRefusal) -> Recorded:
        """Record that a step was refused before anything of it began."""
        async with self._resources.ledger.transaction(asked.tenant) as tx:
            tx.watch(asked.run_id)
            await step_rows.refuse(tx, asked, Attempt.current().activity_key)
        return Recorded(head=tx.heads[asked.run_id])
