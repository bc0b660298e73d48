"""Waits for a run: until it ends, until it needs a human, or until the time is over.

It rides through deaths of workers and restarts of the server, as the run itself does.
"""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta

from surehand.cli.runs.watch import StoryWatch, watching
from surehand.cli.verb.printer import Printer, Reply
from surehand.cli.verb.render import headline, open_lines, result_lines
from surehand.cli.verb.shapes import KeptRun
from surehand.client.connection import Connection
from surehand.client.following import LOOK_LIMIT, Watch, until_settled
from surehand.client.outcome import CUT_OFF_BY_SERVER, code_of, state_of
from surehand.process.exits import (
    OF_STATE,
    ExitCode,
    OutOfReach,
    SurehandError,
)
from surehand.workflows.contracts.states import RunState


async def kept(printer: Printer, server: Connection, run_id: str, error: OutOfReach) -> Reply:
    """Return what the server knows of a run, and where the rest is."""
    state, web_ui = state_of(await server.describe(run_id)), server.web_ui(run_id)
    printer.warn(str(error))
    return Reply(
        KeptRun(run_id=run_id, state=state, payload=error.payload, web_ui=web_ui),
        [f"Run {run_id}: {state}", f"  web ui   {web_ui}"],
        _exit_code(state),
    )


async def follow(
    printer: Printer, server: Connection, run_id: str, *, limit: timedelta | None
) -> Reply:
    """Wait, and return how the run ended or stands.

    On a terminal it goes on waiting while the run waits for a human; otherwise it returns then,
    because whoever reads the output cannot be told any other way.

    Args:
        printer: Where progress and the result go.
        server: Where the run is.
        run_id: The run.
        limit: How long to wait at most.

    Raises:
        SurehandError: The time is over, or the run ended without a result.
        NotReachable: The server has been silent for too long.
    """
    goes_on = _goes_on(server, run_id)
    deadline = asyncio.timeout(None if limit is None else limit.total_seconds())
    try:
        async with deadline:
            with watching(printer, server) as watch:
                result = await until_settled(server, run_id, watch, stay=printer.attended)
                pending = watch.pending
    except OutOfReach as error:
        return await kept(printer, server, run_id, error)
    except TimeoutError as error:
        raise SurehandError(f"--timeout is over; {goes_on}", code=ExitCode.OUT_OF_TIME) from error
    except asyncio.CancelledError:
        printer.warn(goes_on)
        raise
    if printer.json_output:
        printer.lines(open_lines(server, result, pending))
    lines = ["", *result_lines(result), *open_lines(server, result, pending)]
    return Reply(result, lines, _exit_code(result.state))


def _goes_on(server: Connection, run_id: str) -> str:
    return f"run {run_id} goes on: look with `{server.settings.command('show', run_id)}`"


def _exit_code(state: str) -> ExitCode:
    if state in CUT_OFF_BY_SERVER:
        return code_of(state)
    return OF_STATE.get(RunState(state), ExitCode.HUMAN_NEEDED)


async def tell(printer: Printer, server: Connection, run_id: str) -> Reply | ExitCode:
    """Print the run's timeline as it goes on, until it ends; return how it ended.

    Args:
        printer: Where the lines go; with ``--json`` each is one document.
        server: Where the run is.
        run_id: The run.

    Raises:
        SurehandError: The run ended without a result.
        NotReachable: The server has been silent for too long.
    """
    watch = StoryWatch(printer)
    try:
        result = await until_settled(server, run_id, watch, stay=True)
    except asyncio.CancelledError:
        printer.warn(_goes_on(server, run_id))
        raise
    except OutOfReach as error:
        return await kept(printer, server, run_id, error)
    except SurehandError:
        await _last_look(server, run_id, watch)
        raise
    await _last_look(server, run_id, watch)
    if not printer.json_output:
        printer.say(headline(result))
    return _exit_code(result.state)


async def _last_look(server: Connection, run_id: str, watch: Watch) -> None:
    """Show what came between the look before and the end; without a worker it stays untold."""
    with contextlib.suppress(SurehandError):
        watch.show(await server.view(run_id, LOOK_LIMIT))
