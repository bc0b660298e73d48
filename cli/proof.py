"""``audit``: proving what happened."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from temporalio.api.common.v1 import Payload
from temporalio.service import RPCError, RPCStatusCode

from cli import options
from cli.caller import Caller, perform
from cli.executions import every_event
from cli.exits import ExitCode, NotReachable, WrongUse
from cli.ids import find_run_id
from cli.ledger_door import ledger_of, read_settings
from cli.principal_input import read_public_key
from cli.shapes import AuditReport
from cli.signed_export import shown_signature, signature_text
from cli.tenant_client import TenantClient
from cli.text import command, counted
from workflows.contracts import ChainHead

if TYPE_CHECKING:
    from activities.ledger.audit import Break

AUDIT_EXAMPLE: Final = "Example: python starter.py audit refund-1"
#: What makes the files that `audit --file` reads.
_MADE_BY: Final = f"`{command('events')} RUN --export FILE` writes one"


def audit(
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="Name or id of the run.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="Verify an exported file instead of a ledger.")
    ] = None,
    signer: Annotated[
        Path | None,
        typer.Option("--signer", help="The file's head has to be signed with this public key."),
    ] = None,
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Prove a run's event chain, its approvals and its entries; names the first break."""

    async def verb(caller: Caller) -> int:
        if (run is None) == (file is None):
            raise WrongUse("name either a RUN or an exported file (--file)")
        if file is not None:
            return _report(caller, *_audit_file(file, signer))
        if signer is not None:
            raise WrongUse("--signer is for an exported file (--file)")
        run_id = find_run_id(caller.settings.tenant, run or "")
        return _report(caller, *await _audit_run(caller, run_id))

    return perform(verb, json_output=json_output, tenant=tenant)


