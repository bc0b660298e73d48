"""The activities that open, steer and close a run, look at its child runs, and give it values."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Final, TypeVar

import structlog
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from surehand.activities.artifacts import ArtifactUnavailable
from surehand.activities.expressions import RuleBroken, condition_holds, of_run
from surehand.activities.ledger.core.store import Ledger, Transaction
from surehand.activities.ledger.effects import reconcile
from surehand.activities.ledger.effects.interventions import find_withdrawn
from surehand.activities.ledger.effects.run_tree import TakesOverUndone
from surehand.activities.ledger.people.starts import StartRefused
from surehand.activities.ledger.quotas import QuotaUsedUp, admit_run
from surehand.activities.ledger.runs import lifecycle as run_rows
from surehand.activities.ledger.runs import steering
from surehand.activities.ledger.runs.lifecycle import Opened, plan_of
from surehand.activities.ledger.steps import acting
from surehand.activities.ledger.steps import artifacts as artifact_rows
from surehand.activities.ledger.steps import attempts as step_rows
from surehand.activities.ledger.steps.acting import ActsElsewhere, take_over_run
from surehand.activities.ledger.steps.attempts import StepAttempt
from surehand.activities.ledger.steps.foreign import foreign_content
from surehand.activities.tools.describing import describe_plan
from surehand.activities.worker import context
from surehand.process.json_schemas import find_schema_problem
from surehand.process.off_loop import call_off_loop, run_in_thread
from surehand.workflows.canonical_json import NotCanonical, canonical_json, is_too_deep
from surehand.workflows.contracts import base, effects, runs
from surehand.workflows.contracts.approvals import Assurance
from surehand.workflows.contracts.steering import InterruptRecorded, RecordInterrupt, Steer, Steered
from surehand.workflows.contracts.tools import RecordRefusal, ToolsDescribed
from surehand.workflows.names import ErrorType
from surehand.workflows.plan.plan import RECORDING, Plan, names_in
from surehand.workflows.plan.references import RUN, in_words
from surehand.workflows.run.code_run import find_offered

T = TypeVar("T")
log = structlog.get_logger()


def execution_of(run_id: str) -> str | None:
    """Return the execution of a run that this activity acts for; ``None``: it is not the run's."""
    info = activity.info()
    return info.workflow_run_id if info.workflow_id == run_id else None


async def as_newest(ledger: Ledger, work: Callable[[], Awaitable[T]]) -> T:
    """Do work that only a run's acting execution may do; the newest one takes over first.

    Temporal is asked which one is the newest. An answer that is out of date changes nothing. Raises
    ``ApplicationError``.
    """
    while True:
        try:
            return await work()
        except ActsElsewhere as found:
            await take_over_as_newest(ledger, found)


async def take_over_as_newest(ledger: Ledger, found: ActsElsewhere) -> None:
    """Let the execution act that was refused, if Temporal says that it is the newest.

    Raises ``ApplicationError`` with ``LeaseHeld``: it is over.
    """
    newest = None
    with context.suppress_not_found():
        newest = (await activity.client().get_workflow_handle(found.run_id).describe()).run_id
    if newest != found.mine:
        message = f"execution {found.mine} is over: another one goes on with the run"
        raise context.again(ErrorType.LEASE_HELD, message) from found
    await ledger.transact(found.tenant, take_over_run, found)


_ENDED_ABOVE: Final = "what it is a child of undoes it, or has ended"


async def started_in(server: Client, run_id: str, execution: str) -> str | None:
    """Return the first execution of the run that has started this execution of a child run.

    As the server has it, not as a message says: another workflow may have been given that run's id
    since it has ended. ``None``: it knows of none. Raises ``RPCError``.
    """
    with context.suppress_not_found():
        own = await server.get_workflow_handle(run_id, run_id=execution).describe()
        if own.parent_id is not None:
            above = server.get_workflow_handle(own.parent_id, run_id=own.parent_run_id)
            parent = (await above.describe()).raw_description
            return parent.workflow_execution_info.first_run_id or None
    return None


