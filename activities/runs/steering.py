"""The activities that judge what steers a run, and its conditions and plans under way."""

from __future__ import annotations

import asyncio
from functools import partial

from temporalio import activity

from surehand.activities.activity_errors import stop
from surehand.activities.expressions import RuleBroken, condition_holds, of_run
from surehand.activities.ledger.runs import interrupts, steering
from surehand.activities.ledger.runs import lifecycle as run_rows
from surehand.activities.ledger.steps import attempts as step_rows
from surehand.activities.ledger.steps.foreign import content_of
from surehand.activities.tools.describing import describe_plan
from surehand.activities.worker.context import Attempt, WorkerContext
from surehand.process.json_schemas import find_schema_problem
from surehand.process.off_loop import call_off_loop
from surehand.workflows.contracts.base import Recorded
from surehand.workflows.contracts.controls import Amended, AmendRun, Evaluate, Evaluated
from surehand.workflows.contracts.interrupts import RecordInterrupt
from surehand.workflows.contracts.judging import Steer, Steered
from surehand.workflows.contracts.tools import RecordRefusal
from surehand.workflows.errors import ErrorType
from surehand.workflows.plan.plan import names_in
from surehand.workflows.plan.references import RUN


class SteeringActivities:
    """``steer`` and ``record_interrupt``."""

    def __init__(self, worker: WorkerContext) -> None:
        self._worker = worker

    @activity.defn(name="steer")
    async def steer(self, asked: Steer) -> Steered:
        """Say whether something that was sent to a run counts; the same delivery is judged once."""
        judged, head = await self._worker.ledger.record(
            asked.tenant, asked.run_id, steering.judge, asked, self._worker.assurance
        )
        return Steered(
            code=judged.code,
            message=judged.message,
            verified=judged.verified,
            head=head,
        )

    @activity.defn(name="record_interrupt")
    async def record_interrupt(self, asked: RecordInterrupt) -> Recorded:
        """Record that a question was asked, or that nobody has answered it in time."""
        wrong = None
        if asked.what == "opened":
            schema = asked.interrupt.answer_schema
            wrong = await find_schema_problem(schema)
        if wrong is not None:
            # Code or a model has written it: no answer would ever be one.
            text = f"it cannot be asked: the answer's schema: {wrong}"
            raise stop(ErrorType.INVALID_PARAMS, text)
        _, head = await self._worker.ledger.record(
            asked.tenant, asked.run_id, interrupts.record, asked
        )
        return Recorded(head=head)


class PlanActivities:
    """``evaluate``, ``amend_run`` and ``record_refusal``."""

    def __init__(self, worker: WorkerContext) -> None:
        self._worker = worker

    @activity.defn(name="evaluate")
    async def evaluate(self, asked: Evaluate) -> Evaluated:
        """Say whether a step's condition holds; the answer stays in the run's history."""
        values = asked.values
        if RUN in names_in(asked.expression):
            found = await self._worker.ledger.transact(asked.tenant, content_of, asked.run_id)
            values = {**values, **of_run(bool(found))}
        try:
            judge = partial(condition_holds, asked.expression)
            return Evaluated(holds=await call_off_loop(judge, values))
        except RuleBroken as error:
            return Evaluated(problem=str(error))

    @activity.defn(name="amend_run")
    async def amend_run(self, asked: AmendRun) -> Amended:
        """Record a new plan version, unless something is wrong with it."""
        described = await asyncio.to_thread(describe_plan, self._worker.toolbox, asked.plan)
        if described.problems:
            return Amended(problems=described.problems)
        _, head = await self._worker.ledger.record(
            asked.tenant, asked.run_id, run_rows.amend, asked, described.tools
        )
        return Amended(tools=described.tools, head=head)

    @activity.defn(name="record_refusal")
    async def record_refusal(self, asked: RecordRefusal) -> Recorded:
        """Record that a step was refused before anything of it began."""
        _, head = await self._worker.ledger.record(
            asked.tenant, asked.run_id, step_rows.refuse, asked, Attempt.current().activity_key
        )
        return Recorded(head=head)
