"""``audit``: proving what happened."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from temporalio.service import RPCError, RPCStatusCode

from cli import options
from cli.caller import Caller, perform
from cli.exits import ExitCode, NotReachable, WrongUse
from cli.ids import find_run_id
from cli.ledger_door import ledger_of, read_settings
from cli.shapes import AuditReport
from cli.tenant_client import TenantClient
from workflows.contracts import ChainHead

if TYPE_CHECKING:
    from activities.ledger.audit import Break

AUDIT_EXAMPLE: Final = "Example: python starter.py audit refund-1 --verify"


def audit(
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="Name or id of the run.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="The default.")] = True,
    file: Annotated[
        Path | None, typer.Option("--file", help="Verify an exported file instead of a ledger.")
    ] = None,
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Prove a run's event chain, its approvals and its entries; names the first break."""

    async def verb(caller: Caller) -> int:
        if (run is None) == (file is None):
            raise WrongUse("name either a RUN or an exported file (--file)")
        if file is not None:
            return _report(caller, *_audit_file(file))
        run_id = find_run_id(caller.settings.tenant, run or "")
        return _report(caller, *await _audit_run(caller, run_id))

    return perform(verb, json_output=json_output, tenant=tenant)


def _audit_file(file: Path) -> tuple[AuditReport, Break | None]:
    from activities.ledger.audit import NotAnExport, from_lines, verify_chain, verify_story

    try:
        events = from_lines(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, NotAnExport) as error:
        raise WrongUse(f"{file}: {error}") from error
    if not events:
        raise WrongUse(f"{file}: no events in it")
    found = verify_chain(events) or verify_story(events)
    heads = "none: a file alone cannot show that its end was cut off"
    return _shape(str(events[0]["run_id"]), events, found, heads), found


async def _audit_run(caller: Caller, run_id: str) -> tuple[AuditReport, Break | None]:
    from activities.ledger.audit import verify_chain, verify_entries, verify_story
    from activities.ledger.reads import chain_of

    async with ledger_of(read_settings()) as ledger:
        events, entries, recorded = await chain_of(ledger, caller.settings.tenant, run_id)
    try:
        from_history = await _history_heads(await caller.server(), run_id)
        heads = f"the run's row and {len(from_history)} in Temporal's history"
    except NotReachable:
        from_history, heads = [], "the run's row; Temporal's history cannot be reached"
    found = (
        verify_chain(events, [recorded, *from_history])
        or verify_story(events)
        or verify_entries(events, entries)
    )
    return _shape(run_id, events, found, heads), found


async def _history_heads(server: TenantClient, run_id: str) -> list[ChainHead]:
    """Return the heads that activities have reported into Temporal's history."""
    heads: list[ChainHead] = []
    try:
        async for event in server.handle(run_id).fetch_history_events():
            result = event.activity_task_completed_event_attributes.result
            for payload in result.payloads:
                head = _head(payload.data)
                if head is not None:
                    heads.append(head)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return []  # Retention is over; the ledger outlives it.
        raise NotReachable(f"Temporal's history of {run_id}: {error}") from error
    return heads


def _head(data: bytes) -> ChainHead | None:
    try:
        value: Any = json.loads(data)
    except ValueError:
        return None
    head = value.get("head") if isinstance(value, dict) else None
    return ChainHead.model_validate(head) if head else None


def _shape(run_id: str, events: Sequence[Any], found: Break | None, heads: str) -> AuditReport:
    from activities.ledger.audit import unverified_approvers

    return AuditReport(
        run_id=run_id,
        ok=found is None,
        events=len(events),
        compared_with=heads,
        first_break=None if found is None else str(found),
        unverified_approvals=unverified_approvers(events),
    )


def _report(caller: Caller, report: AuditReport, found: Break | None) -> int:
    if caller.printer.json_output:
        caller.printer.document(report)
    elif found is None:
        caller.printer.say(f"Run {report.run_id}: {report.events} events, the chain holds.")
        caller.printer.say(f"Compared with: {report.compared_with}.")
        caller.printer.say("Every claim that needed an approval had a valid one for its params.")
        names = report.unverified_approvals
        if names:
            listed = ", ".join(sorted(set(names)))
            caller.printer.say(f"Unverified approvals (unsigned): {len(names)}, by {listed}.")
    else:
        caller.printer.say(f"Run {report.run_id}: BROKEN at {report.first_break}")
    return ExitCode.DONE if report.ok else ExitCode.BROKEN
