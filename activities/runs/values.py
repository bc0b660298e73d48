"""The activities that give a run a value: made once and recorded, or kept as an artifact."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from temporalio import activity, workflow

from surehand.activities.activity_errors import again
from surehand.activities.artifacts import READ_PAUSE, ArtifactUnavailable
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.steps import artifacts as artifact_rows
from surehand.activities.ledger.steps import attempts as step_rows
from surehand.activities.ledger.steps.attempts import StepAttempt
from surehand.activities.worker.context import WorkerContext
from surehand.process.off_loop import run_in_thread
from surehand.workflows.contracts.artifacts import ArtifactRead, ReadArtifact
from surehand.workflows.contracts.controls import RecordValue, ValueRecorded
from surehand.workflows.errors import ErrorType
from surehand.workflows.identity import NotCanonical, canonical_json, is_too_deep
from surehand.workflows.plan.plan import RECORDING
from surehand.workflows.run import recorded_values


class RecordingActivities:
    """``record_value``."""

    def __init__(self, worker: WorkerContext) -> None:
        self._worker = worker

    @activity.defn(name="record_value")
    async def record_value(self, asked: RecordValue) -> ValueRecorded:
        """Have a function make a value, and record it; what is recorded already is the value."""
        row = StepAttempt(asked.run_id, asked.step_id, 1, RECORDING, {})
        ledger = self._worker.ledger
        known = await ledger.transact(asked.tenant, _known, row)
        if known is not None:
            return known
        function = recorded_values.find(asked.key)
        if function is None:
            raise LookupError(f"{asked.step_id}: this worker has nothing to make the value with")
        try:
            value = await run_in_thread(_made, function)
            canonical_json(value)
            if is_too_deep(value):
                return ValueRecorded(problem="what it returns is nested too deeply")
        except NotCanonical as error:
            return ValueRecorded(problem=f"what it returns is no JSON: {error}")
        except Exception as error:
            return ValueRecorded(problem=f"{type(error).__name__}: {error}")
        kept = await self._worker.artifacts.keep(asked.tenant, asked.run_id, value)

        def record(tx: Transaction) -> ValueRecorded | None:
            tx.lock_step(asked.run_id, asked.step_id)
            # Another attempt, of a worker that was believed dead, may have been quicker.
            known = _known(tx, row)
            if known is not None:
                return known
            step_rows.start(tx, row)
            artifact_rows.record(tx, asked.run_id, asked.step_id, kept)
            step_rows.finish(tx, row, "succeeded", output=kept.value)
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
        return known or ValueRecorded(value=kept.value, head=head)


def _known(tx: Transaction, row: StepAttempt) -> ValueRecorded | None:
    stored = step_rows.stored(tx, row, after=0)
    return None if stored is None else ValueRecorded(value=stored.output)


def _made(function: Callable[[], Any]) -> Any:
    with workflow.unsafe.sandbox_unrestricted():
        value = function()
        return asyncio.run(value) if inspect.iscoroutine(value) else value


class ContentActivities:
    """``read_artifact``."""

    def __init__(self, worker: WorkerContext) -> None:
        self._worker = worker

    @activity.defn(name="read_artifact")
    async def read_artifact(self, asked: ReadArtifact) -> ArtifactRead:
        """Return the value of an artifact; tried again until the store has it."""
        try:
            reader = activity.info().workflow_id or ""
            value = await self._worker.artifacts.read(asked.tenant, reader, asked.artifact)
        except ArtifactUnavailable as error:
            raise again(ErrorType.ARTIFACT_UNAVAILABLE, str(error), READ_PAUSE) from error
        return ArtifactRead(value=value)