def _audit_file(file: Path, signer: Path | None) -> tuple[AuditReport, Break | None]:
    from activities.ledger.audit import NotAnExport, verify_chain, verify_story
    from activities.ledger.signed_exports import read_export, verify_signature

    key = None if signer is None else read_public_key(signer)[1]
    try:
        events, token = read_export(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise WrongUse(f"{file}: {error.strerror or 'cannot be read'}; {_MADE_BY}") from error
    except UnicodeDecodeError as error:
        raise WrongUse(f"{file}: byte {error.start} is no UTF-8 text; {_MADE_BY}") from error
    except NotAnExport as error:
        raise WrongUse(f"{file}: {error}; {_MADE_BY}") from error
    if not events:
        raise WrongUse(f"{file}: no events in it; {_MADE_BY}")
    found = verify_chain(events) or verify_signature(events, token, key) or verify_story(events)
    report = _shape(str(events[0]["run_id"]), events, found, _compared_with(token, key))
    shown = None if token is None else shown_signature(token, verified=key is not None)
    # Of a signature that does not count nothing is told but why.
    return report.model_copy(update={"signature": None if found else shown}), found


def _compared_with(token: str | None, key: dict[str, str] | None) -> str:
    if token is None:
        return "nothing: a file alone cannot show that its end was cut off"
    if key is None:
        return "the head in the file's last line, not verified: name the key (--signer)"
    return "the head that is signed in the file's last line"


async def _audit_run(caller: Caller, run_id: str) -> tuple[AuditReport, Break | None]:
    from activities.ledger.audit import verify_chain, verify_entries, verify_story
    from activities.ledger.reads import chain_of
    from activities.ledger.signed_rows import first_unproven

    tenant = caller.settings.tenant
    async with ledger_of(read_settings()) as ledger:
        events, entries, recorded = await chain_of(ledger, tenant, run_id)
        forged = await first_unproven(ledger, tenant, run_id, events)
    try:
        from_history = await _history_heads(await caller.server(), run_id)
        elsewhere = (
            f"{len(from_history)} hashes that Temporal's history recorded as the run went on"
            if from_history
            else "none from Temporal's history, which has none of this run any more"
        )
    except NotReachable:
        from_history, elsewhere = [], "none from Temporal's history, which cannot be reached"
    heads = f"the newest event's hash in the ledger's row of the run, and {elsewhere}"
    found = (
        verify_chain(events, [recorded, *from_history])
        or verify_story(events)
        or verify_entries(events, entries)
        or forged
    )
    return _shape(run_id, events, found, heads), found


async def _history_heads(server: TenantClient, run_id: str) -> list[ChainHead]:
    """Return the heads that activities have reported into Temporal's history."""
    heads: list[ChainHead] = []
    try:
        async for event in every_event(server.client, run_id):
            result = event.activity_task_completed_event_attributes.result
            # What is kept elsewhere and cannot be fetched has no head that could be read.
            for payload in await _fetched(server, result.payloads):
                head = _head(payload.data)
                if head is not None:
                    heads.append(head)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return []  # Retention is over; the ledger outlives it.
        raise NotReachable(f"Temporal's history of {run_id}: {error}") from error
    return heads


async def _fetched(server: TenantClient, payloads: Sequence[Payload]) -> Sequence[Payload]:
    codec = server.client.data_converter.payload_codec
    return payloads if codec is None else await codec.decode(payloads)


def _head(data: bytes) -> ChainHead | None:
    try:
        value: Any = json.loads(data)
    except ValueError:
        return None
    head = value.get("head") if isinstance(value, dict) else None
    return ChainHead.model_validate(head) if head else None


def _shape(run_id: str, events: Sequence[Any], found: Break | None, heads: str) -> AuditReport:
    from activities.ledger.audit import unverified_approvers
    from activities.ledger.leftovers import leftovers

    report = AuditReport(
        run_id=run_id,
        ok=found is None,
        events=len(events),
        compared_with=heads,
        first_break=None if found is None else str(found),
        unverified_approvals=unverified_approvers(events),
        head=str(events[-1]["hash"]) if events else "",
    )
    if found is not None:
        return report
    left = leftovers(events)
    return report.model_copy(
        update={
            "uncompensated": left.uncompensated,
            "in_doubt": left.in_doubt,
            "partial": left.partial,
            "open_interventions": left.interventions,
        }
    )


def _report(caller: Caller, report: AuditReport, found: Break | None) -> int:
    if caller.printer.json_output:
        caller.printer.document(report)
    elif found is None:
        say = caller.printer.say
        say(f"Run {report.run_id}: {counted(report.events, 'event')}, the chain holds: nothing was")
        say("  changed, added, moved or taken away since it was written.")
        say(f"Head: {report.head}")
        say(f"Compared with: {report.compared_with}.")
        say("Every call that needed an approval had one, in time, for exactly its params.")
        if report.signature is not None:
            say(signature_text(report.signature))
        names = report.unverified_approvals
        if names:
            listed = ", ".join(sorted(set(names)))
            say(f"Unverified approvals (unsigned): {len(names)}, by {listed}.")
        _say_what_is_open(caller, report)
    else:
        caller.printer.say(f"Run {report.run_id}: BROKEN at {report.first_break}")
    return ExitCode.DONE if report.ok else ExitCode.BROKEN


def _say_what_is_open(caller: Caller, report: AuditReport) -> None:
    asks = f"answer with `{command('resolve')}`; `{command('interventions', report.run_id)}` asks"
    left = [
        *(f"not undone: {entry}" for entry in report.uncompensated),
        *(f"in doubt, nobody knows whether it happened: {entry}" for entry in report.in_doubt),
        *(f"happened in part: {entry}" for entry in report.partial),
        *(f"waits for a human: {question} ({asks})" for question in report.open_interventions),
    ]
    if not left:
        caller.printer.say("Nothing is left open.")
        return
    caller.printer.say("Left open (no break, but somebody has to see to it):", "bold")
    for line in left:
        caller.printer.say(f"  {line}")
