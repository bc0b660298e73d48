"""Waits for a run: until it ends, until it needs a human, or until the time is over.

It rides through deaths of workers and restarts of the server, as the run itself does.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from datetime import timedelta
from typing import Final

from temporalio.service import RPCError

from cli.exits import OF_STATE, ExitCode, NotReachable, NoWorker, OutOfReach, StarterError
from cli.out_of_reach import show_kept
from cli.outcome import CUT_OFF_BY_SERVER, code_of, run_result, state_of
from cli.printer import Printer
from cli.render import headline, print_result, print_waiting
from cli.tenant_client import TenantClient
from cli.text import command
from cli.watch import StoryWatch, Watch, make_watch
from workflows.contracts import ENDED, RunResult, RunState, RunView, StepState

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


async def follow(
    printer: Printer, server: TenantClient, run_id: str, *, limit: timedelta | None
) -> ExitCode:
    """Wait, print how the run ended or stands, and return the exit code for it.

    On a terminal it goes on waiting while the run waits for a human; otherwise it returns then,
    because whoever reads the output cannot be told any other way.

    Args:
        printer: Where progress and the result go.
        server: Where the run is.
        run_id: The run.
        limit: How long to wait at most.

    Raises:
        StarterError: The time is over, or the run ended without a result.
        NotReachable: The server has been silent for too long.
    """
    goes_on = f"run {run_id} goes on: look with `{command('show', run_id)}`"
    deadline = asyncio.timeout(None if limit is None else limit.total_seconds())
    try:
        async with deadline:
            with make_watch(printer, server) as watch:
                result = await _until_settled(server, run_id, watch, stay=printer.attended)
    except OutOfReach as error:
        return _exit_code(await show_kept(printer, server, run_id, error))
    except TimeoutError as error:
        raise StarterError(f"--timeout is over; {goes_on}", code=ExitCode.OUT_OF_TIME) from error
    except asyncio.CancelledError:
        printer.warn(goes_on)
        raise
    if printer.json_output:
        printer.document(result)
    else:
        printer.say()
        print_result(printer, result)
    print_waiting(printer, server, result)
    return _exit_code(result.state)


def _exit_code(state: str) -> ExitCode:
    if state in CUT_OFF_BY_SERVER:
        return code_of(state)
    return OF_STATE.get(RunState(state), ExitCode.HUMAN_NEEDED)


async def tell(printer: Printer, server: TenantClient, run_id: str) -> ExitCode:
    """Print the run's timeline as it goes on, until it ends; return how it ended.

    Args:
        printer: Where the lines go; with ``--json`` each is one document.
        server: Where the run is.
        run_id: The run.

    Raises:
        StarterError: The run ended without a result.
        NotReachable: The server has been silent for too long.
    """
    with StoryWatch(printer) as watch:
        try:
            result = await _until_settled(server, run_id, watch, stay=True)
        except asyncio.CancelledError:
            printer.warn(f"run {run_id} goes on: look with `{command('show', run_id)}`")
            raise
        except OutOfReach as error:
            return _exit_code(await show_kept(printer, server, run_id, error))
        except StarterError:
            await _last_look(server, run_id, watch)
            raise
        await _last_look(server, run_id, watch)
    if not printer.json_output:
        printer.say(headline(result))
    return _exit_code(result.state)


async def _last_look(server: TenantClient, run_id: str, watch: Watch) -> None:
    """Show what came between the look before and the end; without a worker it stays untold."""
    with contextlib.suppress(StarterError):
        watch.show(await server.view(run_id, LOOK_LIMIT))


async def _until_settled(
    server: TenantClient, run_id: str, watch: Watch, *, stay: bool
) -> RunResult:
    ended = asyncio.create_task(_ended(server, run_id))
    pause, asked_before, silent_since = FIRST_PAUSE, "", time.monotonic()
    try:
        while True:
            viewing = asyncio.create_task(server.view(run_id, LOOK_LIMIT))
            try:
                await asyncio.wait({ended, viewing}, return_when=asyncio.FIRST_COMPLETED)
                if ended.done():
                    return ended.result()
                view = viewing.result()
            except NoWorker:
                silent_since = time.monotonic()
                watch.note(f"No worker answers; the run is safe on the server ({run_id})")
            except NotReachable as error:
                if time.monotonic() - silent_since > SERVER_PATIENCE.total_seconds():
                    raise
                watch.note(str(error))
            except OutOfReach as error:
                if ended.done():
                    raise
                silent_since = time.monotonic()
                watch.note(str(error))
                state = state_of(await server.describe(run_id))
                if not stay and state in _WAITS:
                    raise
            else:
                silent_since = time.monotonic()
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


def _stuck(view: RunView) -> bool:
    """Say whether nothing but a human can move the run."""
    result = view.result
    if result.state is RunState.NEEDS_INTERVENTION:
        return True
    # A list is under way as long as its items are, whatever they wait for.
    running = [step.id for step in result.steps if step.state is StepState.RUNNING]
    moving = any(step_id not in view.plan.lists for step_id in running)
    return result.state not in ENDED and not moving


async def _ended(server: TenantClient, run_id: str) -> RunResult:
    """Return the result; a server that is away is asked again until the caller gives up."""
    while True:
        try:
            return await run_result(server, run_id)
        except (RPCError, NotReachable):
            await asyncio.sleep(LONGEST_PAUSE)
