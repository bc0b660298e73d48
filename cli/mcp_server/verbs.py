"""``mcp serve``: over stdio, to the program that has started it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

from surehand.cli import options
from surehand.cli.mcp_server.runs import ServedPlans, ServedRuns
from surehand.cli.options import Caller, flag, option
from surehand.client.messages import read_key
from surehand.process.exits import ExitCode
from surehand.process.settings import load_extra

_Server = Annotated[Caller, options.Shares(("user", "key", "tenant", "ui_url"))]


async def serve(
    caller: _Server,
    plans: Annotated[Path | None, option("Plans that may be started.", metavar="DIR")] = None,
    all_runs: Annotated[
        bool, flag("Show all runs of the tenant; without it only your own.")
    ] = False,
) -> ExitCode:
    """Serve runs to an assistant over MCP: it starts, shows, answers and cancels, as you.

    It approves nothing.

    Example: surehand mcp serve --plans plans
    """
    if caller.settings.key is not None:
        read_key(caller.settings.key)  # what is wrong with it is said now
    served = ServedPlans.read(plans)
    for file, why in served.left_out.items():
        caller.printer.warn(f"{file} is left out: {why}")
    need = "`mcp serve` needs the MCP SDK"
    sdk = load_extra("surehand.cli.mcp_server.server", "mcp", need)
    server = sdk.make_server(ServedRuns(caller, served, all_runs))
    # Reading from stdin cannot be interrupted in any other way.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    await server.run_stdio_async()
    return ExitCode.DONE
