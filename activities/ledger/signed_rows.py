"""Proving who has decided and who has started a run: the signatures on record, verified again (G3).

Rows of decisions can be written by whoever has the workers' rights in the database. What such a row
is worth, its signature says; and what no event tells of, was not written by a worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select

from activities.ledger import standing, starts
from activities.ledger.audit import Break, Event
from activities.ledger.proofs import unproven
from activities.ledger.store import Ledger, Transaction
from activities.ledger.tables import approvals, decisions, runs
from activities.ledger.votes import is_of
from workflows.contracts import Assurance


async def first_unproven(
    ledger: Ledger, tenant: str, run_id: str, events: Sequence[Event]
) -> Break | None:
    """Return the first row of a run that nothing proves although it counts as proven, or ``None``.

    A key that was revoked later proves what it has signed before.

    Args:
        ledger: The ledger.
        tenant: Whose run.
        run_id: The run.
        events: All its events, in order.
    """
    async with ledger.transaction(tenant) as tx:
        found = await _start(tx, run_id, events)
        if found is not None:
            return found
        strict = await _asked_strictly(tx, run_id, events)
        rows = await tx.all(
            select(decisions)
            .where(
                decisions.c.tenant_id == tx.tenant,
                decisions.c.run_id == run_id,
                decisions.c.verdict == "accepted",
            )
            .order_by(decisions.c.at_ms, decisions.c.decision_id)
        )
        told = {_name(event["body"]): event for event in events if event["type"] in _TOLD_BY}
        for row in rows:
            found = await _decision(
                tx, row, told.get(_name(row)), strict=row["approval_id"] in strict
            )
            if found is not None:
                return found
    return None


_TOLD_BY = ("decision.accepted", "approval.standing_used")


def _name(told: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return what an event and its row have in common."""
    if told.get("standing_id") is not None:
        return told["approval_id"], told["standing_id"]
    return told["decision_id"], None


async def _start(tx: Transaction, run_id: str, events: Sequence[Event]) -> Break | None:
    opened = next((event for event in events if event["type"] == "run.opened"), None)
    row = await tx.one(
        select(runs.c.user_id, runs.c.started_by, runs.c.start_kid, runs.c.start_signature).where(
            runs.c.tenant_id == tx.tenant, runs.c.run_id == run_id
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
    why = await starts.unproven(tx, run_id)
    return None if why is None else Break(opened["seq"], f"nothing proves who started it: {why}")


async def _asked_strictly(tx: Transaction, run_id: str, events: Sequence[Event]) -> set[str]:
    """Return the approvals whose votes have to be signed, by their rows or their events."""
    rows = await tx.all(
        select(approvals.c.approval_id).where(
            approvals.c.tenant_id == tx.tenant,
            approvals.c.run_id == run_id,
            approvals.c.assurance == Assurance.SIGNED.value,
        )
    )
    said = (event["body"] for event in events if event["type"] == "approval.requested")
    strict = {body["approval_id"] for body in said if body.get("assurance") == Assurance.SIGNED}
    return strict | {row["approval_id"] for row in rows}


async def _decision(
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
    why = await (_given(tx, row) if row["standing_id"] else unproven(tx, row, in_force=False))
    return None if why is None else Break(told["seq"], f"nothing proves {what}: {why}")


async def _given(tx: Transaction, row: Mapping[str, Any]) -> str | None:
    """Return why the vote of a standing approval is none."""
    found = await standing.given_by(tx, row["standing_id"])
    if found is None or not is_of(row, found):
        return "there is no such standing approval"
    return await standing.unsigned(tx, found, in_force=False)
