"""Looking at several runs at once: those that no worker answers for are named, not waited out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from pydantic import BaseModel, ConfigDict
from temporalio.client import WorkflowExecution

from surehand.client.connection import Connection
from surehand.client.outcome import state_of
from surehand.process.exits import (
    OF_STATE,
    ExitCode,
    NoSuchRun,
    NotReachable,
    NoWorker,
    SurehandError,
)
from surehand.workflows.contracts.approvals import HeldApproval
from surehand.workflows.contracts.interrupts import Interrupt
from surehand.workflows.contracts.runs import RunView
from surehand.workflows.contracts.states import RunState, Waiting
from surehand.workflows.names import OPEN_ITEMS, RUN_STATE

#: States in which only a person moves a run on; an event comes from a system.
_FOR_PEOPLE: Final = ", ".join(
    f"'{state}'"
    for state, code in OF_STATE.items()
    if code is ExitCode.HUMAN_NEEDED and state is not RunState.WAITING_EVENT
)
#: What tells the server that a run waits for a person.
WAITS_FOR_PEOPLE: Final = (
    f"({OPEN_ITEMS.name} > 0 OR {RUN_STATE.name} IN ({_FOR_PEOPLE}))"
    " AND ExecutionStatus = 'Running'"
)
#: What a run waits for that is neither decided on nor answered.
_OTHER_KINDS: Final = frozenset(("intervention", "permission", "pause", "budget", "failure"))

#: Runs asked at the same time; each query wakes a worker.
_AT_ONCE: Final = 10
#: How long one of many may take to answer: the others shall be seen soon.
ONE_OF_MANY: Final = timedelta(seconds=5)


class SilentRun(BaseModel):
    """A run that does not answer, as the server knows it; usually no worker is there."""

    model_config = ConfigDict(frozen=True)

    run_id: str
    task_queue: str
    state: str
    open_items: int
    reason: str


class PendingQuestion(Interrupt):
    """A question that waits for an answer."""

    run_id: str


class PendingHeld(HeldApproval):
    """A decision that has come before its request."""

    run_id: str


@dataclass(frozen=True)
class Looked:
    """What several runs say, and which of them say nothing."""

    views: list[RunView]
    silent: list[SilentRun]


def others_of(view: RunView) -> list[Waiting]:
    """Return the doubts and pauses of a run that wait for a person, without its child runs'."""
    result = view.result
    if result.state is RunState.NEEDS_INTERVENTION and not result.waiting_for:
        lost = result.error or "it does not go on"
        return [
            Waiting(kind="intervention", id="", step_id="", question=lost, run_id=result.run_id)
        ]
    return [
        item.model_copy(update={"run_id": result.run_id})
        for item in result.waiting_for
        if item.kind in _OTHER_KINDS and item.run_id is None
    ]


async def look_at(connection: Connection, runs: Sequence[WorkflowExecution]) -> Looked:
    """Ask the runs themselves: the server's list may lag behind them by a moment.

    Args:
        connection: Where they are.
        runs: As the server lists them.
    """
    places = asyncio.Semaphore(_AT_ONCE)

    async def look(run: WorkflowExecution) -> RunView | SilentRun | None:
        async with places:
            try:
                return await connection.view(run.id, ONE_OF_MANY)
            except NoSuchRun:
                return None
            except SurehandError as error:
                if isinstance(error, NotReachable) and not isinstance(error, NoWorker):
                    raise  # the server itself: nobody else will answer, either
                return _silent(run, error)

    found = await asyncio.gather(*(look(run) for run in runs))
    return Looked(
        views=[item for item in found if isinstance(item, RunView)],
        silent=[item for item in found if isinstance(item, SilentRun)],
    )


def _silent(run: WorkflowExecution, error: SurehandError) -> SilentRun:
    return SilentRun(
        run_id=run.id,
        task_queue=run.task_queue,
        state=state_of(run),
        open_items=run.typed_search_attributes.get(OPEN_ITEMS, 0),
        reason=str(error),
    )
