"""Waits for a run: until it ends, until it needs a human, or until the time is over.

It rides through deaths of workers and restarts of the server, as the run itself does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

from temporalio.service import RPCError

from surehand.cli.runs.watch import TimelineWatch, TokenWatch, watching
from surehand.cli.verb.printer import Printer, Reply
from surehand.cli.verb.render import headline, open_lines, result_lines
from surehand.cli.verb.shapes import KeptRun
from surehand.client.connection import Connection
from surehand.client.following import LOOK_LIMIT, Watch, until_settled
from surehand.client.outcome import CUT_OFF_BY_SERVER, call_progress, code_of, state_of
from surehand.process.exits import (
    OF_STATE,
    ExitCode,
    OutOfReach,
    SurehandError,
)
from surehand.workflows.contracts.states import RunState

#: Seconds between looks at what models say: a worker tells it each second.
TOKENS_EVERY: Final = 0.5


async def kept(printer: Printer, connection: Connection, run_id: str, error: OutOfReach) -> Reply:
    """Return what the server knows of a run, and where the rest is."""
    state, web_ui = state_of(await connection.describe(run_id)), connection.web_ui(run_id)
    printer.warn(str(error))
    return Reply(
        KeptRun(run_id=run_id, state=state, payload=error.payload, web_ui=web_ui),
        [f"Run {run_id}: {state}", f"  web ui   {web_ui}"],
        _exit_code(state),
    )


async def follow(
    printer: Printer, connection: Connection, run_id: str, *, limit: timedelta | None
) -> Reply:
    """Wait, and return how the run ended or stands.

    On a terminal it goes on waiting while the run waits for a human; otherwise it returns then,
    because whoever reads the output cannot be told any other way.

    Args:
        printer: Where progress and the result go.
        connection: Where the run is.
        run_id: The run.
        limit: How long to wait at most.

    Raises:
        SurehandError: The time is over, or the run ended without a result.
        NotReachable: The server has been silent for too long.
    """
    goes_on = _goes_on(connection, run_id)
    deadline = asyncio.timeout(None if limit is None else limit.total_seconds())
    try:
        async with deadline:
            with watching(printer, connection) as watch:
                result = await until_settled(connection, run_id, watch, stay=printer.attended)
                pending = watch.pending
    except OutOfReach as error:
        return await kept(printer, connection, run_id, error)
    except TimeoutError as error:
        where = await _stuck(connection, run_id) or goes_on
        raise SurehandError(f"--timeout is over; {where}", code=ExitCode.OUT_OF_TIME) from error
    except asyncio.CancelledError:
        printer.warn(goes_on)
        raise
    if printer.json_output:
        printer.lines(open_lines(connection, result, pending))
    lines = ["", *result_lines(result), *open_lines(connection, result, pending)]
    return Reply(result, lines, _exit_code(result.state))


async def _stuck(connection: Connection, run_id: str) -> str | None:
    """Return why a run does not go on; ``None``: it does, or the server does not say so in time."""
    with contextlib.suppress(SurehandError, RPCError, TimeoutError):
        async with asyncio.timeout(LOOK_LIMIT.total_seconds()):
            return await connection.stuck(await connection.describe(run_id))
    return None


def _goes_on(connection: Connection, run_id: str) -> str:
    return f"run {run_id} goes on: look with `{connection.settings.command('show', run_id)}`"


def _exit_code(state: str) -> ExitCode:
    if state in CUT_OFF_BY_SERVER:
        return code_of(state)
    return OF_STATE.get(RunState(state), ExitCode.HUMAN_NEEDED)


async def tell(
    printer: Printer, connection: Connection, run_id: str, *, tokens: bool = False
) -> Reply | ExitCode:
    """Print the run's timeline as it goes on, until it ends; return how it ended.

    Args:
        printer: Where the lines go; with ``--json`` each is one document.
        connection: Where the run is.
        run_id: The run.
        tokens: Print what its models say, too.

    Raises:
        SurehandError: The run ended without a result.
        NotReachable: The server has been silent for too long.
    """
    watch = TokenWatch(printer) if tokens else TimelineWatch(printer)
    try:
        async with _listening(connection, run_id, watch):
            result = await until_settled(connection, run_id, watch, stay=True)
    except asyncio.CancelledError:
        printer.warn(_goes_on(connection, run_id))
        raise
    except OutOfReach as error:
        return await kept(printer, connection, run_id, error)
    except SurehandError:
        await _last_look(connection, run_id, watch)
        raise
    await _last_look(connection, run_id, watch)
    if not printer.json_output:
        printer.say(headline(result))
    return _exit_code(result.state)


@asynccontextmanager
async def _listening(
    connection: Connection, run_id: str, watch: TimelineWatch
) -> AsyncIterator[None]:
    """Have a watch hear what models say for as long as the block lasts."""
    listening = None
    if isinstance(watch, TokenWatch):
        listening = asyncio.create_task(_listen(connection, run_id, watch))
    try:
        yield
    finally:
        if listening is not None:
            listening.cancel()
            await asyncio.wait({listening})


async def _listen(connection: Connection, run_id: str, watch: TokenWatch) -> None:
    while True:
        # Whoever waits for the run says what is wrong with the server.
        with contextlib.suppress(SurehandError, RPCError):
            watch.hear((await call_progress(await connection.describe(run_id))).tokens)
        await asyncio.sleep(TOKENS_EVERY)


async def _last_look(connection: Connection, run_id: str, watch: Watch) -> None:
    """Show what came between the look before and the end; without a worker it stays untold."""
    with contextlib.suppress(SurehandError):
        watch.show(await connection.view(run_id, LOOK_LIMIT))
