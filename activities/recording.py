"""The activity that has a value made once, for runs whose steps are made by code."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from temporalio import activity, workflow

from activities.attempt import Resources
from activities.ledger import artifacts as artifact_rows
from activities.ledger import steps as step_rows
from activities.ledger.steps import StepAttempt
from activities.ledger.store import Transaction
from workflows import recording
from workflows.contracts import RecordValue, ValueRecorded
from workflows.identity import NotCanonical, canonical_json, is_too_deep
from workflows.plan import RECORDING


class RecordingActivities:
    """``record_value``."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources

    @activity.defn(name="record_value")
    async def record_value(self, asked: RecordValue) -> ValueRecorded:
        """Have a function make a value, and record it; what is recorded already is the value."""
        row = StepAttempt(asked.run_id, asked.step_id, 1, RECORDING, {})
        ledger = self._resources.ledger
        async with ledger.transaction(asked.tenant) as tx:
            known = await _known(tx, row)
        if known is not None:
            return known
        function = recording.find(asked.key)
        if function is None:
            raise LookupError(f"{asked.step_id}: this worker has nothing to make the value with")
        try:
            value = await asyncio.to_thread(_made, function)
            canonical_json(value)
            if is_too_deep(value):
                return ValueRecorded(problem="what it returns is nested too deeply")
        except NotCanonical as error:
            return ValueRecorded(problem=f"what it returns is no JSON: {error}")
        except Exception as error:
            return ValueRecorded(problem=f"{type(error).__name__}: {error}")
        kept = await self._resources.artifacts.keep(asked.tenant, value)
        async with ledger.transaction(asked.tenant) as tx:
            tx.watch(asked.run_id)
            await tx.lock_step(asked.run_id, asked.step_id)
            # Another attempt, of a worker that was believed dead, may have been quicker.
            known = await _known(tx, row)
            if known is not None:
                return known
            await step_rows.start(tx, row)
            await artifact_rows.record(tx, asked.run_id, asked.step_id, kept)
            await step_rows.finish(tx, row, "succeeded", output=kept.value)
            tx.event(
                asked.run_id,
                "step.succeeded",
                step_id=asked.step_id,
                tool=RECORDING,
                attempt=1,
                failure_class=None,
                retry_ms=None,
            )
        return ValueRecorded(value=kept.value, head=tx.heads[asked.run_id])


async def _known(tx: Transaction, row: StepAttempt) -> ValueRecorded | None:
    stored = await step_rows.stored(tx, row, after=0)
    return None if stored is None else ValueRecorded(value=stored.output)


def _made(function: Callable[[], Any]) -> Any:
    with workflow.unsafe.sandbox_unrestricted():
        value = function()
        return asyncio.run(value) if inspect.iscoroutine(value) else value
