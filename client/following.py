"""Waiting for a run: until it ends, or until it needs a human.

It rides through deaths of workers and restarts of the server, as the run itself does.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Final, Protocol

from temporalio.service import RPCError

from surehand.client.connection import Connection
from surehand.client.outcome import run_result, state_of
from surehand.process.exits import (
    OF_STATE,
    ExitCode,
    NeverTakenUp,
    NotReachable,
    NoWorker,
    OutOfReach,
    TaskFails,
)
from surehand.workflows.contracts.runs import RunResult, RunView
from surehand.workflows.contracts.states import ENDED, RunState, StepState

#: Seconds between looks: quick while steps move, calmer in a wait that can take days.
FIRST_PAUSE: Final = 0.3
LONGEST_PAUSE: Final = 2.0
PAUSE_GROWTH: Final = 1.3

#: One look. A worker answers in milliseconds; after a crash, another one within 2 s.
LOOK_LIMIT: Final = timedelta(seconds=5)

#: A server that is restarted is back within seconds; after this long somebody has to see to it.
SERVER_PATIENCE: Final = timedelta(seconds=60)

#: Where a run stands that only a human can move.
_WAITS: Final = {state.value for state in OF_STATE if OF_STATE[state] is ExitCode.HUMAN_NEEDED}


class Watch(Protocol):
    """Is told of a run while it goes on."""

    def show(self, view: RunView) -> None:
        """Take where the run stands now."""

    def note(self, text: str) -> None:
        """Take why nothing moves."""


async def until_settled(
    connection: Connection, run_id: str, watch: Watch | None = None, *, stay: bool
) -> RunResult:
    """Wait, and return how the run ended or stands.

    Args:
        connection: Where the run is.
        run_id: The run.
        watch: Is told what happens in the meantime.
        stay: Go on waiting while the run waits for a human.

    Raises:
        SurehandError: The run ended without a result.
        NotReachable: The server has been silent for too long.
        OutOfReach: What the run says is in a store that cannot be reached from here.
    """
    ended = asyncio.create_task(_ended(connection, run_id))
    pause, asked_before, silent_since = FIRST_PAUSE, "", time.monotonic()
    try:
        while True:
            viewing = asyncio.create_task(connection.view(run_id, LOOK_LIMIT))
            try:
                await asyncio.wait({ended, viewing}, return_when=asyncio.FIRST_COMPLETED)
                if ended.done():
                    return ended.result()
                view = viewing.result()
            except NeverTakenUp:
                return await ended  # how it has ended is on its way
            except TaskFails as error:
                silent_since = time.monotonic()
                _note(watch, str(error))
            except NoWorker:
                silent_since = time.monotonic()
                _note(watch, f"No worker answers; the run is safe on the server ({run_id})")
            except NotReachable as error:
                if time.monotonic() - silent_since > SERVER_PATIENCE.total_seconds():
                    raise
                _note(watch, str(error))
            except OutOfReach as error:
                if ended.done():
                    raise
                silent_since = time.monotonic()
                _note(watch, str(error))
                state = state_of(await connection.describe(run_id))
                if not stay and state in _WAITS:
                    raise
            else:
                silent_since = time.monotonic()
                if watch is not None:
                    watch.show(view)
                asked = " ".join(item.id for item in view.result.waiting_for)
                if view.result.state is RunState.NEEDS_INTERVENTION:
                    # Also when there is no question that could be answered: a lost ledger.
                    asked = asked or view.result.error or ""
                # Seen twice: a decision that came early is being looked at in the meantime.
                if asked and asked == asked_before and not stay and _stuck(view):
                    return view.result
                pause = pause if asked == asked_before else FIRST_PAUSE
                asked_before = asked
            finally:
                viewing.cancel()
            await asyncio.wait({ended}, timeout=pause)
            pause = min(pause * PAUSE_GROWTH, LONGEST_PAUSE)
    finally:
        ended.cancel()


def _note(watch: Watch | None, text: str) -> None:
    if watch is not None:
        watch.note(text)


def _stuck(view: RunView) -> bool:
    """Say whether nothing but a human can move the run."""
    result = view.result
    if result.state is RunState.NEEDS_INTERVENTION:
        return True
    # A list is under way as long as its items are, whatever they wait for.
    running = [step.id for step in result.steps if step.state is StepState.RUNNING]
    moving = any(step_id not in view.plan.lists for step_id in running)
    return result.state not in ENDED and not moving


async def until_ended(connection: Connection, run_id: str) -> RunResult:
    """Wait for the end; no worker is asked for anything in the meantime.

    Raises:
        NoSuchRun: There is no such run in this tenant.
        SurehandError: The run ended without a result.
        NotReachable: The server has been silent for too long.
    """
    await connection.describe(run_id)
    while True:
        try:
            return await run_result(connection, run_id)
        except (RPCError, NotReachable):
            await _answers_again(connection, run_id)


async def _answers_again(connection: Connection, run_id: str) -> None:
    silent_since = time.monotonic()
    while True:
        await asyncio.sleep(LONGEST_PAUSE)
        try:
            await connection.describe(run_id)
        except NotReachable:
            if time.monotonic() - silent_since > SERVER_PATIENCE.total_seconds():
                raise
        else:
            return


async def _ended(connection: Connection, run_id: str) -> RunResult:
    """Return the result; a server that is away is asked again until the caller gives up."""
    while True:
        try:
            return await run_result(connection, run_id)
        except (RPCError, NotReachable):
            await asyncio.sleep(LONGEST_PAUSE)
