"""Resource leases: calls that name the same resource never overlap, whichever tools they are of.

A row is one resource of a tenant. It stays when the resource is free, so that its fencing token
grows with each lease. Renewal, release and freeing name the token they expect; expiry is judged
by the database's clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from surehand.activities.ledger.core.statements import insert_row, rows_of, update_rows
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import leases
from surehand.activities.ledger.effects.epochs import least_token
from surehand.activities.ledger.steps.entries import milliseconds


@dataclass(frozen=True)
class LeaseRequest:
    """Asks for the resources of one call."""

    tenant: str
    run_id: str
    step_id: str
    tool: str
    resources: tuple[str, ...]
    """Sorted and without doubles: the one order in which everybody locks them."""
    holder: str
    """Unique to this attempt."""
    attempt: int
    lease: timedelta


@dataclass(frozen=True)
class Lease:
    """One resource, held under a fencing token."""

    resource: str
    run_id: str
    step_id: str
    tool: str
    holder: str | None
    fencing_token: int


@dataclass(frozen=True)
class Busy:
    """Somebody else holds one of the resources; none was acquired."""

    resource: str
    run_id: str
    step_id: str

    def __str__(self) -> str:
        """Return it as a sentence."""
        return f"resource {self.resource!r} is held by step {self.step_id} of run {self.run_id}"


def acquire(
    tx: Transaction, request: LeaseRequest, waited: timedelta | None = None
) -> tuple[Lease, ...] | Busy:
    """Acquire all the resources of a call, or none: who waits holds nothing.

    A later attempt of the step that holds a resource takes it over at once, because Temporal has
    given the earlier one up. That one may still be calling, so others are kept out until its lease
    would have run out, even if the resource is released before.

    Args:
        waited: How long this attempt has waited; ``None`` at its first try, which records a wait.
    """
    for resource in request.resources:
        tx.lock_resource(resource)
    rows = tx.all(
        rows_of(leases)
        .where(leases.c.resource.in_(request.resources))
        .order_by(leases.c.resource)
        .with_for_update()
    )
    tx.tick()
    found = {row["resource"]: _plausible(tx, row) for row in rows}
    for resource in request.resources:
        row = found.get(resource)
        if row is not None and _keeps_out(tx, request, row):
            busy = Busy(resource, row["run_id"], row["step_id"])
            if waited is None:
                _note_busy(tx, request, "resource.waited", busy)
            return busy
    return tuple([_take(tx, request, name, found.get(name), waited) for name in request.resources])


def _plausible(tx: Transaction, row: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose times were cut, if they are of a clock that was set back since."""
    longest = tx.now_ms + row["lease_ms"]
    cut = {
        name: longest
        for name in ("lease_until_ms", "others_after_ms")
        if (row[name] or 0) > longest
    }
    if cut:
        lease = _lease_of(row)
        tx.execute(update_rows(leases, **_token(lease)).values(cut))
        _note(tx, lease, "clock.set_back", evidence=", ".join(cut), action="cut_to_what_it_can_be")
    return {**row, **cut}


def _lease_of(row: Mapping[str, Any]) -> Lease:
    return Lease(**{name: row[name] for name in Lease.__dataclass_fields__})


def _is_own(request: LeaseRequest, row: Mapping[str, Any]) -> bool:
    return (row["run_id"], row["step_id"]) == (request.run_id, request.step_id)


def _keeps_out(tx: Transaction, request: LeaseRequest, row: Mapping[str, Any]) -> bool:
    if _is_own(request, row):
        return False
    return bool(max(row["lease_until_ms"] or 0, row["others_after_ms"]) > tx.now_ms)