async def stop_child_runs(
    server: Client, ledger: Ledger, tenant: str, run_ids: Iterable[str]
) -> None:
    """Stop child runs that nobody waits for: after a reset the server does not end them.

    They are barred already. What they have done is undone, or kept, by whoever asks for this; a
    cancelled one would undo itself meanwhile, in another order. Raises ``RPCError``.
    """
    for run_id in run_ids:
        with context.suppress_not_found():
            await server.get_workflow_handle(run_id).terminate(reason=_ENDED_ABOVE)
        # Afterwards: as long as the ledger has it as open, somebody comes to it again.
        await ledger.transact(tenant, run_rows.close_terminated, run_id)


def _plain(recorded: Any) -> Any:
    """Return a recorded plan as this version of the code writes it."""
    return Plan.model_validate(recorded).model_dump(mode="json")


#: Most effects in the message that closes a run, the newest. More could exceed the server's 2 MiB,
#: and the run would fail for that alone.
MOST_EFFECTS: Final = 1000


def _known(tx: Transaction, row: StepAttempt) -> runs.ValueRecorded | None:
    stored = step_rows.find_stored(tx, row, after=0)
    return None if stored is None else runs.ValueRecorded(value=stored.output)


def _call_function(function: Callable[[], Any]) -> Any:
    with workflow.unsafe.sandbox_unrestricted():
        value = function()
        return asyncio.run(value) if inspect.iscoroutine(value) else value


