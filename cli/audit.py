"""``audit``: proving what happened."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from temporalio.api.common.v1 import Payload
from temporalio.service import RPCError, RPCStatusCode

from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.effects.epochs import epochs_of
from surehand.activities.ledger.history.audit import (
    Break,
    NotAnExport,
    RecordedHead,
    claims_to_be,
    find_erasure,
    first_unproven,
    read_export,
    unverified_approvers,
    verify_chain,
    verify_entries,
    verify_signature,
    verify_story,
    without_forgotten,
)
from surehand.activities.ledger.history.reads import chain_of
from surehand.activities.ledger.history.recordings import find_open_items
from surehand.activities.ledger.retention.hiding import Hidden, read_hidden
from surehand.cli import options
from surehand.cli.exports import (
    ExportSignature,
    has_content,
    read_content,
    shown_signature,
    signature_text,
    why_unproven,
)
from surehand.cli.ledger_door import ledger_of, read_settings
from surehand.cli.options import Caller
from surehand.cli.principals import read_public_key
from surehand.cli.printer import Lines, Reply, Styled, counted
from surehand.cli.shapes import Shape
from surehand.client.connection import Connection, every_event
from surehand.process.exits import ExitCode, NotReachable, WrongUse
from surehand.process.settings import ClientSettings
from surehand.workflows.contracts.approvals import ContentClaims, ExportClaims
from surehand.workflows.contracts.base import ChainHead
from surehand.workflows.payload_codec import NotDecrypted


class AuditReport(Shape):
    """``audit``."""

    run_id: str
    ok: bool
    events: int
    compared_with: str
    """Where the heads came from that the chain has to pass through."""
    first_break: str | None
    unverified_approvals: list[str] = []
    """In whose names calls were approved by unsigned decisions: the names are only claimed."""
    head: str = ""
    """The hash of the newest event."""
    uncompensated: list[str] = []
    """Effects of a failed or cancelled run that remain; like what follows, it is no break."""
    in_doubt: list[str] = []
    partial: list[str] = []
    open_interventions: list[str] = []
    erased: str | None = None
    """When the run was erased, by whom, and why: its chain holds all the same."""
    signature: ExportSignature | None = None
    """Of an exported file that is signed."""
    forgotten: int = 0
    """Hashes that Temporal's history has and the ledger does not: it was restored meanwhile."""
    deleted: str | None = None
    """Of a run that was deleted: by whom, when, and where it was exported to."""
    content: str | None = None
    """Of an exported file with what was deleted: what it has."""


async def audit(
    caller: options.Onlooker,
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="Name or id of the run.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="Verify an exported file instead of a ledger.")
    ] = None,
    signer: Annotated[
        Path | None,
        typer.Option("--signer", help="The file's head has to be signed with this public key."),
    ] = None,
) -> Reply:
    """Prove a run's event chain, its approvals and its entries; names the first break.

    Example: python starter.py audit refund-1
    """
    if run is None and file is None:
        raise WrongUse("name a RUN, or an exported file (--file), or both")
    if file is not None:
        run_id = None if run is None else caller.run_id(run)
        if _is_content(file):
            return _reply(caller.settings, _audit_content(file, signer, run_id))
        head = None if run_id is None else await _recorded_head(caller, run_id)
        return _reply(caller.settings, _audit_file(caller.settings, file, signer, head))
    if signer is not None:
        raise WrongUse("--signer is for an exported file (--file)")
    run_id = caller.run_id(run or "")
    return _reply(caller.settings, await _audit_run(caller, run_id))


async def _recorded_head(caller: Caller, run_id: str) -> ChainHead:
    """Return the head in the ledger's row of a run, which stays when its events are deleted."""
    async with ledger_of(read_settings()) as ledger:
        _, _, head = await ledger.transact(caller.tenant, chain_of, run_id)
    return head


