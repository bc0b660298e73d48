"""A run that says more than can be sent, to a starter that cannot reach the artifact store."""

from __future__ import annotations

from cli.exits import OutOfReach
from cli.outcome import state_of
from cli.printer import Printer
from cli.shapes import KeptRun
from cli.tenant_client import TenantClient


async def show_kept(printer: Printer, server: TenantClient, run_id: str, error: OutOfReach) -> str:
    """Print what the server knows of a run, and where the rest is; return the run's state."""
    state, web_ui = state_of(await server.describe(run_id)), server.web_ui(run_id)
    if printer.json_output:
        printer.document(KeptRun(run_id=run_id, state=state, payload=error.payload, web_ui=web_ui))
    else:
        printer.say(f"Run {run_id}: {state}")
        printer.say(f"  web ui   {web_ui}")
    printer.warn(str(error))
    return state
