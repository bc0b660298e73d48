"""``notifications``: what people were told, what is to be sent, and what could not be."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from cli import options
from cli.caller import Caller, perform
from cli.ids import find_run_id
from cli.ledger_door import ledger_of, read_settings
from cli.operator import print_rows

EXAMPLE: Final = "Example: python starter.py notifications --failed"

_COLUMNS: Final = (
    "written_at",
    "kind",
    "subject",
    "channel",
    "state",
    "attempts",
    "due_at",
    "sent_at",
    "error",
)


def notifications(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Only this run's; default all.")
    ] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Only what could not be sent, for good or so far.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=10_000, help="At most so many, the newest.")
    ] = 50,
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Show what people were told and are to be told: due, sent, or not sent and why."""

    async def verb(caller: Caller) -> int:
        from activities.ledger.reads import notifications_of

        acting_in = caller.settings.tenant
        run_id = None if run is None else find_run_id(acting_in, run)
        async with ledger_of(read_settings()) as ledger:
            rows = await notifications_of(
                ledger, acting_in, run_id, only_failed=failed, limit=limit
            )
        for row in rows:
            if row["state"] != "pending":
                row["due_at"] = None  # nothing follows
        return print_rows(caller, run_id, _COLUMNS, rows, "No notifications")

    return perform(verb, json_output=json_output, tenant=tenant)
