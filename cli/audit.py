"""``audit``: proving what happened, by the ledger or by signed exports."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from temporalio.api.common.v1 import Payload
from temporalio.service import RPCError, RPCStatusCode

from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.effects.epochs import list_epochs
from surehand.activities.ledger.history.audit import (
    Break,
    NotAnExport,
    RecordedHead,
    claims_to_be,
    find_erasure,
    first_unproven,
    read_export,
    signature_line,
    unverified_approvers,
    verify_chain,
    verify_entries,
    verify_signature,
    verify_story,
    without_forgotten,
)
from surehand.activities.ledger.history.reads import chain_of
from surehand.activities.ledger.history.recordings import find_open_items
from surehand.activities.ledger.runs.deletion import Deletion, read_deletion
from surehand.cli import options
from surehand.cli.options import Caller, ledger_of, read_settings
from surehand.cli.people import read_public_key
from surehand.cli.printer import Lines, Reply, Shape, Styled, counted, shown_time
from surehand.client.connection import Connection, every_event
from surehand.client.messages import read_key, sign
from surehand.process.exits import ExitCode, NotReachable, SurehandError, WrongUse
from surehand.process.settings import ClientSettings
from surehand.workflows.contracts.approvals import ExportClaims, audience
from surehand.workflows.contracts.base import ChainHead
from surehand.workflows.payload_codec import NotDecrypted


class ExportSignature(Shape):
    """Of an exported file."""

    signer: str
    """As the signature says; what proves it is the key."""
    kid: str
    tenant: str
    signed_at: datetime
    verified: bool
    """False: nobody has named the signer's key (``--signer``), so all of this is only claimed."""


def signed_head(
    settings: ClientSettings, events: Sequence[Mapping[str, Any]], head: ChainHead
) -> str:
    """Return the line that ends a signed export; nothing where no key is named."""
    if settings.key is None:
        return ""
    key = read_key(settings.key)
    found = verify_chain(events, [head])
    if found is not None:
        run_id = str(events[0]["run_id"]) if events else ""
        raise SurehandError(
            f"not signed, and not written: the chain is broken at {found}"
            f" (`{settings.command('audit', run_id)}`)",
            code=ExitCode.BROKEN,
        )
    claims = ExportClaims(
        aud=audience(settings.tenant),
        sub=settings.user,
        iat=int(time.time()),
        run_id=str(events[-1]["run_id"]),
        seq=head.seq,
        head=head.hash,
    )
    return signature_line(sign(key, claims))


def shown_signature(token: str, *, verified: bool) -> ExportSignature:
    kid, claims = claims_to_be(token)
    return ExportSignature(
        signer=claims.sub,
        kid=kid,
        tenant=claims.aud.removeprefix(audience("")),
        signed_at=datetime.fromtimestamp(claims.iat, UTC),
        verified=verified,
    )


def signature_text(signature: ExportSignature) -> str:
    who = (
        f"{signature.signer} (key {signature.kid}) at {shown_time(signature.signed_at)},"
        f" for tenant {signature.tenant}"
    )
    if signature.verified:
        return f"Signed by {who}: verified."
    return f"Claims to be signed by {who}: NOT verified, name the public key (--signer FILE)."


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
    """Of a run that was deleted: by whom, and when."""


async def audit(
    caller: options.Onlooker,
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="Name or id of the run.")] = None,
    file: Annotated[
        Path | None, typer.Option(help="Verify an exported file instead of a ledger.")
    ] = None,
    signer: Annotated[
        Path | None, typer.Option(help="The file's head has to be signed with this public key.")
    ] = None,
) -> Reply:
    """Prove a run's event chain, its approvals and its entries; names the first break.

    Example: surehand audit refund-1
    """
    if run is None and file is None:
        raise WrongUse("name a RUN, or an exported file (--file), or both")
    if file is not None:
        run_id = None if run is None else caller.run_id(run)
        head = None
        if run_id is not None:
            async with ledger_of(read_settings()) as ledger:
                # In the row of the run, which stays when its events are deleted.
                _, _, head = await ledger.transact(caller.tenant, chain_of, run_id)
        return _reply(caller.settings, _audit_file(caller.settings, file, signer, head))
    if signer is not None:
        raise WrongUse("--signer is for an exported file (--file)")
    run_id = caller.run_id(run or "")
    return _reply(caller.settings, await _audit_run(caller, run_id))


def _audit_file(
    settings: ClientSettings, file: Path, signer: Path | None, recorded: ChainHead | None
) -> AuditReport:
    key = None if signer is None else _read_signer(signer)
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
    report = _report_on(str(events[0]["run_id"]), events, found, with_what)
    shown = None if token is None else shown_signature(token, verified=key is not None)
    # Of a signature that does not count nothing is told but why.
    return report.model_copy(update={"signature": None if found else shown})


def _read_signer(file: Path) -> dict[str, str]:
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
        gone = await ledger.transact(tenant, read_deletion, run_id)
        if gone is not None and gone.deleted_ms is not None:
            return await _audit_deleted(ledger, tenant, gone)
        events, entries, recorded = await ledger.transact(tenant, chain_of, run_id)
        forged = await ledger.transact(tenant, first_unproven, run_id, events)
        restores = await ledger.transact(tenant, list_epochs)
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
    report = _report_on(run_id, events, found, heads)
    return report.model_copy(update={"forgotten": forgotten})


async def _audit_deleted(ledger: Ledger, tenant: str, gone: Deletion) -> AuditReport:
    """Return what is left to say of a run that was deleted: its tombstone."""
    _, _, head = await ledger.transact(tenant, chain_of, gone.run_id)
    return AuditReport(
        run_id=gone.run_id,
        ok=True,
        events=0,
        compared_with="nothing: its events are deleted",
        first_break=None,
        head=head.hash,
        deleted=gone.told(),
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
            for payload in await _decode_payloads(connection, (*result.payloads, *here.payloads)):
                head = head_in(payload.data)
                if head is not None:
                    heads.append(RecordedHead(head, event.event_time.ToMilliseconds()))
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return []  # Retention is over; the ledger outlives it.
        raise NotReachable(f"Temporal's history of {run_id}: {error}") from error
    return heads


async def _decode_payloads(
    connection: Connection, payloads: Sequence[Payload]
) -> Sequence[Payload]:
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


def _report_on(run_id: str, events: Sequence[Any], found: Break | None, heads: str) -> AuditReport:
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
    return Reply(
        report, _report_lines(settings, report), ExitCode.DONE if report.ok else ExitCode.BROKEN
    )


def _report_lines(settings: ClientSettings, report: AuditReport) -> Lines:
    if not report.ok:
        whose = f"Run {report.run_id}: " if report.run_id else ""
        yield f"{whose}BROKEN at {report.first_break}"
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
