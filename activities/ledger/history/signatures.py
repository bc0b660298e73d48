"""Signatures on record, verified again: on decisions and starts, and under exports (G3).

Rows of decisions can be written by whoever has the workers' rights in the database. What such a row
is worth, its signature says; and what no event tells of, was not written by a worker.

A file alone cannot show that its end was cut off, or that all of it was written anew with hashes
that fit: whoever signs its head, and keeps the key elsewhere, makes that show.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from surehand.activities.ledger.approvals import standing
from surehand.activities.ledger.approvals.votes import is_of
from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import approvals, decisions, runs
from surehand.activities.ledger.history.audit import (
    Break,
    Event,
    asked_assurance,
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
from surehand.workflows.contracts.approvals import Assurance, ExportClaims, Signed, audience
from surehand.workflows.contracts.base import ChainHead
from surehand.workflows.identity import tenant_of_run


def first_unproven(tx: Transaction, run_id: str, events: Sequence[Event]) -> Break | None:
    """Return the first row of a run that nothing proves although it counts as proven, or ``None``.

    A key that was revoked later proves what it has signed before.

    Args:
        events: All its events, in order.
    """
    found = _start(tx, run_id, events)
    if found is not None:
        return found
    asked = _asked(tx, run_id, events)
    rows = tx.all(
        rows_of(decisions, run_id=run_id, verdict="accepted")
        .order_by(decisions.c.at_ms, decisions.c.decision_id)
        # What is proven is nothing that is sealed: so it is of a run that was erased, too.
        .execution_options(sealed="stored")
    )
    told = {_name(event["body"]): event for event in events if event["type"] in _TOLD_BY}
    for row in rows:
        wanted = asked.get(row["approval_id"], Assurance.OPEN)
        found = _decision(tx, row, told.get(_name(row)), wanted)
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


def _asked(tx: Transaction, run_id: str, events: Sequence[Event]) -> dict[str, Assurance]:
    """Return what has to prove an approval's votes, by their rows and their events."""
    id_, what = approvals.c.approval_id, approvals.c.assurance
    said = [
        (row["approval_id"], row["assurance"])
        for row in tx.all(rows_of(approvals, id_, what, run_id=run_id))
    ]
    bodies = (event["body"] for event in events if event["type"] == "approval.requested")
    said += [(body["approval_id"], body.get("assurance")) for body in bodies]
    found: dict[str, Assurance] = {}
    for approval_id, assurance in said:
        before = found.get(approval_id, Assurance.OPEN)
        found[approval_id] = before.stricter(asked_assurance(assurance))
    return found


def _decision(
    tx: Transaction, row: Mapping[str, Any], told: Event | None, asked: Assurance
) -> Break | None:
    what = f"decision {row['decision_id']} of {row['approver']}"
    if told is None:
        return Break(0, f"{what} counts in the ledger, but no event tells of it")
    body = told["body"]
    if (body.get("approver"), bool(body.get("verified"))) != (row["approver"], row["verified"]):
        return Break(told["seq"], f"{what} is another in the ledger's row")
    if asked is Assurance.OPEN and not row["verified"] and row["signature"] is None:
        return None
    given = row["standing_id"] is not None
    why = _given(tx, row, asked) if given else unproven(tx, row, asked, in_force=False)
    return None if why is None else Break(told["seq"], f"nothing proves {what}: {why}")


def _given(tx: Transaction, row: Mapping[str, Any], asked: Assurance) -> str | None:
    """Return why the vote of a standing approval is none."""
    found = standing.given_by(tx, row["standing_id"])
    if found is None or not is_of(row, found):
        return "there is no such standing approval"
    why = standing.unsigned(tx, found, in_force=False)
    if why is not None:
        return why
    if not found.assurance.satisfies(asked):
        return f"decisions {asked.as_text()}"
    scope = {"tool": found.scope.tool, "tool_version": found.scope.version}
    id_ = approvals.c.approval_id
    if tx.one(rows_of(approvals, id_, approval_id=row["approval_id"], **scope)) is None:
        return "its standing approval is for another tool"
    return None if standing.is_within(tx, found) else "more was used than was granted"


S = TypeVar("S", bound=Signed)
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


def claims_to_be(token: str, claims_of: type[S]) -> tuple[str, S]:
    """Return the key id and the claims of a signature that nobody has verified.

    Raises:
        BadSignature: It has not the form of one.
    """
    return header_kid(token, claims_of.typ), claimed(token, claims_of)


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
        claims = claims_to_be(token, ExportClaims)[1]
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