class RunActivities:
    """Opens, amends, steers and closes a run, looks at its child runs, and gives it values."""

    def __init__(self, worker: context.WorkerContext) -> None:
        self._worker = worker

    @activity.defn(name="open_run")
    async def open_run(self, asked: runs.OpenRun) -> runs.RunOpened:
        """Record a run and its plan before step one, if the plan fits the tools."""
        request, assurance = asked.request, self._worker.assurance
        described = ToolsDescribed(tools={})
        if not asked.continues:
            described = await asyncio.to_thread(describe_plan, self._worker.toolbox, request.plan)
        if described.problems:
            problems = [problem.model_dump() for problem in described.problems]
            raise context.stop(ErrorType.PLAN_INVALID, in_words(described.problems), problems)
        ledger, execution = self._worker.ledger, execution_of(request.run_id)
        above: str | None = None
        if assurance is Assurance.SIGNED and request.parent is not None:
            above = await started_in(activity.client(), request.run_id, execution or "")
        store = await self._worker.artifacts.store_id()

        def opened(tx: Transaction) -> Opened:
            how = {"execution": execution, "above": above, "store": store}
            return run_rows.open_run(tx, asked, described.tools, assurance, **how)

        async def record() -> runs.RunOpened:
            found, head = await ledger.record(request.tenant, request.run_id, opened)
            return runs.RunOpened(
                tools=described.tools,
                foreign=found.foreign,
                queued=found.queued,
                weight=found.weight,
                head=head,
            )

        try:
            return await as_newest(ledger, record)
        except run_rows.RunIdTaken as error:
            raise context.stop(ErrorType.RUN_ID_TAKEN, str(error)) from error
        except TakesOverUndone as error:
            raise context.stop(ErrorType.PLAN_INVALID, str(error)) from error
        except QuotaUsedUp as used_up:
            wait = used_up.found.wait
            self._worker.metrics.over_quota(wait.quota, used_up.found.over)
            message = f"run {request.run_id} is not started: over the tenant's quota, {wait.text}"
            raise context.stop(ErrorType.QUOTA_EXCEEDED, message) from used_up
        except StartRefused as error:
            log.warning("run.refused", user=request.user, reason=str(error))
            message = f"run {request.run_id} is not started: {error}"
            raise context.stop(ErrorType.START_REFUSED, message) from error

    @activity.defn(name="admit_run")
    async def admit_run(self, asked: base.OfRun) -> base.RunAdmitted:
        """Let a run take its steps, if its tenant's quota of open runs has a place for it."""
        ledger, execution = self._worker.ledger, execution_of(asked.run_id)

        def admit(tx: Transaction) -> base.QuotaWait | None:
            if execution is not None:
                acting.require_acting(tx, asked.run_id, execution)
            return admit_run(tx, asked.run_id)

        async def record() -> base.RunAdmitted:
            queued, head = await ledger.record(asked.tenant, asked.run_id, admit)
            return base.RunAdmitted(queued=queued, head=head)

        return await as_newest(ledger, record)

    @activity.defn(name="close_run")
    async def close_run(self, asked: runs.CloseRun) -> runs.RunClosed:
        """Record the end of a run and return its effects as the ledger has them.

        Unless it says what stands, and something else does: then it is not closed.
        """
        return await as_newest(self._worker.ledger, lambda: self._close(asked))

    async def _close(self, asked: runs.CloseRun) -> runs.RunClosed:
        execution, completed = execution_of(asked.run_id), asked.state is base.RunState.COMPLETED

        def close(tx: Transaction) -> run_rows.Closed | None:
            return run_rows.close_run(tx, asked, execution, newest=MOST_EFFECTS)

        found, head = await self._worker.ledger.record(asked.tenant, asked.run_id, close)
        if found is None:
            return runs.RunClosed(closed=False, head=head)
        await self._worker.artifacts.remove_drafts(asked.tenant, found.drafts)
        told = found.made
        remaining = [one.view() for one in told.remaining]
        # A completed run reports what nobody could undo: of failed child runs, of lives before a
        # reset, of steps that were given up.
        left = [view for view in remaining if view.reason is not None]
        return runs.RunClosed(
            effects=[one.view() for one in told.made],
            uncompensated=left if completed else remaining,
            more_effects=told.more,
            more_uncompensated=0 if completed else told.more_remaining,
            head=head,
        )

    @activity.defn(name="find_interventions")
    async def find_interventions(self, asked: base.OfRun) -> effects.InterventionsFound:
        """Return what was undone under a run that is about to complete."""
        rows = await self._worker.ledger.transact(asked.tenant, find_withdrawn, asked.run_id)
        return effects.InterventionsFound(
            interventions=[
                effects.OpenIntervention(
                    intervention_id=row["intervention_id"],
                    step_id=row["step_id"],
                    question=row["question"],
                    answers=("compensated",),
                )
                for row in rows
            ]
        )

    @activity.defn(name="settle_intervention")
    async def settle_intervention(
        self, asked: effects.SettleIntervention
    ) -> effects.InterventionSettled:
        """Apply a human's answer to an intervention, once."""
        can_undo = self._worker.toolbox.can_undo
        answer = (asked.run_id, asked.resolution_id, asked.resolution, can_undo)
        told, head = await self._worker.ledger.record(
            asked.tenant, asked.run_id, reconcile.settle_intervention, *answer
        )
        return effects.InterventionSettled(**told._asdict(), head=head)

    @activity.defn(name="evaluate")
    async def evaluate(self, asked: runs.Evaluate) -> runs.Evaluated:
        """Say whether a step's condition holds; the answer stays in the run's history."""
        values = asked.values
        if RUN in names_in(asked.expression):
            found = await self._worker.ledger.transact(asked.tenant, foreign_content, asked.run_id)
            values = {**values, **of_run(bool(found))}
        try:
            judge = partial(condition_holds, asked.expression)
            return runs.Evaluated(holds=await call_off_loop(judge, values))
        except RuleBroken as error:
            return runs.Evaluated(problem=str(error))

    @activity.defn(name="amend_run")
    async def amend_run(self, asked: runs.AmendRun) -> runs.Amended:
        """Record a new plan version, unless something is wrong with it."""
        described = await asyncio.to_thread(describe_plan, self._worker.toolbox, asked.plan)
        if described.problems:
            return runs.Amended(problems=described.problems)
        _, head = await self._worker.ledger.record(
            asked.tenant, asked.run_id, run_rows.amend_run, asked, described.tools
        )
        return runs.Amended(tools=described.tools, head=head)

    @activity.defn(name="record_refusal")
    async def record_refusal(self, asked: RecordRefusal) -> base.Recorded:
        """Record that a step was refused before anything of it began."""
        _, head = await self._worker.ledger.record(
            asked.tenant,
            asked.run_id,
            step_rows.record_refused_step,
            asked,
            context.Attempt.current().activity_key,
        )
        return base.Recorded(head=head)

    @activity.defn(name="steer")
    async def steer(self, asked: Steer) -> Steered:
        """Say whether something that was sent to a run counts; the same delivery is judged once."""
        judged, head = await self._worker.ledger.record(
            asked.tenant, asked.run_id, steering.judge_steering, asked, self._worker.assurance
        )
        return Steered(
            code=judged.code,
            message=judged.message,
            verified=judged.verified,
            head=head,
        )

    @activity.defn(name="record_interrupt")
    async def record_interrupt(self, asked: RecordInterrupt) -> InterruptRecorded:
        """Record that a question was asked, or that nobody has answered it in time."""
        wrong = None
        if asked.what == "opened":
            schema = asked.interrupt.answer_schema
            wrong = await find_schema_problem(schema)
        if wrong is not None:
            # Code or a model has written it: no answer would ever be one.
            text = f"it cannot be asked: the answer's schema: {wrong}"
            raise context.stop(ErrorType.INVALID_PARAMS, text)
        left, head = await self._worker.ledger.record(
            asked.tenant, asked.run_id, steering.record_interrupt, asked
        )
        return InterruptRecorded(head=head, left=left)

    @activity.defn(name="look_at_child")
    async def look_at_child(self, asked: runs.LookAtChild) -> runs.ChildFound:
        """Return whether a child run is open, how it has ended, and whether it is the same one."""
        recorded = await self._worker.ledger.transact(asked.tenant, plan_of, asked.run_id)
        same = recorded is None or _plain(recorded) == asked.plan.model_dump(mode="json")
        client = activity.client()
        try:
            newest = await client.get_workflow_handle(asked.run_id).describe()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return runs.ChildFound(same=same, why="the server does not know it any more")
        if newest.status is WorkflowExecutionStatus.RUNNING:
            return runs.ChildFound(open=True, same=same)
        # Of this very execution: it is the end of the run.
        ended = client.get_workflow_handle(
            asked.run_id, run_id=newest.run_id, result_type=runs.RunResult
        )
        try:
            result: runs.RunResult = await ended.result(follow_runs=False)
        except WorkflowFailureError as error:
            cause = error.cause
            if (
                isinstance(cause, ApplicationError)
                and cause.type == ErrorType.RUN_FAILED
                and cause.details
            ):
                result = runs.RunResult.model_validate(cause.details[0])
                return runs.ChildFound(same=same, result=result, why=str(cause))
            return runs.ChildFound(same=same, why=str(cause))
        return runs.ChildFound(same=same, result=result, why=result.error or result.state)

    @activity.defn(name="record_value")
    async def record_value(self, asked: runs.RecordValue) -> runs.ValueRecorded:
        """Have a function make a value, and record it; what is recorded already is the value."""
        row = StepAttempt(asked.run_id, asked.step_id, 1, RECORDING, {})
        ledger = self._worker.ledger
        known = await ledger.transact(asked.tenant, _known, row)
        if known is not None:
            return known
        function = find_offered(asked.key)
        if function is None:
            raise LookupError(f"{asked.step_id}: this worker has nothing to make the value with")
        try:
            value = await run_in_thread(_call_function, function)
            canonical_json(value)
            if is_too_deep(value):
                return runs.ValueRecorded(problem="what it returns is nested too deeply")
        except NotCanonical as error:
            return runs.ValueRecorded(problem=f"what it returns is no JSON: {error}")
        except Exception as error:
            return runs.ValueRecorded(problem=f"{type(error).__name__}: {error}")
        kept = await self._worker.artifacts.keep(asked.tenant, asked.run_id, value)

        def record(tx: Transaction) -> runs.ValueRecorded | None:
            tx.lock_step(asked.run_id, asked.step_id)
            # Another attempt, of a worker that was believed dead, may have been quicker.
            known = _known(tx, row)
            if known is not None:
                return known
            step_rows.start_attempt(tx, row)
            artifact_rows.record_artifact(tx, asked.run_id, asked.step_id, kept)
            step_rows.finish_attempt(tx, row, "succeeded", output=kept.value)
            tx.event(
                asked.run_id,
                "step.succeeded",
                step_id=asked.step_id,
                tool=RECORDING,
                attempt=1,
                failure_class=None,
                retry_ms=None,
            )
            return None

        known, head = await ledger.record(asked.tenant, asked.run_id, record)
        return known or runs.ValueRecorded(value=kept.value, head=head)

    @activity.defn(name="read_artifact")
    async def read_artifact(self, asked: base.ReadArtifact) -> base.ArtifactRead:
        """Return the value of an artifact; tried again until the store has it."""
        try:
            reader = activity.info().workflow_id or ""
            value = await self._worker.artifacts.read(asked.tenant, reader, asked.artifact)
        except ArtifactUnavailable as error:
            raise context.again(ErrorType.ARTIFACT_UNAVAILABLE, str(error)) from error
        return base.ArtifactRead(value=value)
