"""``audit`` and ``receipt``: proving what happened, by the ledger or by a signed file."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import ValidationError
from temporalio.api.common.v1 import Payload
from temporalio.service import RPCError, RPCStatusCode

from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.effects.epochs import list_epochs
from surehand.activities.ledger.history.audit import (
    RecordedHead,
    first_unproven,
    read_receipt,
    unverified_approvers,
    verify_run,
    without_forgotten,
)
from surehand.activities.ledger.history.reads import chain_of
from surehand.activities.ledger.runs.deletion import Deletion, read_deletion
from surehand.cli import options
from surehand.cli.options import Caller, flag, ledger_of, option, read_settings
from surehand.cli.printer import Lines, Reply, Shape, Styled
from surehand.client.connection import Connection, every_event
from surehand.client.messages import public_jwk, read_key, sign
from surehand.process.exits import ExitCode, NotReachable, OutputLost, SurehandError, WrongUse
from surehand.process.settings import ClientSettings
from surehand.verify import (
    LARGEST_RECEIPT_FILE,
    Break,
    canonical,
    check_jwk,
    digest_of,
    find_erasure,
    find_open_items,
    find_problems,
)
from surehand.workflows.contracts.approvals import ReceiptClaims, audience
from surehand.workflows.contracts.base import ChainHead
from surehand.workflows.payload_codec import NotDecrypted
from surehand.workflows.plain_text import counted


def sign_receipt(settings: ClientSettings, receipt: Mapping[str, Any]) -> str:
    """Return a receipt as it is given to strangers; one that is broken is not signed."""
    if settings.key is None:
        raise WrongUse("receipts are signed: name your key (--key, or SUREHAND_KEY)")
    key = read_key(settings.key)
    # Without events it is of a run that was deleted meanwhile, and refused below.
    newest: Mapping[str, Any] = receipt["events"][-1] if receipt["events"] else {}
    body = {**receipt, "signer": check_jwk(public_jwk(key))}
    claims = ReceiptClaims(
        aud=audience(receipt["tenant"]),
        sub=settings.user,
        iat=int(time.time()),
        run_id=receipt["run_id"],
        seq=newest.get("seq", 0),
        head=newest.get("hash", ""),
        content=digest_of(body),
    )
    signed = {**body, "signature": sign(key, claims)}
    text = canonical(signed) + "\n"
    problems = [str(one) for one in find_problems(signed)]
    if len(text.encode()) > LARGEST_RECEIPT_FILE:
        problems.append(f"it would be larger than {LARGEST_RECEIPT_FILE} bytes")
    if problems:
        raise SurehandError(
            f"not signed, and not written: {problems[0]}"
            f" (`{settings.command('audit', receipt['run_id'])}`)",
            code=ExitCode.BROKEN,
        )
    return text


async def receipt(
    caller: options.Sender,
    run: options.Run,
    to: Annotated[Path | None, option("Write it to this new file; without, to stdout.")] = None,
    force: Annotated[bool, flag("Overwrite the file.")] = False,
) -> ExitCode:
    """Write a run's signed receipt, which a stranger checks with `surehand-verify`.

    Example: surehand receipt refund-1 --key ana.pem --to refund-1.receipt.json
    """
    run_id = caller.run_id(run)
    if to is None and sys.stdout.isatty():
        raise WrongUse(f"name a file: --to {run_id.replace('/', '-')}.receipt.json")
    if to is not None and to.is_file() and not force:
        raise WrongUse(f"{to}: there is a file of that name; --force overwrites it")
    text = sign_receipt(caller.settings, await caller.do_transaction(read_receipt, run_id))
    if to is None:
        sys.stdout.write(text)
        return ExitCode.DONE
    try:
        to.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise OutputLost(f"{to}: cannot be written: {error.strerror}") from error
    caller.printer.say(f"Receipt of run {run_id} written to {to}: surehand-verify {to}")
    return ExitCode.DONE


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
    forgotten: int = 0
    """Hashes that Temporal's history has and the ledger does not: it was restored meanwhile."""
    deleted: str | None = None
    """Of a run that was deleted: by whom, and when."""


async def audit(caller: options.Onlooker, run: options.Run) -> Reply:
    """Prove a run's event chain, its approvals and its entries; names the first break.

    Example: surehand audit refund-1
    """
    report = await _audit_run(caller, caller.run_id(run))
    code = ExitCode.DONE if report.ok else ExitCode.BROKEN
    return Reply(report, _report_lines(caller.settings, report), code)


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
    found = verify_run(events, entries, [recorded, *from_history]) or forged
    return _report_on(run_id, events, found, heads, forgotten)


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
    codec = connection.client.data_converter.payload_codec
    try:
        async for event in every_event(connection.client, run_id):
            result = event.activity_task_completed_event_attributes.result
            # Of a local activity; other markers have none.
            here = event.marker_recorded_event_attributes.details["result"]
            payloads: Sequence[Payload] = (*result.payloads, *here.payloads)
            # What is kept elsewhere and cannot be fetched has no head that could be read.
            for payload in payloads if codec is None else await codec.decode(payloads):
                head = head_in(payload.data)
                if head is not None:
                    heads.append(RecordedHead(head, event.event_time.ToMilliseconds()))
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return []  # Retention is over; the ledger outlives it.
        raise NotReachable(f"Temporal's history of {run_id}: {error}") from error
    return heads


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


def _report_on(
    run_id: str, events: Sequence[Any], found: Break | None, heads: str, forgotten: int
) -> AuditReport:
    # What a broken chain leaves open, nobody can tell.
    left = find_open_items(events if found is None else ())
    return AuditReport(
        run_id=run_id,
        ok=found is None,
        events=len(events),
        compared_with=heads,
        first_break=None if found is None else str(found),
        unverified_approvals=unverified_approvers(events),
        head=str(events[-1]["hash"]) if events else "",
        uncompensated=left.uncompensated,
        in_doubt=left.in_doubt,
        partial=left.partial,
        open_interventions=left.interventions,
        erased=find_erasure(events),
        forgotten=forgotten,
    )


def _report_lines(settings: ClientSettings, report: AuditReport) -> Lines:
    if not report.ok:
        whose = f"Run {report.run_id}: " if report.run_id else ""
        yield f"{whose}BROKEN at {report.first_break}"
        return
    if report.deleted is not None:
        yield f"{report.deleted[0].upper()}{report.deleted[1:]}"
        yield f"Head: {report.head}"
        yield "Prove its receipt: surehand-verify FILE, which names the same head"
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
