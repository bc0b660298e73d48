"""Signatures on record, verified again: on decisions and starts, and under exports (G3).

Rows of decisions can be written by whoever has the workers' rights in the database. What such a row
is worth, its signature says; and what no event tells of, was not written by a worker.

A file alone cannot show that its end was cut off, or that all of it was written anew with hashes
that fit: whoever signs its head, and keeps the key elsewhere, makes that show.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from surehand.activities.ledger.approvals import standing
from surehand.activities.ledger.approvals.votes import is_of
from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import approvals, decisions, runs
from surehand.activities.ledger.history.audit import (
    Break,
    Event,
    from_lines,
    lines_of,
    verify_chain,
)
from surehand.activities.ledger.people import starts
from surehand.activities.ledger.people.proofs import unproven
from surehand.activities.ledger.people.signatures import (
    BadSignature,
    authentic,
    claimed,
    header_kid,
)
from surehand.workflows.contracts.approvals import Assurance
from surehand.workflows.contracts.base import ChainHead
from surehand.workflows.contracts.signing import ExportClaims, audience
from surehand.workflows.identity import tenant_of_run


def first_unproven(tx: Transaction, run_id: str, events: Sequence[Event]) -> Break | None:
    """Return the first row of a run that nothing proves although it counts as proven, or ``None``.

    A key that was revoked later proves what it has signed before.

    Args:
        tx: The transaction.
        run_id: The run.
        events: All its events, in order.
    """
    found = _start(tx, run_id, events)
    if found is not None:
        return found
    strict = _asked_strictly(tx, run_id, events)
    rows = tx.all(
        rows_of(decisions, run_id=run_id, verdict="accepted").order_by(
            decisions.c.at_ms, decisions.c.decision_id
        )
    )
    told = {_name(event["body"]): event for event in events if event["type"] in _TOLD_BY}
    for row in rows:
        found = _decision(tx, row, told.get(_name(row)), strict=row["approval_id"] in strict)
        if found is not None:
            return found
    return None


_TOLD_BY = ("decision.accepted", "approval.standing_used")


def _name(told: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return what an event and its row have in common."""
    if told.get("standing_id") is not None:
        return told["approval_id"], told["standing_id"]
    return told["decision_id"], None


def _start(tx: Transaction, run_id: str, events: Sequence[Event]) -> Break | None:
    opened = next((event for event in events if event["type"] == "run.opened"), None)
    row = tx.one(
        rows_of(
            runs,
            runs.c.user_id,
            runs.c.started_by,
            runs.c.start_kid,
            runs.c.start_signature,
            run_id=run_id,
        )
    )
    if opened is None or row is None:
        return None  # the chain says so
    body = opened["body"]
    said = (body["user"], body.get("started_by"), body.get("kid"))
    if said != (row["user_id"], row["started_by"], row["start_kid"]):
        return Break(opened["seq"], "tells of another start of the run than the ledger's row")
    if not body.get("verified") and row["start_signature"] is None:
        return None
    why = starts.unproven(tx, run_id)
    return None if why is None else Break(opened["seq"], f"nothing proves who started it: {why}")


def _asked_strictly(tx: Transaction, run_id: str, events: Sequence[Event]) -> set[str]:
    """Return the approvals whose votes have to be signed, by their rows or their events."""
    rows = tx.all(
        rows_of(approvals, approvals.c.approval_id, run_id=run_id, assurance=Assurance.SIGNED.value)
    )
    said = (event["body"] for event in events if event["type"] == "approval.requested")
    strict = {body["approval_id"] for body in said if body.get("assurance") == Assurance.SIGNED}
    return strict | {row["approval_id"] for row in rows}


def _decision(
    tx: Transaction, row: Mapping[str, Any], told: Event | None, *, strict: bool
) -> Break | None:
    what = f"decision {row['decision_id']} of {row['approver']}"
    if told is None:
        return Break(0, f"{what} counts in the ledger, but no event tells of it")
    body = told["body"]
    if (body.get("approver"), bool(body.get("verified"))) != (row["approver"], row["verified"]):
        return Break(told["seq"], f"{what} is another in the ledger's row")
    if not (strict or row["verified"] or row["signature"] is not None):
        return None
    why = _given(tx, row) if row["standing_id"] else unproven(tx, row, in_force=False)
    return None if why is None else Break(told["seq"], f"nothing proves {what}: {why}")


def _given(tx: Transaction, row: Mapping[str, Any]) -> str | None:
    """Return why the vote of a standing approval is none."""
    found = standing.given_by(tx, row["standing_id"])
    if found is None or not is_of(row, found):
        return "there is no such standing approval"
    return standing.unsigned(tx, found, in_force=False)


#: The one field of the last line.
_SIGNATURE: Final = "signature"
#: Of the year 9999: what follows is no date.
_LAST_SECOND: Final = 253_402_300_799


def signature_line(token: str) -> str:
    """Return the last line of a signed export."""
    return json.dumps({_SIGNATURE: token}) + "\n"


def read_export(text: str) -> tuple[list[dict[str, Any]], str | None]:
    """Return the events of an export, and its signature if it has one.

    Raises:
        NotAnExport: A line is not an exported event, or a signature is not the last line.
    """
    *above, last = lines_of(text) or [""]
    try:
        value = json.loads(last)
    except ValueError:
        value = None
    if isinstance(value, dict) and value.keys() == {_SIGNATURE}:
        return from_lines("\n".join(above)), str(value[_SIGNATURE])
    return from_lines(text), None


def claims_to_be(token: str) -> tuple[str, ExportClaims]:
    """Return the key id and the claims of a signature that nobody has verified.

    Raises:
        BadSignature: It has not the form of one.
    """
    return header_kid(token, ExportClaims.typ), claimed(token, ExportClaims)


def verify_signature(
    events: Sequence[Event], token: str | None, public_jwk: Mapping[str, Any] | None
) -> Break | None:
    """Return why a signature is not one over these events, or ``None``.

    Args:
        events: All events of the export, in order.
        token: Its signature; ``None``: it has none.
        public_jwk: Whose signature it has to be; ``None``: only what it claims is compared.
    """
    if token is None:
        return None if public_jwk is None else Break(0, "the export is not signed")
    try:
        claims = claims_to_be(token)[1]
        if public_jwk is not None:
            claims = authentic(token, public_jwk, ExportClaims)
    except BadSignature as error:
        return Break(0, str(error))
    if not 0 <= claims.iat <= _LAST_SECOND:
        return Break(0, "the signature is made at no time that there is")
    run_id = str(events[0]["run_id"]) if events else ""
    if claims.run_id != run_id:
        return Break(0, f"the signature is over the export of another run, {claims.run_id}")
    if claims.aud != audience(tenant_of_run(run_id)):
        return Break(0, "the signature is for another tenant")
    if claims.seq < len(events):
        return Break(claims.seq + 1, "was added after the export was signed")
    return verify_chain(events, [ChainHead(seq=claims.seq, hash=claims.head)])