def _take(
    tx: Transaction,
    request: LeaseRequest,
    resource: str,
    row: Mapping[str, Any] | None,
    waited: timedelta | None,
) -> Lease:
    token, others_after_ms, rule = least_token(tx), 0, None
    lease_ms = milliseconds(request.lease)
    if row is not None:
        token, others_after_ms = max(token, row["fencing_token"] + 1), row["others_after_ms"]
        # An attempt that lost the answer to its own request has called nothing under it.
        if row["holder"] not in (None, request.holder):
            others_after_ms = max(others_after_ms, row["lease_until_ms"])
            rule = "taken_over" if _is_own(request, row) else "expired"
        if others_after_ms > tx.now_ms:
            lease_ms = max(lease_ms, row["lease_ms"])
    values = {
        "fencing_token": token,
        "run_id": request.run_id,
        "step_id": request.step_id,
        "tool": request.tool,
        "holder": request.holder,
        "lease_until_ms": tx.now_ms + milliseconds(request.lease),
        "lease_ms": lease_ms,
        "others_after_ms": others_after_ms,
        "acquired_ms": tx.now_ms,
    }
    lease = Lease(resource, request.run_id, request.step_id, request.tool, request.holder, token)
    if row is None:
        tx.execute(insert_row(leases, resource=resource, **values))
    else:
        touched = tx.execute(update_rows(leases, **_token(_lease_of(row))).values(values))
        assert touched == 1, "the resource is locked by this transaction"
    tx.event(
        request.run_id,
        "resource.acquired",
        step_id=request.step_id,
        resource=resource,
        tool=request.tool,
        fencing_token=token,
        attempt=request.attempt,
        rule=rule,
        waited_ms=None if waited is None else milliseconds(waited),
    )
    return lease


def _token(lease: Lease) -> dict[str, Any]:
    return {"resource": lease.resource, "fencing_token": lease.fencing_token}


def _held(lease: Lease) -> dict[str, Any]:
    return {**_token(lease), "holder": lease.holder}


def renew(tx: Transaction, held: Sequence[Lease], limit: timedelta) -> bool:
    """Extend a call's leases; ``False`` when one of them is not its own any more."""
    for lease in held:
        touched = tx.execute(
            update_rows(leases, **_held(lease)).values(
                lease_until_ms=tx.now_ms + milliseconds(limit)
            )
        )
        if not touched:
            return False
    return True


def release(tx: Transaction, held: Sequence[Lease]) -> None:
    """Free a call's resources; one that it has lost stays as it is."""
    for lease in held:
        touched = tx.execute(
            update_rows(leases, **_held(lease)).values(holder=None, lease_until_ms=None)
        )
        if touched:
            _note(tx, lease, "resource.released")


def lost(tx: Transaction, held: Sequence[Lease]) -> list[str]:
    """Return the resources that are not a call's own any more, or whose lease is over."""
    gone = []
    for lease in held:
        row = tx.one(
            rows_of(leases, leases.c.resource, **_held(lease)).where(
                leases.c.lease_until_ms > tx.now_ms
            )
        )
        if row is None:
            gone.append(lease.resource)
    return gone


def refuse(tx: Transaction, request: LeaseRequest, busy: Busy, waited: timedelta) -> None:
    """Record that an attempt has waited for a resource in vain."""
    _note_busy(tx, request, "resource.refused", busy, waited_ms=milliseconds(waited))


def free_expired(tx: Transaction, limit: int) -> int:
    """Free resources whose lease ran out and return how many, at most ``limit`` of them.

    Nobody waits for this: who wants such a resource takes it. It fences out a holder that comes
    back, and lets people see that the resource is free.
    """
    rows = tx.all(
        rows_of(leases)
        .where(leases.c.holder.is_not(None), leases.c.lease_until_ms <= tx.now_ms)
        .order_by(leases.c.resource)
        .limit(limit)
        # Somebody is taking it just now: it needs no freeing.
        .with_for_update(skip_locked=True)
    )
    for row in rows:
        lease = _lease_of(row)
        tx.execute(update_rows(leases, **_held(lease)).values(holder=None, lease_until_ms=None))
        _note(tx, lease, "resource.freed")
    return len(rows)


def _note(tx: Transaction, lease: Lease, type_: str, **more: Any) -> None:
    tx.event(
        lease.run_id,
        type_,
        step_id=lease.step_id,
        resource=lease.resource,
        tool=lease.tool,
        fencing_token=lease.fencing_token,
        **more,
    )


def _note_busy(tx: Transaction, request: LeaseRequest, type_: str, busy: Busy, **more: Any) -> None:
    tx.event(
        request.run_id,
        type_,
        step_id=request.step_id,
        resource=busy.resource,
        tool=request.tool,
        attempt=request.attempt,
        held_by={"run_id": busy.run_id, "step_id": busy.step_id},
        **more,
    )