def _audit_file(
    settings: ClientSettings, file: Path, signer: Path | None, recorded: ChainHead | None
) -> AuditReport:

    key = None if signer is None else _signer(signer)
    made_by = f"`{settings.command('events', 'RUN', '--export', 'FILE')}` writes one"
    try:
        events, token = read_export(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise WrongUse(f"{file}: {error.strerror or 'cannot be read'}; {made_by}") from error
    except UnicodeDecodeError as error:
        raise WrongUse(f"{file}: byte {error.start} is no UTF-8 text; {made_by}") from error
    except NotAnExport as error:
        raise WrongUse(f"{file}: {error}; {made_by}") from error
    if not events:
        raise WrongUse(f"{file}: no events in it; {made_by}")
    found = (
        verify_chain(events, [] if recorded is None else [recorded])
        or verify_signature(events, token, key)
        or verify_story(events)
    )
    with_what = _compared_with(token, key)
    if recorded is not None:
        with_what = f"the head in the ledger's row of the run, and {with_what}"
    report = _shape(str(events[0]["run_id"]), events, found, with_what)
    shown = (
        None if token is None else shown_signature(token, ExportClaims, verified=key is not None)
    )
    # Of a signature that does not count nothing is told but why.
    return report.model_copy(update={"signature": None if found else shown})


def _is_content(file: Path) -> bool:
    try:
        return has_content(file)
    except OSError:
        return False  # Whoever reads it next says why.


def _audit_content(file: Path, signer: Path | None, run_id: str | None) -> AuditReport:
    """Prove an export of what was deleted: by its signature, because its rows are in no chain."""
    key, found = None if signer is None else _signer(signer), read_content(file)
    why, signature, content = why_unproven(found, run_id, None, key), None, None
    if why is None and found.token is not None:
        claims = claims_to_be(found.token, ContentClaims)[1]
        run_id, content = claims.run_id, f"{claims.kind}: {found.told()}"
        signature = shown_signature(found.token, ContentClaims, verified=key is not None)
    with_what = "the digest in the file's last line"
    return AuditReport(
        run_id=run_id or "",
        ok=why is None,
        events=0,
        compared_with=with_what if key else f"{with_what}, not verified: name the key (--signer)",
        first_break=None if why is None else f"{file}: {why}",
        content=content,
        signature=signature,
    )


def _signer(file: Path) -> dict[str, str]:
    key = read_public_key(file)
    if key.passkey is not None:
        raise WrongUse(f"public key {file}: it is a passkey's, which signs no exports")
    return key.jwk


def _compared_with(token: str | None, key: dict[str, str] | None) -> str:
    if token is None:
        return "nothing: a file alone cannot show that its end was cut off"
    if key is None:
        return "the head in the file's last line, not verified: name the key (--signer)"
    return "the head that is signed in the file's last line"


async def _audit_run(caller: Caller, run_id: str) -> AuditReport:

    tenant = caller.tenant
    async with ledger_of(read_settings()) as ledger:
        gone = await ledger.transact(tenant, read_hidden, run_id)
        if gone is not None and gone.deleted_ms is not None:
            return await _audit_deleted(ledger, tenant, gone)
        events, entries, recorded = await ledger.transact(tenant, chain_of, run_id)
        forged = await ledger.transact(tenant, first_unproven, run_id, events)
        restores = await ledger.transact(tenant, epochs_of)
    forgotten = 0
    try:
        told = await history_heads(await caller.connection(), run_id)
        from_history, forgotten = without_forgotten(events, told, restores)
        elsewhere = (
            f"{len(from_history)} hashes that Temporal's history recorded as the run went on"
            if from_history
            else "none from Temporal's history, which has none of this run any more"
        )
    except NotReachable:
        from_history, elsewhere = [], "none from Temporal's history, which cannot be reached"
    except NotDecrypted:
        from_history, elsewhere = [], "none from Temporal's history, which nobody can read any more"
    heads = f"the newest event's hash in the ledger's row of the run, and {elsewhere}"
    found = (
        verify_chain(events, [recorded, *from_history])
        or verify_story(events)
        or verify_entries(events, entries)
        or forged
    )
    report = _shape(run_id, events, found, heads)
    return report.model_copy(update={"forgotten": forgotten})


async def _audit_deleted(ledger: Ledger, tenant: str, gone: Hidden) -> AuditReport:
    """Return what is left to say of a run that was deleted: its tombstone."""
    _, _, head = await ledger.transact(tenant, chain_of, gone.run_id)
    where = f", it was exported to {gone.export}" if gone.export else ", it was not exported"
    return AuditReport(
        run_id=gone.run_id,
        ok=True,
        events=0,
        compared_with="nothing: its events are deleted",
        first_break=None,
        head=head.hash,
        deleted=f"{gone.told()}{where}",
    )


async def history_heads(connection: Connection, run_id: str) -> list[RecordedHead]:
    """Return the heads that activities have reported into Temporal's history."""
    heads: list[RecordedHead] = []
    try:
        async for event in every_event(connection.client, run_id):
            result = event.activity_task_completed_event_attributes.result
            # Of a local activity; other markers have none.
            here = event.marker_recorded_event_attributes.details["result"]
            # What is kept elsewhere and cannot be fetched has no head that could be read.
            for payload in await _fetched(connection, (*result.payloads, *here.payloads)):
                head = head_in(payload.data)
                if head is not None:
                    heads.append(RecordedHead(head, event.event_time.ToMilliseconds()))
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return []  # Retention is over; the ledger outlives it.
        raise NotReachable(f"Temporal's history of {run_id}: {error}") from error
    return heads


async def _fetched(connection: Connection, payloads: Sequence[Payload]) -> Sequence[Payload]:
    codec = connection.client.data_converter.payload_codec
    return payloads if codec is None else await codec.decode(payloads)


def head_in(data: bytes) -> ChainHead | None:
    """Return the head in what an activity has returned; ``None``: it is of none of ours."""
    try:
        value: Any = json.loads(data)
    except ValueError:
        return None
    head = value.get("head") if isinstance(value, dict) else None
    try:
        return ChainHead.model_validate(head) if head else None
    except ValidationError:  # of an activity that is not ours
        return None


def _shape(run_id: str, events: Sequence[Any], found: Break | None, heads: str) -> AuditReport:

    report = AuditReport(
        run_id=run_id,
        ok=found is None,
        events=len(events),
        compared_with=heads,
        first_break=None if found is None else str(found),
        unverified_approvals=unverified_approvers(events),
        head=str(events[-1]["hash"]) if events else "",
        erased=find_erasure(events),
    )
    if found is not None:
        return report
    left = find_open_items(events)
    return report.model_copy(
        update={
            "uncompensated": left.uncompensated,
            "in_doubt": left.in_doubt,
            "partial": left.partial,
            "open_interventions": left.interventions,
        }
    )


def _reply(settings: ClientSettings, report: AuditReport) -> Reply:
    return Reply(report, _lines(settings, report), ExitCode.DONE if report.ok else ExitCode.BROKEN)


def _lines(settings: ClientSettings, report: AuditReport) -> Lines:
    if not report.ok:
        whose = f"Run {report.run_id}: " if report.run_id else ""
        yield f"{whose}BROKEN at {report.first_break}"
        return
    if report.content is not None and report.signature is not None:
        yield f"Run {report.run_id}, {report.content}: as they were signed."
        yield signature_text(report.signature)
        return
    if report.deleted is not None:
        yield f"{report.deleted[0].upper()}{report.deleted[1:]}"
        yield f"Head: {report.head}"
        yield f"Prove its export: {settings.command('audit', report.run_id, '--file', 'FILE')}"
        return
    yield f"Run {report.run_id}: {counted(report.events, 'event')}, the chain holds: nothing was"
    yield "  changed, added, moved or taken away since it was written."
    yield f"Head: {report.head}"
    yield f"Compared with: {report.compared_with}."
    if report.forgotten:
        # No break: whoever has restored the ledger has said so.
        yield (
            f"Restored: of {counted(report.forgotten, 'head')} in Temporal's history the ledger has"
            " forgotten the events."
        )
    if report.erased is not None:
        yield Styled(f"Erased {report.erased}", "bold")
        yield "  Nobody can read what it has sent and kept. Its chain is whole without that."
    yield "Every call that needed an approval had one, in time, for exactly its params."
    if report.signature is not None:
        yield signature_text(report.signature)
    names = report.unverified_approvals
    if names:
        yield f"Unverified approvals (unsigned): {len(names)}, by {', '.join(sorted(set(names)))}."
    asks = f"`{settings.command('interventions', report.run_id)}` says how to answer it"
    left = [
        *(f"not undone: {entry}" for entry in report.uncompensated),
        *(f"in doubt, nobody knows whether it happened: {entry}" for entry in report.in_doubt),
        *(f"happened in part: {entry}" for entry in report.partial),
        *(f"waits for a human: {question} ({asks})" for question in report.open_interventions),
    ]
    if not left:
        yield "Nothing is left open."
        return
    yield Styled("Left open (no break, but somebody has to see to it):", "bold")
    yield from (f"  {line}" for line in left)
